"""`gpu-oci-hook precreate`: config.json on stdin, the one that gpu-oci-runtime would write on stdout."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.files import state_dir
from gpu_oci_hook.hook.precreate_hook import find_bundle
from support import cdi_edits
from support.bundles import container_spec, host_config, inject_in_process, make_bundle
from support.fixtures import SharedHost

pytestmark = pytest.mark.usefixtures("isolated_state")

GPU0 = "NVIDIA_VISIBLE_DEVICES=0"


class PrecreateScene:
    """A root file system, a configuration, and the hook."""

    def __init__(self, directory: Path, host: Path) -> None:
        self.host = host
        self.program = cdi_edits.write_hook_launcher(directory / "gpu-oci-hook")
        self.config = directory / "hook.toml"
        self.config.write_text(f'[host]\nroot = "{host}"\nload-modules = false\n')
        self.bundle = make_bundle(directory / "bundle", container_spec(GPU0))

    def read_spec(self, *env: str) -> dict[str, object]:
        spec: dict[str, object] = container_spec(*env)
        spec["root"] = {"path": str(self.bundle / "rootfs")}
        return spec

    def call(self, text: str) -> subprocess.CompletedProcess[str]:
        env = {"PATH": "/usr/bin:/bin", "GPU_OCI_HOOK_CONFIG": str(self.config)}
        done = cdi_edits.call_hook(self.program, ["precreate"], text, env=env)
        assert "Traceback" not in done.stderr
        return done


@pytest.fixture
def scene(tmp_path: Path, shared_host: SharedHost) -> PrecreateScene:
    return PrecreateScene(tmp_path, shared_host(gpus=2))


def test_the_answer_is_what_the_runtime_would_write(
    scene: PrecreateScene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = scene.read_spec(GPU0)
    done = scene.call(json.dumps(spec))
    assert (done.returncode, done.stderr) == (0, "")
    answer = json.loads(done.stdout)
    monkeypatch.setattr(state_dir, "DIRECTORY", str(tmp_path / "state-of-the-runtime"))
    expected = inject_in_process(make_bundle(tmp_path / "other", container_spec(GPU0)), host_config(scene.host))
    assert answer["linux"]["devices"] == expected["linux"]["devices"]
    assert answer["linux"]["resources"] == expected["linux"]["resources"]
    destinations = {mount["destination"] for mount in expected["mounts"]}
    assert {mount["destination"] for mount in answer["mounts"]} == destinations
    assert (scene.bundle / "rootfs/etc/ld.so.conf.d").is_dir()


@pytest.mark.parametrize("env", [[], ["NVIDIA_VISIBLE_DEVICES=void"]])
def test_a_container_that_asks_for_nothing_gets_its_config_back_byte_by_byte(
    scene: PrecreateScene, env: list[str]
) -> None:
    text = json.dumps(scene.read_spec(*env), indent=7) + "\n\n"
    done = scene.call(text)
    assert (done.returncode, done.stdout, done.stderr) == (0, text, "")


def test_called_again_with_its_answer_it_changes_nothing(scene: PrecreateScene) -> None:
    first = scene.call(json.dumps(scene.read_spec(GPU0))).stdout
    assert scene.call(first).stdout == first


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no config.json"),
        ("{", "not valid JSON"),
        ("[]", "must be a JSON object"),
        (json.dumps({"process": {"env": [GPU0]}}), "root.path is not an absolute path"),
        (json.dumps({"root": {"path": "rootfs"}, "process": {"env": [GPU0]}}), "root.path is not an absolute path"),
        (json.dumps({"root": {"path": "/nowhere/x"}, "process": {"env": [GPU0]}}), "the rootfs does not exist"),
    ],
)
def test_what_is_no_config_of_a_container_is_one_sentence_and_no_answer(
    scene: PrecreateScene, text: str, words: str
) -> None:
    done = scene.call(text)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert words in done.stderr


@pytest.mark.parametrize(
    ("redirection", "reason"),
    [
        ("<&-", "standard input: the config.json cannot be read: it is closed. Let podman or CRI-O call this hook"),
        (">&-", "standard output: the config.json cannot be written: it is closed"),
        (">/dev/full", "standard output: the config.json cannot be written: the disk is full"),
    ],
)
def test_a_closed_or_full_stream_is_named(scene: PrecreateScene, redirection: str, reason: str) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", f"exec {scene.program} precreate {redirection}"],
        input=json.dumps(scene.read_spec()),
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (done.returncode, done.stderr) == (1, f"gpu-oci-hook: {reason}\n")


def test_a_gpu_that_is_not_there_stops_the_container_with_the_reason(scene: PrecreateScene) -> None:
    done = scene.call(json.dumps(scene.read_spec("NVIDIA_VISIBLE_DEVICES=7")))
    assert (done.returncode, done.stdout) == (1, "")
    assert "NVIDIA_VISIBLE_DEVICES=7" in done.stderr


CONTAINER_ID = "0123456789abcdef" * 4


def make_engine_directory(storage: Path, container_id: str = CONTAINER_ID) -> Path:
    directory = storage / f"overlay-containers/{container_id}/userdata"
    directory.mkdir(parents=True)
    return directory


def mount_file(destination: str, directory: Path) -> dict[str, object]:
    source = str(directory / destination.rpartition("/")[2])
    return {"destination": destination, "source": source, "type": "bind", "options": ["bind"]}


def test_files_for_mounts_lie_where_the_engine_keeps_the_containers_own_files(tmp_path: Path) -> None:
    spec: dict[str, object] = {"root": {"path": f"{tmp_path}/overlay/1/merged/"}}
    (tmp_path / "overlay/1").mkdir(parents=True)
    assert find_bundle(spec) == f"{tmp_path}/overlay/1"
    own, pod = make_engine_directory(tmp_path), make_engine_directory(tmp_path, "fedcba9876543210" * 4)
    spec["mounts"] = [
        {"destination": "/data", "source": "/home/me"},
        mount_file("/etc/hosts", pod),  # containers of a pod share it
        mount_file("/run/.containerenv", own),
    ]
    assert find_bundle(spec) == str(own)


def test_a_file_of_a_volume_in_place_of_the_engines_own_leads_nowhere(tmp_path: Path) -> None:
    volume, own = tmp_path / "volume", make_engine_directory(tmp_path)
    spec: dict[str, object] = {"root": {"path": f"{tmp_path}/overlay/1/merged"}}
    spec["mounts"] = [mount_file("/run/.containerenv", volume), mount_file("/etc/hosts", own)]
    assert find_bundle(spec) == str(own)
    spec["mounts"] = [mount_file("/run/.containerenv", volume)]
    assert find_bundle(spec) == f"{tmp_path}/overlay/1"


@pytest.mark.root
@pytest.mark.parametrize("change", ["another owner", "others write", "a link of another user"])
def test_a_directory_that_another_user_can_change_is_refused(tmp_path: Path, change: str) -> None:
    directory = tmp_path / "home"
    directory.mkdir()
    if change == "another owner":
        os.chown(directory, 4807, 4807)
    elif change == "others write":
        directory.chmod(0o777)
    else:
        link = tmp_path / "link"
        link.symlink_to(directory)
        os.chown(link, 4807, 4807, follow_symlinks=False)
        directory = link
    with pytest.raises(Fault, match="can be changed by another user"):
        find_bundle({"root": {"path": str(directory / "rootfs")}})


@pytest.mark.root
@pytest.mark.parametrize(
    "prepared", ["a link to a directory of the host", "a record", "a link to a record's directory"]
)
def test_what_a_container_has_put_into_a_volume_is_neither_believed_nor_written_through(
    scene: PrecreateScene, tmp_path: Path, prepared: str
) -> None:
    """A pod can mount a file of its volume on /etc/hosts, and its other containers write to the volume as root."""
    volume, target = tmp_path / "volume", tmp_path / "host"
    volume.mkdir(0o777)
    volume.chmod(0o777)
    target.mkdir()
    spec = scene.read_spec(GPU0)
    hosts = mount_file("/etc/hosts", volume)
    proc = {"destination": "/proc", "type": "proc", "source": "proc"}
    spec["mounts"] = [proc, hosts]
    if prepared == "a record":
        (volume / "gpu-oci-hook").mkdir()
    else:
        (volume / "gpu-oci-hook").symlink_to(target)
    if prepared != "a link to a directory of the host":
        every = {"destination": "/host", "type": "bind", "source": "/", "options": ["rbind"]}
        record = [{"root": spec["root"], "mounts": [every]}, {"root": spec["root"], "mounts": [proc]}]
        (volume / "gpu-oci-hook/injected.json").write_text(json.dumps(record))
    before = sorted(path.name for path in target.iterdir())
    done = scene.call(json.dumps(spec))
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in target.iterdir()) == before
    assert "/host" not in [mount["destination"] for mount in json.loads(done.stdout)["mounts"]]
