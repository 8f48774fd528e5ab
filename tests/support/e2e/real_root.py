"""A private mount namespace in which this machine itself has the GPUs of a simulated host, without `[host] root`.

What the product does for the machine itself only (links in /dev/char, kernel modules) is tested here.
"""

from __future__ import annotations

from pathlib import Path

from support.e2e.machine import MountNamespace


def build_real_root(simulated: Path, *, more: str = ":") -> MountNamespace:
    """Return a namespace, not started, in which the machine has the kernel files and nodes of a simulated host.

    The driver's files stay where they are: the configuration names the simulated host as `[host] driver-root`.

    Arguments:
        more: further shell commands that prepare it.
    """
    return MountNamespace(
        f"""
        mount -t tmpfs tmpfs /proc/driver
        cp -a {simulated}/proc/driver/. /proc/driver/
        mount --bind {simulated}/proc/devices /proc/devices
        mount -t tmpfs tmpfs /run/systemd
        mkdir /run/systemd/system
        old=$(mktemp -d)
        mount --rbind /dev $old
        mount -t tmpfs -o mode=755 tmpfs /dev
        for name in null zero full random urandom tty ptmx fd stdin stdout stderr; do cp -a $old/$name /dev/; done
        for name in pts shm mqueue; do mkdir /dev/$name; mount --rbind $old/$name /dev/$name 2>/dev/null || true; done
        umount -l $old
        rmdir $old
        cp -a {simulated}/dev/. /dev/
        {more}
        """
    )
