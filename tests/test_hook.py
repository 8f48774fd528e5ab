"""The hook as a process: a state on stdin, a bundle, a root that it must not leave."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cdi_edits
import gpu_oci_hook
from bundles import LIBRARIES as OWN
from bundles import bundle, lacking, look, read, settings, spec, write
from cdi_edits import FOLDER, VERSION, call, launcher
from gpu_oci_hook import pipeline, simulate, state
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.formats import ldcache

PROFILE = "etc/nvidia/nvidia-application-profiles-rc.d/10-container.conf"
CACHE, DROP_IN = "etc/ld.so.cache", "etc/ld.so.conf.d/00-gpu-oci-hook.conf"
COMPAT = "usr/local/cuda/compat"


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("hook") / "host"
    simulate.build(directory, gpus=2, driver=VERSION, model="NVIDIA A100-SXM4-40GB")
    return directory


class Scene:
    """A bundle with a file's edits in it, and the hook."""

    def __init__(
        self, directory: Path, host: Path, *env: str, source: Path | None = None, **more: Any
    ) -> None:
        self.host = host
        prelude = f"from gpu_oci_hook import state\nstate.DIRECTORY = '{directory}/state'"
        self.program = launcher(directory / "gpu-oci-hook", prelude, source)
        self.bundle = bundle(directory / "bundle", spec(*env, **more))
        self.root = self.bundle / "rootfs"
        self.errand = cdi_edits.errand(host)
        self.nodes: dict[str, tuple[int, int]] = {}

    def finish(self) -> None:
        """Puts the edits into config.json and makes the mount points, as engine and runtime would."""
        config = read(self.bundle)
        if "hooks" not in config:
            cdi_edits.devices(config, self.nodes)
            cdi_edits.ours(config, self.host, self.program, self.errand)
            write(self.bundle, config)
        cdi_edits.mount_points(self.bundle, config)

    def call(self, **more: Any) -> subprocess.CompletedProcess[str]:
        """One call of the hook; nothing is ever said on stdout."""
        self.finish()
        words = ["hook", "create-container", *self.errand.words()]
        done = call(self.program, words, json.dumps({"bundle": str(self.bundle)}), **more)
        assert done.stdout == ""
        assert "Traceback" not in done.stderr
        return done

    def works(self) -> str:
        """A call that must end with 0; what it says."""
        done = self.call()
        assert done.returncode == 0, done.stderr
        return done.stderr

    def refused(self) -> str:
        """A call that must end with 1 and one sentence."""
        done = self.call()
        assert done.returncode == 1
        assert done.stderr.startswith("gpu-oci-hook: ") and done.stderr.count("\n") == 1
        return done.stderr

    def cache(self) -> dict[str, str]:
        """Name to path, of the 64-bit libraries in the image's loader cache."""
        return cached(self.root)


def cached(root: Path) -> dict[str, str]:
    found = ldcache.parse((root / CACHE).read_bytes())
    return {entry.name: entry.path for entry in found.entries if entry.flags == 0x303}


@pytest.fixture
def scene(tmp_path: Path, host: Path) -> Scene:
    return Scene(tmp_path, host)


# --- links and loader ---------------------------------------------------------------------------------------


def test_r13_libcuda_is_found_by_both_names(scene: Scene) -> None:
    assert scene.works() == ""
    folder = scene.root / FOLDER[1:]
    links = {path.name: os.readlink(path) for path in folder.iterdir() if path.is_symlink()}
    assert links == {
        "libcuda.so": "libcuda.so.1",
        "libcuda.so.1": f"libcuda.so.{VERSION}",
        "libnvidia-ml.so.1": f"libnvidia-ml.so.{VERSION}",
        "libnvidia-ptxjitcompiler.so.1": f"libnvidia-ptxjitcompiler.so.{VERSION}",
    }
    own = scene.root / OWN[1:]
    assert {path.name: os.readlink(path) for path in own.iterdir()} == {
        name: f"{FOLDER}/{name}" for name in ("libcuda.so", "libcuda.so.1", "libnvidia-ml.so.1")
    }
    names = ("libcuda.so", "libcuda.so.1", "libnvidia-ml.so.1", f"libnvidia-glcore.so.{VERSION}")
    for name in names:
        assert scene.cache()[name] == f"{FOLDER}/{name}"
    assert FOLDER in (scene.root / DROP_IN).read_text().splitlines()


def test_a_second_call_changes_nothing(scene: Scene) -> None:
    scene.errand.egl_profile = True
    scene.nodes = {"/dev/nvidia0": (195, 0)}
    scene.works()
    before = look(scene.bundle)
    assert (scene.root / PROFILE).exists()
    assert scene.works() == ""
    assert look(scene.bundle) == before


def test_the_hook_leaves_what_the_shim_leaves(
    scene: Scene, tmp_path: Path, host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Links in the image's own directory, and which path each name has in the cache."""
    monkeypatch.setattr(state, "DIRECTORY", str(tmp_path / "memory"))
    scene.works()
    other = bundle(tmp_path / "other", spec("NVIDIA_VISIBLE_DEVICES=0"))
    path = str(other / "config.json")
    pipeline.inject(path, Path(path).read_bytes(), str(other), settings(host).to_data())
    theirs = cached(other / "rootfs")
    ours = scene.cache()
    assert {name: ours[name] for name in ours if name in theirs} == {
        name: theirs[name] for name in theirs if name in ours
    }
    assert {"libcuda.so", "libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1"} <= {*theirs} & {*ours}

    def links(root: Path) -> dict[str, str]:
        return {path.name: os.readlink(path) for path in (root / OWN[1:]).iterdir() if path.is_symlink()}

    assert links(scene.root) == links(other / "rootfs")


def test_r14_leftovers_of_a_committed_container_give_way(scene: Scene) -> None:
    own = scene.root / OWN[1:]
    (own / "libnvidia-ml.so.1").touch()
    (own / "libcuda.so.418.56").touch()
    (own / "libnvidia-ptxjitcompiler.so.1").touch()
    (own / "libcuda.so.1").mkdir()
    (own / "libcuda.so.1/x").touch()
    assert scene.works() == ""
    for name in ("libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1"):
        assert os.readlink(own / name) == f"{FOLDER}/{name}"


def test_r17_musl_gets_its_path_file_with_its_defaults(scene: Scene) -> None:
    (scene.root / "etc/debian_version").unlink()
    for name in ("usr/lib/x86_64-linux-gnu", "etc/ld.so.conf.d"):
        (scene.root / name).rmdir()
    (scene.root / "lib/ld-musl-x86_64.so.1").touch()
    (scene.root / "etc/alpine-release").touch()
    (scene.root / "etc/ld-musl-x86_64.path").write_text("/opt/lib\n")
    assert scene.works() == ""
    assert (scene.root / "etc/ld-musl-x86_64.path").read_text() == f"{FOLDER}\n/opt/lib\n"
    (scene.root / "etc/ld-musl-x86_64.path").unlink()
    scene.works()
    lines = (scene.root / "etc/ld-musl-x86_64.path").read_text().splitlines()
    assert lines == [FOLDER, "/lib", "/usr/local/lib", "/usr/lib"]
    assert not (scene.root / CACHE).exists()


def test_32_bit_libraries_are_cached_as_such_and_linked_in_their_own_directory(scene: Scene) -> None:
    small = "/usr/local/nvidia/lib"
    (scene.root / "usr/lib/i386-linux-gnu").mkdir()
    scene.errand.folders32 = [small]
    scene.errand.links.append((f"libcuda.so.{VERSION}", f"{small}/libcuda.so.1"))
    scene.errand.plugins = [(f"{FOLDER}/libnvidia-ml.so.1", "gbm/nvidia-drm_gbm.so")]
    scene.errand.plugins32 = [(f"{small}/libcuda.so.1", "gbm/nvidia-drm_gbm.so")]
    assert scene.works() == ""
    found = ldcache.parse((scene.root / CACHE).read_bytes()).entries
    assert {entry.flags: entry.path for entry in found if entry.name == "libcuda.so.1"} == {
        0x303: f"{FOLDER}/libcuda.so.1", 0x003: f"{small}/libcuda.so.1",
    }  # fmt: skip
    assert os.readlink(scene.root / f"{OWN[1:]}/gbm/nvidia-drm_gbm.so") == f"{FOLDER}/libnvidia-ml.so.1"
    assert os.readlink(scene.root / "usr/lib/i386-linux-gnu/gbm/nvidia-drm_gbm.so") == f"{small}/libcuda.so.1"
    assert not os.path.lexists(scene.root / "usr/lib/i386-linux-gnu/libcuda.so.1")


def test_an_image_without_a_directory_for_32_bit_libraries_gets_none_for_plug_ins(scene: Scene) -> None:
    scene.errand.plugins32 = [("/x", "gbm/x.so")]
    scene.works()
    assert not (scene.root / "usr/lib/i386-linux-gnu").exists()


def test_what_lies_in_a_mount_of_the_containers_is_not_touched(scene: Scene, tmp_path: Path) -> None:
    config = read(scene.bundle)
    config["mounts"] += [cdi_edits.mount(str(tmp_path), "/etc"), cdi_edits.mount("/x", f"{OWN}/libcuda.so.1")]
    write(scene.bundle, config)
    (scene.root / OWN[1:] / "libcuda.so.1").write_text("the container's own\n")
    said = scene.works()
    assert sorted(os.listdir(scene.root / "etc")) == ["debian_version", "ld.so.conf", "ld.so.conf.d"]
    assert os.listdir(scene.root / "etc/ld.so.conf.d") == []
    assert (scene.root / OWN[1:] / "libcuda.so.1").read_text() == "the container's own\n"
    assert f"the link {OWN}/libcuda.so.1 is left out: the container has its own mount there\n" in said
    assert f"/{CACHE} is left as it is: it lies in another mount\n" in said


def test_a_library_that_the_container_mounts_itself_is_the_one_that_is_cached(scene: Scene) -> None:
    config = read(scene.bundle)
    config["mounts"].append(cdi_edits.mount("/x", f"{OWN}/libcuda.so.1"))
    write(scene.bundle, config)
    scene.works()
    assert scene.cache()["libcuda.so.1"] == f"{OWN}/libcuda.so.1"


# --- R21 ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "driver", "model", "wins", "said"),
    [
        (["560.35.03"], "535.183.06", "NVIDIA A100-SXM4-40GB", True, ""),
        (["535.183.06"], "535.104.05", "NVIDIA A100-SXM4-40GB", False, ""),
        (["525.60.13"], "555.42.02", "NVIDIA GeForce RTX 3090", False, ""),
        (["560.35.03"], "535.183.06", "NVIDIA GeForce RTX 3090", False, "error 804"),
        (["560.35.03", "555.42.02"], "535.183.06", "NVIDIA A100-SXM4-40GB", False, "several compat libcuda"),
    ],
)
@pytest.mark.parametrize("way", ["ours", "theirs"])
def test_r21_cuda_forward_compatibility(
    files: list[str], driver: str, model: str, wins: bool, said: str, way: str, tmp_path: Path
) -> None:
    host = tmp_path / "host"
    simulate.build(host, driver=driver, model=model)
    made = bundle(tmp_path / "bundle", spec())
    root = made / "rootfs"
    (root / COMPAT).mkdir(parents=True)
    for version in files:
        (root / COMPAT / f"libcuda.so.{version}").write_bytes(b"\x7fELF")
    (root / COMPAT / "libcuda.so.1").symlink_to(f"libcuda.so.{files[0]}")
    prelude = f"from gpu_oci_hook.cdi import incumbent; incumbent.ROOT = {str(host)!r}" if way == "theirs" else ""
    program = launcher(tmp_path / ("nvidia-cdi-hook" if way == "theirs" else "gpu-oci-hook"), prelude)
    config = read(made)
    cdi_edits.devices(config, {"/dev/nvidia0": (195, 0)})
    getattr(cdi_edits, way)(config, host, program, version=driver)
    write(made, config)
    cdi_edits.mount_points(made, config)
    text = ""
    for hook in config["hooks"]["createContainer"]:
        done = call(program, hook["args"][1:], json.dumps({"bundle": str(made)}))
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
        text += done.stderr
    folder = FOLDER if way == "ours" else cdi_edits.THEIRS
    expected = f"/{COMPAT}" if wins else folder
    assert cached(root)["libcuda.so.1"] == f"{expected}/libcuda.so.1"
    assert cached(root)["libnvidia-ml.so.1"] == f"{folder}/libnvidia-ml.so.1"
    assert (said in text) if said else text == ""
    assert text.count("\n") == (1 if said else 0)
    lines = (root / DROP_IN).read_text().splitlines()
    assert (f"/{COMPAT}" in lines) == wins


@pytest.mark.parametrize(("policy", "wins"), [("always", True), ("never", False)])
def test_r21_the_policy_of_the_file_decides(scene: Scene, policy: str, wins: bool) -> None:
    (scene.root / COMPAT).mkdir(parents=True)
    for name in ("libcuda.so.1", "libcuda.so.525.60.13"):
        (scene.root / COMPAT / name).write_bytes(b"\x7fELF")
    scene.errand.cuda_compat = policy
    scene.works()
    assert (scene.cache()["libcuda.so.1"] == f"/{COMPAT}/libcuda.so.1") == wins


def test_gpus_that_the_machine_does_not_know_are_not_of_the_data_centre(scene: Scene) -> None:
    (scene.root / COMPAT).mkdir(parents=True)
    for name in ("libcuda.so.1", "libcuda.so.999.1"):
        (scene.root / COMPAT / name).write_bytes(b"\x7fELF")
    scene.nodes = {"/dev/nvidia0": (195, 0), "/dev/nvidia7": (195, 7)}
    assert "error 804" in scene.works()
    assert scene.cache()["libcuda.so.1"] == f"{FOLDER}/libcuda.so.1"


# --- R22 ----------------------------------------------------------------------------------------------------

REQUIRE = "NVIDIA_REQUIRE_CUDA=cuda>=12.8 brand=geforce,driver>=535,driver<536"


def test_r22_a_requirement_fails_in_the_words_of_the_shim_and_nothing_is_touched(
    tmp_path: Path, host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "DIRECTORY", str(tmp_path / "memory"))
    scene = Scene(tmp_path, host, REQUIRE)
    scene.nodes = {"/dev/nvidia1": (195, 1)}
    scene.errand.requirements = True
    scene.finish()
    before = look(scene.root)
    text = scene.refused()
    assert look(scene.root) == before
    other = bundle(tmp_path / "other", spec("NVIDIA_VISIBLE_DEVICES=0", REQUIRE))  # GPU 0 is /dev/nvidia1
    path = str(other / "config.json")
    with pytest.raises(Fault) as caught:
        pipeline.inject(path, Path(path).read_bytes(), str(other), settings(host).to_data())
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
        (["NVIDIA_REQUIRE_X=moon=1"], 0, "names no property that we know"),
    ],
)
def test_r22_the_others(env: list[str], status: int, said: str, tmp_path: Path, host: Path) -> None:
    scene = Scene(tmp_path, host, *env)
    scene.nodes = {"/dev/nvidia0": (195, 0)}
    scene.errand.requirements = True
    done = scene.call()
    assert done.returncode == status, done.stderr
    assert (said in done.stderr) if said else done.stderr == ""


def test_requirements_are_not_checked_unless_the_file_says_so(tmp_path: Path, host: Path) -> None:
    assert Scene(tmp_path, host, REQUIRE).works() == ""


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
    scene: Scene, nodes: dict[str, tuple[int, int]], mask: str
) -> None:
    scene.errand.egl_profile = True
    scene.nodes = nodes
    (scene.root / "dev/nvidia9").touch()  # the image's /dev counts for nothing
    assert scene.works() == ""
    assert (scene.root / PROFILE).exists() == bool(mask)
    if mask:
        assert f'"EGLVisibleDGPUDevices", {mask}]' in (scene.root / PROFILE).read_text()


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root can make device nodes")
def test_a_node_that_is_a_bind_mount_counts_too(scene: Scene, tmp_path: Path) -> None:
    node = tmp_path / "node"
    os.mknod(node, 0o020666, os.makedev(195, 1))
    config = read(scene.bundle)
    config["mounts"].append(cdi_edits.mount(str(node), "/dev/nvidia1"))
    write(scene.bundle, config)
    scene.errand.egl_profile = True
    scene.works()
    assert ", 0x2]" in (scene.root / PROFILE).read_text()


def test_drm_links_are_those_of_the_nodes_given(scene: Scene, host: Path) -> None:
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
    scene.errand.drm_links = True
    assert scene.works() == ""
    links = {path.name: os.readlink(path) for path in (scene.root / "dev/dri/by-path").iterdir()}
    kinds = {name: "card" if name.startswith("card") else "render" for name in given}
    assert links == {f"pci-{address}-{kinds[name]}": f"../{name}" for name, address in given.items()}


# --- what a runtime says ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (b"", "the container's state is empty"),
        (b" \n", "the container's state is empty"),
        (b"{", "the container's state is refused: it is not JSON"),
        (b"[]", "the container's state is refused: it is not an object"),
        (b"\xff\xfe", "the container's state is refused: it is not UTF-8"),
        (b"[" * 100000, "the container's state is refused: it is nested too deeply"),
        (b"{}", "names no bundle by an absolute path (none)"),
        (b'{"bundle": 7}', "names no bundle by an absolute path (none)"),
        (b'{"bundle": ""}', "names no bundle by an absolute path ('')"),
        (b'{"bundle": "here"}', "names no bundle by an absolute path ('here')"),
        (b'{"bundle": "/a\\u0000b"}', "names no bundle by an absolute path"),
        (b'{"bundle": "/nowhere/at/all"}', "/nowhere/at/all/config.json: the bundle has no config.json"),
        (b'{"bundle": "%s"}' % (b"x" * (5 << 20)), "the container's state is larger than 4 MiB"),
    ],
    ids=lambda value: value[:20].decode("latin-1") if isinstance(value, bytes) else "",
)
def test_a_state_that_means_nothing_is_a_sentence(scene: Scene, said: bytes, text: str) -> None:
    done = call(scene.program, ["hook", "create-container"], said)
    assert (done.returncode, done.stdout) == (1, "")
    assert text in done.stderr and done.stderr.count("\n") == 1
    assert "no such file or directory" not in done.stderr.lower()


def test_an_endless_state_is_a_sentence(scene: Scene) -> None:
    with open("/dev/zero", "rb") as zero:
        done = subprocess.run([scene.program, "hook", "create-container"], stdin=zero, capture_output=True, timeout=30)
    assert done.returncode == 1 and b"larger than 4 MiB" in done.stderr


def test_a_closed_state_is_a_sentence(scene: Scene) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", f"{scene.program} hook create-container <&-"], capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 1
    assert "standard input: the container's state cannot be read: it is closed" in done.stderr


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (b"", "it is not JSON"),
        (b"[]", "it is not an object"),
        (b"{}", '"root.path" is missing'),
        (b'{"root": {"path": "nowhere"}}', "cannot open the container's root file system"),
        (b'{"root": {"path": "/"}}', "this machine's own"),
        (b'{"root": {"path": "/../"}}', "this machine's own"),
    ],
)
def test_a_config_json_that_means_nothing_is_a_sentence(scene: Scene, config: bytes, text: str) -> None:
    (scene.bundle / "config.json").write_bytes(config)
    done = call(scene.program, ["hook", "create-container"], json.dumps({"bundle": str(scene.bundle)}))
    assert (done.returncode, done.stdout) == (1, "")
    assert text in done.stderr and done.stderr.count("\n") == 1


def test_the_machines_own_root_is_refused_under_another_name(scene: Scene) -> None:
    (scene.bundle / "config.json").write_text('{"root": {"path": "other"}}')
    (scene.bundle / "other").symlink_to("/")
    done = call(scene.program, ["hook", "create-container"], json.dumps({"bundle": str(scene.bundle)}))
    assert done.returncode == 1 and "this machine's own" in done.stderr
    done = call(scene.program, ["hook", "create-container"], json.dumps({"bundle": str(scene.bundle), "root": "/"}))
    assert done.returncode == 1 and "this machine's own" in done.stderr


def test_crun_says_the_root_itself_and_is_believed(scene: Scene) -> None:
    scene.finish()
    scene.root.rename(scene.bundle / "other")
    words = ["hook", "create-container", *scene.errand.words()]
    done = call(scene.program, words, json.dumps({"bundle": str(scene.bundle), "root": "other"}))
    assert (done.returncode, done.stderr) == (0, "")
    assert FOLDER in (scene.bundle / "other" / DROP_IN).read_text()


def test_without_a_bundle_the_current_directory_is_not_believed_when_it_may_be_the_images(scene: Scene) -> None:
    """runc starts hooks in the root file system, whose config.json is the image's."""
    (scene.root / "config.json").write_text(json.dumps({"root": {"path": "rootfs"}}))
    (scene.root / "rootfs").mkdir()
    words = ["hook", "create-container", *scene.errand.words()]
    for said in ({"bundle": ""}, {"bundle": "", "root": "rootfs"}, {"root": "."}):
        done = call(scene.program, words, json.dumps(said), cwd=scene.root)
        assert done.returncode == 1, said
        assert os.listdir(scene.root / "rootfs") == []


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root can mount")
def test_without_a_bundle_cruns_current_directory_is(scene: Scene) -> None:
    scene.finish()
    words = " ".join(["hook", "create-container", *scene.errand.words()])
    script = f"mount --bind {scene.root} {scene.root} && exec {scene.program} {words}"
    done = call("/usr/bin/unshare", ["-m", "sh", "-c", script], '{"bundle": "", "root": "rootfs"}', cwd=scene.bundle)
    assert (done.returncode, done.stderr) == (0, "")
    assert FOLDER in (scene.root / DROP_IN).read_text()


@pytest.mark.parametrize("words", [["--nope"], ["--link", "x"], ["x"]])
def test_a_wrong_command_line_is_a_sentence(scene: Scene, words: list[str]) -> None:
    done = call(scene.program, ["hook", "create-container", *words], json.dumps({"bundle": str(scene.bundle)}))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)


# --- what stops nothing -------------------------------------------------------------------------------------


def test_a_driver_that_is_another_one_by_now_is_said(scene: Scene) -> None:
    scene.errand.driver_version = "535.183.06"
    said = scene.works()
    assert "the CDI file was made for driver 535.183.06, and this machine runs 550.163.01" in said
    assert "gpu-oci-hook cdi refresh" in said and said.count("\n") == 1


def test_what_is_said_goes_into_the_log_too(scene: Scene, tmp_path: Path) -> None:
    scene.errand.driver_version = "535.183.06"
    scene.errand.log = str(tmp_path / "log")
    said = scene.works()
    (scene.bundle / "config.json").write_text("{")
    refused = call(scene.program, ["hook", "create-container", "--log", scene.errand.log, "--nope"], "{}")
    lines = (tmp_path / "log").read_text().splitlines()
    assert len(lines) == 2
    assert "level=warning" in lines[0] and said.strip() in lines[0]
    assert "level=error" in lines[1] and refused.stderr.strip() in lines[1]


@pytest.mark.parametrize("log", ["/nowhere/at/all/log", "/dev/full", "FIFO", "DIRECTORY"])
def test_a_log_that_takes_nothing_stops_nothing(scene: Scene, tmp_path: Path, log: str) -> None:
    os.mkfifo(tmp_path / "FIFO")
    (tmp_path / "DIRECTORY").mkdir()
    scene.errand.log = log if log.startswith("/") else str(tmp_path / log)
    scene.errand.driver_version = "535.183.06"
    assert "this machine runs" in scene.works()


def test_r19_a_root_that_is_no_mount_point_is_as_good(scene: Scene) -> None:
    assert scene.works() == ""
    assert scene.cache()["libcuda.so.1"] == f"{FOLDER}/libcuda.so.1"


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A directory that other users can enter, with our code in it."""
    path = Path(tempfile.mkdtemp(prefix="gpu-oci-hook-test-"))
    path.chmod(0o755)
    shutil.copytree(Path(gpu_oci_hook.__file__).parent, path / "code/gpu_oci_hook")
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root can become another user")
@pytest.mark.parametrize("owner", [1000, 0])
def test_r19_a_user_in_a_user_namespace_without_mount_rights(open_place: Path, owner: int) -> None:
    """With a root of its own all but the mount is done; with one that it may not write nothing is, and that is said."""
    host = open_place / "host"
    simulate.build(host, driver=VERSION)
    scene = Scene(open_place, host, source=open_place / "code")
    scene.errand.hide_device_files = True
    scene.finish()
    for directory, names, files in os.walk(scene.bundle):
        for name in (".", *names, *files):
            os.chown(os.path.join(directory, name), owner, owner, follow_symlinks=False)
    words = ["--reuid=1000", "--regid=1000", "--clear-groups", "/usr/bin/unshare", "--user"]
    words += [str(scene.program), "hook", "create-container", *scene.errand.words()]
    done = call("/usr/bin/setpriv", words, json.dumps({"bundle": str(scene.bundle)}))
    if "unshare failed" in done.stderr:
        lacking(f"this kernel gives users no user namespace ({done.stderr.strip()})")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    if owner:
        assert done.stderr == ""
        assert scene.cache()["libcuda.so.1"] == f"{FOLDER}/libcuda.so.1"
    else:
        assert not (scene.root / CACHE).exists()
        assert "cannot be made: the root file system cannot be written" in done.stderr
        assert f"Set LD_LIBRARY_PATH={FOLDER}" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root can mount")
def test_r19_a_read_only_file_system_is_said_in_a_line_each(scene: Scene) -> None:
    scene.errand.egl_profile = True
    scene.nodes = {"/dev/nvidia0": (195, 0)}
    scene.finish()
    before = look(scene.root)
    words = " ".join(["hook", "create-container", *scene.errand.words()])
    mount = f"mount --bind {scene.root} {scene.root} && mount -o remount,bind,ro {scene.root}"
    done = call(
        "/usr/bin/unshare", ["-m", "sh", "-c", f"{mount} && exec {scene.program} {words}"],
        json.dumps({"bundle": str(scene.bundle)}),
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "")
    lines = done.stderr.splitlines()
    assert len(lines) == 4 and all(line.startswith("gpu-oci-hook: warning: ") for line in lines), done.stderr
    assert any(f"Set LD_LIBRARY_PATH={FOLDER}" in line for line in lines)
    assert look(scene.root) == before


def test_a_disk_that_is_full_refuses_the_container(scene: Scene) -> None:
    """What is required fails by name; the image's cache is the old one."""
    scene.finish()
    prelude = (
        "from gpu_oci_hook.container import directory\n"
        "def _fill(self, name, data, mode): raise OSError(28, 'full')\n"
        "directory.Directory._fill = _fill"
    )
    scene.program = launcher(scene.bundle.parent / "full", prelude)
    assert "/etc/ld.so.cache: cannot write the file: the disk is full" in scene.refused()
    assert not (scene.root / CACHE).exists()


# --- kill -9 ------------------------------------------------------------------------------------------------

KILL = """
import os
COUNT = 0
def wrap(name):
    real = getattr(os, name)
    def call(*args, **kwargs):
        global COUNT
        if name == "open" and not args[1] & os.O_CREAT:
            return real(*args, **kwargs)
        COUNT += 1
        if COUNT == {at}:
            if {half} and name == "write":
                real(args[0], bytes(args[1])[: len(args[1]) // 2])
            os.kill(os.getpid(), 9)
        return real(*args, **kwargs)
    setattr(os, name, call)
for name in ("open", "write", "rename", "symlink", "unlink", "mkdir", "fchmod"):
    wrap(name)
"""


@pytest.mark.parametrize("half", [False, True], ids=["before", "amid"])
def test_killed_at_any_step_the_cache_is_whole_and_the_next_call_comes_to_the_same_end(
    scene: Scene, tmp_path: Path, half: bool
) -> None:
    scene.errand.egl_profile = True
    scene.nodes = {"/dev/nvidia0": (195, 0)}
    old = ldcache.dump(ldcache.merge(None, [("libc.so.6", "/lib/libc.so.6", 0x303)]))
    scene.finish()
    (scene.root / CACHE).write_bytes(old)
    kept = tmp_path / "kept"
    subprocess.run(["cp", "-a", scene.root, kept], check=True)
    scene.works()
    end = look(scene.root, times=False)
    new = (scene.root / CACHE).read_bytes()
    own, at = scene.program, 0
    while True:
        at += 1
        assert at < 200
        subprocess.run(["rm", "-rf", scene.root], check=True)
        subprocess.run(["cp", "-a", kept, scene.root], check=True)
        scene.program = launcher(tmp_path / "killed", KILL.format(at=at, half=half))
        status = scene.call().returncode
        assert (scene.root / CACHE).read_bytes() in (old, new)
        if status == 0:
            break
        assert status == -9
        scene.program = own
        assert scene.works() == ""
        assert look(scene.root, times=False) == end, at
    assert at > 10


# --- NVIDIA's spelling --------------------------------------------------------------------------------------


class Theirs(Scene):
    """A bundle as NVIDIA's generator wants it, and our program under NVIDIA's name."""

    def __init__(self, directory: Path, host: Path, *env: str, **more: Any) -> None:
        super().__init__(directory, host, *env, **more)
        self.cdi_hook = directory / "nvidia-cdi-hook"
        self.cdi_hook.symlink_to("gpu-oci-hook")

    def finish(self) -> None:
        config = read(self.bundle)
        if "hooks" not in config:
            cdi_edits.devices(config, self.nodes)
            cdi_edits.theirs(config, self.host, self.cdi_hook)
            write(self.bundle, config)
        cdi_edits.mount_points(self.bundle, config)

    def hook(self, *words: str, said: str | None = None) -> subprocess.CompletedProcess[str]:
        self.finish()
        done = call(self.cdi_hook, list(words), json.dumps({"bundle": str(self.bundle)}) if said is None else said)
        assert "Traceback" not in done.stderr
        return done

    def chain(self) -> str:
        text = ""
        for words in cdi_edits.chain():
            done = self.hook(*words)
            assert (done.returncode, done.stdout) == (0, ""), done.stderr
            text += done.stderr
        return text


@pytest.fixture
def incumbent(tmp_path: Path, host: Path) -> Theirs:
    return Theirs(tmp_path, host)


def test_the_chain_of_their_generator_does_what_ldconfig_would(incumbent: Theirs) -> None:
    incumbent.nodes = {"/dev/nvidia0": (195, 0)}
    assert incumbent.chain() == ""
    own = incumbent.root / OWN[1:]
    links = {path.name: os.readlink(path) for path in own.iterdir() if path.is_symlink()}
    assert links == {
        "libcuda.so": "libcuda.so.1",
        "libcuda.so.1": f"libcuda.so.{VERSION}",
        "libnvidia-ml.so.1": f"libnvidia-ml.so.{VERSION}",
        "libnvidia-ptxjitcompiler.so.1": f"libnvidia-ptxjitcompiler.so.{VERSION}",
    }
    assert incumbent.cache() == {name: f"{OWN}/{name}" for name in (*links, f"libnvidia-glcore.so.{VERSION}")}
    # A directory where the loader looks anyway gets no line: it would come before the image's others.
    assert OWN not in (incumbent.root / DROP_IN).read_text().splitlines()
    assert ", 0x1]" in (incumbent.root / PROFILE).read_text()
    before = look(incumbent.bundle)
    assert incumbent.chain() == ""
    assert look(incumbent.bundle) == before


def test_nvidia_ctk_hook_and_our_own_name_are_the_same(incumbent: Theirs) -> None:
    ctk = incumbent.bundle.parent / "nvidia-ctk"
    ctk.symlink_to("gpu-oci-hook")
    incumbent.finish()
    said = json.dumps({"bundle": str(incumbent.bundle)})
    for number, (program, before) in enumerate(
        [(ctk, ["hook"]), (ctk, ["--debug", "hook"]), (incumbent.program, ["hook"]), (incumbent.cdi_hook, ["-d"])]
    ):
        done = call(program, [*before, "create-symlinks", f"--link=there::/opt/link{number}"], said)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert os.readlink(incumbent.root / f"opt/link{number}") == "there"
    done = call(ctk, ["cdi", "list"], "")
    assert done.returncode == 1 and "stands in for its hooks alone" in done.stderr


def test_links_are_made_as_their_text_says(incumbent: Theirs) -> None:
    words = ["--link", "a::/x/b", "--link=a::/x/b", "--link", "/c,d::/x/e,f", "--link", "g::x/h"]
    done = incumbent.hook("create-symlinks", *words)
    assert (done.returncode, done.stderr) == (0, "")
    found = {path.name: os.readlink(path) for path in (incumbent.root / "x").iterdir()}
    assert found == {"b": "a", "e,f": "/c,d", "h": "g"}


@pytest.mark.parametrize(
    "words",
    [
        ["update-ldcache", "--nope", "1"], ["create-symlinks", "--link"], ["create-symlinks", "--link", "a"],
        ["create-symlinks", "--link", "a::b::c"], ["chmod", "--path", "/x"], ["chmod", "--mode", "9", "--path", "/x"],
        ["chmod", "--mode", "-755"], ["chmod", "--mode", "77777"], ["noop", "--folder", "/x"], ["--nope", "noop"],
    ],
)  # fmt: skip
def test_a_known_hook_with_a_wrong_flag_fails(incumbent: Theirs, words: list[str]) -> None:
    done = incumbent.hook(*words)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)


@pytest.mark.parametrize("words", [[], ["brand-new-hook", "--x", "y"], ["--brand-new-flag"], ["--debug"]])
def test_an_unknown_hook_is_said_and_passed_over(incumbent: Theirs, words: list[str]) -> None:
    before = look(incumbent.bundle)
    done = call(incumbent.cdi_hook, words, "")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (0, "", 1)
    assert "nothing is done" in done.stderr
    assert look(incumbent.bundle) == before


def test_version_and_help_are_for_people(incumbent: Theirs) -> None:
    from gpu_oci_hook import VERSION as ours

    for words, text in (
        (["--version"], f"gpu-oci-hook, version {ours}"), (["--help"], "update-ldcache"), (["chmod", "-h"], "--mode"),
    ):  # fmt: skip
        done = call(incumbent.cdi_hook, words, "")
        assert done.returncode == 0 and text in done.stdout and done.stderr == ""


def test_compat_without_a_version_reads_no_state(incumbent: Theirs) -> None:
    done = call(incumbent.cdi_hook, ["enable-cuda-compat"], "rubbish")
    assert (done.returncode, done.stderr) == (0, "")
    assert call(incumbent.cdi_hook, ["noop"], "rubbish").returncode == 0
    assert call(incumbent.cdi_hook, ["update-ldcache"], "rubbish").returncode == 1


def test_compat_is_believed_from_config_json_alone(tmp_path: Path, host: Path) -> None:
    """What an image has under /etc/ld.so.conf.d, left by a commit or made to deceive, decides nothing."""
    scene = Theirs(tmp_path, host)
    (scene.root / COMPAT).mkdir(parents=True)
    for name in ("libcuda.so.1", "libcuda.so.999.1"):
        (scene.root / COMPAT / name).write_bytes(b"\x7fELF")
    (scene.root / "etc/ld.so.conf.d/00-compat-1.conf").write_text(f"/{COMPAT}\n")
    scene.finish()
    config = read(scene.bundle)
    hooks = config["hooks"]["createContainer"]
    config["hooks"]["createContainer"] = [hook for hook in hooks if "enable-cuda-compat" not in hook["args"]]
    write(scene.bundle, config)
    scene.chain()
    assert scene.cache()["libcuda.so.1"] == f"{OWN}/libcuda.so.1"


def test_a_compat_directory_elsewhere_is_looked_at(tmp_path: Path, host: Path) -> None:
    """On an Orin the image has it under another name; its libraries' names tell no driver's version there."""
    scene = Theirs(tmp_path, host)
    other = scene.root / "usr/local/cuda/compat_orin"
    other.mkdir(parents=True)
    (other / "libcuda.so.999.1").write_bytes(b"\x7fELF")
    (other / "libcuda.so.1").write_bytes(b"\x7fELF")
    scene.finish()
    config = read(scene.bundle)
    args = next(hook["args"] for hook in config["hooks"]["createContainer"] if "enable-cuda-compat" in hook["args"])
    args += ["--cuda-compat-container-root", "/usr/local/cuda/compat_orin"]
    write(scene.bundle, config)
    scene.chain()
    assert scene.cache()["libcuda.so.1"] == "/usr/local/cuda/compat_orin/libcuda.so.1"
    args[2:3] = ["--host-cuda-version=12.2"]
    write(scene.bundle, config)
    scene.chain()
    assert scene.cache()["libcuda.so.1"] == f"{OWN}/libcuda.so.1"


def test_the_state_may_be_a_file(incumbent: Theirs, tmp_path: Path) -> None:
    (tmp_path / "state").write_text(json.dumps({"bundle": str(incumbent.bundle)}))
    done = incumbent.hook("create-symlinks", "--container-spec", str(tmp_path / "state"), "--link", "a::/b", said="")
    assert done.returncode == 0 and os.readlink(incumbent.root / "b") == "a"
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path / "nothing", tmp_path):
        done = incumbent.hook("create-symlinks", f"--container-spec={path}", "--link", "a::/b", said="")
        assert done.returncode == 1 and done.stderr.count("\n") == 1
    said = json.dumps({"bundle": str(incumbent.bundle)})
    assert incumbent.hook("create-symlinks", "--container-spec", "-", "--link", "a::/c", said=said).returncode == 0


def test_quiet_is_quiet(incumbent: Theirs) -> None:
    config = read(incumbent.bundle)
    config["mounts"].append(cdi_edits.mount("/x", "/opt"))
    write(incumbent.bundle, config)
    assert "left out" in incumbent.hook("create-symlinks", "--link", "a::/opt/b").stderr
    assert incumbent.hook("--quiet", "create-symlinks", "--link", "a::/opt/b").stderr == ""


def test_chmod_changes_what_is_in_the_image_and_nothing_else(incumbent: Theirs, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.touch(mode=0o600)
    inside = incumbent.root / "opt/inside"
    inside.parent.mkdir()
    inside.touch(mode=0o600)
    (incumbent.root / "opt/out").symlink_to(outside)
    (incumbent.root / "opt/climb").symlink_to("../" * 40 + str(outside)[1:])
    (incumbent.root / "opt/in").symlink_to("/opt/inside")
    config = read(incumbent.bundle)
    config["mounts"].append(cdi_edits.mount(str(outside), "/opt/mounted"))
    write(incumbent.bundle, config)
    words = ["chmod", "--mode", "644"]
    for name in ("out", "climb", "in", "missing", "mounted"):
        words += ["--path", f"/opt/{name}"]
    done = incumbent.hook(*words)
    assert done.returncode == 0
    assert "the mode of /opt/mounted stays as it is" in done.stderr and done.stderr.count("\n") == 1
    assert outside.stat().st_mode & 0o777 == 0o600
    assert inside.stat().st_mode & 0o777 == 0o644


def test_a_soname_is_read_from_the_host_and_never_from_the_image(incumbent: Theirs) -> None:
    """What stands at the mount's place below the root is the image's where nothing is mounted, as here."""
    from gpu_oci_hook.formats import elf

    incumbent.finish()
    lie = incumbent.root / f"{OWN[1:]}/libcuda.so.{VERSION}"
    lie.write_bytes(elf.write(soname="libc.so.6"))
    incumbent.chain()
    assert "libc.so.6" not in incumbent.cache()
    assert incumbent.cache()["libcuda.so.1"] == f"{OWN}/libcuda.so.1"


def test_what_is_no_library_of_this_machine_is_not_cached(incumbent: Theirs, tmp_path: Path) -> None:
    from gpu_oci_hook.formats import elf

    (tmp_path / "arm").write_bytes(elf.write(soname="libarm.so.1", arch="aarch64"))
    (tmp_path / "text").write_text("text")
    (tmp_path / "small").write_bytes(elf.write(soname="libsmall.so.1", arch="i386"))
    (tmp_path / "odd").write_bytes(elf.write(soname="../../x.so"))
    os.mkfifo(tmp_path / "fifo")
    config = read(incumbent.bundle)
    for name in ("arm", "text", "small", "odd", "fifo", "nothing"):
        config["mounts"].append(cdi_edits.mount(str(tmp_path / name), f"{OWN}/lib{name}.so.1"))
    write(incumbent.bundle, config)
    incumbent.chain()
    entries = ldcache.parse((incumbent.root / CACHE).read_bytes()).entries
    names = {entry.name: entry.flags for entry in entries}
    assert names["libsmall.so.1"] == 0x003
    assert "libodd.so.1" in names  # its SONAME is no name
    assert not {"libarm.so.1", "libtext.so.1", "libfifo.so.1", "libnothing.so.1"} & set(names)


def test_no_hook_takes_long_over_a_fifo_or_a_huge_file_of_the_image(scene: Scene) -> None:
    os.mkfifo(scene.root / CACHE)
    with (scene.root / "etc/huge").open("wb") as file:
        file.truncate(1 << 40)
    (scene.root / "etc/ld.so.conf").unlink()
    (scene.root / "etc/ld.so.conf").symlink_to("huge")
    begin = time.monotonic()
    assert "no readable file of a sane size" in scene.works()
    assert time.monotonic() - begin < 10
    assert (scene.root / CACHE).is_file()
