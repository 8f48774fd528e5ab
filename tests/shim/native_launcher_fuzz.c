/*
 * Fuzz the launcher with libFuzzer: the input is the cache, the environment, the command line and a config.json.
 *
 * The first byte chooses what is repaired, since random bytes never have a checksum that fits: bit 0 the checksum, bit 1
 * the format and version, bit 2 the records' size. Then follow texts that end with a NUL: the configuration's path, PATH,
 * the words, and after an empty text the bytes of the cache; config.json is the same bytes.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void *allocated[8];
static int allocations, programs;

static void *track_malloc(size_t size)
{
    void *data = malloc(size);
    if (allocations >= 8)
        abort(); /* the launcher reads two files */
    return allocated[allocations++] = data;
}

static int record_exec(const char *path, char *const words[])
{
    size_t length = strlen(path);
    for (int i = 0; words[i]; i++)
        length += strlen(words[i]); /* reads every byte that exec would */
    programs += length > 0;
    return -1;
}

static ssize_t ignore_write(int fd, const void *data, size_t size)
{
    (void)fd, (void)data;
    return (ssize_t)size;
}

static void ignore_free(void *data)
{
    (void)data;
}

#define execv record_exec
#define write ignore_write
#define malloc track_malloc
#define free ignore_free
#define main launcher_main
#include SOURCE
#undef main
#undef malloc
#undef write
#undef free

#define MAX_WORDS 24

static void write_bytes(const char *path, const uint8_t *data, size_t size)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size)
        abort();
    close(fd);
}

static void write_cache(uint8_t choice, const uint8_t *data, size_t size)
{
    static const char head[] = FORMAT "\0" VERSION;
    size_t before = CHECKSUM_SIZE + 4, total = before + ((choice & 2) ? sizeof head : 0) + size;
    uint8_t *file = calloc(total + 1, 1);
    uint32_t count = (uint32_t)(total - before);
    uint64_t sum = 0;
    char text[CHECKSUM_SIZE + 1];
    if (choice & 4)
        memcpy(file + CHECKSUM_SIZE, &count, sizeof count);
    else if (size >= 4)
        memcpy(file + CHECKSUM_SIZE, data, 4);
    if (choice & 2)
        memcpy(file + before, head, sizeof head);
    memcpy(file + total - size, data, size);
    if (choice & 1) {
        for (size_t i = CHECKSUM_SIZE; i < total; i++)
            sum = (uint64_t)((((unsigned __int128)sum << 8) | file[i]) % ((UINT64_C(1) << 61) - 1));
        snprintf(text, sizeof text, "%016llx", (unsigned long long)sum);
        memcpy(file, text, CHECKSUM_SIZE);
    }
    write_bytes(STATE_DIRECTORY "/runtime", file, total);
    free(file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char *saved[2];
    char *words[MAX_WORDS + 1] = {NULL};
    int count = 0;
    if (size < 2)
        return 0;
    char *text = malloc(size + 1), *at = text + 1, *end = text + size;
    memcpy(text, data, size);
    text[size] = 0;
    for (int i = 0; i < 2; i++) {
        saved[i] = at;
        at += strlen(at);
        at += at < end;
    }
    while (at < end && *at && count < MAX_WORDS) {
        words[count++] = at;
        at += strlen(at) + 1;
    }
    at += at < end;
    setenv("GPU_OCI_HOOK_CONFIG", saved[0], 1);
    setenv("PATH", saved[1], 1);
    size_t rest = at < end ? (size_t)(end - at) : 0;
    write_cache((uint8_t)text[0], (const uint8_t *)at, rest);
    write_bytes(STATE_DIRECTORY "/config.json", (const uint8_t *)at, rest);
    allocations = 0;
    launcher_main(count, words);
    if (count && !programs)
        abort(); /* every call becomes a program */
    programs = 0;
    for (int i = 0; i < allocations; i++)
        free(allocated[i]);
    free(text);
    return 0;
}
