"""Our program under the name of NVIDIA's prestart hook, called with the state of a bundle."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpu_oci_hook.files import state_dir
from support import cdi_edits
from support.bundles import container_spec, host_config, inject_in_process, make_bundle, snapshot_tree, write_spec
from support.fixtures import SharedHost

pytestmark = pytest.mark.usefixtures("isolated_state")

GPU0 = "NVIDIA_VISIBLE_DEVICES=0"


class PrestartScene:
    """A bundle, a configuration, and the hook."""

    def __init__(self, directory: Path, host: Path) -> None:
        self.host = host
        program = cdi_edits.write_hook_launcher(directory / "gpu-oci-hook")
        self.alias = directory / "nvidia-container-runtime-hook"
        self.alias.symlink_to(program.name)
        self.config = directory / "hook.toml"
        self.configure("")
        self.bundle = make_bundle(directory / "bundle", container_spec(GPU0))

    def configure(self, lines: str) -> None:
        self.config.write_text(f'[host]\nroot = "{self.host}"\nload-modules = false\n{lines}')

    def request(self, *env: str, **more: Any) -> None:
        write_spec(self.bundle, container_spec(*env, **more))

    def call(self, *words: str, said: str | None = None, name: str = "") -> subprocess.CompletedProcess[str]:
        said = json.dumps({"bundle": str(self.bundle)}) if said is None else said
        program = self.alias.parent / name if name else self.alias
        env = {"PATH": "/usr/bin:/bin", "GPU_OCI_HOOK_CONFIG": str(self.config)}
        done = cdi_edits.call_hook(program, list(words or ("prestart",)), said, env=env)
        assert done.stdout == ""
        assert "Traceback" not in done.stderr
        return done


@pytest.fixture
def scene(tmp_path: Path, shared_host: SharedHost) -> PrestartScene:
    return PrestartScene(tmp_path, shared_host(gpus=2))


def test_a_state_without_a_process_is_one_sentence_and_changes_nothing(scene: PrestartScene) -> None:
    before = snapshot_tree(scene.bundle)
    for words in (["prestart"], ["-debug", "prestart"], ["-config=/x", "prestart"]):
        done = scene.call(*words)
        assert done.returncode == 1
        assert "the container's state names no process" in done.stderr
        assert done.stderr.count("\n") == 1
    assert snapshot_tree(scene.bundle) == before


def test_a_process_without_mounts_of_its_own_is_refused_and_the_host_stays_as_it_is(scene: PrestartScene) -> None:
    before = snapshot_tree(scene.bundle)
    done = scene.call(said=json.dumps({"bundle": str(scene.bundle), "pid": os.getpid()}))
    assert done.returncode == 1
    assert "no mount namespace of its own" in done.stderr
    done = scene.call(said=json.dumps({"bundle": str(scene.bundle), "pid": 1 << 30}))
    assert done.returncode == 1
    assert "cannot find the container's mounts" in done.stderr
    assert snapshot_tree(scene.bundle) == before


@pytest.mark.parametrize("env", [[], ["NVIDIA_VISIBLE_DEVICES=void"], ["NVIDIA_VISIBLE_DEVICES="]])
def test_a_container_that_asks_for_nothing_starts(scene: PrestartScene, env: list[str]) -> None:
    scene.request(*env)
    done = scene.call()
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("env", ["privileged", "never"])
def test_a_container_that_may_not_ask_starts_and_the_reason_is_said(scene: PrestartScene, env: str) -> None:
    scene.configure(f'[request]\nenv = "{env}"\n')
    done = scene.call()
    assert done.returncode == 0
    assert f'[request] env is "{env}"' in done.stderr


def test_a_host_without_gpus_starts_a_container_where_the_policy_is_to_warn(
    scene: PrestartScene, tmp_path: Path
) -> None:
    scene.host = tmp_path / "nothing"
    scene.host.mkdir()
    scene.configure("")
    assert scene.call().returncode == 1
    scene.configure('[request]\nmissing-gpu = "warn"\n')
    done = scene.call()
    assert done.returncode == 0
    assert "the container starts without a GPU" in done.stderr


def test_a_container_that_has_everything_already_starts(scene: PrestartScene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_dir, "DIRECTORY", str(scene.alias.parent / "hook-state"))
    hook = {"path": str(scene.alias), "args": ["nvidia-container-runtime-hook", "prestart"]}
    after = inject_in_process(scene.bundle, host_config(scene.host))
    after["hooks"] = {"prestart": [hook]}
    write_spec(scene.bundle, after)
    done = scene.call()
    assert (done.returncode, done.stderr) == (0, "")


def test_a_container_that_a_cdi_file_has_done_starts(scene: PrestartScene) -> None:
    hook = {"path": "/usr/bin/nvidia-ctk", "args": ["nvidia-ctk", "hook", "update-ldcache"]}
    scene.request(GPU0, hooks={"createContainer": [hook]})
    assert scene.call().returncode == 0


def test_an_invalid_configuration_stops_no_container_that_asks_for_nothing(scene: PrestartScene) -> None:
    scene.config.write_text("[request\n")
    scene.request()
    assert scene.call().returncode == 0
    scene.request(GPU0)
    done = scene.call()
    assert done.returncode == 1
    assert "hook.toml" in done.stderr


@pytest.mark.parametrize("command", ["poststart", "poststop"])
def test_the_other_stages_do_nothing(scene: PrestartScene, command: str) -> None:
    done = scene.call(command, said="{")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_file_of_hooks_d_may_name_our_own_program(scene: PrestartScene) -> None:
    assert scene.call(name="gpu-oci-hook").returncode == 1
    scene.request()
    assert scene.call(name="gpu-oci-hook").returncode == 0


def test_an_unknown_command_is_refused_with_the_known_ones(scene: PrestartScene) -> None:
    for words in (["--version"], ["configure"]):
        done = scene.call(*words, said="")
        assert done.returncode == 1
        assert "Use prestart, poststart or poststop" in done.stderr


def test_a_state_without_a_bundle_is_one_sentence(scene: PrestartScene) -> None:
    for said in ("", "{}", "[", json.dumps({"bundle": str(scene.bundle / "nowhere")})):
        done = scene.call(said=said)
        assert (done.returncode, done.stderr.count("\n")) == (1, 1)
