"""attach, detach and repair: wrong command lines, containers that are not there, and the forms of the output."""

from __future__ import annotations

import json
import os
from pathlib import Path

import jsonschema
import pytest

from gpu_oci_hook.attach.container_plan import GivenGpu
from gpu_oci_hook.attach.operations import Result
from gpu_oci_hook.cli import change_report
from gpu_oci_hook.files import state_dir
from gpu_oci_hook.live import engine_containers, runtime_states
from gpu_oci_hook.live.device_holders import DeviceHolder
from support.bundles import skip_or_fail
from support.command_line import SCHEMAS, Command


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["attach", "docker:x"], "missing option --gpus"),
        (["attach", "--gpus", "0"], "no container is named"),
        (["attach", "docker:x", "--pid", "1", "--gpus", "0"], "name different containers"),
        (["attach", "docker:x", "--gpus", "none"], '"none" names no GPU'),
        (["attach", "docker:x", "--gpus", "0,void"], '"void" names no GPU'),
        (["attach", "docker:x", "--gpus", ""], '"" names no GPU'),
        (["attach", "docker:x", "--gpus", "nvidia.com/gpu=0"], "is a CDI name"),
        (["attach", "docker:x", "--gpus", "0", "--capabilities", "gaming"], 'unknown capability "gaming"'),
        (["detach", "docker:x", "--gpus", "none"], '"none" names no GPU'),
        (["detach"], "no container is named"),
        (["repair"], "no container is named"),
        (["repair", "--all", "docker:x"], "cannot be named together"),
    ],
)
def test_a_wrong_command_line_ends_with_2(command: Command, words: list[str], text: str) -> None:
    result = command(*words)
    assert result.status == 2 and text in result.err


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("runc:none-such", "runc runs no such container in"),
        ("crio:none-such", "CRI-O runs no such container"),
        ("docker:none-such", "docker runs no such container"),
        ("none-such-at-all", "no running container has this name"),
    ],
)
def test_a_container_that_is_not_there_is_one_sentence(command: Command, name: str, text: str) -> None:
    for verb in (["attach", name, "--gpus", "0"], ["detach", name], ["repair", name]):
        result = command(*verb)
        assert result.status == 1 and text in result.err and result.err.count("\n") == 1


def test_without_a_container_there_is_nothing_to_repair(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if os.geteuid() != 0:
        skip_or_fail("needs root")
    monkeypatch.setattr(state_dir, "DIRECTORY", str(tmp_path / "state"))
    monkeypatch.setattr(engine_containers, "list_monitors", list)
    monkeypatch.setattr(runtime_states, "RUNTIME_ROOTS", ())
    result = command("repair", "--all")
    assert (result.status, result.out) == (0, "no running container has a GPU\n")
    document = json.loads(command("repair", "--all", "-o", "json").out)
    assert (document["containers"], document["failed"]) == ([], [])


def test_the_json_form_has_its_schema_for_every_state(capsys: pytest.CaptureFixture[str]) -> None:
    schema = json.loads((SCHEMAS / "container-changes.schema.json").read_text())
    container = type("Container", (), {"title": "container x", "reference": "runc:x", "pid": 7})()
    states = schema["properties"]["containers"]["items"]["properties"]["state"]["enum"]
    results = []
    for state in states:
        result = Result(container, state, [GivenGpu("GPU-1", "0", "H100")])
        result.holders = [DeviceHolder(9, "python", ["195:0"])]
        results.append(result)
    change_report.print_results("json", results, [("container y", "it has ended")])
    jsonschema.validate(json.loads(capsys.readouterr().out), schema, cls=jsonschema.Draft202012Validator)
    change_report.print_results("text", results, [("container y", "it has ended")])
    printed = capsys.readouterr()
    assert len(printed.out.splitlines()) == len(states)
    assert "process 9 (python) holds 195:0 open" in printed.err and "container y: it has ended" in printed.err
