# shellcheck shell=bash
# Debian roots for tests: bootstrapped once, copied, entered. Sourced by the scripts in tests/e2e.
#
# Needs root, git and debootstrap. Roots are kept in GPU_OCI_HOOK_TEST_CACHE (default /var/cache/gpu-oci-hook-tests).

cache=${GPU_OCI_HOOK_TEST_CACHE:-/var/cache/gpu-oci-hook-tests}

# Print the cached root of a Debian release with only python3 and apt; bootstrap it the first time.
bootstrap_debian() {
    local suite=$1 base=$cache/fresh-$1 scripts=/usr/share/debootstrap/scripts mirror
    if [ ! -e "$base.complete" ]; then
        rm -rf --one-file-system "$base"
        mkdir -p "$cache"
        # from where this machine gets its own packages
        mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -m 1 '/debian/*$')
        # An older debootstrap has no script for a newer release; all of them are the same script by now.
        [ -e "$scripts/$suite" ] || set -- "$suite" "$scripts/sid"
        debootstrap --variant=minbase --include=python3 "$suite" "$base" "$mirror" "${@:2}" >&2
        touch "$base.complete"
    fi
    echo "$base"
}

# Print the cached root of a Debian release with these packages in addition. The list is part of the cache's key.
provision_debian() {
    local suite=$1 name=$2 key base
    shift 2
    key=$(printf '%s\n' "$@" | sha256sum)
    base=$cache/$name-$suite-${key:0:8}
    if [ ! -e "$base.complete" ]; then
        rm -rf --one-file-system "$base"
        cp -a "$(bootstrap_debian "$suite")/." "$base/"
        enter_debian "$base" sh -c 'apt-get -qq -o Acquire::Check-Valid-Until=false update && apt-get -qq install -y --no-install-recommends "$@" >/dev/null' sh "$@" >&2
        touch "$base.complete"
    fi
    echo "$base"
}

# Give a root this machine's way to the network: name server, proxy, and the certificates of a proxy that opens TLS.
# Set the array `settings` to the environment of its commands.
share_network() {
    local root=$1 name
    cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
    settings=(PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive)
    for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY PIP_INDEX_URL; do
        [ -z "${!name:-}" ] || settings+=("$name=${!name}")
    done
    if [ -n "${PIP_CERT:-}" ]; then
        install -D -m 644 "$PIP_CERT" "$root/opt/certificates.pem"
        settings+=(PIP_CERT=/opt/certificates.pem NODE_EXTRA_CA_CERTS=/opt/certificates.pem npm_config_cafile=/opt/certificates.pem)
    fi
}

# Run a command in a root, pivoted, with its own /dev, /run, /tmp, processes and mounts, which end with the command.
# It sees the machine's cgroup v1 tree, or with GPU_OCI_HOOK_TEST_CGROUP=2 a cgroup v2 tree, and the tests' cache.
enter_debian() {
    local root settings
    root=$(readlink -f "$1")
    shift
    share_network "$root"
    unshare --mount --pid --ipc --fork --kill-child --propagation private bash -ec '
        root=$1 cgroup=$2 cache=$3
        shift 3
        mount --bind "$root" "$root"
        mkdir -p "$cache" "$root/var/cache/gpu-oci-hook-tests"
        mount --bind "$cache" "$root/var/cache/gpu-oci-hook-tests"
        mount -t proc proc "$root/proc"
        mount -t sysfs sysfs "$root/sys"
        if [ "$cgroup" = 2 ]; then
            mount -t cgroup2 none "$root/sys/fs/cgroup"
        else
            mount --rbind /sys/fs/cgroup "$root/sys/fs/cgroup"
            umount "$root/sys/fs/cgroup/unified" 2>/dev/null || true # crun refuses a tree of both versions
        fi
        mount -t tmpfs -o mode=755 tmpfs "$root/dev"
        for node in null:3 zero:5 full:7 random:8 urandom:9; do
            mknod -m 666 "$root/dev/${node%:*}" c 1 "${node#*:}"
        done
        mknod -m 666 "$root/dev/tty" c 5 0
        [ ! -e /dev/fuse ] || mknod -m 666 "$root/dev/fuse" c 10 229
        [ ! -e /dev/net/tun ] || { mkdir "$root/dev/net" && mknod -m 666 "$root/dev/net/tun" c 10 200; }
        mkdir "$root/dev/pts" "$root/dev/shm" "$root/dev/mqueue"
        mount -t devpts -o newinstance,ptmxmode=666,mode=620 devpts "$root/dev/pts"
        mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
        mount -t mqueue mqueue "$root/dev/mqueue"
        ln -s pts/ptmx "$root/dev/ptmx"
        ln -s /proc/self/fd "$root/dev/fd"
        for stream in 0:stdin 1:stdout 2:stderr; do ln -s "fd/${stream%:*}" "$root/dev/${stream#*:}"; done
        mount -t tmpfs -o mode=755 tmpfs "$root/run"
        cd "$root"
        mkdir -p .old
        pivot_root . .old
        cd /
        umount --lazy /.old
        rmdir /.old
        exec "$@"
    ' sh "$root" "${GPU_OCI_HOOK_TEST_CGROUP:-1}" "$cache" env -i "${settings[@]}" "$@"
}

# Print a root's copy with a clean clone of the project in /project. What is committed is what gets tested.
copy_with_project() {
    local base=$1 name=$2 project root
    project=$(dirname "$(dirname "$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")")")
    root=$(mktemp -d "/tmp/gpu-oci-$name-XXXXXX")
    chmod 755 "$root"
    cp -a "$base/." "$root/"
    git clone --quiet "$project" "$root/project"
    echo "$root"
}
