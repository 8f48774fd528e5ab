/*
 * Ask the launcher about many command lines in one process: its exec is recorded instead of made.
 *
 * Input: for each call the number of words and, for each word, its size and bytes; numbers are 32 bits in the machine's
 * order. Output: the same form, with the path of the program that it becomes before the words after the first one.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int recorded;

static void put(const char *data, uint32_t size)
{
    fwrite(&size, sizeof size, 1, stdout);
    fwrite(data, 1, size, stdout);
}

static int record_exec(const char *path, char *const words[])
{
    uint32_t count = 0;
    if (recorded++)
        return -1;
    while (words[count])
        count++;
    fwrite(&count, sizeof count, 1, stdout);
    put(path, (uint32_t)strlen(path));
    for (uint32_t i = 1; i < count; i++)
        put(words[i], (uint32_t)strlen(words[i]));
    return -1;
}

static ssize_t ignore_write(int fd, const void *data, size_t size)
{
    (void)fd, (void)data;
    return (ssize_t)size;
}

#define execv record_exec
#define write ignore_write
#define main launcher_main
#include SOURCE
#undef main

int main(void)
{
    uint32_t count;
    if (!freopen("/dev/null", "w", stderr))
        return 1;
    while (fread(&count, sizeof count, 1, stdin) == 1) {
        char **words = calloc(count + 1, sizeof *words), **original = calloc(count + 1, sizeof *words);
        for (uint32_t i = 0, size; i < count; i++) {
            if (fread(&size, sizeof size, 1, stdin) != 1 || !(words[i] = calloc(size + 1, 1)) ||
                fread(words[i], 1, size, stdin) != size)
                return 1;
            original[i] = words[i];
        }
        recorded = 0;
        launcher_main((int)count, words);
        for (uint32_t i = 0; i < count; i++)
            free(original[i]);
        free(original);
        free(words);
    }
    return 0;
}
