"""Notice changes outside a container: of the watched directory, the simulated host and this machine."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from support.e2e.attacks import LIBRARY, WATCHED
from support.e2e.host import SimulatedHost

# Files of the machine that an injector would change if it took the image's root for its own.
MACHINE = ("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/passwd", "/usr/bin/busybox")
MACHINE_DIRECTORIES = ("/etc", "/etc/ld.so.conf.d", "/usr/lib", f"/{LIBRARY}", "/usr/bin", "/usr/local", "/evil")
# Longer than any start takes; a FIFO that was opened, or a gigabyte that was read, takes longer.
PATIENCE = 20.0


def fingerprint_host(watched: Path, simulated: SimulatedHost) -> dict[str, object]:
    """Everything about the watched directory, the simulated host and the machine that must not change."""
    facts: dict[str, object] = {}
    for top in (watched, simulated.root):
        for directory, names, files in os.walk(top):
            for name in sorted([*names, *files, "."]):
                path = Path(directory) / name
                status = path.lstat()
                facts[str(path)] = (
                    *(status.st_mode, status.st_uid, status.st_gid, status.st_size, status.st_mtime_ns),
                    os.readlink(path) if path.is_symlink() else "",
                )
    for name in WATCHED:
        facts[f"content of {name}"] = (watched / name).read_text()
    for name in MACHINE:
        facts[name] = hashlib.sha256(Path(name).read_bytes()).hexdigest() if Path(name).exists() else None
    for name in MACHINE_DIRECTORIES:
        facts[name] = sorted(os.listdir(name)) if Path(name).exists() else None
    return facts


# Exchanges a directory with a link to the watched directory as fast as the kernel can.
RACER = """
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
first, second = (word.encode() for word in sys.argv[1:])
print("racing", flush=True)
while True:
    libc.renameat2(-100, first, -100, second, 2)
"""
