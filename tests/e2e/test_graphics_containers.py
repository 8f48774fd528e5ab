"""Graphics and 32-bit programs in real containers: DRM nodes, names by path, the other architecture's loader."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from gpu_oci_hook.simulate.kernel import build_simulated_gpus, list_drm_names
from support.e2e import engines, images, machine
from support.e2e.engines import BareRuntime, ContainerRequest
from support.e2e.host import InstalledRuntime, SimulatedHost
from support.e2e.requirements import E2E_REQUIRED, require_programs

GRAPHICS = ["NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=graphics"]
# The device cgroup lets it through, and the kernel has no such device; a machine with real DRM devices opens one.
OPEN = ("ENXIO", "ENODEV", "ok")
DENIED = "EPERM"


@pytest.fixture(params=[("runc", "v1"), ("runc", "v2"), ("crun", "v1")], ids="-".join)
def bare_runtime(
    request: pytest.FixtureRequest, tmp_path: Path, image: Path, runtime: InstalledRuntime, simulated: SimulatedHost
) -> BareRuntime:
    """Bundles by hand, given to each runtime through the shim."""
    require_programs("runc", request.param[0])
    low_level, cgroup = request.param
    bare_runtime = BareRuntime(low_level, cgroup, "run")
    bare_runtime.start(engines.EngineHome(tmp_path, image, lambda name: runtime.wrapper(name, simulated.root)))
    request.addfinalizer(bare_runtime.stop)
    return bare_runtime


def asked(
    bare_runtime: BareRuntime, words: list[str], env: list[str], *, user: int = 0, root: Path | None = None
) -> dict[str, object]:
    done = bare_runtime.run(ContainerRequest(["/probe", *words], env, user=user, root=root)).check()
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


def test_a_graphics_container_sees_its_own_drm_nodes_and_nobody_else_s(bare_runtime: BareRuntime) -> None:
    own, other = (dict(list_drm_names(gpu)) for gpu in build_simulated_gpus(2, "x"))
    board = 0  # the display controller of the board
    words = [word for name in [*own, *other, "card0"] for word in ("--node", f"/dev/dri/{name}")]
    words += [word for number in [*other.values(), board, *own.values()] for word in ("--make", f"226:{number}")]
    answer = asked(bare_runtime, words, GRAPHICS)
    nodes, made = answer["nodes"], answer["made"]
    assert isinstance(nodes, dict) and isinstance(made, dict)
    assert {name: nodes[f"/dev/dri/{name}"] in OPEN for name in own} == dict.fromkeys(own, True), nodes
    assert {nodes[f"/dev/dri/{name}"] for name in [*other, "card0"]} == {"ENOENT"}
    assert {made[f"226:{number}"] for number in [*other.values(), board]} == {DENIED}, made
    assert all(made[f"226:{number}"] in OPEN for number in own.values()), made


def test_a_compute_container_may_open_none_of_them(bare_runtime: BareRuntime) -> None:
    own = dict(list_drm_names(build_simulated_gpus(2, "x")[0]))
    words = [word for number in own.values() for word in ("--make", f"226:{number}")]
    answer = asked(bare_runtime, [*words, "--node", "/dev/dri"], ["NVIDIA_VISIBLE_DEVICES=0"])
    assert answer["made"] == {f"226:{number}": DENIED for number in own.values()}
    assert answer["nodes"] == {"/dev/dri": "ENOENT"}


def test_names_by_path_are_links_to_the_nodes(bare_runtime: BareRuntime, simulated: SimulatedHost) -> None:
    show = 'echo "$name $(readlink "$name") $(test -c "$name" && echo node)"'
    script = f"cd /dev/dri/by-path && for name in *; do {show}; done"
    done = bare_runtime.run(ContainerRequest(["/bin/sh", "-c", script], GRAPHICS)).check()
    gpu = build_simulated_gpus(2, "x")[0]
    kinds = {"card": "card", "renderD": "render"}
    assert sorted(done.stdout.splitlines()) == sorted(
        f"pci-{gpu.pci}-{kind} ../{name} node"
        for name, _ in list_drm_names(gpu)
        for stem, kind in kinds.items()
        if name.startswith(stem)
    )


def test_an_unprivileged_user_of_the_container_may_draw_as_on_the_host(
    bare_runtime: BareRuntime, simulated: SimulatedHost
) -> None:
    own = [name for name, _ in list_drm_names(build_simulated_gpus(2, "x")[0])]
    words = [word for name in own for word in ("--node", f"/dev/dri/{name}")]
    answer = asked(bare_runtime, words, GRAPHICS, user=1000)
    nodes, groups = answer["nodes"], answer["groups"]
    assert isinstance(nodes, dict) and isinstance(groups, list)
    assert all(nodes[f"/dev/dri/{name}"] in OPEN for name in own), nodes
    assert {(simulated.root / f"dev/dri/{name}").stat().st_gid for name in own} <= set(groups)


def test_the_profile_for_egl_lies_where_the_driver_reads_it(bare_runtime: BareRuntime) -> None:
    script = "cat /etc/nvidia/nvidia-application-profiles-rc.d/10-container.conf"
    done = bare_runtime.run(ContainerRequest(["/bin/sh", "-c", script], GRAPHICS)).check()
    assert '"EGLVisibleDGPUDevices", 0x2]' in done.stdout  # GPU 0 has the minor 1


def test_every_engine_gives_the_nodes_and_their_names_by_path(engine: engines.Engine) -> None:
    """The nodes have mode 0660: an unprivileged user without their groups cannot open them, and gets none."""
    own = [name for name, _ in list_drm_names(build_simulated_gpus(2, "x")[0])]
    script = "cd /dev/dri && for name in *D* card* by-path/*; do test -c $name && echo $name; done; true"
    done = engine.run(ContainerRequest(["/bin/sh", "-c", script], GRAPHICS)).check()
    pci = build_simulated_gpus(2, "x")[0].pci
    expected = {*own, f"by-path/pci-{pci}-card", f"by-path/pci-{pci}-render"}
    assert set(done.stdout.split()) == (set() if isinstance(engine, engines.RootlessPodman) else expected)


# --- 32-bit programs -----------------------------------------------------------------------------------


def need_32_bit_compiler(directory: Path) -> None:
    """Skips, loudly, where gcc makes no 32-bit programs; with GPU_OCI_HOOK_E2E=require that is a failure."""
    require_programs("runc", "gcc")
    (directory / "empty.c").write_text("int main(void) { return 0; }\n")
    words = [machine.find_program("gcc"), "-m32", "-o", str(directory / "empty"), str(directory / "empty.c")]
    if machine.run_command(words).status == 0:
        return
    lack = "needs the Debian package gcc-multilib"
    if E2E_REQUIRED:
        pytest.fail(f"GPU_OCI_HOOK_E2E=require, but this machine {lack}", pytrace=False)
    pytest.skip(f"END TO END NOT TESTED: {lack}")


def small_image(image: Path, target: Path) -> Path:
    """The standard image with Debian's i386 beside it: loader, C library, and the probe as /probe32."""
    images.copy_image(image, target)
    directory = target / "usr/lib/i386-linux-gnu"
    directory.mkdir()
    theirs = next(
        path for path in map(Path, ("/usr/lib32", "/usr/lib/i386-linux-gnu")) if (path / "libc.so.6").exists()
    )
    for name in (*images.GLIBC, "ld-linux.so.2"):
        if (theirs / name).exists():
            shutil.copy2((theirs / name).resolve(), directory / name)
    (target / "usr/lib/ld-linux.so.2").symlink_to("i386-linux-gnu/ld-linux.so.2")
    (target / "etc/ld.so.conf.d/i386-linux-gnu.conf").write_text("/usr/lib/i386-linux-gnu\n")
    images.refresh_ld_cache(target)
    source = str(images.SOURCES / "probe.c")
    machine.run_command([machine.find_program("gcc"), "-m32", "-O1", "-o", str(target / "probe32"), source]).check()
    return target


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="NOT TESTED: the 32-bit programs of x86_64")
@pytest.mark.parametrize("small", [True, False], ids=["compat32", "without"])
def test_a_32_bit_program_finds_the_32_bit_driver_with_compat32_alone(
    tmp_path: Path, image: Path, runtime: InstalledRuntime, simulated: SimulatedHost, *, small: bool
) -> None:
    need_32_bit_compiler(tmp_path)
    bare_runtime = BareRuntime("runc", "v1", "run")
    bare_runtime.start(engines.EngineHome(tmp_path, image, lambda name: runtime.wrapper(name, simulated.root)))
    root = small_image(image, tmp_path / "small")
    words = "compute,utility" + ",compat32" * small
    env = ["NVIDIA_VISIBLE_DEVICES=0", f"NVIDIA_DRIVER_CAPABILITIES={words}"]
    libraries = ["--library", "libcuda.so.1", "--library", "libnvidia-ml.so.1"]
    done = bare_runtime.run(
        ContainerRequest(["/probe32", "--node", "/dev/nvidiactl", *libraries], env, root=root)
    ).check()
    answer = json.loads(done.stdout)
    assert answer["nodes"] == {"/dev/nvidiactl": "ENXIO"}
    if small:
        assert answer["libraries"] == {"libcuda.so.1": "ok", "libnvidia-ml.so.1": "ok"}
    else:
        assert (
            "cannot open" in answer["libraries"]["libcuda.so.1"] or "wrong ELF" in answer["libraries"]["libcuda.so.1"]
        )
    done = bare_runtime.run(ContainerRequest(["/probe", *libraries], env, root=root)).check()
    assert json.loads(done.stdout)["libraries"] == {"libcuda.so.1": "ok", "libnvidia-ml.so.1": "ok"}
    # The image's own ldconfig, later, agrees.
    script = "ldconfig && exec /probe32 --library libcuda.so.1"
    done = bare_runtime.run(ContainerRequest(["/bin/sh", "-c", script], env, root=root)).check()
    assert (json.loads(done.stdout)["libraries"]["libcuda.so.1"] == "ok") is small
