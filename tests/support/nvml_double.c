/*
 * NVML's symbols without NVIDIA: answers out of the file "nvml-double" beside this library. For tests.
 *
 * The file, one record a line:
 *   mode normal|sleep|crash|chatter|orphan|lost|latin-name|latin-uuid|endless|lie-uuid|lie-gpu|lie-count|lie-twice|lie-ids|gfx
 *   driver 550.163.01
 *   gpu PCI UUID MINOR MIGMODE MEMORY MODEL...
 *   mig GPU-INDEX GI CI UUID
 * Every nvmlInit_v2 leaves one more byte in the file "nvml-double.called", so that a test can tell that nobody asked.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define SUCCESS 0
#define INVALID 2
#define UNSUPPORTED 3
#define NOT_FOUND 6
#define FUNCTION_NOT_FOUND 13
#define LOST 15
#define MOST 256

struct device {
    int mig; /* a MIG device, else a GPU */
    char pci[32], uuid[128], model[128];
    unsigned minor, mode, gi, ci;
    unsigned long long memory;
    int parent;
};

static struct device gpus[MOST], migs[MOST];
static int gpu_count, mig_count;
static char mode[32] = "normal", driver[32] = "0.0";

static void place(const char *name, char *out, size_t size)
{
    Dl_info info;
    char real[4096];
    dladdr((void *)&place, &info);
    if (!realpath(info.dli_fname, real))
        strcpy(real, info.dli_fname);
    char *slash = strrchr(real, '/');
    if (slash)
        *slash = 0;
    snprintf(out, size, "%s/%s", slash ? real : ".", name);
}

static int is(const char *word) { return strcmp(mode, word) == 0; }

int nvmlInit_v2(void)
{
    char path[5000], line[1024];
    place("nvml-double.called", path, sizeof path);
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd >= 0) {
        if (write(fd, "x", 1) != 1)
            return 999;
        close(fd);
    }
    place("nvml-double", path, sizeof path);
    FILE *file = fopen(path, "re");
    if (!file)
        return 9; /* NVML_ERROR_DRIVER_NOT_LOADED */
    gpu_count = mig_count = 0;
    while (fgets(line, sizeof line, file)) {
        struct device d;
        memset(&d, 0, sizeof d);
        line[strcspn(line, "\n")] = 0;
        if (sscanf(line, "mode %31s", mode) == 1 || sscanf(line, "driver %31s", driver) == 1)
            continue;
        if (sscanf(line, "gpu %31s %127s %u %u %llu %127[^\n]", d.pci, d.uuid, &d.minor, &d.mode, &d.memory, d.model) == 6
            && gpu_count < MOST)
            gpus[gpu_count++] = d;
        else if (sscanf(line, "mig %d %u %u %127s", &d.parent, &d.gi, &d.ci, d.uuid) == 4 && mig_count < MOST) {
            d.mig = 1;
            migs[mig_count++] = d;
        }
    }
    fclose(file);
    if (is("sleep"))
        sleep(30);
    if (is("crash"))
        raise(SIGSEGV);
    if (is("orphan") && fork() == 0) { /* keeps our descriptors, out of its parent's session */
        setsid();
        sleep(5);
        _exit(0);
    }
    while (is("chatter"))
        puts("NVML has much to say that nobody wants to hear, and never comes to an end with it");
    return SUCCESS;
}

int nvmlInitWithFlags(unsigned flags) { (void)flags; return nvmlInit_v2(); }
int nvmlShutdown(void) { return SUCCESS; }

const char *nvmlErrorString(int code)
{
    switch (code) {
    case SUCCESS: return "Success";
    case INVALID: return "Invalid Argument";
    case UNSUPPORTED: return "Not Supported";
    case NOT_FOUND: return "Not Found";
    case LOST: return "GPU is lost";
    case 9: return "Driver Not Loaded";
    }
    return "Unknown Error";
}

static int text(const char *from, char *to, unsigned length)
{
    snprintf(to, length, "%s", from);
    return SUCCESS;
}

int nvmlSystemGetDriverVersion(char *version, unsigned length) { return text(driver, version, length); }
int nvmlSystemGetNVMLVersion(char *version, unsigned length) { return text(driver, version, length); }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 12040; return SUCCESS; }
int nvmlSystemGetCudaDriverVersion(int *version) { return nvmlSystemGetCudaDriverVersion_v2(version); }

int nvmlDeviceGetCount_v2(unsigned *count)
{
    *count = gpu_count + (is("lie-count") ? 3 : 0);
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct device **device)
{
    if (index >= (unsigned)gpu_count)
        return INVALID;
    *device = &gpus[index];
    return SUCCESS;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, struct device **device)
{
    for (int i = 0; i < gpu_count; i++)
        if (!strcmp(gpus[i].uuid, uuid)) {
            *device = &gpus[i];
            return SUCCESS;
        }
    for (int i = 0; i < mig_count; i++)
        if (!strcmp(migs[i].uuid, uuid)) {
            *device = &migs[i];
            return SUCCESS;
        }
    return NOT_FOUND;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *pci, struct device **device)
{
    if (is("lost") && gpu_count > 1 && !strcasecmp(gpus[1].pci, pci))
        return LOST;
    for (int i = 0; i < gpu_count; i++)
        if (!strcasecmp(gpus[i].pci, pci)) {
            *device = &gpus[i];
            return SUCCESS;
        }
    return NOT_FOUND;
}

int nvmlDeviceGetUUID(struct device *device, char *uuid, unsigned length)
{
    if (is("latin-uuid"))
        return text("GPU-\xe9\xff", uuid, length);
    if (device->mig && is("lie-uuid"))
        return text("rm -rf / #\n", uuid, length);
    if (device->mig && is("lie-twice"))
        return text(migs[0].uuid, uuid, length);
    if (!device->mig && is("lie-gpu"))
        return text("GPU-00000000-0000-0000-0000-000000000000", uuid, length);
    return text(device->uuid, uuid, length);
}

int nvmlDeviceGetName(struct device *device, char *name, unsigned length)
{
    if (is("latin-name"))
        return text("Quadro\xae", name, length);
    if (device->mig && is("gfx") && device->gi == 7) {
        char full[256];
        snprintf(full, sizeof full, "%s MIG 1g.24gb+gfx", gpus[device->parent].model);
        return text(full, name, length);
    }
    return text(device->mig ? gpus[device->parent].model : device->model, name, length);
}

int nvmlDeviceGetMinorNumber(struct device *device, unsigned *minor)
{
    *minor = device->minor;
    return device->mig ? UNSUPPORTED : SUCCESS;
}

struct pci_info {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char text[32];
};

int nvmlDeviceGetPciInfo_v3(struct device *device, struct pci_info *info)
{
    const struct device *gpu = device->mig ? &gpus[device->parent] : device;
    memset(info, 0, sizeof *info);
    if (sscanf(gpu->pci, "%x:%x:%x", &info->domain, &info->bus, &info->device) != 3)
        return 999;
    info->id = 0x20b010de;
    snprintf(info->text, sizeof info->text, "%08X:%02X:%02X.0", info->domain, info->bus, info->device);
    snprintf(info->legacy, sizeof info->legacy, "%04X:%02X:%02X.0", info->domain & 0xffff, info->bus & 0xff, info->device & 0xff);
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(struct device *device, unsigned long long *memory)
{
    if (!device->mig && device->mode)
        return 4; /* NVML_ERROR_NO_PERMISSION, as for the parent of MIG devices */
    memory[0] = memory[1] = device->memory;
    memory[2] = 0;
    return SUCCESS;
}

int nvmlDeviceGetCudaComputeCapability(struct device *device, int *major, int *minor)
{
    (void)device;
    *major = 8;
    *minor = 0;
    return SUCCESS;
}

int nvmlDeviceGetBrand(struct device *device, int *brand) { (void)device; *brand = 2; return SUCCESS; }

int nvmlDeviceGetMigMode(struct device *device, unsigned *current, unsigned *pending)
{
    if (device->mig)
        return INVALID;
    *current = *pending = device->mode;
    return SUCCESS;
}

int nvmlDeviceGetMaxMigDeviceCount(struct device *device, unsigned *count)
{
    *count = is("endless") ? 0x7fffffff : device->mode ? 16 : 0;
    return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(struct device *device, unsigned index, struct device **found)
{
    unsigned at = 0;
    if (is("endless")) { /* the same one for ever */
        *found = &migs[0];
        return SUCCESS;
    }
    for (int i = 0; i < mig_count; i++)
        if (&gpus[migs[i].parent] == device && at++ == index) {
            if (is("lie-count") && index == 1)
                return NOT_FOUND;
            *found = &migs[i];
            return SUCCESS;
        }
    return NOT_FOUND;
}

int nvmlDeviceGetGpuInstanceId(struct device *device, unsigned *id)
{
    *id = is("lie-ids") ? 0xffffffff : device->gi;
    return device->mig ? SUCCESS : INVALID;
}

int nvmlDeviceGetComputeInstanceId(struct device *device, unsigned *id) { *id = device->ci; return device->mig ? SUCCESS : INVALID; }
