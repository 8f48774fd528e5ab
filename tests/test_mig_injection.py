"""MIG devices the whole way: a bundle, a simulated host divided into parts, and what the container gets."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import gpu_oci_hook.cli
from gpu_oci_hook import cli
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.files import state_dir
from gpu_oci_hook.host.mig import mig_devices
from gpu_oci_hook.inject import pipeline
from gpu_oci_hook.simulate import host_tree
from support.bundles import (
    PROC,
    Shim,
    Spec,
    container_spec,
    host_config,
    inject_in_process,
    list_allowed_numbers,
    list_device_numbers,
    make_bundle,
    skip_or_fail,
    snapshot_tree,
    user_namespace_param,
    write_spec,
)
from support.command_line import Command
from support.nvml_double import NvmlDouble, find_compiler

pytestmark = pytest.mark.usefixtures("isolated_state")

CAPS = 235
CONTROL = {"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> host_tree.SimulatedHost:
    """GPU 0 (minor 1) in seven parts, GPU 1 (minor 0) whole, GPU 2 in three parts of four devices."""
    return host_tree.build_host(tmp_path_factory.mktemp("host"), gpus=3, mig=["7", "0", "3g.20gb,1c.2g,1g"])


@pytest.fixture
def double(tmp_path: Path) -> NvmlDouble:
    """The same host with an NVML that answers."""
    if not find_compiler():
        skip_or_fail("NVML's answers; there is no C compiler for its double")
    return NvmlDouble(host_tree.build_host(tmp_path / "host", gpus=3, mig=["7", "0", "3g.20gb,1c.2g,1g"]))


def cap(minor: int, gi: int, ci: int | None = None) -> str:
    """The node of a capability, by the driver's formula."""
    return f"/dev/nvidia-caps/nvidia-cap{3 + (minor * 15 + gi) * 9 + (0 if ci is None else ci + 1)}"


def privileged(*env: str, **more: Any) -> Spec:
    made = container_spec(*env, **more)
    made["process"]["capabilities"] = {"bounding": ["CAP_SYS_ADMIN", "CAP_MKNOD"]}
    return made


def given(made: Path, config: Spec, host: Path | str) -> tuple[set[str], list[tuple[int, int]]]:
    """The nodes beside the control nodes, and the numbers that the rules allow."""
    after = inject_in_process(make_bundle(made, config), host_config(host))
    nodes = list_device_numbers(after)
    assert set(nodes) >= CONTROL
    assert set(nodes.values()) == set(list_allowed_numbers(after)), "nodes and rules are not the same"
    return set(nodes) - CONTROL, list_allowed_numbers(after)


@pytest.mark.parametrize(
    ("asked", "nodes"),
    [
        ("0:1", {"/dev/nvidia1", cap(1, 8), cap(1, 8, 0)}),
        ("0:6,0:0", {"/dev/nvidia1", cap(1, 13), cap(1, 13, 0), cap(1, 7), cap(1, 7, 0)}),
        ("2:2", {"/dev/nvidia2", cap(2, 3), cap(2, 3, 1)}),
        ("2:1,2:2", {"/dev/nvidia2", cap(2, 3), cap(2, 3, 0), cap(2, 3, 1)}),
        ("1,2:0", {"/dev/nvidia0", "/dev/nvidia2", cap(2, 1), cap(2, 1, 0)}),
        ("1", {"/dev/nvidia0"}),
        ("0", {"/dev/nvidia1"}),
        ("none", set()),
    ],
)
def test_a_container_gets_the_nodes_of_its_mig_devices_and_no_others(
    asked: str, nodes: set[str], report: host_tree.SimulatedHost, tmp_path: Path
) -> None:
    found, _ = given(tmp_path / "b", container_spec(f"NVIDIA_VISIBLE_DEVICES={asked}"), report.directory)
    assert found == nodes


def test_all_gives_whole_gpus_whole_and_the_others_in_their_parts(
    report: host_tree.SimulatedHost, tmp_path: Path
) -> None:
    found, _ = given(tmp_path / "b", container_spec("NVIDIA_VISIBLE_DEVICES=all"), report.directory)
    parts = {cap(1, gi) for gi in range(7, 14)} | {cap(1, gi, 0) for gi in range(7, 14)}
    parts |= {cap(2, 1), cap(2, 1, 0), cap(2, 3), cap(2, 3, 0), cap(2, 3, 1), cap(2, 7), cap(2, 7, 0)}
    assert found == {f"/dev/nvidia{minor}" for minor in range(3)} | parts


def test_the_forms_of_one_device_give_the_same(double: NvmlDouble, tmp_path: Path) -> None:
    gpu = double.report.gpus[2]
    part = gpu.mig[1]
    full = f"MIG-{gpu.uuid}/{part.gi}/{part.ci}"
    words = ["2:1", full, part.uuid, part.uuid[:12], part.uuid.lower(), "2:1," + part.uuid]
    results = []
    for count, word in enumerate(words):
        made = tmp_path / f"b{count}"
        results.append(given(made, container_spec(f"NVIDIA_VISIBLE_DEVICES={word}"), double.report.directory))
    assert all(result == results[0] for result in results)
    made = make_bundle(
        tmp_path / "mounted",
        container_spec(
            mounts=[
                {"source": "/dev/null", "destination": f"/var/run/nvidia-container-devices/{word}"}
                for word in (part.uuid, full)
            ]
        ),
    )
    assert (
        set(list_device_numbers(inject_in_process(made, host_config(double.report.directory)))) - CONTROL
        == results[0][0]
    )


def test_a_whole_gpu_in_mig_mode_is_given_with_a_warning(report: host_tree.SimulatedHost, tmp_path: Path) -> None:
    made = make_bundle(tmp_path / "b", container_spec("NVIDIA_VISIBLE_DEVICES=2"))
    config = json.loads((made / "config.json").read_text())
    outcome = pipeline.prepare_injection(config, host_config(report.directory), str(made), state_dir.StateCache())
    assert any("GPU 2 is in MIG mode" in text and "2:0, 2:1, 2:2, 2:3" in text for text in outcome.plan.warnings)
    write_spec(made, container_spec("NVIDIA_VISIBLE_DEVICES=1"))
    config = json.loads((made / "config.json").read_text())
    outcome = pipeline.prepare_injection(config, host_config(report.directory), str(made), state_dir.StateCache())
    assert not [text for text in outcome.plan.warnings if "MIG" in text]


def test_the_part_of_a_gpu_brings_no_right_to_its_display(report: host_tree.SimulatedHost, tmp_path: Path) -> None:
    env = ("NVIDIA_VISIBLE_DEVICES=0:0,1", "NVIDIA_DRIVER_CAPABILITIES=graphics")
    after = inject_in_process(make_bundle(tmp_path / "b", container_spec(*env)), host_config(report.directory))
    drm = {path for path in list_device_numbers(after) if path.startswith("/dev/dri/")}
    other = inject_in_process(
        make_bundle(tmp_path / "c", container_spec("NVIDIA_VISIBLE_DEVICES=1", env[1])), host_config(report.directory)
    )
    assert drm == {path for path in list_device_numbers(other) if path.startswith("/dev/dri/")}


def test_requirements_hold_for_the_gpu_that_a_device_is_a_part_of(
    report: host_tree.SimulatedHost, tmp_path: Path
) -> None:
    made = make_bundle(tmp_path / "b", container_spec("NVIDIA_VISIBLE_DEVICES=0:0", "NVIDIA_REQUIRE_ARCH=arch>=9.0"))
    with pytest.raises(Fault, match="arch"):
        inject_in_process(made, host_config(report.directory))


@pytest.mark.parametrize("kind", [user_namespace_param("user namespace")])
def test_in_a_user_namespace_the_nodes_are_bound(kind: str, report: host_tree.SimulatedHost, tmp_path: Path) -> None:
    config = container_spec("NVIDIA_VISIBLE_DEVICES=0:1", linux={"namespaces": [{"type": "user"}, {"type": "mount"}]})
    after = inject_in_process(make_bundle(tmp_path / "b", config), host_config(report.directory))
    bound = {mount["destination"]: mount["source"] for mount in after["mounts"]}
    for path in ("/dev/nvidia1", cap(1, 8), cap(1, 8, 0)):
        assert bound[path] == report.directory + path
    assert cap(1, 7) not in bound


def test_doing_it_twice_changes_nothing(report: host_tree.SimulatedHost, tmp_path: Path) -> None:
    made = make_bundle(tmp_path / "b", container_spec("NVIDIA_VISIBLE_DEVICES=all", mounts=[PROC]))
    inject_in_process(made, host_config(report.directory))
    before = snapshot_tree(made)
    inject_in_process(made, host_config(report.directory))
    assert snapshot_tree(made) == before


def test_a_mig_device_has_its_capability_nodes_and_no_others(tmp_path: Path) -> None:
    """As the case has it: GPU instance 1 with number 12, its compute instance with 13; major 510."""
    host = tmp_path / "host"
    host_tree.build_host(host, driver="555.42.02", mig=["3g"])
    numbers = host / "proc/devices"
    text = numbers.read_text().replace("510 nvidia-uvm", "511 nvidia-uvm")
    numbers.unlink()
    numbers.write_text(text.replace("235 nvidia-caps\n", "510 nvidia-caps\n"))
    for path, number in (("gpu0/mig/gi1", 12), ("gpu0/mig/gi1/ci0", 13)):
        access = host / "proc/driver/nvidia/capabilities" / path / "access"
        assert f"DeviceFileMinor: {number}\n" in access.read_text()
    found, rules = given(tmp_path / "b", container_spec("NVIDIA_VISIBLE_DEVICES=0:0"), host)
    assert found == {"/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap12", "/dev/nvidia-caps/nvidia-cap13"}
    assert {(510, 12), (510, 13), (195, 0)} < set(rules)
    assert not {(510, 1), (510, 2)} & set(rules)
    rights = ("NVIDIA_MIG_CONFIG_DEVICES=all", "NVIDIA_MIG_MONITOR_DEVICES=all")
    found, rules = given(tmp_path / "c", privileged("NVIDIA_VISIBLE_DEVICES=all", *rights), host)
    assert {(510, 1), (510, 2), (510, 12), (510, 13)} < set(rules)
    made = make_bundle(tmp_path / "d", container_spec("NVIDIA_VISIBLE_DEVICES=all", rights[0]))
    before = snapshot_tree(made)
    with pytest.raises(Fault, match="lacks CAP_SYS_ADMIN"):
        inject_in_process(made, host_config(host))
    assert snapshot_tree(made) == before


def test_rights_over_mig_are_nothing_on_a_driver_without_mig_and_said(tmp_path: Path) -> None:
    host = tmp_path / "host"
    host_tree.build_host(host, gpus=1)
    shutil.rmtree(host / "proc/driver/nvidia/capabilities")
    numbers = host / "proc/devices"
    numbers.chmod(0o644)
    numbers.write_text(numbers.read_text().replace("235 nvidia-caps\n", ""))
    config = privileged("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_MIG_MONITOR_DEVICES=all")
    made = make_bundle(tmp_path / "b", config)
    outcome = pipeline.prepare_injection(config, host_config(host), str(made), state_dir.StateCache())
    assert [gpu.index for gpu, _ in outcome.chosen_gpus] == [0]
    (warning,) = [text for text in outcome.plan.warnings if "monitor MIG" in text]
    assert "NVIDIA_MIG_MONITOR_DEVICES=all" in warning and "no nvidia-caps in /proc/devices" in warning


def test_list_says_that_a_gpu_in_mig_mode_has_no_device(tmp_path: Path, double: NvmlDouble, command: Command) -> None:
    """Its files below /proc are those of a whole GPU; NVML knows the mode."""
    (tmp_path / "config.toml").write_text(f'[host]\nroot = "{double.report.directory}"\n')
    answers = double.path.with_name("nvml-double")
    whole = double.report.gpus[1]
    answers.write_text(answers.read_text().replace(f"{whole.uuid} {whole.minor} 0 ", f"{whole.uuid} {whole.minor} 1 "))
    listed = json.loads(command("list", "--format", "json").out)
    told = [text for text in listed["problems"] if "is in MIG mode and has no MIG device" in text]
    assert len(told) == 1 and told[0].startswith("GPU 1 ")


@pytest.mark.parametrize("asked", ["all", "0,2", "1", "none"])
def test_configuring_gives_its_own_node_and_every_part_of_the_given_gpus(
    asked: str, report: host_tree.SimulatedHost, tmp_path: Path
) -> None:
    config = privileged(f"NVIDIA_VISIBLE_DEVICES={asked}", "NVIDIA_MIG_CONFIG_DEVICES=all")
    made = make_bundle(tmp_path / "b", config)
    outcome = pipeline.prepare_injection(config, host_config(report.directory), str(made), state_dir.StateCache())
    found, _ = given(made, config, report.directory)
    parts = {path for path in found if "nvidia-caps" in path} - {"/dev/nvidia-caps/nvidia-cap1"}
    assert "/dev/nvidia-caps/nvidia-cap1" in found
    assert "/dev/nvidia-caps/nvidia-cap2" not in found
    assert len(parts) == (7 * 2 + 7 if asked in ("all", "0,2") else 0)
    assert not [text for text in outcome.plan.warnings if "is in MIG mode" in text]


@pytest.fixture
def barren(tmp_path: Path) -> Callable[..., Path]:
    """Makes hosts whose GPU 0 has GPU instances and no compute instance in any."""

    def make(gpus: int) -> Path:
        host = tmp_path / f"host{gpus}"
        host_tree.build_host(host, gpus=gpus, mig=["2", *["0"] * (gpus - 1)])
        tree = host / f"proc/driver/nvidia/capabilities/gpu{int(gpus > 1)}/mig"
        for place in tree.glob("gi*/ci*"):
            shutil.rmtree(place)
        return host

    return make


def test_all_is_an_error_where_it_means_nothing(barren: Callable[..., Path], tmp_path: Path) -> None:
    """Such a container would start with the driver and without a GPU, as if it had asked for none."""
    host = barren(1)
    config = container_spec("NVIDIA_VISIBLE_DEVICES=all")
    made = make_bundle(tmp_path / "b", config)
    with pytest.raises(Fault) as caught:
        inject_in_process(made, host_config(host))
    assert str(caught.value).startswith(
        "NVIDIA_VISIBLE_DEVICES=all (process.env[1]): GPU 0 is in MIG mode and has GPU instances, but no compute"
    )
    outcome = pipeline.prepare_injection(
        config, host_config(host, missing_gpu="warn"), str(made), state_dir.StateCache()
    )
    assert "GPU 0 is in MIG mode" in outcome.plan.warnings[0]
    found, _ = given(tmp_path / "c", container_spec("NVIDIA_VISIBLE_DEVICES=0"), host)
    assert found == {"/dev/nvidia0"}


def test_all_without_a_divided_gpu_that_has_no_parts_says_so(barren: Callable[..., Path], tmp_path: Path) -> None:
    config = container_spec("NVIDIA_VISIBLE_DEVICES=all")
    made = make_bundle(tmp_path / "b", config)
    outcome = pipeline.prepare_injection(config, host_config(barren(2)), str(made), state_dir.StateCache())
    assert [gpu.index for gpu, _ in outcome.chosen_gpus] == [1]
    assert "GPU 0 is in MIG mode" in outcome.plan.warnings[0]
    reasons = {one.name: one.reason for one in outcome.plan.withheld}
    assert [reason for name, reason in reasons.items() if "GPU 0" in name] == ["it is in MIG mode without a MIG device"]


def test_who_configures_mig_gets_a_divided_gpu_that_has_no_parts(barren: Callable[..., Path], tmp_path: Path) -> None:
    """He is who makes them."""
    config = privileged("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_MIG_CONFIG_DEVICES=all")
    found, _ = given(tmp_path / "b", config, barren(1))
    assert "/dev/nvidia0" in found and cap(0, 7) in found


@pytest.mark.parametrize("asked", ["0:7", "1:0", "MIG-GPU-0000/1/0", "3:0"])
def test_an_unknown_device_fails_with_the_valid_ones_and_changes_nothing(
    asked: str, report: host_tree.SimulatedHost, tmp_path: Path
) -> None:
    made = make_bundle(tmp_path / "b", container_spec(f"NVIDIA_VISIBLE_DEVICES={asked}"))
    before = snapshot_tree(made)
    with pytest.raises(Fault) as caught:
        inject_in_process(made, host_config(report.directory))
    assert snapshot_tree(made) == before
    gpu = report.gpus[0]
    assert (f"MIG-{gpu.uuid}/7/0" if "MIG" in asked else "This host has the MIG devices 0:0 to 0:6, 2:0 to 2:3") in str(
        caught.value
    )
    assert "\n" not in str(caught.value)


# --- NVML --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["sleep", "crash", "lie-uuid", "lie-count"])
@pytest.mark.parametrize("asked", ["0", "all", "0:1", "MIG-GPU", "GPU-", "none"])
def test_a_start_that_needs_no_nvml_never_asks_it(mode: str, asked: str, double: NvmlDouble, tmp_path: Path) -> None:
    double.set_mode(mode)
    gpu = double.report.gpus[0]
    word = {"MIG-GPU": f"MIG-{gpu.uuid}/7/0", "GPU-": gpu.uuid}.get(asked, asked)
    began = time.monotonic()
    given(tmp_path / "b", container_spec(f"NVIDIA_VISIBLE_DEVICES={word}"), double.report.directory)
    assert time.monotonic() - began < 5
    assert double.call_count == 0


@pytest.mark.parametrize("mode", ["sleep", "crash", "lie-uuid"])
def test_a_known_uuid_starts_whatever_has_become_of_nvml(mode: str, double: NvmlDouble, tmp_path: Path) -> None:
    word = double.report.gpus[2].mig[0].uuid
    first = given(tmp_path / "a", container_spec(f"NVIDIA_VISIBLE_DEVICES={word}"), double.report.directory)
    double.set_mode(mode)
    assert given(tmp_path / "b", container_spec(f"NVIDIA_VISIBLE_DEVICES={word}"), double.report.directory) == first
    assert double.call_count == 1


@pytest.mark.parametrize(
    ("mode", "words"),
    [("sleep", "did not answer within 1 seconds"), ("crash", "crashed (SIGSEGV)"), ("lie-count", "answers wrongly")],
)
def test_a_start_that_needs_nvml_fails_within_the_limit_by_name(
    mode: str, words: str, double: NvmlDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(mig_devices.MigDevices.__init__.__kwdefaults__, "timeout", 1.0)
    double.set_mode(mode)
    made = make_bundle(tmp_path / "b", container_spec(f"NVIDIA_VISIBLE_DEVICES={double.report.gpus[2].mig[0].uuid}"))
    before = snapshot_tree(made)
    began = time.monotonic()
    with pytest.raises(Fault) as caught:
        inject_in_process(made, host_config(double.report.directory))
    assert time.monotonic() - began < 5
    text = str(caught.value)
    assert words in text
    assert "NVML" in text
    assert "NVIDIA_VISIBLE_DEVICES" in text
    assert "This host has the MIG devices 0:0 to 0:6, 2:0 to 2:3" in text, "how to do without NVML is not said"
    assert snapshot_tree(made) == before


def test_requirements_are_asked_of_the_hosts_own_nvml(tmp_path: Path) -> None:
    if not find_compiler():
        skip_or_fail("NVML's answers; there is no C compiler for its double")
    host = host_tree.build_host(tmp_path / "host", model="NVIDIA Z9000 of a coming year")
    made = make_bundle(tmp_path / "b", container_spec("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_REQUIRE_ARCH=arch>=8.0"))
    with pytest.raises(Fault, match="NVML does not answer: Function Not Found"):
        inject_in_process(made, host_config(host.directory))
    double = NvmlDouble(host)
    inject_in_process(made, host_config(host.directory))
    assert double.call_count == 1


# --- list and explain --------------------------------------------------------------------------------

Ask = Callable[..., Any]


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Ask:
    """Runs a command; its JSON document held against its schema, or its text."""

    def run(*words: str, form: str = "json") -> Any:
        capsys.readouterr()
        status = cli.run_command_line([*words, "--format", form], "gpu-oci-hook")
        out = capsys.readouterr().out
        assert status == 0, out
        if form != "json":
            return out
        document = json.loads(out)
        schema = Path(gpu_oci_hook.cli.__file__).with_name(f"{words[0]}.schema.json")
        jsonschema.Draft202012Validator(json.loads(schema.read_text())).validate(document)
        return document

    return run


def test_list_shows_what_nvml_knows_and_leaves_no_trace(double: NvmlDouble, ask: Ask, tmp_path: Path) -> None:
    document = ask("list", "--root", double.report.directory)
    assert document["nvml"] == {"answers": True, "reason": None}
    assert [gpu["memory"] for gpu in document["gpus"]] == [None, 40 << 30, None]
    assert [gpu["arch"] for gpu in document["gpus"]] == ["8.0"] * 3
    for shown, gpu in zip(document["gpus"], double.report.gpus, strict=True):
        assert [(one["gi"], one["ci"], one["uuid"]) for one in shown["mig"]] == [
            (one.gi, one.ci, one.uuid) for one in gpu.mig
        ]
    assert [one["index"] for one in document["gpus"][2]["mig"]] == ["2:0", "2:1", "2:2", "2:3"]
    assert not (tmp_path / "state").exists()
    text = ask("list", "--root", double.report.directory, form="text")
    assert "NVML           available" in text
    assert "40960 MiB" in text
    assert double.report.gpus[2].mig[3].uuid in text


@pytest.mark.parametrize("mode", ["crash", "lie-count"])
def test_list_shows_the_rest_when_nvml_fails_and_says_why(mode: str, double: NvmlDouble, ask: Ask) -> None:
    double.set_mode(mode)
    document = ask("list", "--root", double.report.directory)
    assert document["nvml"]["answers"] is False
    assert "NVML" in document["nvml"]["reason"]
    assert [one["uuid"] for one in document["gpus"][0]["mig"]] == [None] * 7
    assert document["files"]
    text = ask("list", "--root", double.report.directory, form="text")
    line = next(row for row in text.splitlines() if "NVML" in row)
    assert line.count("NVML") == 1


def test_list_shows_what_nvml_knows_of_the_gpus_that_it_knows(double: NvmlDouble, ask: Ask) -> None:
    double.set_mode("lost")
    document = ask("list", "--root", double.report.directory)
    assert document["nvml"] == {"answers": True, "reason": "answers, but not for GPU 1 (GPU is lost)"}
    assert [gpu["memory"] for gpu in document["gpus"]] == [None, None, None]
    assert all(one["uuid"] for gpu in document["gpus"] for one in gpu["mig"])
    text = ask("list", "--root", double.report.directory, form="text")
    assert "NVML           answers, but not for GPU 1 (GPU is lost)\n" in text


def test_list_does_not_ask_nvml_when_told_not_to(double: NvmlDouble, ask: Ask) -> None:
    document = ask("list", "--root", double.report.directory, "--no-nvml")
    assert document["nvml"] == {"answers": False, "reason": "not queried"}
    assert len(document["gpus"][0]["mig"]) == 7
    assert double.call_count == 0


def test_explain_tells_of_each_mig_device_whether_and_why(
    report: host_tree.SimulatedHost, ask: Ask, tmp_path: Path
) -> None:
    made = make_bundle(tmp_path / "b", container_spec("NVIDIA_VISIBLE_DEVICES=0:1,1"))
    document = ask("explain", "--bundle", str(made), "--root", report.directory)
    first, second, third = document["gpus"]
    assert (first["given"], second["given"], third["given"]) == (True, True, False)
    assert "parent of MIG devices 0:1" in first["reason"]
    assert [one["given"] for one in first["mig"]] == [False, True, False, False, False, False, False]
    assert "NVIDIA_VISIBLE_DEVICES=0:1,1" in first["mig"][1]["reason"]
    assert second["mig"] == []
    assert [one["given"] for one in third["mig"]] == [False] * 4
    withheld = [one["name"] for one in document["withheld"] if one["name"].startswith("MIG device")]
    assert len(withheld) == 10
    rights = {one["name"]: one["reason"] for one in document["withheld"] if one["name"].startswith("the right to")}
    assert rights == {
        "the right to configure MIG": "NVIDIA_MIG_CONFIG_DEVICES=all is not set",
        "the right to monitor MIG": "NVIDIA_MIG_MONITOR_DEVICES=all is not set",
    }
    assert f"MIG device 0:0 (MIG-{report.gpus[0].uuid}/7/0)" in withheld
    text = ask("explain", "--bundle", str(made), "--root", report.directory, form="text")
    assert "the driver, 1 of 3 GPUs and 1 MIG device of GPU " in text
    assert "GPU instance 8 of MIG device 0:1" in text


def test_explain_without_mig_devices_says_nothing_of_them(ask: Ask, tmp_path: Path) -> None:
    host = host_tree.build_host(tmp_path / "host")
    made = make_bundle(tmp_path / "b", container_spec("NVIDIA_VISIBLE_DEVICES=0"))
    assert "MIG" not in ask("explain", "--bundle", str(made), "--root", host.directory, form="text")


def test_simulate_makes_the_devices_that_it_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "made"
    words = ("--gpus", "3", "--mig", "2", "--mig", "0", "--mig", "4g,3g", "--format", "json")
    assert cli.run_command_line(["simulate", str(place), *words], "gpu-oci-hook") == 0
    document = json.loads(capsys.readouterr().out)
    assert [[(one["gi"], one["ci"]) for one in gpu["mig"]] for gpu in document["gpus"]] == [
        [(7, 0), (8, 0)], [], [(1, 0), (2, 0)],
    ]  # fmt: skip
    number = cap(2, 2, 0).rpartition("cap")[2]
    access = place / "proc/driver/nvidia/capabilities/gpu2/mig/gi2/ci0/access"
    assert access.read_text().startswith(f"DeviceFileMinor: {number}\n")
    table = (place / "proc/driver/nvidia-caps/mig-minors").read_text().splitlines()
    assert table[:3] == ["config 1", "monitor 2", "gpu0/gi0/access 3"]
    assert {f"gpu2/gi2/ci0/access {number}", "gpu6/gi11/ci7/access 920"} <= set(table)
    if os.geteuid() == 0:
        assert cap(2, 2, 0) in document["nodes"]


@pytest.mark.parametrize(
    "words", [["8"], ["4g,4g"], ["9g"], ["1x"], ["3g,3g,2g"], ["-1"], ["1", "2", "3", "4"], ["5g"], ["99"]]
)
def test_simulate_refuses_what_no_gpu_can_be_divided_into(words: list[str], tmp_path: Path) -> None:
    with pytest.raises(Fault):
        host_tree.build_host(tmp_path / "host", gpus=3, mig=words)


# --- the way of the shim -----------------------------------------------------------------------------


def test_the_shim_asks_once_for_many_starts_and_then_never(double: NvmlDouble, tmp_path: Path) -> None:
    shim = Shim(tmp_path / "shim", Path(double.report.directory))
    part = double.report.gpus[0].mig[6]
    for count in range(3):
        made = make_bundle(tmp_path / f"b{count}", container_spec(f"NVIDIA_VISIBLE_DEVICES={part.uuid}"))
        done = shim.create(made)
        assert (done.returncode, done.stderr) == (0, "")
        assert set(list_device_numbers(shim.spec())) - CONTROL == {"/dev/nvidia1", cap(1, 13), cap(1, 13, 0)}
    assert double.call_count == 1
