"""Root file systems, built in a second from this machine's loader, C library and busybox.

    glibc       Debian's directories (merged /usr, multiarch), ld.so.conf with its include, ld.so.cache by the
                system's ldconfig
    musl        Alpine's: /lib/ld-musl-*.so.1, no multiarch, no ld.so.cache
    distroless  Debian's libraries, but neither shell nor ldconfig nor ld.so.conf nor cache

Each has the probe (probe.c) as /probe.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from support.e2e import machine

SOURCES = Path(__file__).parent
TRIPLE = f"{os.uname().machine}-linux-gnu"
LOADER = {"x86_64": "ld-linux-x86-64.so.2", "aarch64": "ld-linux-aarch64.so.1"}[os.uname().machine]
# What the C library consists of; libdl and libpthread are stubs for programs linked before glibc 2.34
# (NVIDIA's).
GLIBC = ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libgcc_s.so.1")
APPLETS = (
    *("sh", "ls", "cat", "cp", "mv", "rm", "ln", "mkdir", "mknod", "mount", "umount", "sleep", "echo", "env"),
    *("grep", "id", "stat", "test", "true", "false", "touch", "readlink", "head", "tail", "find", "ps"),
)


def compile_probe(target: Path, *, musl: bool = False) -> None:
    """Compile probe.c for the image."""
    compiler = machine.find_program("musl-gcc" if musl else "gcc")
    machine.run_command(
        [compiler, "-O1", "-Wall", "-Wextra", "-Werror", "-o", str(target), str(SOURCES / "probe.c")]
    ).check()


def build_glibc_image(root: Path) -> Path:
    """Build an image like Debian's."""
    _skeleton(root)
    _merged_usr(root)
    _c_library(root)
    _busybox(root)
    shutil.copy2(machine.find_program("ldconfig"), root / "usr/sbin/ldconfig")
    (root / "etc/ld.so.conf").write_text("include /etc/ld.so.conf.d/*.conf\n")
    (root / "etc/ld.so.conf.d").mkdir()
    (root / "etc/ld.so.conf.d/libc.conf").write_text("# libc default configuration\n/usr/local/lib\n")
    (root / f"etc/ld.so.conf.d/{TRIPLE}.conf").write_text(
        f"# Multiarch support\n/usr/local/lib/{TRIPLE}\n/lib/{TRIPLE}\n/usr/lib/{TRIPLE}\n"
    )
    compile_probe(root / "probe")
    refresh_ld_cache(root)
    return root


def refresh_ld_cache(root: Path) -> None:
    """Write the image's ld.so.cache with the system's ldconfig."""
    machine.run_command([machine.find_program("ldconfig"), "-r", str(root)]).check()


def build_distroless_image(root: Path) -> Path:
    """Build an image with only what one program needs."""
    _skeleton(root)
    for name in ("bin", "sbin", "lib"):
        (root / name).mkdir()
    (root / "lib64").mkdir()
    (root / f"usr/lib/{TRIPLE}").mkdir(parents=True)
    (root / f"lib/{TRIPLE}").mkdir(parents=True)
    _c_library(root)
    (root / "etc/os-release").write_text('ID=debian\nNAME="Distroless"\n')
    compile_probe(root / "probe")
    return root


def build_musl_image(root: Path) -> Path:
    """Build an image like Alpine's."""
    _skeleton(root)
    for name in ("bin", "sbin", "lib", "usr/lib", "usr/bin", "usr/sbin"):
        (root / name).mkdir(parents=True, exist_ok=True)
    name = f"ld-musl-{os.uname().machine}.so.1"
    shutil.copy2(Path(f"/lib/{name}").resolve(), root / "lib" / name)
    (root / f"lib/libc.musl-{os.uname().machine}.so.1").symlink_to(name)
    (root / "etc/alpine-release").write_text("3.19.0\n")
    _busybox(root)
    compile_probe(root / "probe", musl=True)
    return root


def write_archive(root: Path, archive: Path) -> Path:
    """Write the image as an archive for `docker import` and `podman import`."""
    subprocess.run(["tar", "-C", str(root), "-cf", str(archive), "."], check=True, timeout=60)
    archive.chmod(0o644)
    return archive


def copy_image(root: Path, target: Path) -> Path:
    """Copy an image with its owners, links and devices."""
    subprocess.run(["cp", "-a", str(root), str(target)], check=True, timeout=60)
    return target


def _skeleton(root: Path) -> None:
    root.mkdir(parents=True)
    root.chmod(0o755)
    for name in ("dev", "etc", "proc", "root", "run", "sys", "tmp", "usr", "var", "mnt"):
        (root / name).mkdir(mode=0o755)
    (root / "tmp").chmod(0o1777)
    (root / "var/run").symlink_to("/run")
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\n")


def _merged_usr(root: Path) -> None:
    for name in ("bin", "sbin", "lib", "lib64"):
        (root / "usr" / name).mkdir()
        (root / name).symlink_to(f"usr/{name}")
    (root / f"usr/lib/{TRIPLE}").mkdir()
    (root / "usr/local/lib").mkdir(parents=True)


def _c_library(root: Path) -> None:
    for name in GLIBC:
        source = Path(f"/lib/{TRIPLE}") / name
        if source.exists():
            shutil.copy2(source.resolve(), root / f"usr/lib/{TRIPLE}" / name)
    loader = Path(f"/lib/{TRIPLE}/{LOADER}").resolve()
    directory = root / ("lib64" if LOADER.endswith("64.so.2") else "lib")
    shutil.copy2(
        loader,
        directory.resolve() / LOADER if not directory.is_symlink() else root / "usr" / directory.name / LOADER,
    )


def _busybox(root: Path) -> None:
    """Add busybox with its applets' names; ldconfig is not one of them."""
    directory = root / "usr/bin" if (root / "bin").is_symlink() else root / "bin"
    shutil.copy2(machine.find_program("busybox"), directory / "busybox")
    for name in APPLETS:
        (directory / name).symlink_to("busybox")


def copy_static_program(target: Path) -> None:
    """Copy busybox under another name: a program that needs nothing else in the image."""
    shutil.copy2(machine.find_program("busybox"), target)


def copy_program(name: str, root: Path) -> None:
    """Copy a program of this machine into an image like Debian's, with the libraries that it needs."""
    source = Path(machine.find_program(name)).resolve()
    shutil.copy2(source, root / f"usr/bin/{name}")
    for line in machine.run_command([machine.find_program("ldd"), str(source)]).check().stdout.splitlines():
        library = line.partition("=>")[2].split("(")[0].strip()
        target = root / f"usr/lib/{TRIPLE}" / Path(library or "/").name
        if library.startswith("/") and not target.exists():
            shutil.copy2(Path(library).resolve(), target)


def build_forgiving_setrlimit(target: Path) -> Path:
    """Build a library to preload into crun where root may not raise RLIMIT_MEMLOCK (forgiving.c)."""
    source = str(SOURCES / "forgiving.c")
    machine.run_command([machine.find_program("gcc"), "-shared", "-fPIC", "-O1", "-o", str(target), source]).check()
    return target
