"""Which hook calls are answered before the program is loaded, and which are left to it."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from gpu_oci_hook import cli
from gpu_oci_hook.config.keys import Config
from gpu_oci_hook.config.load import list_request_words
from gpu_oci_hook.files import read_regular
from gpu_oci_hook.formats.program_names import NVIDIA_PRESTART_HOOKS, PRECREATE, PRESTART
from gpu_oci_hook.hook import quick_answer
from gpu_oci_hook.hook.called_container import find_bundle_and_pid, parse_state
from gpu_oci_hook.hook.standard_streams import find_state_bundle
from support import cdi_edits
from support.bundles import container_spec, make_bundle, write_spec
from support.fixtures import SharedHost

# Says on stderr that the full program is at work.
WITNESS = """
def witness(event, arguments):
    if event == "import" and arguments[0] == "gpu_oci_hook.hook.cdi_hook":
        sys.stderr.write("full\\n")
sys.addaudithook(witness)
"""


class Scene:
    """A bundle, a configuration, and our hook under both names."""

    def __init__(self, directory: Path, host: Path) -> None:
        self.program = cdi_edits.write_hook_launcher(directory / "gpu-oci-hook", WITNESS)
        (directory / "nvidia-container-runtime-hook").symlink_to("gpu-oci-hook")
        self.host = host
        self.config = directory / "hook.toml"
        self.bundle = make_bundle(directory / "bundle", container_spec())
        self.configure("")

    def configure(self, lines: str) -> None:
        self.config.write_text(f'[host]\nroot = "{self.host}"\nload-modules = false\n{lines}')
        time.sleep(0.15)  # a file that changes this very moment is not cached

    def call(self, *words: str, name: str = "gpu-oci-hook", said: str | bytes | None = None) -> Any:
        data = json.dumps({"id": "x", "pid": 0, "bundle": str(self.bundle)}) if said is None else said
        env = {"PATH": "/usr/bin:/bin", "GPU_OCI_HOOK_CONFIG": str(self.config)}
        return cdi_edits.call_hook(self.program.parent / name, list(words or ("prestart",)), data, env=env)

    def is_quick(self, *words: str, name: str = "gpu-oci-hook", said: str | bytes | None = None) -> bool:
        done = self.call(*words, name=name, said=said)
        assert done.returncode == 0, done.stderr
        assert done.stderr in ("", "full\n")
        return not done.stderr


@pytest.fixture
def scene(tmp_path: Path, shared_host: SharedHost) -> Scene:
    scene = Scene(tmp_path, shared_host(gpus=2))
    assert not scene.is_quick(), "nothing is known of the configuration yet"
    assert scene.is_quick()
    return scene


def test_the_names_are_those_of_the_full_program() -> None:
    assert (quick_answer.PRESTART, quick_answer.PRECREATE) == (PRESTART, PRECREATE)
    assert {name.decode() for name in read_regular.HOOK_TRIGGERS} == set(NVIDIA_PRESTART_HOOKS)
    assert list_request_words(Config()) == quick_answer.DEFAULT_REQUEST_WORDS


@pytest.mark.parametrize("program", ["gpu-oci-hook", "x", *NVIDIA_PRESTART_HOOKS, "nvidia-cdi-hook", "nvidia-ctk"])
@pytest.mark.parametrize(
    "words",
    ["", "prestart", "precreate", "poststop", "-debug prestart", "-config /x prestart", "prestart --help", "list",
     "hook prestart", "hook create-container", "precreate x", "prestart poststop"],
)  # fmt: skip
def test_a_command_that_is_answered_is_the_one_that_the_full_program_would_run(program: str, words: str) -> None:
    command = quick_answer.find_hook_command(f"/usr/bin/{program}", words.split())
    full = cli._extract_hook_arguments(words.split(), f"/usr/bin/{program}")
    if command == "precreate":
        assert full == ["precreate"]
    elif command:
        assert full is not None
        assert full[0] == "prestart"
        assert quick_answer.find_nvidia_command(full[1:]) == command
    elif full and program not in ("nvidia-cdi-hook", "nvidia-ctk"):
        assert full[0] != "precreate" or full[1:]
        assert full[0] != "prestart" or quick_answer.find_nvidia_command(full[1:]) not in (
            "prestart",
            *quick_answer.IDLE_COMMANDS,
        )


BUNDLES: dict[str, object] = {
    "runc": {"ociVersion": "1.0.2", "id": "c", "pid": 7, "bundle": "/b", "annotations": {"a": "b"}},
    "old": {"ociVersion": "0.2", "id": "c", "pid": 7, "bundlePath": "/b"},
    "crun": {"ociVersion": "1.0", "id": "c", "pid": 7, "root": "rootfs", "bundle": "", "created": "now"},
    "text of an annotation": {"bundle": "/b", "annotations": {"a": '","bundle":"/evil'}},
    "key of an annotation": {"bundle": "/b", "annotations": {"bundle": "/evil"}},
    "annotation alone": {"id": "c", "annotations": {"bundle": "/evil"}},
    "annotation first": {"annotations": {"x": "y", "bundle": "/evil"}, "bundle": "/b"},
    "list first": {"x": ["bundle", "/evil"], "bundle": "/b"},
    "value": {"id": "bundle", "bundle": "/b"},
    "id": {"id": '{"bundle":"/evil"}', "bundle": "/b"},
    "both": {"bundle": "/b", "bundlePath": "/c"},
    "relative": {"bundle": "b"},
    "number": {"bundle": 3},
    "escaped": {"bundle": '/b"c'},
    "no root": {"id": "root", "bundle": ""},
}  # fmt: skip
CERTAIN = {"runc", "old", "crun", "relative", "number", "no root"}


@pytest.mark.parametrize("name", BUNDLES)
@pytest.mark.parametrize("indent", [None, 3])
def test_a_bundle_that_is_found_without_a_parser_is_the_one_that_the_parser_finds(
    name: str, indent: int | None
) -> None:
    text = json.dumps(BUNDLES[name], indent=indent).encode()
    found = find_state_bundle(text)
    if found:
        assert find_bundle_and_pid(parse_state(text))[0] == found
    assert bool(found) == (name in ("runc", "old", "crun")) or name in ("text of an annotation", "value", "id")


@pytest.mark.parametrize("text", [b"", b"{", b'{"bundle": "/b"', b'[{"bundle": "/b"}]', b'{"bundle": "/\xff"}', b"\0"])
def test_what_is_no_state_names_no_bundle(text: bytes) -> None:
    assert find_state_bundle(text) == ""


def test_every_way_to_ask_for_nothing_is_answered_at_once(scene: Scene) -> None:
    assert scene.is_quick(name="nvidia-container-runtime-hook")
    for words in (["-debug", "prestart"], ["poststart"], ["poststop"]):
        assert scene.is_quick(*words, name="nvidia-container-runtime-hook")
    assert scene.is_quick(said=json.dumps({"id": "x", "bundlePath": str(scene.bundle)}))
    text = json.dumps(container_spec(), indent=7) + "\n\n"
    done = scene.call("precreate", said=text)
    assert (done.returncode, done.stdout, done.stderr) == (0, text, "")


def test_a_hook_in_config_json_with_nvidias_name_does_not_make_prestart_slow(scene: Scene) -> None:
    """The hook that is called is in config.json, under the name that it is called by."""
    hook = {"path": "/usr/bin/nvidia-container-runtime-hook", "args": ["nvidia-container-runtime-hook", "prestart"]}
    write_spec(scene.bundle, container_spec(hooks={"prestart": [hook]}))
    assert scene.is_quick()


def test_precreate_still_removes_gpu_hooks_of_others(scene: Scene) -> None:
    hook = {"path": "/usr/bin/nvidia-container-runtime-hook", "args": ["nvidia-container-runtime-hook", "prestart"]}
    spec = container_spec(hooks={"prestart": [hook]})
    spec["root"] = {"path": str(scene.bundle / "rootfs")}
    done = scene.call("precreate", said=json.dumps(spec))
    assert (done.returncode, done.stderr) == (0, "full\n")
    assert "nvidia-container-runtime-hook" not in done.stdout


@pytest.mark.parametrize("command", ["prestart", "precreate"])
def test_a_changed_configuration_counts_from_the_next_call_on(scene: Scene, command: str) -> None:
    """A device variable that is new must not be overlooked: the container would start without a GPU."""
    spec = container_spec("SWARM_GPU=0")
    spec["root"] = {"path": str(scene.bundle / "rootfs")}
    write_spec(scene.bundle, spec)
    said = json.dumps(spec) if command == "precreate" else None
    assert scene.is_quick(command, said=said)
    scene.config.write_text(scene.config.read_text() + '[request]\ndevice-variables = ["SWARM_GPU"]\n')
    for _ in range(3):
        done = scene.call(command, said=said)
        assert "full" in done.stderr
        if command == "prestart":
            assert "the container's state names no process" in done.stderr
        else:
            assert "/dev/nvidia-uvm" in done.stdout
        time.sleep(0.15)


@pytest.mark.parametrize(
    "more",
    [
        container_spec("NVIDIA_VISIBLE_DEVICES=0"),
        container_spec("CUDA_VERSION=12"),
        container_spec(annotations={"cdi.k8s.io/x": "nvidia.com/gpu=0"}),
        container_spec(mounts=[{"destination": "/var/run/nvidia-container-devices/0", "source": "/dev/null"}]),
    ],
    ids=["variable", "legacy image", "annotation", "mount"],
)
def test_a_request_of_any_kind_is_left_to_the_full_program(scene: Scene, more: dict[str, Any]) -> None:
    write_spec(scene.bundle, more)
    done = scene.call()
    assert (done.returncode, "full" in done.stderr) == (1, True)
    assert "the container's state names no process" in done.stderr


def test_a_config_json_that_cannot_be_read_is_a_sentence_of_the_full_program(scene: Scene) -> None:
    path = scene.bundle / "config.json"
    for make, sentence in (
        (path.unlink, "no config.json"),
        (lambda: os.mkfifo(path), "it is not a regular file"),
        (lambda: (path.unlink(), path.mkdir()), "it is a directory"),
    ):
        make()
        done = scene.call()
        assert (done.returncode, done.stderr.count("\n")) == (1, 2)
        assert sentence in done.stderr


def test_a_huge_config_json_without_a_request_is_none_of_our_business(scene: Scene) -> None:
    spec = container_spec()
    spec["annotations"] = {"a": "x" * (read_regular.CONFIG_JSON_LIMIT + 1)}
    write_spec(scene.bundle, spec)
    assert scene.is_quick()
    spec["process"]["env"] = ["NVIDIA_VISIBLE_DEVICES=0"]
    write_spec(scene.bundle, spec)
    done = scene.call()
    assert done.returncode == 1
    assert "is larger than 32 MiB" in done.stderr


def test_an_answer_that_cannot_be_written_is_a_failure(scene: Scene) -> None:
    env = {"PATH": "/usr/bin:/bin", "GPU_OCI_HOOK_CONFIG": str(scene.config)}
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [scene.program, "precreate"], input=b"{}", stdout=full, stderr=subprocess.PIPE, env=env, timeout=60
        )
    assert done.returncode == 1
    assert b"the disk is full" in done.stderr
    assert done.stderr.count(b"\n") == 2
