/* What a process of a container does against a command that changes the container: one action, for ever. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

static void say_ready(void)
{
    puts("racing");
    fflush(stdout);
}

int main(int count, char **words)
{
    if (count == 4 && !strcmp(words[1], "exchange")) {
        say_ready();
        for (;;)
            syscall(SYS_renameat2, AT_FDCWD, words[2], AT_FDCWD, words[3], 2 /* RENAME_EXCHANGE */);
    }
    if (count == 4 && !strcmp(words[1], "node")) { /* a node of ours that is /dev/zero, again and again */
        (void)words[3];
        say_ready();
        for (;;) {
            unlink(words[2]);
            mknod(words[2], S_IFCHR | 0666, makedev(1, atoi(words[3])));
        }
    }
    if (count == 4 && !strcmp(words[1], "mount")) { /* a tmpfs or a bind of /proc over a target, in turn */
        say_ready();
        for (unsigned round = 0;; round++) {
            if (!strcmp(words[3], "tmpfs"))
                mount("attack", words[2], "tmpfs", 0, "");
            else if (!strcmp(words[3], "writable"))
                mount(NULL, words[2], NULL, MS_REMOUNT | MS_BIND, NULL);
            else
                mount(words[3], words[2], NULL, MS_BIND | MS_REC, NULL);
            usleep(200 + round % 7 * 300);
            if (strcmp(words[3], "writable"))
                umount2(words[2], MNT_DETACH);
        }
    }
    if (count == 4 && !strcmp(words[1], "hang")) { /* a FUSE file system that never answers; no call here may wait for it */
        int fd = open(words[3], O_RDWR);
        char options[100];
        if (fd < 0)
            return 1;
        snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", fd);
        if (mount("attack", words[2], "fuse", 0, options) != 0) {
            perror("mount");
            return 1;
        }
        say_ready();
        for (;;)
            pause();
    }
    return 2;
}
