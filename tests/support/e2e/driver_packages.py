"""NVIDIA's own files from Debian's non-free packages, and the layouts in which hosts have them.

Packages are downloaded once into GPU_OCI_HOOK_TEST_CACHE (default /var/cache/gpu-oci-hook-tests) with a private apt
configuration, so that this machine's own stays as it is.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from support.e2e import machine
from support.e2e.images import TRIPLE

CACHE = Path(os.environ.get("GPU_OCI_HOOK_TEST_CACHE", "/var/cache/gpu-oci-hook-tests"))
SUITES = ("bookworm", "trixie")
PACKAGES = (
    *("nvidia-smi", "libnvidia-ml1", "libcuda1", "libnvidia-ptxjitcompiler1"),
    *("libnvidia-cfg1", "libnvcuvid1", "libnvidia-encode1"),
)
# Exit statuses of nvidia-smi: no driver is loaded, and its library is not found.
NO_DRIVER_LOADED, NO_LIBRARY = 9, 12


def find_debian_mirror() -> str:
    """Where this machine gets Debian's packages from, by its own configuration."""
    listed = machine.run_command(["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]).check()
    return next(line for line in listed.stdout.splitlines() if line.rstrip("/").endswith("/debian"))


def fetch_packages(suite: str, packages: Sequence[str] = PACKAGES, name: str = "nvidia") -> Path:
    """The packages of a suite, unpacked; from the cache when they are there.

    Arguments:
        name: tells apart sets of packages in the cache.
    """
    target = CACHE / f"{name}-{suite}-{os.uname().machine}"
    if (target / "complete").exists():
        return target
    shutil.rmtree(target, ignore_errors=True)
    apt = target / "apt"
    for below in ("lists/partial", "cache/archives/partial"):
        (apt / below).mkdir(parents=True)
    (apt / "sources.list").write_text(
        "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] "
        f"{find_debian_mirror()} {suite} main contrib non-free\n"
    )
    options = [
        *("-o", f"Dir::Etc::SourceList={apt}/sources.list", "-o", "Dir::Etc::SourceParts=/dev/null"),
        *("-o", f"Dir::State::Lists={apt}/lists", "-o", f"Dir::Cache={apt}/cache"),
        *("-o", "Dir::State::status=/dev/null"),  # else apt looks for the versions that this machine has installed
        *("-o", "APT::Sandbox::User=root", "-q"),
    ]
    apt_get = machine.find_program("apt-get")
    debs = target / "debs"
    debs.mkdir()
    machine.run_command([apt_get, *options, "update"], timeout=180).check()
    machine.run_command([apt_get, *options, "download", *packages], timeout=180, cwd=debs).check()
    for deb in sorted(debs.iterdir()):
        machine.run_command([machine.find_program("dpkg-deb"), "-x", str(deb), str(target / "files")]).check()
    shutil.rmtree(apt)
    (target / "complete").touch()
    return target


def read_package_version(files: Path) -> str:
    """The driver's version, from the name of its libcuda."""
    (library,) = (files / f"usr/lib/{TRIPLE}/nvidia/current").glob("libcuda.so.*.*")
    return library.name.removeprefix("libcuda.so.")


def install_debian_layout(files: Path, root: Path) -> None:
    """Debian's own layout: nvidia/current, and update-alternatives' links as nvidia-alternative's postinst
    makes them.
    """
    machine.run_command(["cp", "-a", f"{files}/usr", str(root)]).check()
    alternatives = root / "etc/alternatives"
    alternatives.mkdir(parents=True)
    directory = root / f"usr/lib/{TRIPLE}"
    for link in sorted((directory / "nvidia/current").iterdir()):
        if link.is_symlink() and link.name != "libnvidia-cfg.so.1":
            name = f"nvidia--{link.name}-{TRIPLE}"
            (alternatives / name).symlink_to(f"/usr/lib/{TRIPLE}/nvidia/current/{link.name}")
            (directory / link.name).symlink_to(f"/etc/alternatives/{name}")
    (alternatives / "nvidia--nvidia-smi").symlink_to("/usr/lib/nvidia/current/nvidia-smi")
    (root / "usr/bin").mkdir(exist_ok=True)
    (root / "usr/bin/nvidia-smi").symlink_to("/etc/alternatives/nvidia--nvidia-smi")


def install_runfile_layout(files: Path, root: Path) -> None:
    """The layout of NVIDIA's own installer: everything in the library directory and in /usr/bin."""
    directory = root / f"usr/lib/{TRIPLE}"
    directory.mkdir(parents=True)
    machine.run_command(["cp", "-a", f"{files}/usr/lib/{TRIPLE}/nvidia/current/.", str(directory)]).check()
    (root / "usr/bin").mkdir()
    shutil.copy2(files / "usr/lib/nvidia/current/nvidia-smi", root / "usr/bin/nvidia-smi")
