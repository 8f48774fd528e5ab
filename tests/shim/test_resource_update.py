"""`update --resources` leaves a container the devices that it has requested."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpu_oci_hook.files.read_regular import TRIGGERS
from gpu_oci_hook.shim import resource_update

DENY_ALL = {"allow": False, "access": "rwm"}
GPU_RULE = {"allow": True, "type": "c", "major": 195, "minor": 0, "access": "rw"}
OTHER_RULE = {"allow": True, "type": "c", "major": 10, "minor": 229, "access": "rwm"}


class Updated:
    """A container of crun, and files with resources."""

    def __init__(self, directory: Path, *env: str, rules: list[dict[str, Any]]) -> None:
        self.directory = directory
        (directory / "root/c").mkdir(parents=True)
        (directory / "root/c/status").touch()
        spec = {"process": {"env": list(env)}, "linux": {"resources": {"devices": rules}}}
        (directory / "root/c/config.json").write_text(json.dumps(spec))
        self.file = directory / "resources.json"

    def update(self, *words: str, resources: object = None) -> list[str]:
        self.file.write_text(json.dumps(resources if resources is not None else {"devices": [DENY_ALL]}))
        return resource_update.keep_devices("/usr/bin/crun", str(self.directory / "root"), [*words, "c"], TRIGGERS)

    def read(self, arguments: list[str]) -> Any:
        path = next(word for word in arguments if word.startswith("--resources=/proc/self/fd/"))
        return json.loads(Path(path.partition("=")[2]).read_text())


@pytest.fixture
def gpu(tmp_path: Path) -> Updated:
    return Updated(tmp_path, "NVIDIA_VISIBLE_DEVICES=0", rules=[DENY_ALL, GPU_RULE])


@pytest.mark.parametrize("flag", ["--resources", "-r", "--res", "--resources=", "-r=", "-r{}", "--resour="])
def test_the_rules_are_left_out_in_every_spelling(gpu: Updated, flag: str) -> None:
    words = (
        [flag.format(gpu.file)] if "{}" in flag else [f"{flag}{gpu.file}"] if flag[-1] == "=" else [flag, str(gpu.file)]
    )
    resources = {"devices": [DENY_ALL], "memory": {"limit": 5}}
    made = gpu.update("--pids-limit", "7", *words, "--cpu-share=3", resources=resources)
    assert [made[0], made[1], *made[3:]] == ["--pids-limit", "7", "--cpu-share=3", "c"]
    assert gpu.read(made) == {"memory": {"limit": 5}}


def test_rules_that_allow_something_stay_and_the_containers_own_come_last(gpu: Updated) -> None:
    made = gpu.update("--resources", str(gpu.file), resources={"devices": [DENY_ALL, OTHER_RULE]})
    assert gpu.read(made) == {"devices": [DENY_ALL, OTHER_RULE, GPU_RULE]}


def test_what_is_not_about_devices_stays_as_it_is(gpu: Updated) -> None:
    assert gpu.update("--memory", "5") == ["--memory", "5", "c"]
    made = gpu.update("--resources", str(gpu.file), resources={"memory": {"limit": 5}})
    assert gpu.read(made) == {"memory": {"limit": 5}}
    assert gpu.update("--resources", "/nowhere") == ["--resources", "/nowhere", "c"]


def test_a_container_that_requests_no_device_is_left_to_the_runtime(tmp_path: Path) -> None:
    for number, (env, rules) in enumerate((([], [GPU_RULE]), (["NVIDIA_VISIBLE_DEVICES=0"], [DENY_ALL]))):
        other = Updated(tmp_path / str(number), *env, rules=rules)
        assert other.update("-r", str(other.file)) == ["-r", str(other.file), "c"]


def test_invalid_resources_are_for_the_runtime_to_refuse(gpu: Updated) -> None:
    made = gpu.update("--resources", str(gpu.file), resources=[])
    assert gpu.read(made) == []


def test_resources_on_standard_input_are_replaced_there(gpu: Updated) -> None:
    code = (
        "import sys; from gpu_oci_hook.shim.resource_update import keep_devices; "
        f"print(keep_devices('/usr/bin/crun', {str(gpu.directory / 'root')!r}, ['-r', '-', 'c'], (b'NVIDIA',)));"
        "import os; print(os.read(0, 1000).decode())"
    )
    said = json.dumps({"devices": [DENY_ALL], "cpu": {"shares": 5}})
    done = subprocess.run([sys.executable, "-c", code], input=said, capture_output=True, text=True, check=True)
    arguments, content = done.stdout.splitlines()
    assert arguments == str(["-r", "-", "c"])
    assert json.loads(content) == {"cpu": {"shares": 5}}


def test_the_low_level_runtime_reads_the_replaced_resources(gpu: Updated) -> None:
    """The descriptor outlives exec."""
    program = gpu.directory / "crun"
    program.write_text('#!/bin/sh\nfor a; do case "$a" in --resources=*) cat "${a#--resources=}";; esac; done\n')
    program.chmod(0o755)
    (gpu.directory / "config.toml").write_text(f'[runtime]\nlow-level = ["{program}"]\n')
    code = (
        "import os; from gpu_oci_hook.files import state_dir; state_dir.DIRECTORY = os.environ['HERE'] + '/state'; "
        "from gpu_oci_hook.shim.main import main; main()"
    )
    gpu.file.write_text(json.dumps({"devices": [DENY_ALL], "pids": {"limit": 5}}))
    words = ["--root", str(gpu.directory / "root"), "update", f"--resources={gpu.file}", "c"]
    env = {**os.environ, "GPU_OCI_HOOK_CONFIG": str(gpu.directory / "config.toml"), "HERE": str(gpu.directory)}
    done = subprocess.run([sys.executable, "-c", code, *words], env=env, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {"pids": {"limit": 5}}
