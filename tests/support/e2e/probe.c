/*
 * What a container really sees: opens device nodes, dlopens libraries, and prints one line of JSON.
 *
 *   probe [--node PATH]... [--read PATH]... [--make MAJOR:MINOR]... [--library NAME]...
 *
 * --node     open(PATH, O_RDWR). A kernel without the driver answers ENXIO where the device cgroup allows the node, EPERM
 *            where it does not.
 * --read     the same with O_RDONLY, for nodes that only may be read (MIG capabilities).
 * --make     makes a character device with these numbers below /dev (always a tmpfs of the container's own), opens it and
 *            removes it again. The answer is that of open(), or "mknod EPERM" and the like where making it failed.
 * --library  dlopen(NAME, RTLD_NOW).
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

static const char *errno_name(int number)
{
    static char unknown[32];
    switch (number) {
    case 0: return "ok";
    case ENXIO: return "ENXIO";
    case ENODEV: return "ENODEV";
    case EPERM: return "EPERM";
    case EACCES: return "EACCES";
    case ENOENT: return "ENOENT";
    case ENOTDIR: return "ENOTDIR";
    case EROFS: return "EROFS";
    case EIO: return "EIO";
    case EBUSY: return "EBUSY";
    case EEXIST: return "EEXIST";
    case EINVAL: return "EINVAL";
    case EISDIR: return "EISDIR";
    case ELOOP: return "ELOOP";
    }
    snprintf(unknown, sizeof unknown, "errno %d", number);
    return unknown;
}

static void print_string(const char *text)
{
    putchar('"');
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\')
            printf("\\%c", c);
        else if (c < 0x20)
            printf("\\u%04x", c);
        else
            putchar(c);
    }
    putchar('"');
}

static const char *open_node(const char *path)
{
    int fd = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return errno_name(errno);
    close(fd);
    return "ok";
}

static const char *read_node(const char *path)
{
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return errno_name(errno);
    close(fd);
    return "ok";
}

static const char *make_node(const char *numbers)
{
    static char answer[64];
    unsigned int major_number, minor_number;
    if (sscanf(numbers, "%u:%u", &major_number, &minor_number) != 2)
        return "bad numbers";
    char path[64];
    snprintf(path, sizeof path, "/dev/.probe-%u-%u", major_number, minor_number);
    if (mknod(path, S_IFCHR | 0666, makedev(major_number, minor_number)) != 0) {
        snprintf(answer, sizeof answer, "mknod %s", errno_name(errno));
        return answer;
    }
    const char *result = open_node(path);
    unlink(path);
    return result;
}

static const char *load(const char *name)
{
    if (dlopen(name, RTLD_NOW))
        return "ok";
    const char *reason = dlerror();
    return reason ? reason : "dlopen failed without a reason";
}

/* One JSON object of all answers to one kind of question. */
static void answers(const char *key, const char *flag, int argc, char **argv, const char *(*ask)(const char *))
{
    int first = 1;
    printf("\"%s\": {", key);
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], flag) != 0)
            continue;
        if (!first)
            printf(", ");
        first = 0;
        print_string(argv[i + 1]);
        printf(": ");
        print_string(ask(argv[i + 1]));
    }
    printf("}, ");
}

int main(int argc, char **argv)
{
    printf("{");
    answers("nodes", "--node", argc, argv, open_node);
    answers("read", "--read", argc, argv, read_node);
    answers("made", "--make", argc, argv, make_node);
    answers("libraries", "--library", argc, argv, load);
    gid_t groups[256];
    int count = getgroups(256, groups);
    printf("\"euid\": %u, \"groups\": [", (unsigned)geteuid());
    for (int i = 0; i < count; i++)
        printf("%s%u", i ? ", " : "", (unsigned)groups[i]);
    printf("]}\n");
    return 0;
}
