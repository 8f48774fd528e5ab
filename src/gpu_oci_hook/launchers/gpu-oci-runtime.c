/*
 * Launcher of gpu-oci-runtime: become the low-level runtime at once when that is all the Python program would do.
 *
 * Every doubt means "start Python", with the same words. There is no rule here that src/gpu_oci_hook/shim/main.py does not
 * have; tests/shim/test_native_launcher.py compares the two. The low-level runtime and the trigger words come from the
 * Python program's own cache (shim/launcher_records.py), which counts only while the configuration, PATH and the runtime
 * are those that it was written for.
 *
 * Compile with -DPYTHON_LAUNCHER="..." (absolute path) and -DVERSION="...".
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef STATE_DIRECTORY
#define STATE_DIRECTORY "/run/gpu-oci-hook"
#endif
#define DEFAULT_CONFIG "/etc/gpu-oci-hook/config.toml"
#define LOOP_GUARD "GPU_OCI_HOOK_PROCESS"
#define FORMAT "gpu-oci-launcher 1"
#define CHECKSUM_SIZE 16
#define STATE_LIMIT (1 << 20)
#define CONFIG_JSON_LIMIT (8 << 20) /* larger ones are Python's */
#define MAX_TRIGGERS 64

/* By this note `install` and the search for a low-level runtime recognise the compiled launcher, see program_names.py. */
#define MARKER "# Launcher of gpu-oci-hook, written by `gpu-oci-hook install`: gpu_oci_hook.shim.main"
static const struct {
    uint32_t name_size, text_size, type;
    char name[16], text[sizeof MARKER];
} note __attribute__((used, aligned(4), section(".note.gpu-oci-hook"))) = {13, sizeof MARKER, 1, "gpu-oci-hook", MARKER};

struct span {
    const char *at, *end;
};

/* What the cache says about this configuration and PATH. */
struct runtime {
    const char *path;
    const char *triggers[MAX_TRIGGERS];
    int trigger_count;
};

static bool is_private(const struct stat *status)
{
    return status->st_uid == geteuid() && !(status->st_mode & 022);
}

/* Read a regular file of at most `limit` bytes to its end; false if it is anything else. It never waits on a FIFO. */
static bool read_file(int directory, const char *path, int flags, bool must_be_private, off_t limit, struct span *content)
{
    struct stat status;
    bool done = false;
    int fd = openat(directory, path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC | flags);
    if (fd < 0)
        return false;
    if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && status.st_size > 0 && status.st_size <= limit &&
        (!must_be_private || is_private(&status))) {
        size_t size = (size_t)status.st_size, have = 0;
        char *data = malloc(size + 1);
        ssize_t part = 1;
        while (data && have <= size && (part = read(fd, data + have, size + 1 - have)) > 0)
            have += (size_t)part;
        done = data && part == 0 && have == size;
        *content = (struct span){data, data + have};
        if (!done)
            free(data);
    }
    close(fd);
    return done;
}

/* Compare the first bytes with those of the rest: as a number, big-endian, modulo 2^61 - 1, in hexadecimal. */
static bool has_checksum(struct span content)
{
    const uint64_t prime = (UINT64_C(1) << 61) - 1;
    uint64_t sum = 0;
    char text[CHECKSUM_SIZE + 1];
    if (content.end - content.at < CHECKSUM_SIZE)
        return false;
    for (const char *at = content.at + CHECKSUM_SIZE; at < content.end; at++)
        sum = (uint64_t)((((unsigned __int128)sum << 8) | (unsigned char)*at) % prime);
    snprintf(text, sizeof text, "%016llx", (unsigned long long)sum);
    return memcmp(text, content.at, CHECKSUM_SIZE) == 0;
}

/* Read the cache from the first state directory that has one: the machine's, then the user's own. */
static bool read_state(struct span *content)
{
    const char *run = getenv("XDG_RUNTIME_DIR");
    char user_directory[4096] = "";
    const char *directories[] = {STATE_DIRECTORY, user_directory};
    struct stat status;
    if (run && run[0] == '/' && stat(run, &status) == 0 && is_private(&status) && strlen(run) < 4000)
        sprintf(user_directory, "%s/gpu-oci-hook", run);
    for (int i = 0; i < 2; i++) {
        int fd = open(directories[i], O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        bool done = fd >= 0 && fstat(fd, &status) == 0 && is_private(&status) &&
                    read_file(fd, "runtime", O_NOFOLLOW, true, STATE_LIMIT, content) && has_checksum(*content);
        if (fd >= 0)
            close(fd);
        if (done)
            return true;
    }
    return false;
}

/* Return the next text of the records, which ends with a NUL; NULL at their end. */
static const char *next_text(struct span *records)
{
    const char *text = records->at, *end = text < records->end ? memchr(text, 0, (size_t)(records->end - text)) : NULL;
    if (!end)
        return NULL;
    records->at = end + 1;
    return text;
}

/* Tell whether a file has the signature of a record: device, inode, size, mtime and ctime; "" if it does not exist. */
static bool has_signature(const char *path, const char *signature)
{
    struct stat s;
    char text[128] = "";
    if (stat(path, &s) == 0)
        snprintf(text, sizeof text, "%llu %llu %lld %lld %lld", (unsigned long long)s.st_dev, (unsigned long long)s.st_ino,
                 (long long)s.st_size, (long long)s.st_mtim.tv_sec * 1000000000LL + s.st_mtim.tv_nsec,
                 (long long)s.st_ctim.tv_sec * 1000000000LL + s.st_ctim.tv_nsec);
    return strcmp(text, signature) == 0;
}

/* Find the record of a configuration and PATH: the fields are those of launcher_records.py. */
static bool find_runtime(struct span records, const char *config, const char *search_path, struct runtime *found)
{
    const char *text = next_text(&records), *version = next_text(&records);
    if (!text || !version || strcmp(text, FORMAT) != 0 || strcmp(version, VERSION) != 0)
        return false;
    while ((text = next_text(&records))) {
        const char *path = next_text(&records), *config_signature = next_text(&records);
        const char *runtime_signature, *count;
        found->path = next_text(&records);
        runtime_signature = next_text(&records);
        count = next_text(&records);
        if (!count)
            return false;
        found->trigger_count = atoi(count);
        if (found->trigger_count < 1 || found->trigger_count > MAX_TRIGGERS)
            return false;
        for (int i = 0; i < found->trigger_count; i++)
            if (!(found->triggers[i] = next_text(&records)) || !found->triggers[i][0])
                return false;
        if (strcmp(text, config) == 0 && strcmp(path, search_path) == 0)
            return found->path[0] == '/' && has_signature(config, config_signature) &&
                   has_signature(found->path, runtime_signature);
    }
    return false;
}

static bool is_one_of(const char *word, const char *const *words)
{
    for (; *words; words++)
        if (strcmp(word, *words) == 0)
            return true;
    return false;
}

/* Tell whether a word is one of the flags with a value, and count the words that it takes: 0 if it is not. */
static int count_flag_words(const char *word, const char *const *flags)
{
    for (; *flags; flags++) {
        size_t length = strlen(*flags);
        if (strncmp(word, *flags, length) == 0 && (word[length] == 0 || (word[length] == '=' && word[1] == '-')))
            return word[length] ? 1 : 2;
    }
    return 0;
}

/* Return the bundle of a `create` or `run` in a form that engines write; NULL for every other command line. */
static const char *find_bundle(int count, char **words)
{
    static const char *const global_values[] = {"--root", "--log", "--log-format", "--log-level", "--rootless",
                                                "--cgroup-manager", "--criu", NULL};
    static const char *const global_switches[] = {"--systemd-cgroup", "--debug", NULL};
    static const char *const values[] = {"--pid-file", "--console-socket", "--pidfd-socket", "--preserve-fds", NULL};
    static const char *const switches[] = {"--no-pivot", "--no-new-keyring", "--no-subreaper", "--detach", "-d", "--keep", NULL};
    static const char *const bundle_flags[] = {"--bundle", "-b", NULL};
    const char *bundle = NULL;
    int at = 1, size;
    while (at < count && words[at][0] == '-')
        if ((size = count_flag_words(words[at], global_values)))
            at += size;
        else if (is_one_of(words[at], global_switches))
            at++;
        else
            return NULL;
    if (at >= count || (strcmp(words[at], "create") != 0 && strcmp(words[at], "run") != 0))
        return NULL;
    for (at++; at < count - 1; at += size)
        if ((size = count_flag_words(words[at], bundle_flags))) {
            if (bundle || at + size > count - 1)
                return NULL;
            bundle = size == 2 ? words[at + 1] : strchr(words[at], '=') + 1;
        } else if ((size = count_flag_words(words[at], values)) == 0) {
            if (!is_one_of(words[at], switches))
                return NULL;
            size = 1;
        }
    return at == count - 1 && words[at][0] && words[at][0] != '-' && bundle && bundle[0] ? bundle : NULL;
}

/* Tell whether a bundle's config.json was read to its end and has no trigger word. */
static bool asks_for_nothing(const char *bundle, const struct runtime *runtime)
{
    char path[4096];
    struct span content;
    size_t length = strlen(bundle);
    if (length > 4000)
        return false;
    sprintf(path, "%s%sconfig.json", bundle, bundle[length - 1] == '/' ? "" : "/");
    if (!read_file(AT_FDCWD, path, 0, false, CONFIG_JSON_LIMIT, &content))
        return false;
    for (int i = 0; i < runtime->trigger_count; i++)
        if (memmem(content.at, (size_t)(content.end - content.at), runtime->triggers[i], strlen(runtime->triggers[i])))
            return false;
    return true;
}

/* Tell whether the Python program would do nothing but become the low-level runtime, and print the version if asked. */
static bool decide(int count, char **words, const struct runtime *runtime)
{
    static const char *const version_flags[] = {"version", "v", "V", NULL};
    static const char *const commands[] = {"create", "run", "update", NULL};
    bool is_creation = false;
    if (count == 2 && (strcmp(words[1], "--version") == 0 || strcmp(words[1], "-v") == 0)) {
        static const char text[] = "gpu-oci-runtime version " VERSION "\n";
        return write(1, text, sizeof text - 1) > 0;
    }
    for (int i = 1; i < count; i++) {
        char name[16];
        const char *word = words[i] + strspn(words[i], "-");
        size_t length = strcspn(word, "=");
        is_creation = is_creation || is_one_of(words[i], commands);
        if (word == words[i] || length >= sizeof name)
            continue;
        memcpy(name, word, length);
        name[length] = 0;
        if (is_one_of(name, version_flags))
            return false;
    }
    if (!is_creation)
        return true;
    const char *bundle = find_bundle(count, words);
    return bundle && asks_for_nothing(bundle, runtime);
}

/* Become the low-level runtime if that is all there is to do; return if Python must decide, or report the failure. */
static void try_low_level_runtime(int count, char **words)
{
    struct span content, records;
    struct runtime runtime;
    char pid[24], search_path[8192] = "";
    const char *config = getenv("GPU_OCI_HOOK_CONFIG"), *path = getenv("PATH"), *guard = getenv(LOOP_GUARD);
    uint32_t size;
    snprintf(pid, sizeof pid, "%ld", (long)getpid());
    if (count < 2 || (guard && strcmp(guard, pid) == 0) || !read_state(&content))
        return;
    if (path && snprintf(search_path, sizeof search_path, "=%s", path) >= (int)sizeof search_path)
        return;
    records.at = content.at + CHECKSUM_SIZE + sizeof size;
    if (records.at > content.end)
        return;
    memcpy(&size, content.at + CHECKSUM_SIZE, sizeof size);
    if (size > (size_t)(content.end - records.at))
        return;
    records.end = records.at + size;
    if (!find_runtime(records, config && config[0] ? config : DEFAULT_CONFIG, search_path, &runtime) ||
        !decide(count, words, &runtime) || setenv(LOOP_GUARD, pid, 1) != 0)
        return;
    words[0] = (char *)runtime.path;
    execv(runtime.path, words);
    if (guard)
        setenv(LOOP_GUARD, guard, 1);
    else
        unsetenv(LOOP_GUARD);
}

int main(int count, char **words)
{
    try_low_level_runtime(count, words);
    if (count > 0) {
        words[0] = (char *)PYTHON_LAUNCHER;
        execv(PYTHON_LAUNCHER, words);
    }
    fprintf(stderr, "gpu-oci-runtime: %s: cannot be run (%s): run gpu-oci-hook install again\n", PYTHON_LAUNCHER, strerror(errno));
    return 1;
}
