"""Images that mean harm: each attack spoils a root file system so that a careless injector would reach the
host.

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

# What lies in the watched directory before, and shall afterwards.
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


def clear(path: Path) -> Path:
    """Makes room for something else."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif path.is_symlink() or path.exists():
        path.unlink()
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def climbing(watched: Path) -> str:
    """The watched directory by a relative link that climbs far above any root."""
    return "../" * 40 + str(watched).lstrip("/")


def linked(place: str, name: str = "", *, climb: bool = False) -> Attack:
    """A link at this place to the watched directory, or to a name in it."""

    def attack(root: Path, watched: Path, version: str) -> None:
        target = climbing(watched) if climb else str(watched)
        clear(root / place.format(version=version)).symlink_to(f"{target}/{name}" if name else target)

    return attack


def fifo(place: str) -> Attack:
    """A FIFO at this place: whoever opens it waits for ever."""

    def attack(root: Path, watched: Path, version: str) -> None:
        os.mkfifo(clear(root / place.format(version=version)))

    return attack


def device(place: str, major: int, minor: int) -> Attack:
    """A device at this place."""

    def attack(root: Path, watched: Path, version: str) -> None:
        os.mknod(clear(root / place.format(version=version)), 0o020666, os.makedev(major, minor))

    return attack


def directory(place: str) -> Attack:
    """A directory that is not empty at this place."""

    def attack(root: Path, watched: Path, version: str) -> None:
        path = clear(root / place.format(version=version))
        path.mkdir()
        (path / "content").write_text("content\n")

    return attack


def content(place: str, data: bytes) -> Attack:
    """A file with this content."""

    def attack(root: Path, watched: Path, version: str) -> None:
        clear(root / place.format(version=version)).write_bytes(data)

    return attack


def sparse(place: str, size: int) -> Attack:
    """A huge file that costs its maker nothing."""

    def attack(root: Path, watched: Path, version: str) -> None:
        with clear(root / place).open("wb") as file:
            file.truncate(size)

    return attack


def hard_link(place: str, name: str) -> Attack:
    """A second name of a watched file: writing into it in place would change the host's."""

    def attack(root: Path, watched: Path, version: str) -> None:
        os.link(watched / name, clear(root / place.format(version=version)))

    return attack


def circle(root: Path, watched: Path, version: str) -> None:
    """Library names that point at each other."""
    for name, other in (("libcuda.so", "libcuda.so.1"), ("libcuda.so.1", "libcuda.so")):
        clear(root / LIBRARY / name).symlink_to(other)


def circular_directory(root: Path, watched: Path, version: str) -> None:
    """A cuda directory that contains itself."""
    clear(root / "usr/local/cuda").symlink_to("cuda/cuda")


def long_chain(root: Path, watched: Path, version: str) -> None:
    """More links in a row than any kernel follows."""
    clear(root / CACHE)
    for number in range(100):
        (root / f"etc/l{number}").symlink_to(f"l{number + 1}")
    (root / CACHE).symlink_to("l0")


def dot_dots(root: Path, watched: Path, version: str) -> None:
    """A directory link whose text goes up and down again."""
    clear(root / CONF_D).symlink_to(f"/usr/../../../..{watched}")


def compat_host(root: Path, watched: Path, version: str) -> None:
    """A forward compatibility library that is the host's file."""
    clear(root / COMPAT).mkdir()
    (root / COMPAT / "libcuda.so.1").symlink_to("libcuda.so.999.0")
    (root / COMPAT / "libcuda.so.999.0").symlink_to(watched / "libcuda.so.999.0")


def compat_fifo(root: Path, watched: Path, version: str) -> None:
    """A forward compatibility library that is a FIFO."""
    clear(root / COMPAT).mkdir()
    os.mkfifo(root / COMPAT / "libcuda.so.999.0")


def compat_newline(root: Path, watched: Path, version: str) -> None:
    """Library names that would add lines to a configuration file or to a log."""
    clear(root / COMPAT).mkdir()
    for name in ("libcuda.so.1\nevil", "libcuda.so.999.0\n", "libevil.so.\x1b[31m", "libcuda.so.\udcff"):
        (root / COMPAT / name).write_bytes(b"\x7fELF")


def compat_dots(root: Path, watched: Path, version: str) -> None:
    """Versions that are paths, huge numbers or no numbers."""
    clear(root / COMPAT).mkdir()
    for name in ("libcuda.so.", "libcuda.so...", f"libcuda.so.{'9' * 200}", "libcuda.so.999.-1", "libcuda.so.٣"):
        (root / COMPAT / name).write_bytes(b"\x7fELF")


def many_names(root: Path, watched: Path, version: str) -> None:
    """A directory with more names than anybody lists."""
    clear(root / COMPAT).mkdir()
    for number in range(30_000):
        (root / COMPAT / f"libcuda.so.{number}").touch()


def newline_directory(root: Path, watched: Path, version: str) -> None:
    """A library directory whose resolved name holds a newline and an escape."""
    real = root / "usr/lib/a\nb\x1b[31m"
    (root / LIBRARY).rename(real)
    (root / LIBRARY).symlink_to(real.name)


def environment(root: Path, watched: Path, version: str) -> list[str]:
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


def inside(*links: tuple[str, str]) -> Attack:
    """Links to other places of the image, where a mount of ours would hide or hit something; all files asked for."""

    def attack(root: Path, watched: Path, version: str) -> Sequence[str]:
        for place, target in links:
            clear(root / place).symlink_to(target)
        return ["NVIDIA_DRIVER_CAPABILITIES=all"]

    return attack


def lying_cache() -> bytes:
    """A loader cache that promises four billion entries."""
    return b"glibc-ld.so.cache1.1" + b"\xff\xff\xff\xff" * 2 + b"\x02" + b"\x00" * 3 + b"\xff" * 64


# runc 1.1.5 itself, with no shim, follows such a link when it makes /dev/fd and its like on the host: these
# are tried on us alone, with `true` as the low-level runtime.
RUNC_FALLS_FOR = ("dev is a link",)

# What these keep out is optional: the container starts all the same.
MUST_START: dict[str, Attack] = {
    "our directory is the image's libraries": inside(("usr/local/nvidia/lib64", f"/{LIBRARY}")),
    "our directory is usr": inside(("usr/local/nvidia", "..")),
    "our directory is a node": inside(("usr/local/nvidia", "/dev/null")),
    "configuration goes to a node": inside(("etc/vulkan", "/dev/null"), ("etc/OpenCL", "/dev/zero")),
    "configuration goes to our directory": inside(("etc/vulkan", "/usr/local/nvidia/lib64")),
    "files meet in one place": inside(("etc/OpenCL", "/usr/bin/nvidia-smi"), ("etc/vulkan", "/usr/bin")),
}

ATTACKS: dict[str, Attack] = {
    **MUST_START,
    "library directory is an absolute link": linked(LIBRARY),
    "library directory is a climbing link": linked(LIBRARY, climb=True),
    "usr/lib is a link": linked("usr/lib"),
    "usr is a link": linked("usr"),
    "usr/bin is a link": linked("usr/bin"),
    "etc is a link": linked("etc"),
    "etc is a climbing link": linked("etc", climb=True),
    "run is a link": linked("run"),
    "var is a link": linked("var"),
    "dev is a link": linked("dev"),
    "libcuda.so.1 is a link to a file": linked(f"{LIBRARY}/libcuda.so.1", "libcuda.so.1"),
    "libcuda.so.1 is a link to nothing": linked(f"{LIBRARY}/libcuda.so.1", "new"),
    "libcuda.so is a climbing link": linked(f"{LIBRARY}/libcuda.so", "libcuda.so.1", climb=True),
    "the mount point is a link to a file": linked(f"{LIBRARY}/libcuda.so.{{version}}", "libcuda.so.1"),
    "the mount point is a link to nothing": linked(f"{LIBRARY}/libcuda.so.{{version}}", "new"),
    "the mount point is a FIFO": fifo(f"{LIBRARY}/libcuda.so.{{version}}"),
    "the mount point is a device": device(f"{LIBRARY}/libcuda.so.{{version}}", 1, 5),
    "the mount point is a directory": directory(f"{LIBRARY}/libcuda.so.{{version}}"),
    "the mount point is a hard link": hard_link(f"{LIBRARY}/libcuda.so.{{version}}", "libcuda.so.1"),
    "libcuda.so.1 is a directory": directory(f"{LIBRARY}/libcuda.so.1"),
    "libcuda.so.1 is a FIFO": fifo(f"{LIBRARY}/libcuda.so.1"),
    "libcuda.so.1 is a disk": device(f"{LIBRARY}/libcuda.so.1", 1, 0),
    "libcuda.so.1 is a hard link": hard_link(f"{LIBRARY}/libcuda.so.1", "libcuda.so.1"),
    "library names go round": circle,
    "nvidia-smi is a link to a file": linked(SMI, "nvidia-smi"),
    "nvidia-smi is a link to nothing": linked(SMI, "new"),
    "nvidia-smi is a directory": directory(SMI),
    "nvidia-smi is a FIFO": fifo(SMI),
    "cache is a link to a file": linked(CACHE, "ld.so.cache"),
    "cache is a link to nothing": linked(CACHE, "new"),
    "cache is a hard link": hard_link(CACHE, "ld.so.cache"),
    "cache is a FIFO": fifo(CACHE),
    "cache is /dev/zero": device(CACHE, 1, 5),
    "cache is a directory": directory(CACHE),
    "cache is 1 GB sparse": sparse(CACHE, 1 << 30),
    "cache is garbage": content(CACHE, os.urandom(5000)),
    "cache lies about its size": content(CACHE, lying_cache()),
    "cache is from the future": content(CACHE, b"glibc-ld.so.cache9.9" + bytes(64)),
    "cache is a chain of links": long_chain,
    "ld.so.conf is a link": linked(CONF, "precious"),
    "ld.so.conf is a FIFO": fifo(CONF),
    "ld.so.conf is a directory": directory(CONF),
    "ld.so.conf.d is a link": linked(CONF_D),
    "ld.so.conf.d is full of dots": dot_dots,
    "ld.so.conf.d is a FIFO": fifo(CONF_D),
    "the drop-in is a link": linked(DROP_IN, "precious"),
    "the drop-in is a hard link": hard_link(DROP_IN, "precious"),
    "the drop-in is a FIFO": fifo(DROP_IN),
    "cuda goes round": circular_directory,
    "compat is a link": linked(COMPAT),
    "compat library is the host's": compat_host,
    "compat library is a FIFO": compat_fifo,
    "compat names have newlines": compat_newline,
    "compat versions are strange": compat_dots,
    "compat has 30000 names": many_names,
    "the library directory's name has a newline": newline_directory,
    "environment steers interpreters": environment,
    "environment has newlines": newline_environment,
}
