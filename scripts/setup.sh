# shellcheck shell=bash
# Shell functions of the scripts; sourced with the project's directory as the working directory.

# Print a heading.
step() {
    printf '\n== %s\n' "$1"
}

# Install the missing ones of these Debian packages. Do nothing where apt is not the package manager.
packages() {
    command -v dpkg-query >/dev/null && command -v apt-get >/dev/null || {
        echo "No apt: make sure that these packages are installed: $*"
        return 0
    }
    local name missing=()
    for name in "$@"; do
        dpkg-query -W -f '${db:Status-Status}\n' "$name" 2>/dev/null | grep -qx installed || missing+=("$name")
    done
    if [ ${#missing[@]} = 0 ]; then
        echo "All installed."
        return 0
    fi
    if [ "$(id -u)" != 0 ]; then
        echo "NOT ROOT: these packages stay missing: ${missing[*]}" >&2
        return 0
    fi
    echo "Installing: ${missing[*]}"
    # Packages of engines start their daemons; only their programs are needed.
    local policy=/usr/sbin/policy-rc.d status=0 log
    log=$(mktemp)
    if [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod 755 "$policy"
    else
        policy=
    fi
    export DEBIAN_FRONTEND=noninteractive
    { apt-get -qq update && apt-get -qq install --no-install-recommends "${missing[@]}"; } >"$log" 2>&1 || status=$?
    [ -z "$policy" ] || rm -f "$policy"
    [ "$status" = 0 ] || tail -n 20 "$log" >&2
    rm -f "$log"
    return "$status"
}

# Print the Python to use: the system's before one in a home directory, which other users (rootless podman) cannot run.
interpreter() {
    local python
    for python in /usr/bin/python3 python3; do
        if "$python" -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$python"
            return 0
        fi
    done
    echo "Python 3.11 or later with its venv module is needed (on Debian: apt-get install python3-venv)." >&2
    return 1
}

# Create .venv with the project in it, editable. Argument: the extra to install, or nothing.
environment() {
    local extra=${1:+[$1]} mark=.venv/.installed-${1:-plain}
    [ -x .venv/bin/python ] || "$(interpreter)" -m venv .venv
    # Installing needs the network, so it is repeated only when the dependencies change.
    if [ ! "$mark" -nt pyproject.toml ]; then
        PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1 .venv/bin/python -m pip install --quiet -e ".$extra"
        touch "$mark"
    fi
    .venv/bin/python --version
}
