"""Every kind of image: its own loader finds the driver's libraries, whichever C library and directories it
has.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from support.e2e import engines, host, images
from support.e2e.engines import BareRuntime, ContainerRequest
from support.e2e.host import InstalledRuntime, SimulatedHost
from support.e2e.requirements import require_programs

LIBRARIES = ("libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1")
PROBE = ["/probe", *(word for name in LIBRARIES for word in ("--library", name))]
GPU = ["NVIDIA_VISIBLE_DEVICES=0"]


@pytest.fixture
def bare_runtime(tmp_path: Path, image: Path, runtime: InstalledRuntime, simulated: SimulatedHost) -> BareRuntime:
    """Bundles by hand, given to runc through the shim."""
    bare_runtime = BareRuntime("runc", "v1", "run")
    bare_runtime.start(engines.EngineHome(tmp_path, image, lambda name: runtime.wrapper(name, simulated.root)))
    return bare_runtime


def libraries(bare_runtime: BareRuntime, root: Path, *, read_only: bool = False) -> dict[str, str]:
    """What dlopen answers in the image."""
    done = bare_runtime.run(ContainerRequest(PROBE, GPU, root=root, read_only=read_only)).check()
    answer: dict[str, str] = json.loads(done.stdout)["libraries"]
    return answer


KINDS: dict[str, Callable[[Path], Path]] = {
    "glibc": images.build_glibc_image,
    "musl": images.build_musl_image,
    "distroless": images.build_distroless_image,
}


@pytest.mark.parametrize("read_only", [False, True], ids=["writable", "read-only"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_loader_of_each_kind_of_image_finds_the_libraries(
    bare_runtime: BareRuntime, tmp_path: Path, kind: str, read_only: bool
) -> None:
    if kind == "musl":
        require_programs("musl-gcc")
    root = KINDS[kind](tmp_path / kind)
    assert libraries(bare_runtime, root, read_only=read_only) == dict.fromkeys(LIBRARIES, "ok")


def no_cache(root: Path) -> None:
    """An image whose ld.so.cache was removed to save space."""
    (root / "etc/ld.so.cache").unlink()


def fedora(root: Path) -> None:
    """An image with /usr/lib64 and no multiarch directories."""
    (root / f"usr/lib/{images.TRIPLE}").rename(root / "usr/lib64-new")
    for file in (root / "usr/lib64").iterdir():
        file.rename(root / "usr/lib64-new" / file.name)
    (root / "usr/lib64").rmdir()
    (root / "usr/lib64-new").rename(root / "usr/lib64")
    # Fedora's loader looks there by itself; ours is Debian's and has to be told.
    (root / f"etc/ld.so.conf.d/{images.TRIPLE}.conf").write_text("/usr/lib64\n")
    images.refresh_ld_cache(root)


def leftovers(root: Path) -> None:
    """An image that was committed from a GPU container: empty files of another driver, and their links."""
    directory = root / f"usr/lib/{images.TRIPLE}"
    for name in ("libcuda.so.470.57.02", "libnvidia-ml.so.470.57.02", "libcuda.so.550.163.01"):
        (directory / name).touch()
    (directory / "libcuda.so.1").symlink_to("libcuda.so.470.57.02")
    (directory / "libcuda.so").symlink_to("libcuda.so.1")
    (directory / "libnvidia-ml.so.1").touch()


def directory_in_the_way(root: Path) -> None:
    """docker makes directories of mount sources that do not exist."""
    (root / f"usr/lib/{images.TRIPLE}/libcuda.so.1").mkdir()
    (root / "usr/bin/nvidia-smi").mkdir()


def no_conf(root: Path) -> None:
    """An image with a cache but without ld.so.conf."""
    (root / "etc/ld.so.conf").unlink()


def stale_cache(root: Path) -> None:
    """A cache that names a libcuda of the image's own, which is gone."""
    library = root / f"usr/lib/{images.TRIPLE}/libcuda.so.1"
    library.symlink_to("libm.so.6")
    images.refresh_ld_cache(root)
    library.unlink()


@pytest.mark.parametrize(
    "change", [no_cache, fedora, leftovers, directory_in_the_way, no_conf, stale_cache], ids=lambda f: f.__name__
)
def test_odd_images(bare_runtime: BareRuntime, image: Path, tmp_path: Path, change: Callable[[Path], None]) -> None:
    root = images.copy_image(image, tmp_path / "odd")
    change(root)
    assert libraries(bare_runtime, root) == dict.fromkeys(LIBRARIES, "ok")


def test_a_second_start_from_the_same_root_is_as_good(bare_runtime: BareRuntime) -> None:
    """Engines restart containers on the very root file system that we wrote to, with the old config.json or a
    new one.
    """
    bundle = bare_runtime.bundle(ContainerRequest(PROBE, GPU))
    config = bundle / "config.json"
    asked = config.read_bytes()
    first = bare_runtime.start_bundle(bundle).check()
    assert json.loads(first.stdout)["libraries"] == dict.fromkeys(LIBRARIES, "ok")
    applied = config.read_bytes()
    assert applied != asked
    assert bare_runtime.start_bundle(bundle).check().stdout == first.stdout
    assert config.read_bytes() == applied
    config.write_bytes(asked)
    assert bare_runtime.start_bundle(bundle).check().stdout == first.stdout
    assert config.read_bytes() == applied


@pytest.mark.parametrize("read_only", [False, True], ids=["writable", "read-only"])
def test_nodes_of_a_group_are_open_to_an_unprivileged_container_user(
    tmp_path: Path, image: Path, runtime: InstalledRuntime, read_only: bool
) -> None:
    """The group of the host's nodes is passed on as an additional one."""
    grouped = host.build_host(tmp_path / "grouped")
    for path in sorted((grouped.root / "dev").glob("nvidia*")):
        if path.is_char_device():
            os.chown(path, 0, 4321)
            path.chmod(0o660)
    wrapper = runtime.wrapper("runc", grouped.root, name=f"-{tmp_path.name}")
    bare_runtime = BareRuntime("runc", "v1", "run")
    bare_runtime.start(engines.EngineHome(tmp_path, image, lambda _: wrapper))
    words = ["/probe", "--node", grouped.cards[0].node, "--node", "/dev/nvidiactl", "--library", "libcuda.so.1"]
    done = bare_runtime.run(ContainerRequest(words, GPU, user=1000, read_only=read_only)).check()
    answer = json.loads(done.stdout)
    assert answer["euid"] == 1000
    assert answer["nodes"] == {grouped.cards[0].node: "ENXIO", "/dev/nvidiactl": "ENXIO"}
    assert 4321 in answer["groups"]
    assert answer["libraries"] == {"libcuda.so.1": "ok"}
