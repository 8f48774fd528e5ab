"""NVIDIA's own files out of Debian's non-free component: the real nvidia-smi in a container must find its
library.

It then ends with status 9 (cannot talk to the driver: there is none); without the library it would be 12. The
packages are fetched once into GPU_OCI_HOOK_TEST_CACHE (default /var/cache/gpu-oci-hook-tests) with a private
apt configuration, so that the machine's own stays as it is.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from support.e2e import engines, host, machine
from support.e2e.engines import BareRuntime, ContainerRequest
from support.e2e.images import TRIPLE
from support.e2e.requirements import require_programs

CACHE = Path(os.environ.get("GPU_OCI_HOOK_TEST_CACHE", "/var/cache/gpu-oci-hook-tests"))
SUITES = ("bookworm", "trixie")
PACKAGES = (
    *("nvidia-smi", "libnvidia-ml1", "libcuda1", "libnvidia-ptxjitcompiler1"),
    *("libnvidia-cfg1", "libnvcuvid1", "libnvidia-encode1"),
)
COULD_NOT_TALK, NO_LIBRARY = 9, 12


def mirror() -> str:
    """Where this machine gets Debian's packages from, by its own configuration."""
    listed = machine.run_command(["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]).check()
    return next(line for line in listed.stdout.splitlines() if line.rstrip("/").endswith("/debian"))


def fetch(suite: str, packages: Sequence[str] = PACKAGES, name: str = "nvidia") -> Path:
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
        f"deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] {mirror()} {suite} main contrib non-free\n"
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


def version_of(files: Path) -> str:
    """The driver's version, from the name of its libcuda."""
    (library,) = (files / f"usr/lib/{TRIPLE}/nvidia/current").glob("libcuda.so.*.*")
    return library.name.removeprefix("libcuda.so.")


def debian(files: Path, root: Path) -> None:
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


def runfile(files: Path, root: Path) -> None:
    """The layout of NVIDIA's own installer: everything in the library directory and in /usr/bin."""
    directory = root / f"usr/lib/{TRIPLE}"
    directory.mkdir(parents=True)
    machine.run_command(["cp", "-a", f"{files}/usr/lib/{TRIPLE}/nvidia/current/.", str(directory)]).check()
    (root / "usr/bin").mkdir()
    shutil.copy2(files / "usr/lib/nvidia/current/nvidia-smi", root / "usr/bin/nvidia-smi")


@pytest.fixture(scope="session", params=SUITES)
def packages(request: pytest.FixtureRequest) -> Iterator[Path]:
    """The unpacked packages of each suite."""
    require_programs("runc", "gcc", "busybox")
    yield fetch(request.param) / "files"


@pytest.mark.parametrize("cache", [True, False], ids=["cache", "no-cache"])
@pytest.mark.parametrize("layout", [debian, runfile], ids=["debian", "runfile"])
def test_nvidia_smi_finds_its_library(
    packages: Path,
    layout: object,
    cache: bool,
    image: Path,
    runtime: host.InstalledRuntime,
    workspace: Path,
    tmp_path: Path,
) -> None:
    version = version_of(packages)
    root = Path(str(tmp_path / f"host-{version}-{cache}"))
    simulated = host.build_host(tmp_path / "simulated", gpus=1, version=version)
    root.mkdir()
    assert callable(layout)
    layout(packages, root)
    for name in ("proc", "dev", "sys"):
        if (simulated.root / name).exists():
            machine.run_command(["cp", "-a", str(simulated.root / name), str(root)]).check()
    (root / "etc").mkdir(exist_ok=True)
    (root / "etc/ld.so.conf").write_text(f"/usr/lib/{TRIPLE}\n")
    if cache:
        machine.run_command([machine.find_program("ldconfig"), "-r", str(root)]).check()
    wrapper = runtime.wrapper("runc", root, name=f"-{tmp_path.name}")
    bare_runtime = BareRuntime("runc", "v1", "run")
    bare_runtime.start(engines.EngineHome(tmp_path, image, lambda _: wrapper))
    done = bare_runtime.run(ContainerRequest(["/usr/bin/nvidia-smi"], ["NVIDIA_VISIBLE_DEVICES=all"]))
    assert done.status != NO_LIBRARY, done
    assert done.status == COULD_NOT_TALK, done
    libraries = ["libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1"]
    words = [word for name in libraries for word in ("--library", name)]
    probed = bare_runtime.run(ContainerRequest(["/probe", *words], ["NVIDIA_VISIBLE_DEVICES=all"])).check()
    assert [name for name in libraries if f'"{name}": "ok"' not in probed.stdout] == []


def test_without_us_it_finds_none(packages: Path, image: Path, tmp_path: Path) -> None:
    """The control: the same binary in the same image, and no library."""
    bare_runtime = BareRuntime("runc", "v1", "run")
    bare_runtime.start(engines.EngineHome(tmp_path, image, lambda low_level: Path(machine.find_program(low_level))))
    bind = [(str(packages / "usr/lib/nvidia/current/nvidia-smi"), "/usr/bin/nvidia-smi")]
    done = bare_runtime.run(ContainerRequest(["/usr/bin/nvidia-smi"], binds=bind))
    assert done.status == NO_LIBRARY, done
