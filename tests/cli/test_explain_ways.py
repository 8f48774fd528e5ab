"""`explain --way`: the plan as one of our hooks would carry it out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpu_oci_hook.cli import explain_ways
from gpu_oci_hook.inject import gather
from gpu_oci_hook.model.edits import AddHook
from gpu_oci_hook.plan.driver_params import DRIVER_PARAMS
from support.bundles import host_config, inject_in_process
from support.command_line import Command, DebianBundle, read_json
from support.fixtures import SharedHost

pytestmark = pytest.mark.usefixtures("isolated_state")


@pytest.fixture(scope="module")
def host(shared_host: SharedHost) -> Path:
    return shared_host(gpus=2, driver="550.163.01")


@pytest.fixture
def bundle(tmp_path: Path) -> DebianBundle:
    return DebianBundle(tmp_path / "bundle").request("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=all")


def explain(command: Command, host: Path, bundle: DebianBundle, way: str, *words: str, status: int = 0) -> str:
    answer = command("explain", "--bundle", bundle.path, "--root", host, "--way", way, *words)
    assert answer.status == status, answer.err
    return answer.out


def test_every_edit_of_the_hook_has_its_place(command: Command, host: Path, bundle: DebianBundle) -> None:
    answer = command("explain", "--bundle", bundle.path, "--root", host, "--way", "hook", "--format", "json")
    document = read_json(answer, "explain")
    assert (document["way"], document["state"]) == ("hook", "inject")
    places = {(edit["kind"], edit["place"]) for edit in document["edits"]}
    assert {("device", "container"), ("mount", "container"), ("link", "container"), ("rule", "cgroup")} <= places
    assert ("rule", "container") not in places
    assert not {kind for kind, _ in places} & {"hook", "env", "group"}


def test_the_drivers_parameters_are_mounted_where_the_runtime_would_add_a_hook(
    command: Command, host: Path, bundle: DebianBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gather, "_read_visible_params", lambda host: b"ModifyDeviceFiles: 1\n")
    by_runtime, by_hook = (
        json.loads(explain(command, host, bundle, way, "--format", "json"))["edits"] for way in ("runtime", "hook")
    )
    assert [edit["kind"] for edit in by_runtime if DRIVER_PARAMS in edit["text"]].count("hook") == 1
    (mount,) = [edit for edit in by_hook if edit.get("destination") == DRIVER_PARAMS]
    assert mount["kind"] == "mount"
    assert "ro" in mount["options"]


def test_what_only_the_runtime_can_set_is_withheld_with_the_reason(
    command: Command, host: Path, bundle: DebianBundle
) -> None:
    document = json.loads(explain(command, host, bundle, "hook", "--format", "json"))
    by_runtime = json.loads(explain(command, host, bundle, "runtime", "--format", "json"))
    wanted = {(edit["kind"], edit["text"]) for edit in by_runtime["edits"] if edit["kind"] in ("env", "group")}
    assert wanted, "the plan has no such edit, and the test shows nothing"
    withheld = {(item["kind"], item["name"]): item["reason"] for item in document["withheld"]}
    assert wanted <= withheld.keys()
    assert all(withheld[item].startswith("a hook cannot ") for item in wanted)


def test_the_text_says_who_does_what_where(command: Command, host: Path, bundle: DebianBundle) -> None:
    text = explain(command, host, bundle, "hook")
    assert "way           gpu-oci-hook prestart" in text
    assert "devices (nodes in the container, rules in the container's cgroup)" in text
    assert "libraries (mounted in the container)" in text
    assert "a hook cannot give the container's process the group" in text
    assert "config.json has none of this" not in text


def test_precreate_is_the_plan_of_the_runtime(command: Command, host: Path, bundle: DebianBundle) -> None:
    by_runtime, by_precreate = (
        json.loads(explain(command, host, bundle, way, "--format", "json")) for way in ("runtime", "precreate")
    )
    assert (by_runtime.pop("way"), by_precreate.pop("way")) == ("runtime", "precreate")
    assert by_runtime == by_precreate
    assert "gpu-oci-hook precreate" in explain(command, host, bundle, "precreate")


def test_what_config_json_has_already_is_left_to_it(command: Command, host: Path, bundle: DebianBundle) -> None:
    inject_in_process(bundle.path, host_config(host))
    document = json.loads(explain(command, host, bundle, "hook", "--format", "json"))
    assert document["found"]["complete"]
    assert all("place" not in edit for edit in document["edits"])
    assert "(already in config.json)" in explain(command, host, bundle, "hook")


def test_a_hook_changes_no_config_json_so_there_is_no_diff(command: Command, host: Path, bundle: DebianBundle) -> None:
    answer = command("explain", "--bundle", bundle.path, "--root", host, "--way", "hook", "--format", "diff")
    assert answer.status == 2
    assert "the prestart hook changes no config.json" in answer.err


def test_a_hook_that_cannot_be_replaced_is_a_refusal(
    command: Command, host: Path, bundle: DebianBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = AddHook("createContainer", "/usr/bin/other", ("other", "argument"), ("PATH=/x",), "a CDI file")
    real = explain_ways.plan_live_edit
    monkeypatch.setattr(explain_ways, "plan_live_edit", lambda edit: real(hook))
    document = json.loads(explain(command, host, bundle, "hook", "--format", "json", status=1))
    assert (document["state"], document["way"]) == ("refused", "hook")
    assert "a hook cannot add the hook /usr/bin/other" in document["reason"]
    assert explain(command, host, bundle, "hook", status=1) == ""
