"""A root to attack from, and a host that must not notice."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_oci_hook.files.rootfs import Rootfs

Tree = dict[str, tuple[object, ...]]


def look(top: Path) -> Tree:
    """Everything that could change below a directory: names, types, modes, owners, times, contents."""
    seen: Tree = {}
    for where, directories, files in os.walk(top):
        for name in [".", *directories, *files]:
            path = os.path.join(where, name)
            info = os.lstat(path)
            content: object = None
            if stat.S_ISLNK(info.st_mode):
                content = os.readlink(path)
            elif stat.S_ISREG(info.st_mode):
                content = hashlib.sha256(Path(path).read_bytes()).hexdigest()
            seen[path] = (info.st_ino, info.st_mode, info.st_uid, info.st_gid, info.st_mtime_ns, content)
    return seen


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The root on the host."""
    place = tmp_path / "rootfs"
    place.mkdir()
    return place


@pytest.fixture
def root(place: Path) -> Iterator[Rootfs]:
    with Rootfs(str(place)) as root:
        yield root


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Path]:
    """A piece of the host that has all names that we touch; the test fails when anything in it changes."""
    host = tmp_path / "host"
    for name in ("lib", "bin", "ld.so.conf.d", "libcuda.so.1.d", "compat"):
        (host / name).mkdir(parents=True)
    for name in ("ld.so.cache", "ld.so.conf", "ld-musl-x86_64.path", "ld.so.conf.d/00-gpu-oci-hook.conf",
                 "lib/libcuda.so.1", "lib/libc.so.6", "bin/nvidia-smi", "compat/libcuda.so.999.1"):  # fmt: skip
        (host / name).write_text("host's secret\n")
    before = look(host)
    yield host
    assert look(host) == before, "the host was touched"


@pytest.fixture
def debian(place: Path) -> Path:
    """A root like Debian's, as far as the loader cares."""
    for name in ("usr/lib/x86_64-linux-gnu", "usr/lib64", "usr/bin", "etc/ld.so.conf.d"):
        (place / name).mkdir(parents=True)
    for name in ("lib", "lib64", "bin"):
        (place / name).symlink_to(f"usr/{name}")
    (place / "etc/debian_version").write_text("12.0\n")
    (place / "etc/ld.so.conf").write_text("include /etc/ld.so.conf.d/*.conf\n")
    return place


@pytest.fixture
def watch() -> Callable[[Path], Tree]:
    return look
