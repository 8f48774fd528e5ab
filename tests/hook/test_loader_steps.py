"""Links, the loader's files and CUDA compat, as the hook makes them beside a container's mounts."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gpu_oci_hook.formats import ldcache
from gpu_oci_hook.inject import pipeline
from gpu_oci_hook.simulate import host_tree
from support import cdi_edits
from support.bundles import IMAGE_LIBRARY_DIR as OWN
from support.bundles import container_spec, host_config, make_bundle, read_spec, snapshot_tree, write_spec
from support.cdi_edits import OUR_LIBRARY_DIR, VERSION, call_hook, write_hook_launcher
from support.fixtures import SharedHost
from support.hook_scenes import (
    COMPAT_DIR,
    DATACENTRE_HOST,
    DROP_IN,
    EGL_PROFILE,
    LD_CACHE,
    HookScene,
    read_cache_entries,
)


@pytest.fixture(scope="module")
def host(shared_host: SharedHost) -> Path:
    return shared_host(**DATACENTRE_HOST)


@pytest.fixture
def scene(tmp_path: Path, host: Path) -> HookScene:
    return HookScene(tmp_path, host)


# --- links and loader ---------------------------------------------------------------------------------------


def test_libcuda_is_found_by_both_names(scene: HookScene) -> None:
    assert scene.run_successfully() == ""
    folder = scene.root / OUR_LIBRARY_DIR[1:]
    links = {path.name: os.readlink(path) for path in folder.iterdir() if path.is_symlink()}
    assert links == {
        "libcuda.so": "libcuda.so.1",
        "libcuda.so.1": f"libcuda.so.{VERSION}",
        "libnvidia-ml.so": "libnvidia-ml.so.1",
        "libnvidia-ml.so.1": f"libnvidia-ml.so.{VERSION}",
        "libnvidia-ptxjitcompiler.so.1": f"libnvidia-ptxjitcompiler.so.{VERSION}",
    }
    own = scene.root / OWN[1:]
    assert {path.name: os.readlink(path) for path in own.iterdir()} == {
        name: f"{OUR_LIBRARY_DIR}/{name}"
        for name in ("libcuda.so", "libcuda.so.1", "libnvidia-ml.so", "libnvidia-ml.so.1")
    }
    names = ("libcuda.so", "libcuda.so.1", "libnvidia-ml.so.1", f"libnvidia-glcore.so.{VERSION}")
    for name in names:
        assert scene.read_ld_cache()[name] == f"{OUR_LIBRARY_DIR}/{name}"
    assert OUR_LIBRARY_DIR in (scene.root / DROP_IN).read_text().splitlines()


def test_a_second_call_changes_nothing(scene: HookScene) -> None:
    scene.hook_arguments.egl_profile = True
    scene.nodes = {"/dev/nvidia0": (195, 0)}
    scene.run_successfully()
    before = snapshot_tree(scene.bundle)
    assert (scene.root / EGL_PROFILE).exists()
    assert scene.run_successfully() == ""
    assert snapshot_tree(scene.bundle) == before


def test_the_hook_leaves_what_the_shim_leaves(
    scene: HookScene, tmp_path: Path, host: Path, isolated_state: Path
) -> None:
    """Links in the image's own directory, and which path each name has in the cache."""
    scene.run_successfully()
    other = make_bundle(tmp_path / "other", container_spec("NVIDIA_VISIBLE_DEVICES=0"))
    path = str(other / "config.json")
    pipeline.inject_gpus(path, Path(path).read_bytes(), str(other), host_config(host).to_data())
    theirs = read_cache_entries(other / "rootfs")
    ours = scene.read_ld_cache()
    assert {name: ours[name] for name in ours if name in theirs} == {
        name: theirs[name] for name in theirs if name in ours
    }
    assert {"libcuda.so", "libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1"} <= {*theirs} & {*ours}

    def links(root: Path) -> dict[str, str]:
        return {path.name: os.readlink(path) for path in (root / OWN[1:]).iterdir() if path.is_symlink()}

    assert links(scene.root) == links(other / "rootfs")


def test_leftovers_of_a_committed_container_give_way(scene: HookScene) -> None:
    own = scene.root / OWN[1:]
    (own / "libnvidia-ml.so.1").touch()
    (own / "libcuda.so.418.56").touch()
    (own / "libnvidia-ptxjitcompiler.so.1").touch()
    (own / "libcuda.so.1").mkdir()
    (own / "libcuda.so.1/x").touch()
    assert scene.run_successfully() == ""
    for name in ("libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1"):
        assert os.readlink(own / name) == f"{OUR_LIBRARY_DIR}/{name}"


def test_musl_gets_its_path_file_with_its_defaults(scene: HookScene) -> None:
    (scene.root / "etc/debian_version").unlink()
    for name in ("usr/lib/x86_64-linux-gnu", "etc/ld.so.conf.d"):
        (scene.root / name).rmdir()
    (scene.root / "lib/ld-musl-x86_64.so.1").touch()
    (scene.root / "etc/alpine-release").touch()
    (scene.root / "etc/ld-musl-x86_64.path").write_text("/opt/lib\n")
    assert scene.run_successfully() == ""
    assert (scene.root / "etc/ld-musl-x86_64.path").read_text() == f"{OUR_LIBRARY_DIR}\n/opt/lib\n"
    (scene.root / "etc/ld-musl-x86_64.path").unlink()
    scene.run_successfully()
    lines = (scene.root / "etc/ld-musl-x86_64.path").read_text().splitlines()
    assert lines == [OUR_LIBRARY_DIR, "/lib", "/usr/local/lib", "/usr/lib"]
    assert not (scene.root / LD_CACHE).exists()


def test_32_bit_libraries_are_cached_as_such_and_linked_in_their_own_directory(scene: HookScene) -> None:
    small = "/usr/local/nvidia/lib"
    (scene.root / "usr/lib/i386-linux-gnu").mkdir()
    scene.hook_arguments.folders32 = [small]
    scene.hook_arguments.links.append((f"libcuda.so.{VERSION}", f"{small}/libcuda.so.1"))
    scene.hook_arguments.plugins = [(f"{OUR_LIBRARY_DIR}/libnvidia-ml.so.1", "gbm/nvidia-drm_gbm.so")]
    scene.hook_arguments.plugins32 = [(f"{small}/libcuda.so.1", "gbm/nvidia-drm_gbm.so")]
    assert scene.run_successfully() == ""
    found = ldcache.parse_ld_cache((scene.root / LD_CACHE).read_bytes()).entries
    assert {entry.flags: entry.path for entry in found if entry.name == "libcuda.so.1"} == {
        0x303: f"{OUR_LIBRARY_DIR}/libcuda.so.1", 0x003: f"{small}/libcuda.so.1",
    }  # fmt: skip
    assert os.readlink(scene.root / f"{OWN[1:]}/gbm/nvidia-drm_gbm.so") == f"{OUR_LIBRARY_DIR}/libnvidia-ml.so.1"
    assert os.readlink(scene.root / "usr/lib/i386-linux-gnu/gbm/nvidia-drm_gbm.so") == f"{small}/libcuda.so.1"
    assert not os.path.lexists(scene.root / "usr/lib/i386-linux-gnu/libcuda.so.1")


def test_an_image_without_a_directory_for_32_bit_libraries_gets_none_for_plug_ins(scene: HookScene) -> None:
    scene.hook_arguments.plugins32 = [("/x", "gbm/x.so")]
    scene.run_successfully()
    assert not (scene.root / "usr/lib/i386-linux-gnu").exists()


def test_what_lies_in_a_mount_of_the_containers_is_not_touched(scene: HookScene, tmp_path: Path) -> None:
    config = read_spec(scene.bundle)
    config["mounts"] += [
        cdi_edits.build_mount(str(tmp_path), "/etc"),
        cdi_edits.build_mount("/x", f"{OWN}/libcuda.so.1"),
    ]
    write_spec(scene.bundle, config)
    (scene.root / OWN[1:] / "libcuda.so.1").write_text("the container's own\n")
    said = scene.run_successfully()
    assert sorted(os.listdir(scene.root / "etc")) == ["debian_version", "ld.so.conf", "ld.so.conf.d"]
    assert os.listdir(scene.root / "etc/ld.so.conf.d") == []
    assert (scene.root / OWN[1:] / "libcuda.so.1").read_text() == "the container's own\n"
    assert f"skipped the link {OWN}/libcuda.so.1: the container has its own mount there\n" in said
    assert f"left /{LD_CACHE} unchanged: it is in another mount\n" in said


def test_a_library_that_the_container_mounts_itself_is_the_one_that_is_cached(scene: HookScene) -> None:
    config = read_spec(scene.bundle)
    config["mounts"].append(cdi_edits.build_mount("/x", f"{OWN}/libcuda.so.1"))
    write_spec(scene.bundle, config)
    scene.run_successfully()
    assert scene.read_ld_cache()["libcuda.so.1"] == f"{OWN}/libcuda.so.1"


# --- CUDA forward compatibility ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "driver", "model", "wins", "said"),
    [
        (["560.35.03"], "535.183.06", "NVIDIA A100-SXM4-40GB", True, ""),
        (["535.183.06"], "535.104.05", "NVIDIA A100-SXM4-40GB", False, ""),
        (["525.60.13"], "555.42.02", "NVIDIA GeForce RTX 3090", False, ""),
        (["560.35.03"], "535.183.06", "NVIDIA GeForce RTX 3090", False, "error 804"),
        (["560.35.03", "555.42.02"], "535.183.06", "NVIDIA A100-SXM4-40GB", False, "several CUDA compat libraries"),
    ],
)
@pytest.mark.parametrize("way", ["ours", "theirs"])
def test_cuda_forward_compatibility_is_used_where_it_helps(
    files: list[str], driver: str, model: str, wins: bool, said: str, way: str, tmp_path: Path
) -> None:
    host = tmp_path / "host"
    host_tree.build_host(host, driver=driver, model=model)
    made = make_bundle(tmp_path / "bundle", container_spec())
    root = made / "rootfs"
    (root / COMPAT_DIR).mkdir(parents=True)
    for version in files:
        (root / COMPAT_DIR / f"libcuda.so.{version}").write_bytes(b"\x7fELF")
    (root / COMPAT_DIR / "libcuda.so.1").symlink_to(f"libcuda.so.{files[0]}")
    prelude = (
        f"from gpu_oci_hook.hook import nvidia_hooks; nvidia_hooks.HOST_ROOT = {str(host)!r}" if way == "theirs" else ""
    )
    program = write_hook_launcher(tmp_path / ("nvidia-cdi-hook" if way == "theirs" else "gpu-oci-hook"), prelude)
    config = read_spec(made)
    cdi_edits.add_devices(config, {"/dev/nvidia0": (195, 0)})
    cdi_edits.EDITS_OF[way](config, host, program, version=driver)
    write_spec(made, config)
    cdi_edits.make_mount_points(made, config)
    text = ""
    for hook in config["hooks"]["createContainer"]:
        done = call_hook(program, hook["args"][1:], json.dumps({"bundle": str(made)}))
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
        text += done.stderr
    folder = OUR_LIBRARY_DIR if way == "ours" else cdi_edits.NVIDIA_LIBRARY_DIR
    expected = f"/{COMPAT_DIR}" if wins else folder
    assert read_cache_entries(root)["libcuda.so.1"] == f"{expected}/libcuda.so.1"
    assert read_cache_entries(root)["libnvidia-ml.so.1"] == f"{folder}/libnvidia-ml.so.1"
    assert (said in text) if said else text == ""
    assert text.count("\n") == (1 if said else 0)
    lines = (root / DROP_IN).read_text().splitlines()
    assert (f"/{COMPAT_DIR}" in lines) == wins


@pytest.mark.parametrize(("policy", "wins"), [("always", True), ("never", False)])
def test_the_policy_of_the_file_decides(scene: HookScene, policy: str, wins: bool) -> None:
    (scene.root / COMPAT_DIR).mkdir(parents=True)
    for name in ("libcuda.so.1", "libcuda.so.525.60.13"):
        (scene.root / COMPAT_DIR / name).write_bytes(b"\x7fELF")
    scene.hook_arguments.cuda_compat = policy
    scene.run_successfully()
    assert (scene.read_ld_cache()["libcuda.so.1"] == f"/{COMPAT_DIR}/libcuda.so.1") == wins


def test_gpus_that_the_machine_does_not_know_are_not_of_the_data_centre(scene: HookScene) -> None:
    (scene.root / COMPAT_DIR).mkdir(parents=True)
    for name in ("libcuda.so.1", "libcuda.so.999.1"):
        (scene.root / COMPAT_DIR / name).write_bytes(b"\x7fELF")
    scene.nodes = {"/dev/nvidia0": (195, 0), "/dev/nvidia7": (195, 7)}
    assert "error 804" in scene.run_successfully()
    assert scene.read_ld_cache()["libcuda.so.1"] == f"{OUR_LIBRARY_DIR}/libcuda.so.1"


@pytest.mark.parametrize(
    ("version", "words"),
    [("525.60.13", "is older and fails with CUDA error 803"), (VERSION, "is of the same version")],
)
def test_a_libcuda_that_ld_library_path_names_is_noted_with_both_versions(
    tmp_path: Path, host: Path, version: str, words: str
) -> None:
    scene = HookScene(tmp_path, host, "LD_LIBRARY_PATH=/opt/x:/usr/local/cuda/compat")
    (scene.root / COMPAT_DIR).mkdir(parents=True)
    (scene.root / COMPAT_DIR / f"libcuda.so.{version}").write_bytes(b"\x7fELF")
    (scene.root / COMPAT_DIR / "libcuda.so.1").symlink_to(f"libcuda.so.{version}")
    said = scene.run_successfully()
    assert words in said and said.count(VERSION) >= 1 and f"libcuda {version}" in said
    assert f"Remove /{COMPAT_DIR} from LD_LIBRARY_PATH" in said
    assert said.count("\n") == 1


def test_ld_library_path_of_a_cuda_image_is_nothing_to_note(tmp_path: Path, host: Path) -> None:
    scene = HookScene(tmp_path, host, "LD_LIBRARY_PATH=/usr/local/nvidia/lib:/usr/local/nvidia/lib64")
    assert scene.run_successfully() == ""


def test_names_in_our_directory_lead_to_the_compat_libraries_that_win(scene: HookScene) -> None:
    (scene.root / COMPAT_DIR).mkdir(parents=True)
    for name in ("libcuda.so.1", "libcuda.so.575.57.08", "libnvidia-other.so.575.57.08"):
        (scene.root / COMPAT_DIR / name).write_bytes(b"\x7fELF")
    scene.nodes = {"/dev/nvidia0": (195, 0)}
    assert scene.run_successfully() == ""
    folder = scene.root / OUR_LIBRARY_DIR[1:]
    assert os.readlink(folder / "libcuda.so.1") == f"/{COMPAT_DIR}/libcuda.so.1"
    assert os.readlink(folder / "libcuda.so.575.57.08") == f"/{COMPAT_DIR}/libcuda.so.575.57.08"
    assert os.readlink(folder / "libnvidia-ml.so.1") == f"libnvidia-ml.so.{VERSION}"
    assert not os.path.lexists(folder / "libnvidia-other.so.575.57.08")
    before = snapshot_tree(scene.bundle)
    assert scene.run_successfully() == ""
    assert snapshot_tree(scene.bundle) == before
