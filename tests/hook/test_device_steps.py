"""What a container's device nodes ask of the hook: requirements, EGL's profile, links by path."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.inject import pipeline
from gpu_oci_hook.simulate import host_tree
from support import cdi_edits
from support.bundles import container_spec, host_config, make_bundle, read_spec, snapshot_tree, write_spec
from support.cdi_edits import VERSION
from support.fixtures import SharedHost
from support.hook_scenes import DATACENTRE_HOST, EGL_PROFILE, HookScene


@pytest.fixture(scope="module")
def host(shared_host: SharedHost) -> Path:
    return shared_host(**DATACENTRE_HOST)


@pytest.fixture
def scene(tmp_path: Path, host: Path) -> HookScene:
    return HookScene(tmp_path, host)


# --- requirements ----------------------------------------------------------------------------------------------------

REQUIRE = "NVIDIA_REQUIRE_CUDA=cuda>=12.8 brand=geforce,driver>=535,driver<536"


def test_a_requirement_fails_in_the_words_of_the_shim_and_nothing_is_touched(
    tmp_path: Path, host: Path, isolated_state: Path
) -> None:
    scene = HookScene(tmp_path, host, REQUIRE)
    scene.nodes = {"/dev/nvidia1": (195, 1)}
    scene.hook_arguments.requirements = True
    scene.finish_bundle()
    before = snapshot_tree(scene.root)
    text = scene.run_refused()
    assert snapshot_tree(scene.root) == before
    other = make_bundle(
        tmp_path / "other", container_spec("NVIDIA_VISIBLE_DEVICES=0", REQUIRE)
    )  # GPU 0 is /dev/nvidia1
    path = str(other / "config.json")
    with pytest.raises(Fault) as caught:
        pipeline.inject_gpus(path, Path(path).read_bytes(), str(other), host_config(host).to_data())
    assert text == f"gpu-oci-hook: {caught.value}\n"
    assert "nearest is" in text and "cuda 12.4" in text


@pytest.mark.parametrize(
    ("env", "status", "said"),
    [
        (["NVIDIA_REQUIRE_CUDA=cuda>=12.4"], 0, ""),
        (["NVIDIA_REQUIRE_CUDA=cuda=>12"], 1, "cannot parse at column 5"),
        ([REQUIRE, "NVIDIA_DISABLE_REQUIRE=1"], 0, "requirements are not checked: NVIDIA_DISABLE_REQUIRE=1"),
        (["CUDA_VERSION=12.8"], 1, "CUDA_VERSION: the requirement"),
        (["CUDA_VERSION=11.8"], 0, ""),
        (["NVIDIA_REQUIRE_X=moon=1"], 0, "has no known property"),
    ],
)
def test_other_requirements_pass_or_name_what_fails(
    env: list[str], status: int, said: str, tmp_path: Path, host: Path
) -> None:
    scene = HookScene(tmp_path, host, *env)
    scene.nodes = {"/dev/nvidia0": (195, 0)}
    scene.hook_arguments.requirements = True
    done = scene.run()
    assert done.returncode == status, done.stderr
    assert (said in done.stderr) if said else done.stderr == ""


def test_what_no_table_knows_is_asked_of_nvml_and_said_in_the_words_of_the_shim(
    tmp_path: Path, isolated_state: Path
) -> None:
    """The simulated NVML answers nothing; each asks for itself, and remembers nothing of the other's."""
    host = tmp_path / "strange"
    host_tree.build_host(host, driver=VERSION, model="NVIDIA Strange 1")
    scene = HookScene(tmp_path, host, "NVIDIA_REQUIRE_X=brand=tesla")
    scene.nodes = {"/dev/nvidia0": (195, 0)}
    scene.hook_arguments.requirements = True
    text = scene.run_refused()
    other = make_bundle(tmp_path / "other", container_spec("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_REQUIRE_X=brand=tesla"))
    path = str(other / "config.json")
    with pytest.raises(Fault) as caught:
        pipeline.inject_gpus(path, Path(path).read_bytes(), str(other), host_config(host).to_data())
    assert text == f"gpu-oci-hook: {caught.value}\n"
    assert "the host's brand is not known" in text


def test_requirements_are_not_checked_unless_the_file_says_so(tmp_path: Path, host: Path) -> None:
    assert HookScene(tmp_path, host, REQUIRE).run_successfully() == ""


# --- nodes: profile, links by path --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "mask"),
    [
        ({"/dev/nvidia0": (195, 0)}, "0x1"),
        ({"/dev/nvidia1": (195, 1), "/dev/nvidiactl": (195, 255)}, "0x2"),
        ({"/dev/nvidia0": (195, 0), "/dev/nvidia1": (195, 1)}, ""),
        ({"/dev/nvidiactl": (195, 255)}, ""),
        ({"/dev/nvidia0": (1, 3)}, ""),
    ],
)
def test_the_profile_of_egl_names_the_gpus_whose_nodes_the_config_has(
    scene: HookScene, nodes: dict[str, tuple[int, int]], mask: str
) -> None:
    scene.hook_arguments.egl_profile = True
    scene.nodes = nodes
    (scene.root / "dev/nvidia9").touch()  # the image's /dev counts for nothing
    assert scene.run_successfully() == ""
    assert (scene.root / EGL_PROFILE).exists() == bool(mask)
    if mask:
        assert f'"EGLVisibleDGPUDevices", {mask}]' in (scene.root / EGL_PROFILE).read_text()


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root can make device nodes")
def test_a_node_that_is_a_bind_mount_counts_too(scene: HookScene, tmp_path: Path) -> None:
    node = tmp_path / "node"
    os.mknod(node, 0o020666, os.makedev(195, 1))
    config = read_spec(scene.bundle)
    config["mounts"].append(cdi_edits.build_mount(str(node), "/dev/nvidia1"))
    write_spec(scene.bundle, config)
    scene.hook_arguments.egl_profile = True
    scene.run_successfully()
    assert ", 0x2]" in (scene.root / EGL_PROFILE).read_text()


def test_drm_links_are_those_of_the_nodes_given(scene: HookScene, host: Path) -> None:
    minors = {path.name: path.read_text().strip() for path in (host / "sys/bus/pci/devices").glob("*/drm/*/dev")}
    assert minors
    names = {}
    for path in (host / "sys/bus/pci/devices").glob("*/drm/*"):
        names[path.name] = path.parent.parent.name
    gpus = [path.name for path in (host / "proc/driver/nvidia/gpus").iterdir()]
    given = {name: address for name, address in names.items() if address == gpus[0]}
    for name, address in given.items():
        minor = int((host / f"sys/bus/pci/devices/{address}/drm/{name}/dev").read_text().partition(":")[2])
        scene.nodes[f"/dev/dri/{name}"] = (226, minor)
    scene.hook_arguments.drm_links = True
    assert scene.run_successfully() == ""
    links = {path.name: os.readlink(path) for path in (scene.root / "dev/dri/by-path").iterdir()}
    kinds = {name: "card" if name.startswith("card") else "render" for name in given}
    assert links == {f"pci-{address}-{kinds[name]}": f"../{name}" for name, address in given.items()}
