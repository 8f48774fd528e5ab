/*
 * Asks the loaders of Vulkan and EGL for their drivers, as any program that draws would, and ends.
 *
 *   graphics-probe vulkan|egl|opencl
 *
 * What they load shows in their own logs (VK_LOADER_DEBUG=all, LD_DEBUG=files): without a GPU no driver stays.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static void *need(const char *library, const char *symbol)
{
    void *handle = dlopen(library, RTLD_NOW);
    void *found = handle ? dlsym(handle, symbol) : NULL;
    if (!found)
        fprintf(stderr, "graphics-probe: %s\n", dlerror());
    return found;
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    if (strcmp(what, "vulkan") == 0) {
        int (*enumerate)(const char *, uint32_t *, void *) =
            need("libvulkan.so.1", "vkEnumerateInstanceExtensionProperties");
        uint32_t count = 0;
        if (!enumerate)
            return 2;
        printf("vulkan: %d, %u extensions\n", enumerate(NULL, &count, NULL), count);
        return 0;
    }
    if (strcmp(what, "egl") == 0) {
        void *(*address)(const char *) = need("libEGL.so.1", "eglGetProcAddress");
        if (!address)
            return 2;
        unsigned (*devices)(int, void **, int *) = address("eglQueryDevicesEXT");
        int count = 0;
        printf("egl: %u, %d devices\n", devices ? devices(0, NULL, &count) : 99, count);
        return 0;
    }
    if (strcmp(what, "opencl") == 0) {
        int (*platforms)(uint32_t, void *, uint32_t *) = need("libOpenCL.so.1", "clGetPlatformIDs");
        uint32_t count = 0;
        if (!platforms)
            return 2;
        printf("opencl: %d, %u platforms\n", platforms(0, NULL, &count), count);
        return 0;
    }
    fprintf(stderr, "usage: graphics-probe vulkan|egl|opencl\n");
    return 2;
}
