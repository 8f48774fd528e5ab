/* Run a program without its output, and print its peak resident memory in KiB: a small parent, which counts as well. */
#include <fcntl.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int count, char **words)
{
    struct rusage usage;
    int status, null = open("/dev/null", O_RDWR);
    pid_t child = fork();
    if (child == 0) {
        for (int fd = 0; fd < 3; fd++)
            dup2(null, fd);
        execv(words[1], words + 1);
        _exit(127);
    }
    if (count < 2 || child < 0 || wait4(child, &status, 0, &usage) < 0 || status != 0)
        return 1;
    printf("%ld\n", usage.ru_maxrss);
    return 0;
}
