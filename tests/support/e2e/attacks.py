"""Hostile images: each attack changes a root file system so that a careless injector would reach the host.

An attack is a function of the root file system, the watched host directory (its content must survive
untouched), and the driver's version. It may return environment entries for the container.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from support.e2e.images import TRIPLE

Attack = Callable[[Path, Path, str], Sequence[str] | None]

# The files of the watched directory, before and after.
WATCHED = {
    "precious": "precious\n",
    "libcuda.so.1": "the host's own\n",
    "ld.so.cache": "the host's own\n",
    "nvidia-smi": "the host's own\n",
    "libcuda.so.999.0": "the host's own\n",
}

LIBRARY = f"usr/lib/{TRIPLE}"
CACHE = "etc/ld.so.cache"
CONF = "etc/ld.so.conf"
CONF_D = "etc/ld.so.conf.d"
DROP_IN = f"{CONF_D}/00-gpu-oci-hook.conf"
SMI = "usr/bin/nvidia-smi"
COMPAT = "usr/local/cuda/compat"


def make_room(path: Path) -> Path:
    """Remove what is at a path, and create the directories above it."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif path.is_symlink() or path.exists():
        path.unlink()
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def climbing_target(watched: Path) -> str:
    """Return a relative link text to the watched directory that climbs far above any root."""
    return "../" * 40 + str(watched).lstrip("/")


def link_attack(place: str, name: str = "", *, climb: bool = False) -> Attack:
    """Put a link to the watched directory, or to a name in it, at this path."""

    def attack(root: Path, watched: Path, version: str) -> None:
        target = climbing_target(watched) if climb else str(watched)
        make_room(root / place.format(version=version)).symlink_to(f"{target}/{name}" if name else target)

    return attack


def fifo_attack(place: str) -> Attack:
    """Put a FIFO at this path: opening it blocks for ever."""

    def attack(root: Path, watched: Path, version: str) -> None:
        os.mkfifo(make_room(root / place.format(version=version)))

    return attack


def device_attack(place: str, major: int, minor: int) -> Attack:
    """Put a device at this path."""

    def attack(root: Path, watched: Path, version: str) -> None:
        os.mknod(make_room(root / place.format(version=version)), 0o020666, os.makedev(major, minor))

    return attack


def directory_attack(place: str) -> Attack:
    """Put a directory that is not empty at this path."""

    def attack(root: Path, watched: Path, version: str) -> None:
        path = make_room(root / place.format(version=version))
        path.mkdir()
        (path / "content").write_text("content\n")

    return attack


def content_attack(place: str, data: bytes) -> Attack:
    """Put a file with this content at this path."""

    def attack(root: Path, watched: Path, version: str) -> None:
        make_room(root / place.format(version=version)).write_bytes(data)

    return attack


def sparse_attack(place: str, size: int) -> Attack:
    """Put a huge sparse file at this path."""

    def attack(root: Path, watched: Path, version: str) -> None:
        with make_room(root / place).open("wb") as file:
            file.truncate(size)

    return attack


def hard_link_attack(place: str, name: str) -> Attack:
    """Put a hard link to a watched file at this path: writing in place would change the host's."""

    def attack(root: Path, watched: Path, version: str) -> None:
        os.link(watched / name, make_room(root / place.format(version=version)))

    return attack


def circular_names(root: Path, watched: Path, version: str) -> None:
    """Library names that point at each other."""
    for name, other in (("libcuda.so", "libcuda.so.1"), ("libcuda.so.1", "libcuda.so")):
        make_room(root / LIBRARY / name).symlink_to(other)


def circular_cuda(root: Path, watched: Path, version: str) -> None:
    """A cuda directory that contains itself."""
    make_room(root / "usr/local/cuda").symlink_to("cuda/cuda")


def long_link_chain(root: Path, watched: Path, version: str) -> None:
    """More links in a row than any kernel follows."""
    make_room(root / CACHE)
    for number in range(100):
        (root / f"etc/l{number}").symlink_to(f"l{number + 1}")
    (root / CACHE).symlink_to("l0")


def dotted_link(root: Path, watched: Path, version: str) -> None:
    """A directory link whose text goes up and down again."""
    make_room(root / CONF_D).symlink_to(f"/usr/../../../..{watched}")


def compat_host(root: Path, watched: Path, version: str) -> None:
    """A forward compatibility library that is the host's file."""
    make_room(root / COMPAT).mkdir()
    (root / COMPAT / "libcuda.so.1").symlink_to("libcuda.so.999.0")
    (root / COMPAT / "libcuda.so.999.0").symlink_to(watched / "libcuda.so.999.0")


def compat_fifo(root: Path, watched: Path, version: str) -> None:
    """A forward compatibility library that is a FIFO."""
    make_room(root / COMPAT).mkdir()
    os.mkfifo(root / COMPAT / "libcuda.so.999.0")


def compat_newline(root: Path, watched: Path, version: str) -> None:
    """Library names that would add lines to a configuration file or to a log."""
    make_room(root / COMPAT).mkdir()
    for name in ("libcuda.so.1\nevil", "libcuda.so.999.0\n", "libevil.so.\x1b[31m", "libcuda.so.\udcff"):
        (root / COMPAT / name).write_bytes(b"\x7fELF")


def compat_dots(root: Path, watched: Path, version: str) -> None:
    """Versions that are paths, huge numbers or no numbers."""
    make_room(root / COMPAT).mkdir()
    for name in ("libcuda.so.", "libcuda.so...", f"libcuda.so.{'9' * 200}", "libcuda.so.999.-1", "libcuda.so.٣"):
        (root / COMPAT / name).write_bytes(b"\x7fELF")


def many_compat_names(root: Path, watched: Path, version: str) -> None:
    """A directory with more names than the limit of a listing."""
    make_room(root / COMPAT).mkdir()
    for number in range(30_000):
        (root / COMPAT / f"libcuda.so.{number}").touch()


def newline_directory(root: Path, watched: Path, version: str) -> None:
    """A library directory whose resolved name holds a newline and an escape."""
    real = root / "usr/lib/a\nb\x1b[31m"
    (root / LIBRARY).rename(real)
    (root / LIBRARY).symlink_to(real.name)


def steering_environment(root: Path, watched: Path, version: str) -> list[str]:
    """Variables that steer loaders and interpreters, pointing at files that would write to the host."""
    evil = root / "evil"
    evil.mkdir()
    code = f"open({str(watched / 'written')!r}, 'w').close()\n"
    for name in ("usercustomize.py", "sitecustomize.py", "os.py", "marshal.py", "startup.py"):
        (evil / name).write_text(code)
    return [
        *(f"PYTHONPATH={evil}", f"PYTHONHOME={evil}", f"PYTHONSTARTUP={evil}/startup.py"),
        *(f"LD_PRELOAD={evil}/evil.so", f"LD_LIBRARY_PATH={evil}", "GCONV_PATH=/evil", "PATH=/evil"),
        f"GPU_OCI_HOOK_CONFIG={evil}/config.toml",
    ]


def newline_environment(root: Path, watched: Path, version: str) -> list[str]:
    """Entries that would be two in a file of lines."""
    return ["EVIL=a\nNVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute\nutility"]


def inner_links(*links: tuple[str, str]) -> Attack:
    """Put links to other paths of the image where our mounts go, and request every capability."""

    def attack(root: Path, watched: Path, version: str) -> Sequence[str]:
        for place, target in links:
            make_room(root / place).symlink_to(target)
        return ["NVIDIA_DRIVER_CAPABILITIES=all"]

    return attack


def build_lying_cache() -> bytes:
    """Build a loader cache that claims four billion entries."""
    return b"glibc-ld.so.cache1.1" + b"\xff\xff\xff\xff" * 2 + b"\x02" + b"\x00" * 3 + b"\xff" * 64


# runc 1.1.5 itself, with no shim, follows such a link when it makes /dev/fd and its like on the host: these
# are tried on us alone, with `true` as the low-level runtime.
RUNC_FALLS_FOR = ("dev is a link",)

# These keep only optional files out: the container starts.
MUST_START: dict[str, Attack] = {
    "our directory is the image's libraries": inner_links(("usr/local/nvidia/lib64", f"/{LIBRARY}")),
    "our directory is usr": inner_links(("usr/local/nvidia", "..")),
    "our directory is a node": inner_links(("usr/local/nvidia", "/dev/null")),
    "configuration goes to a node": inner_links(("etc/vulkan", "/dev/null"), ("etc/OpenCL", "/dev/zero")),
    "configuration goes to our directory": inner_links(("etc/vulkan", "/usr/local/nvidia/lib64")),
    "files meet in one place": inner_links(("etc/OpenCL", "/usr/bin/nvidia-smi"), ("etc/vulkan", "/usr/bin")),
}

ATTACKS: dict[str, Attack] = {
    **MUST_START,
    "library directory is an absolute link": link_attack(LIBRARY),
    "library directory is a climbing link": link_attack(LIBRARY, climb=True),
    "usr/lib is a link": link_attack("usr/lib"),
    "usr is a link": link_attack("usr"),
    "usr/bin is a link": link_attack("usr/bin"),
    "etc is a link": link_attack("etc"),
    "etc is a climbing link": link_attack("etc", climb=True),
    "run is a link": link_attack("run"),
    "var is a link": link_attack("var"),
    "dev is a link": link_attack("dev"),
    "libcuda.so.1 is a link to a file": link_attack(f"{LIBRARY}/libcuda.so.1", "libcuda.so.1"),
    "libcuda.so.1 is a link to nothing": link_attack(f"{LIBRARY}/libcuda.so.1", "new"),
    "libcuda.so is a climbing link": link_attack(f"{LIBRARY}/libcuda.so", "libcuda.so.1", climb=True),
    "the mount point is a link to a file": link_attack(f"{LIBRARY}/libcuda.so.{{version}}", "libcuda.so.1"),
    "the mount point is a link to nothing": link_attack(f"{LIBRARY}/libcuda.so.{{version}}", "new"),
    "the mount point is a FIFO": fifo_attack(f"{LIBRARY}/libcuda.so.{{version}}"),
    "the mount point is a device": device_attack(f"{LIBRARY}/libcuda.so.{{version}}", 1, 5),
    "the mount point is a directory": directory_attack(f"{LIBRARY}/libcuda.so.{{version}}"),
    "the mount point is a hard link": hard_link_attack(f"{LIBRARY}/libcuda.so.{{version}}", "libcuda.so.1"),
    "libcuda.so.1 is a directory": directory_attack(f"{LIBRARY}/libcuda.so.1"),
    "libcuda.so.1 is a FIFO": fifo_attack(f"{LIBRARY}/libcuda.so.1"),
    "libcuda.so.1 is a disk": device_attack(f"{LIBRARY}/libcuda.so.1", 1, 0),
    "libcuda.so.1 is a hard link": hard_link_attack(f"{LIBRARY}/libcuda.so.1", "libcuda.so.1"),
    "library names go round": circular_names,
    "nvidia-smi is a link to a file": link_attack(SMI, "nvidia-smi"),
    "nvidia-smi is a link to nothing": link_attack(SMI, "new"),
    "nvidia-smi is a directory": directory_attack(SMI),
    "nvidia-smi is a FIFO": fifo_attack(SMI),
    "cache is a link to a file": link_attack(CACHE, "ld.so.cache"),
    "cache is a link to nothing": link_attack(CACHE, "new"),
    "cache is a hard link": hard_link_attack(CACHE, "ld.so.cache"),
    "cache is a FIFO": fifo_attack(CACHE),
    "cache is /dev/zero": device_attack(CACHE, 1, 5),
    "cache is a directory": directory_attack(CACHE),
    "cache is 1 GB sparse": sparse_attack(CACHE, 1 << 30),
    "cache is garbage": content_attack(CACHE, os.urandom(5000)),
    "cache lies about its size": content_attack(CACHE, build_lying_cache()),
    "cache is from the future": content_attack(CACHE, b"glibc-ld.so.cache9.9" + bytes(64)),
    "cache is a chain of links": long_link_chain,
    "ld.so.conf is a link": link_attack(CONF, "precious"),
    "ld.so.conf is a FIFO": fifo_attack(CONF),
    "ld.so.conf is a directory": directory_attack(CONF),
    "ld.so.conf.d is a link": link_attack(CONF_D),
    "ld.so.conf.d is full of dots": dotted_link,
    "ld.so.conf.d is a FIFO": fifo_attack(CONF_D),
    "the drop-in is a link": link_attack(DROP_IN, "precious"),
    "the drop-in is a hard link": hard_link_attack(DROP_IN, "precious"),
    "the drop-in is a FIFO": fifo_attack(DROP_IN),
    "cuda goes round": circular_cuda,
    "compat is a link": link_attack(COMPAT),
    "compat library is the host's": compat_host,
    "compat library is a FIFO": compat_fifo,
    "compat names have newlines": compat_newline,
    "compat versions are strange": compat_dots,
    "compat has 30000 names": many_compat_names,
    "the library directory's name has a newline": newline_directory,
    "environment steers interpreters": steering_environment,
    "environment has newlines": newline_environment,
}
