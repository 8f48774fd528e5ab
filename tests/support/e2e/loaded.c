/*
 * Which file the loader takes for each name: dlopens the names, then prints the file of each from /proc/self/maps.
 *
 *   loaded NAME...
 *
 * One line for each name: the file's path, or "- " and dlerror's text. A name is matched by its part before ".so".
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static int print_mapped_file(const char *name)
{
    char line[8192], stem[256];
    const char *end = strstr(name, ".so");
    snprintf(stem, sizeof stem, "/%.*s.so", (int)(end ? end - name : 0), name);
    FILE *maps = fopen("/proc/self/maps", "r");
    if (!maps)
        return 0;
    int found = 0;
    while (!found && fgets(line, sizeof line, maps)) {
        char *path = strchr(line, '/');
        char *base = path ? strrchr(path, '/') : NULL;
        if (base && strncmp(base, stem, strlen(stem)) == 0) {
            path[strcspn(path, "\n")] = '\0';
            puts(path);
            found = 1;
        }
    }
    fclose(maps);
    return found;
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (!dlopen(argv[i], RTLD_NOW))
            printf("- %s\n", dlerror());
        else if (!print_mapped_file(argv[i]))
            printf("- %s is loaded and not in the maps\n", argv[i]);
    }
    return 0;
}
