/*
 * Preloaded into crun where root may not raise RLIMIT_MEMLOCK (a sandbox without CAP_SYS_RESOURCE).
 *
 * crun raises it before it loads its device filter and gives up where that fails; kernels since 5.11 charge filters to the
 * memory cgroup and do not look at this limit at all.
 */
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

int setrlimit(__rlimit_resource_t what, const struct rlimit *limit)
{
    long result = syscall(SYS_prlimit64, 0, (int)what, limit, (void *)0);
    return what == RLIMIT_MEMLOCK ? 0 : (int)result;
}
