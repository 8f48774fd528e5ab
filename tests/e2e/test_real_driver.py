"""NVIDIA's own files out of Debian's non-free component: the real nvidia-smi in a container must find its
library.

It then ends with status 9 (cannot talk to the driver: there is none); without the library it would be 12. The
packages are fetched once into GPU_OCI_HOOK_TEST_CACHE (default /var/cache/gpu-oci-hook-tests) with a private
apt configuration, so that the machine's own stays as it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.e2e import engines, host, machine
from support.e2e.driver_packages import (
    NO_DRIVER_LOADED,
    NO_LIBRARY,
    SUITES,
    fetch_packages,
    install_debian_layout,
    install_runfile_layout,
    read_package_version,
)
from support.e2e.engines import BareRuntime, ContainerRequest
from support.e2e.images import TRIPLE, copy_image, copy_program, refresh_ld_cache
from support.e2e.loader_cells import add_cdi_device, generate_cdi_file
from support.e2e.requirements import require_programs


@pytest.fixture(scope="session", params=SUITES)
def packages(request: pytest.FixtureRequest) -> Iterator[Path]:
    """The unpacked packages of each suite."""
    require_programs("runc", "gcc", "busybox")
    yield fetch_packages(request.param) / "files"


@pytest.mark.parametrize("cache", [True, False], ids=["cache", "no-cache"])
@pytest.mark.parametrize("layout", [install_debian_layout, install_runfile_layout], ids=["debian", "runfile"])
def test_nvidia_smi_finds_its_library(
    packages: Path,
    layout: object,
    cache: bool,
    image: Path,
    runtime: host.InstalledRuntime,
    workspace: Path,
    tmp_path: Path,
) -> None:
    version = read_package_version(packages)
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
    assert done.status == NO_DRIVER_LOADED, done
    libraries = ["libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1"]
    words = [word for name in libraries for word in ("--library", name)]
    probed = bare_runtime.run(ContainerRequest(["/probe", *words], ["NVIDIA_VISIBLE_DEVICES=all"])).check()
    assert [name for name in libraries if f'"{name}": "ok"' not in probed.stdout] == []


@pytest.mark.parametrize("way", ["shim", "hook"])
def test_programs_and_the_linker_find_every_library_by_its_name_without_a_version(
    packages: Path, way: str, image: Path, runtime: host.InstalledRuntime, tmp_path: Path
) -> None:
    """`dlopen("libnvidia-ml.so")` and `ld -lnvidia-ml`, for each such name that the host has."""
    version = read_package_version(packages)
    root = tmp_path / f"host-{version}"
    simulated = host.build_host(tmp_path / "simulated", gpus=1, version=version)
    root.mkdir()
    install_debian_layout(packages, root)
    for name in ("proc", "dev", "sys"):
        machine.run_command(["cp", "-a", str(simulated.root / name), str(root)]).check()
    (root / "etc/ld.so.conf").write_text(f"/usr/lib/{TRIPLE}\n")
    machine.run_command([machine.find_program("ldconfig"), "-r", str(root)]).check()
    names = sorted(path.name for path in (packages / f"usr/lib/{TRIPLE}/nvidia/current").glob("*.so"))
    assert {"libcuda.so", "libnvidia-ml.so", "libnvcuvid.so", "libnvidia-encode.so"} <= set(names)
    own_image = copy_image(image, tmp_path / "image")
    copy_program("ld", own_image)
    refresh_ld_cache(own_image)
    links = "; ".join(f"ld -shared -o /tmp/x.so -l{name[3:-3]} && echo linked {name}" for name in names)
    words = " ".join(f"--library {name}" for name in names)
    script = f"/probe {words}; {links}; ldconfig 2>/dev/null; /probe {words}"
    env = ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility,video"] if way == "shim" else []
    wrapper = runtime.wrapper("runc", root, name=f"-{tmp_path.name}")
    program = wrapper if way == "shim" else Path(machine.find_program("runc"))
    bare_runtime = BareRuntime("runc", "v1", "run")
    bare_runtime.start(engines.EngineHome(tmp_path, own_image, lambda _: program))
    bundle = bare_runtime.bundle(ContainerRequest(["/bin/sh", "-c", script], env))
    if way == "hook":
        spec = json.loads((bundle / "config.json").read_text())
        add_cdi_device(spec, generate_cdi_file(runtime, root), "0")
        (bundle / "config.json").write_text(json.dumps(spec))
    before, *linked, after = bare_runtime.start_bundle(bundle).check().stdout.splitlines()
    assert linked == [f"linked {name}" for name in names]
    assert json.loads(before)["libraries"] == json.loads(after)["libraries"] == dict.fromkeys(names, "ok")


def test_without_us_it_finds_none(packages: Path, image: Path, tmp_path: Path) -> None:
    """The control: the same binary in the same image, and no library."""
    bare_runtime = BareRuntime("runc", "v1", "run")
    bare_runtime.start(engines.EngineHome(tmp_path, image, lambda low_level: Path(machine.find_program(low_level))))
    bind = [(str(packages / "usr/lib/nvidia/current/nvidia-smi"), "/usr/bin/nvidia-smi")]
    done = bare_runtime.run(ContainerRequest(["/usr/bin/nvidia-smi"], binds=bind))
    assert done.status == NO_LIBRARY, done
