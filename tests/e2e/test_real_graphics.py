"""NVIDIA's own graphics files out of Debian's non-free component, and the real loaders of Vulkan, EGL and OpenCL.

Without a GPU no driver stays loaded, but each loader says in its log which manifest it has read and which library it
has opened for it.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.e2e import engines, host, images, machine
from support.e2e.driver_packages import SUITES, fetch_packages
from support.e2e.engines import BareRuntime, ContainerRequest
from support.e2e.images import TRIPLE
from support.e2e.requirements import require_programs

DRIVER = (
    *("libcuda1", "libnvidia-ml1", "libglx-nvidia0", "libegl-nvidia0", "libnvidia-eglcore", "libnvidia-glcore"),
    *("libnvidia-glvkspirv", "libnvidia-rtcore", "nvidia-vulkan-common", "nvidia-egl-common", "libnvidia-allocator1"),
    *("libnvidia-egl-gbm1", "libnvidia-egl-wayland1", "nvidia-opencl-common", "nvidia-opencl-icd", "nvidia-vulkan-icd"),
    *("libnvidia-ptxjitcompiler1", "xserver-xorg-video-nvidia"),
)
NEWER = {"trixie": ("libnvidia-gpucomp",)}  # a part of its own since 535
# What an image that draws has of its own: the loaders, and what NVIDIA's libraries need of X. Of the oldest suite, as
# the image's C library is this machine's.
IMAGE = (
    *("libvulkan1", "libegl1", "libglvnd0", "ocl-icd-libopencl1", "libx11-6", "libxext6", "libxcb1", "libxau6"),
    *("libxdmcp6", "libbsd0", "libmd0"),
)
ENV = ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=graphics,compute,utility"]
CURRENT = f"usr/lib/{TRIPLE}/nvidia/current"


@pytest.fixture(scope="module", params=SUITES)
def packages(request: pytest.FixtureRequest) -> Iterator[tuple[Path, Path]]:
    """The unpacked packages of each suite: the driver's, the image's."""
    require_programs("runc", "gcc", "busybox")
    yield (
        fetch_packages(request.param, (*DRIVER, *NEWER.get(request.param, ())), "nvidia-graphics") / "files",
        fetch_packages(SUITES[0], IMAGE, "graphics-image") / "files",
    )


def alternatives(root: Path) -> None:
    """update-alternatives' links, as nvidia-alternative's postinst makes them."""
    links = root / "etc/alternatives"
    links.mkdir(parents=True, exist_ok=True)
    directory = root / f"usr/lib/{TRIPLE}"
    names = [(directory, path, f"{path.name}-{TRIPLE}") for path in (root / CURRENT).iterdir()]
    gbm = root / CURRENT / "nvidia-drm_gbm.so"
    names = [entry for entry in names if entry[1].is_symlink() and entry[1] != gbm]
    (directory / "gbm").mkdir(exist_ok=True)
    if gbm.is_symlink():
        names.append((directory / "gbm", gbm, f"{gbm.name}-{TRIPLE}"))
    names += [(root / "usr/lib/nvidia", path, path.name) for path in (root / "usr/lib/nvidia/current").glob("*.so")]
    for where, path, name in names:
        (links / f"nvidia--{name}").symlink_to(f"/{path.relative_to(root)}")
        (where / path.name).symlink_to(f"/etc/alternatives/nvidia--{name}")


@pytest.fixture
def bare_runtime(
    packages: tuple[Path, Path], image: Path, runtime: host.InstalledRuntime, tmp_path: Path
) -> BareRuntime:
    """A host with Debian's driver packages and an image with Debian's loaders."""
    driver, own = packages
    root = tmp_path / "host"
    root.mkdir()
    for name in ("usr", "etc"):
        machine.run_command(["cp", "-a", str(driver / name), str(root)]).check()
    alternatives(root)
    (library,) = (root / CURRENT).glob("libcuda.so.*.*")
    version = library.name.removeprefix("libcuda.so.")
    simulated = host.build_host(tmp_path / "simulated", gpus=1, version=version)
    for name in ("proc", "dev", "sys"):
        machine.run_command(["cp", "-a", str(simulated.root / name), str(root)]).check()
    (root / "etc/ld.so.conf").write_text(f"/usr/lib/{TRIPLE}\n")
    machine.run_command([machine.find_program("ldconfig"), "-r", str(root)]).check()
    drawing = images.copy_image(image, tmp_path / "drawing")
    for path in [*own.glob(f"usr/lib/{TRIPLE}/*.so*"), *own.glob(f"lib/{TRIPLE}/*.so*")]:
        shutil.copy2(path, drawing / f"usr/lib/{TRIPLE}" / path.name, follow_symlinks=False)
    source = str(images.SOURCES / "graphics_probe.c")
    words = ["-O1", "-Wall", "-Wextra", "-Werror", "-Wno-pedantic", "-o", str(drawing / "graphics-probe"), source]
    machine.run_command([machine.find_program("gcc"), *words]).check()
    images.refresh_ld_cache(drawing)
    wrapper = runtime.wrapper("runc", root, name=f"-{tmp_path.name}")
    bare_runtime = BareRuntime("runc", "v1", "run")
    bare_runtime.start(engines.EngineHome(tmp_path, drawing, lambda _: wrapper))
    return bare_runtime


def loaded(text: str) -> set[str]:
    """The libraries whose code was run, as LD_DEBUG=files tells."""
    return {os.path.basename(path) for path in re.findall(r"calling init: (\S+)", text)}


def test_vulkan_s_loader_reads_the_manifest_and_opens_the_driver(bare_runtime: BareRuntime) -> None:
    env = [*ENV, "VK_LOADER_DEBUG=all", "LD_DEBUG=files"]
    done = bare_runtime.run(ContainerRequest(["/graphics-probe", "vulkan"], env)).check()
    assert "/etc/vulkan/icd.d/nvidia_icd.json" in done.stderr
    assert "/etc/vulkan/implicit_layer.d/nvidia_layers.json" in done.stderr
    assert "libGLX_nvidia.so.0" in loaded(done.stderr), done.stderr[-3000:]
    assert any(name.startswith("libnvidia-glcore.so.") for name in loaded(done.stderr))


def test_egl_s_loader_reads_the_vendor_file_and_opens_the_driver(bare_runtime: BareRuntime) -> None:
    done = bare_runtime.run(ContainerRequest(["/graphics-probe", "egl"], [*ENV, "LD_DEBUG=files"])).check()
    assert "libEGL_nvidia.so.0" in loaded(done.stderr), done.stderr[-3000:]


def test_opencl_s_loader_reads_its_file_and_opens_the_driver(bare_runtime: BareRuntime) -> None:
    done = bare_runtime.run(ContainerRequest(["/graphics-probe", "opencl"], [*ENV, "LD_DEBUG=files"]))
    assert "libnvidia-opencl.so.1" in loaded(done.stderr), done.stderr[-3000:]


def test_the_other_files_end_where_their_loaders_look(bare_runtime: BareRuntime) -> None:
    places = [
        "/usr/share/glvnd/egl_vendor.d/10_nvidia.json",
        "/usr/share/egl/egl_external_platform.d/10_nvidia_wayland.json",
        "/usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json",
        f"/usr/lib/{TRIPLE}/gbm/nvidia-drm_gbm.so",
        "/usr/lib/xorg/modules/drivers/nvidia_drv.so",
        "/usr/lib/xorg/modules/extensions/libglxserver_nvidia.so",
    ]
    script = "for path in " + " ".join(places) + '; do test -s "$path" && echo "$path"; done; true'
    env = ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all"]
    done = bare_runtime.run(ContainerRequest(["/bin/sh", "-c", script], env)).check()
    assert done.stdout.splitlines() == places


def test_with_compute_alone_no_loader_of_graphics_finds_anything(bare_runtime: BareRuntime) -> None:
    """The control: the same image and host."""
    env = ["NVIDIA_VISIBLE_DEVICES=all", "LD_DEBUG=files", "VK_LOADER_DEBUG=all"]
    for what in ("vulkan", "egl"):
        done = bare_runtime.run(ContainerRequest(["/graphics-probe", what], env)).check()
        assert f"{what}: " in done.stdout
        assert not [name for name in loaded(done.stderr) if "nvidia" in name.lower()]
