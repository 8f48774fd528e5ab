"""`explain` is true for every kind of bundle: whoever has started it, and whatever is in it already."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from gpu_oci_hook.cli.bundle import Bundle
from gpu_oci_hook.simulate import host_tree
from support.bundles import Shim, Spec
from support.cdi_edits import add_devices, add_nvidia_edits, add_our_edits
from support.command_line import Command, CommandResult, DebianBundle, read_json
from support.fixtures import SharedHost

NODES = {"/dev/nvidia1": (195, 1), "/dev/nvidiactl": (195, 255)}
NOT_STARTED = "config.json has none of this: if it runs already, it was not started by gpu-oci-runtime"
INJECTED_BEFORE = "the container gets nothing from gpu-oci-runtime; config.json has what was injected before (below)"


@pytest.fixture(scope="module")
def host(shared_host: SharedHost) -> Path:
    return shared_host(gpus=2, driver="550.163.01")


@pytest.fixture(autouse=True)
def own_state(isolated_state: Path) -> None:
    """State and configuration are the test's own."""


@pytest.fixture
def bundle(tmp_path: Path) -> DebianBundle:
    return DebianBundle(tmp_path / "bundle")


def change(bundle: DebianBundle, edit: Any) -> None:
    path = bundle.path / "config.json"
    spec = json.loads(path.read_text())
    edit(spec)
    path.write_text(json.dumps(spec))


def explain(command: Command, bundle: DebianBundle, host: Path, *words: str) -> CommandResult:
    return command("explain", "-b", bundle.path, "--root", host, *words)


def test_a_bundle_that_was_not_started_by_the_runtime_has_nothing_of_the_plan(
    command: Command, host: Path, bundle: DebianBundle
) -> None:
    bundle.request("NVIDIA_VISIBLE_DEVICES=0")
    lines = explain(command, bundle, host).out.split("\n")
    assert NOT_STARTED in lines and "injected" in lines
    found = read_json(explain(command, bundle, host, "-o", "json"), "explain")["found"]
    assert not found["complete"] and found["edits_present"] == 0 < found["edits_total"]


def test_a_running_container_without_the_edits_would_get_them(
    command: Command, host: Path, bundle: DebianBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Bundle, "is_running", True)
    bundle.request("NVIDIA_VISIBLE_DEVICES=0")
    lines = explain(command, bundle, host).out.split("\n")
    assert "started by gpu-oci-runtime, the container would get the driver and 1 of 2 GPUs" in lines
    assert "config.json has none of this: it was not started by gpu-oci-runtime" in lines
    assert "would be injected" in lines and "injected" not in lines
    command("apply", "-b", bundle.path, "--root", host)
    lines = explain(command, bundle, host).out.split("\n")
    assert "the container gets the driver and 1 of 2 GPUs" in lines and "injected (already in config.json)" in lines


def test_a_bundle_that_lost_its_device_rules_is_not_called_complete(
    command: Command, host: Path, bundle: DebianBundle
) -> None:
    """`update` of some engines takes the rules away."""
    bundle.request("NVIDIA_VISIBLE_DEVICES=0")
    command("apply", "-b", bundle.path, "--root", host)
    change(bundle, lambda spec: spec["linux"]["resources"].update(devices=[{"allow": False, "access": "rwm"}]))
    out = explain(command, bundle, host).out
    assert (
        "\nconfig.json has all nodes, mounts and hooks of this, but not every device rule, group or variable\n" in out
    )


def test_a_bundle_that_the_runtime_has_filled_has_all_of_it(command: Command, host: Path, bundle: DebianBundle) -> None:
    bundle.request("NVIDIA_VISIBLE_DEVICES=0")
    command("apply", "-b", bundle.path, "--root", host)
    answer = explain(command, bundle, host)
    assert answer.status == 0 and "config.json has" not in answer.out
    assert "\ninjected (already in config.json)\n" in answer.out and "\nalready in config.json\n" not in answer.out
    found = read_json(explain(command, bundle, host, "-o", "json"), "explain")["found"]
    assert found["complete"] and found["edits_present"] == found["edits_total"] and not found["mounts"]


def test_a_bundle_kept_from_an_earlier_driver_is_told_from_one_that_was_never_filled(
    command: Command, host: Path, bundle: DebianBundle, tmp_path: Path
) -> None:
    host_tree.build_host(tmp_path / "old", gpus=2, driver="535.183.06")
    bundle.request("NVIDIA_VISIBLE_DEVICES=0")
    command("apply", "-b", bundle.path, "--root", tmp_path / "old")
    out = explain(command, bundle, host).out
    assert "\nalready in config.json\n" not in out, "what the plan removes is said once"
    assert ": gpu-oci-runtime made it for another driver, request or configuration\n" in out
    assert "\n  removed\n    left from an earlier injection:\n" in out and " of mounts\n" in out
    assert max(map(len, out.split("\n"))) < 300
    shutil.rmtree(tmp_path / "old/usr/lib/x86_64-linux-gnu")
    assert "not exist on this host" not in explain(command, bundle, host).out, "the plan removes these mounts"


@pytest.mark.parametrize("kind", ["ours", "nvidia"])
@pytest.mark.parametrize("again", ["void", "0"])
def test_a_bundle_that_an_engine_has_filled_from_a_cdi_file_says_who_injected_what(
    command: Command, host: Path, bundle: DebianBundle, kind: str, again: str
) -> None:
    bundle.request()

    def fill(spec: Spec) -> None:
        add_devices(spec, NODES)
        if kind == "ours":
            add_our_edits(spec, host, "/usr/local/bin/gpu-oci-hook")
        else:
            add_nvidia_edits(spec, host, "/usr/bin/nvidia-cdi-hook")
        spec["process"]["env"].append(f"NVIDIA_VISIBLE_DEVICES={again}")

    change(bundle, fill)
    answer = explain(command, bundle, host)
    assert answer.status == 0 and INJECTED_BEFORE in answer.out
    section = answer.out.partition("\nalready in config.json\n")[2]
    whose = "gpu-oci-hook" if kind == "ours" else "NVIDIA's toolkit"
    program = "/usr/local/bin/gpu-oci-hook" if kind == "ours" else "/usr/bin/nvidia-cdi-hook"
    assert f"  by an engine, from a CDI file of {whose}: hooks.createContainer[0] is {program}\n" in section
    assert "    device    /dev/nvidia1           c 195:1\n" in section
    assert f"    mounts    4 from {host}/usr/lib/x86_64-linux-gnu\n" in section
    found = read_json(explain(command, bundle, host, "-o", "json"), "explain")["found"]
    assert len(found["mounts"]) == 5 and len(found["nodes"]) == 2


def test_a_cdi_device_whose_edits_are_all_there_is_named(
    command: Command, host: Path, bundle: DebianBundle, tmp_path: Path
) -> None:
    file = tmp_path / "cdi/site.json"
    file.parent.mkdir()
    file.write_text(
        json.dumps(
            {
                "cdiVersion": "0.5.0",
                "kind": "site.org/gpu",
                "devices": [
                    {"name": name, "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia1", "major": 195,
                                                                      "minor": minor, "type": "c"}]}}
                    for name, minor in (("mine", 1), ("other", 0))
                ],
            }
        )
    )  # fmt: skip
    config = tmp_path / "cdi.toml"
    config.write_text(f'[cdi]\nspec-dirs = ["{file.parent}"]\n[host]\nroot = "/"\nload-modules = false\n')
    config.chmod(0o600)
    bundle.request("NVIDIA_VISIBLE_DEVICES=void")
    change(bundle, lambda spec: add_devices(spec, {"/dev/nvidia1": (195, 1)}))
    out = command("explain", "-b", bundle.path, "--config", config).out
    assert f"  has every edit of the CDI device site.org/gpu=mine ({file})\n" in out and "gpu=other" not in out


def test_missing_mount_sources_keep_a_container_from_starting(
    command: Command, host: Path, bundle: DebianBundle, tmp_path: Path
) -> None:
    copy = tmp_path / "host"
    host_tree.build_host(copy, gpus=2, driver="550.163.01")
    bundle.request()
    change(bundle, lambda spec: add_our_edits(spec, copy, "/usr/local/bin/gpu-oci-hook"))
    assert explain(command, bundle, copy).status == 0
    (copy / "usr/lib/x86_64-linux-gnu/libcuda.so.550.163.01").unlink()
    answer = explain(command, bundle, copy)
    assert answer.status == 1
    assert (
        "- the source of a mount does not exist on this host, so the container does not start: "
        f"{copy}/usr/lib/x86_64-linux-gnu/libcuda.so.550.163.01 (mounts[1])\n" in answer.out
    )
    document = read_json(explain(command, bundle, copy, "-o", "json"), "explain")
    assert [missing["mount"] for missing in document["found"]["missing_sources"]] == [1]


def test_a_privileged_container_that_requests_nothing_has_the_engines_nodes(
    command: Command, host: Path, bundle: DebianBundle
) -> None:
    bundle.request("NVIDIA_VISIBLE_DEVICES=void")

    def make_privileged(spec: Spec) -> None:
        add_devices(spec, NODES)
        spec["linux"]["resources"]["devices"] = [{"allow": True, "access": "rwm"}]

    change(bundle, make_privileged)
    out = explain(command, bundle, host).out
    assert INJECTED_BEFORE in out and "  by the engine or its client (a privileged container, --device" in out
    change(bundle, lambda spec: spec["process"]["env"].append("NVIDIA_VISIBLE_DEVICES=0"))
    out = explain(command, bundle, host).out
    assert "mounts and hooks: they are not from gpu-oci-runtime\n" in out


def test_a_prestart_hook_is_removed_from_a_container_to_come_and_named_for_one_that_runs(
    command: Command, host: Path, bundle: DebianBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle.request("NVIDIA_VISIBLE_DEVICES=void")
    path = "/usr/bin/nvidia-container-runtime-hook"
    hook = {"path": path, "args": ["nvidia-container-runtime-hook", "prestart"]}
    change(bundle, lambda spec: spec.update(hooks={"prestart": [hook]}))
    out = explain(command, bundle, host).out
    assert "\nchanged\n  removed\n" in out and f"      prestart: {path}\n" in out and "injects when" not in out
    monkeypatch.setattr(Bundle, "is_running", True)
    out = explain(command, bundle, host).out
    assert f"    hook      injects when the container starts: hooks.prestart[0] is {path}\n" in out


def test_an_empty_root_file_system_is_not_taken_for_the_image(
    command: Command, host: Path, bundle: DebianBundle
) -> None:
    bundle.request("NVIDIA_VISIBLE_DEVICES=0")
    shutil.rmtree(bundle.path / "rootfs")
    (bundle.path / "rootfs").mkdir()
    out = explain(command, bundle, host).out
    assert (
        f"- the root file system {bundle.path}/rootfs is empty, as engines leave it while a container does not run"
        in out
    )


def test_a_container_of_podman_that_has_ended_is_explained_without_its_root_file_system(
    command: Command, host: Path, tmp_path: Path
) -> None:
    bundle = DebianBundle(tmp_path / "userdata")
    bundle.request("NVIDIA_VISIBLE_DEVICES=0")
    command("apply", "-b", bundle.path, "--root", host)
    shutil.rmtree(bundle.path / "rootfs")
    answer = explain(command, bundle, host)
    assert answer.status == 0 and "an image like Debian's is assumed" in answer.out
    assert "\ninjected (already in config.json)\n" in answer.out
    elsewhere = DebianBundle(tmp_path / "other").request("NVIDIA_VISIBLE_DEVICES=0")
    shutil.rmtree(elsewhere.path / "rootfs")
    assert explain(command, elsewhere, host).status == 1, "any other bundle does not start without its root"


# --- no bundle at all ------------------------------------------------------------------------------


def test_an_environment_alone_is_explained(command: Command, host: Path, tmp_path: Path) -> None:
    words = ("explain", "--env", "NVIDIA_VISIBLE_DEVICES=0", "-e", "NVIDIA_DRIVER_CAPABILITIES=utility", "--root", host)
    answer = command(*words)
    assert answer.status == 0
    assert answer.out.startswith(
        "container     assumed, with NVIDIA_VISIBLE_DEVICES=0 NVIDIA_DRIVER_CAPABILITIES=utility and an image like "
        "Debian's\n"
    )
    assert "the container gets the driver and 1 of 2 GPUs\n" in answer.out
    assert "bundle  " not in answer.out and "config.json has" not in answer.out
    assert "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1 -> " in answer.out
    document = read_json(command(*words, "-o", "json"), "explain")
    assert document["bundle"] is None and document["container"].startswith("assumed")


def test_an_environment_with_a_root_file_system_is_explained_for_that_image(
    command: Command, host: Path, bundle: DebianBundle
) -> None:
    (bundle.path / "rootfs/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1").touch()
    before = bundle.tree()
    answer = command("explain", "-e", "NVIDIA_VISIBLE_DEVICES=all", "--rootfs", bundle.path / "rootfs", "--root", host)
    assert answer.status == 0 and "probably committed from a GPU container" in answer.out
    assert bundle.tree() == before


def put_engine(directory: Path, name: str, answer: str, status: int = 0) -> None:
    directory.mkdir(exist_ok=True)
    (directory / name).write_text(f"#!/bin/sh\necho '{answer}'\nexit {status}\n")
    (directory / name).chmod(0o755)


def test_an_images_variables_are_explained_with_those_of_the_command_line_in_their_place(
    command: Command, host: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}/bin")
    put_engine(tmp_path / "bin", "docker", "Cannot connect", 1)
    put_engine(tmp_path / "bin", "podman", '["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_REQUIRE_CUDA=cuda>=11.0", "A=b"]')
    words = ("explain", "--image", "nvidia/cuda:12.4", "--root", host)
    out = command(*words).out
    assert out.startswith("container     assumed, with the variables of nvidia/cuda:12.4 and an image like Debian's\n")
    assert "requirement   NVIDIA_REQUIRE_CUDA: cuda>=11.0 (met)\n" in out and "2 of 2 GPUs\n" in out
    out = command(*words, "--env", "NVIDIA_VISIBLE_DEVICES=1").out
    assert "1 of 2 GPUs\n" in out and "is set twice" not in out
    put_engine(tmp_path / "bin", "podman", '["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_REQUIRE_CUDA=cuda>=99.0"]')
    answer = command(*words)
    assert answer.status == 1 and 'requirement "cuda>=99.0"' in answer.err


@pytest.mark.parametrize("answer", ["", "{", "3", '{"a": 1}'])
def test_an_image_that_no_engine_has_is_a_sentence(
    command: Command, host: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}/bin")
    put_engine(tmp_path / "bin", "docker", answer)
    result = command("explain", "--image", "x", "--root", host)
    assert result.status == 1 and "--image x: neither docker nor podman has this image" in result.err


def test_an_environment_that_would_not_start_has_the_engines_reason(command: Command, host: Path) -> None:
    answer = command("explain", "--env", "NVIDIA_VISIBLE_DEVICES=9", "--root", host)
    assert answer.status == 1 and "there is no GPU 9" in answer.err


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        (["--env", "NVIDIA_VISIBLE_DEVICES"], 2, "NVIDIA_VISIBLE_DEVICES is not NAME=VALUE"),
        (["--env", "A=b", "--bundle", "."], 2, "--bundle and --env name different containers"),
        (["docker:web", "--pid", "1"], 2, "docker:web and --pid name different containers"),
        (["--rootfs", "/nowhere"], 1, "there is no such directory"),
        (["dockr:web"], 1, "no running container has this name"),
        (["--pid", "999999999"], 1, "there is no such process"),
        (["docker:"], 1, "names no container"),
    ],
)
def test_what_names_no_container_is_a_sentence(command: Command, words: list[str], status: int, text: str) -> None:
    answer = command("explain", *words)
    assert answer.status == status and text in answer.err and answer.err.count("\n") <= 2


def test_a_bundle_needs_no_option(
    command: Command, host: Path, bundle: DebianBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle.request("NVIDIA_VISIBLE_DEVICES=0")
    wanted = explain(command, bundle, host).out
    assert command("explain", bundle.path, "--root", host).out == wanted
    monkeypatch.chdir(bundle.path)
    assert command("explain", "--root", host).out == wanted


def test_a_process_of_this_test_belongs_to_no_container_of_a_bundle(command: Command) -> None:
    answer = command("explain", "--pid", str(os.getpid()))
    assert answer.status == 1 and answer.err.count("\n") == 1


# --- what is withheld ------------------------------------------------------------------------------


def test_withheld_files_are_counted_by_capability_and_named_on_request(
    command: Command, host: Path, bundle: DebianBundle
) -> None:
    bundle.request("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=utility")
    short = explain(command, bundle, host).out.partition("\nwithheld\n")[2].split("\n")
    assert any(line.startswith("  needs capability graphics: ") and " libraries" in line for line in short)
    assert "    device    /dev/nvidia-modeset" in short and "  (-v names the files)" in short
    assert not [line for line in short if ".so" in line] and len(short) < 20
    long = explain(command, bundle, host, "-v").out.partition("\nwithheld\n")[2]
    assert "    library   libcuda.so.1\n" in long and "-v names" not in long


def test_the_index_inside_the_container_is_shown(command: Command, host: Path, bundle: DebianBundle) -> None:
    bundle.request("NVIDIA_VISIBLE_DEVICES=1")
    out = explain(command, bundle, host).out
    assert "\n1  GPU-" in out and "\n   GPU 0 in the container\n" in out
    bundle.request("NVIDIA_VISIBLE_DEVICES=1,0")
    out = explain(command, bundle, host).out
    assert out.index("GPU 0 in the container") < out.index("GPU 1 in the container")


def test_a_host_without_a_low_level_runtime_starts_nothing(
    command: Command, host: Path, bundle: DebianBundle, tmp_path: Path
) -> None:
    config = tmp_path / "none.toml"
    config.write_text('[runtime]\nlow-level = ["/no/runc"]\n')
    config.chmod(0o600)
    bundle.request("NVIDIA_VISIBLE_DEVICES=0")
    answer = explain(command, bundle, host, "--config", str(config))
    assert answer.status == 1 and "no container starts with gpu-oci-runtime on this host" in answer.out
    assert "/no/runc" in answer.out


# --- the request against what the container gets -------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("0", ""),
        ("0,1", ""),
        ("GPU-44b9", ""),
        ("gpu0", "names gpu0, which the container does not have, so CUDA programs see no GPU. Inside"),
        ("2", "names 2, which the container does not have, so CUDA programs see no GPU. Inside, GPUs are counted "),
        ("1,2,0", "names 2, which the container does not have, so CUDA programs see only the 1 before it."),
        ("GPU-ffff", "names GPU-ffff, which the container does not have"),
        ("²", "names ², which the container does not have"),
        ("-1", "hides every GPU from CUDA programs in the container"),
        ("", "hides every GPU from CUDA programs in the container"),
    ],
)  # fmt: skip
def test_cuda_visible_devices_is_held_against_the_gpus_inside(
    command: Command, host: Path, bundle: DebianBundle, value: str, text: str
) -> None:
    bundle.request("NVIDIA_VISIBLE_DEVICES=all", f"CUDA_VISIBLE_DEVICES={value}")
    warnings = read_json(explain(command, bundle, host, "-o", "json"), "explain")["warnings"]
    assert [warning for warning in warnings if warning.startswith(f"CUDA_VISIBLE_DEVICES={value} {text}")] == warnings
    assert bool(warnings) is bool(text)


def test_a_huge_cuda_visible_devices_is_a_short_warning(command: Command, host: Path, bundle: DebianBundle) -> None:
    bundle.request("NVIDIA_VISIBLE_DEVICES=all", f"CUDA_VISIBLE_DEVICES={'9' * 5000}")
    (warning,) = read_json(explain(command, bundle, host, "-o", "json"), "explain")["warnings"]
    assert "which the container does not have" in warning and len(warning) < 800


def test_cuda_visible_devices_of_the_host_is_wrong_inside(command: Command, host: Path, bundle: DebianBundle) -> None:
    bundle.request("NVIDIA_VISIBLE_DEVICES=1", "CUDA_VISIBLE_DEVICES=1")
    assert "its GPUs are 0\n" in explain(command, bundle, host).out


def test_a_mount_of_the_request_with_another_source_is_named(
    command: Command, host: Path, bundle: DebianBundle
) -> None:
    bundle.request("NVIDIA_VISIBLE_DEVICES=0")
    mount = {"destination": "/var/run/nvidia-container-devices/1", "source": "/etc/hostname", "options": ["bind"]}
    change(bundle, lambda spec: spec["mounts"].append(mount))
    out = explain(command, bundle, host).out
    assert "its source /etc/hostname is not /dev/null" in out and "mounts[1]" in out


def test_a_repeated_variable_is_a_warning_of_the_start_with_both_values(
    command: Command, host: Path, bundle: DebianBundle, tmp_path: Path
) -> None:
    bundle.request("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_VISIBLE_DEVICES=1")
    wanted = (
        "NVIDIA_VISIBLE_DEVICES is set twice: process.env[2] (1) wins over process.env[1] (0); "
        "name all devices in one request"
    )
    assert wanted in explain(command, bundle, host).out
    shim = Shim(tmp_path / "shim", host, f'log-file = "{tmp_path}/start.log"\n')
    assert shim.create(bundle.path).returncode == 0
    lines = [json.loads(line) for line in (tmp_path / "start.log").read_text().splitlines()]
    assert [line["text"] for line in lines if line["event"] == "warning"] == [wanted]


def test_the_log_of_a_start_has_the_one_warning_of_a_privileged_container(
    host: Path, bundle: DebianBundle, tmp_path: Path
) -> None:
    bundle.request("NVIDIA_VISIBLE_DEVICES=0")

    def make_privileged(spec: Spec) -> None:
        add_devices(spec, {"/dev/nvidia0": (195, 0), **NODES})
        spec["linux"]["resources"]["devices"] = [{"allow": True, "access": "rwm"}]

    change(bundle, make_privileged)
    shim = Shim(tmp_path / "shim", host, f'log-file = "{tmp_path}/start.log"\n')
    assert shim.create(bundle.path).returncode == 0
    lines = [json.loads(line) for line in (tmp_path / "start.log").read_text().splitlines()]
    (text,) = [line["text"] for line in lines if line["event"] == "warning"]
    assert text.startswith("the container can also open GPU 1 (/dev/nvidia0), which it did not request: ")


@pytest.mark.parametrize("layout", ["wsl", "jetson", "debian"])
def test_after_a_start_nothing_is_withheld_that_the_start_has_made(
    command: Command, bundle: DebianBundle, tmp_path: Path, layout: str
) -> None:
    host_tree.build_host(tmp_path / layout, layout=layout, arch="x86_64")
    bundle.request("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all")
    words = ("-b", bundle.path, "--root", tmp_path / layout)
    before = read_json(command("explain", *words, "-o", "json"), "explain")
    assert command("apply", *words).status == 0
    after = read_json(command("explain", *words, "-o", "json"), "explain")
    assert after["withheld"] == before["withheld"] and after["edits"] == before["edits"]
    assert after["found"]["complete"]


@pytest.mark.parametrize("name", ["libcuda.so", "libcuda.so.1", "libnvidia-ml.so.1", "gbm"])
def test_a_link_that_a_mount_of_the_user_hides_is_not_promised(
    command: Command, host: Path, bundle: DebianBundle, tmp_path: Path, name: str
) -> None:
    bundle.request("NVIDIA_VISIBLE_DEVICES=0")
    path = f"/usr/lib/x86_64-linux-gnu/{name}"
    mount = {"destination": path, "source": str(tmp_path), "options": ["bind"]}
    change(bundle, lambda spec: spec["mounts"].append(mount))
    document = read_json(explain(command, bundle, host, "-o", "json"), "explain")
    links = [edit["path"] for edit in document["edits"] if edit["kind"] == "link"]
    assert links and not [link for link in links if link == path or link.startswith(f"{path}/")]
    assert [one for one in document["withheld"] if one["name"].startswith(path) or one["name"] in path]


def test_mount_points_of_an_earlier_start_are_no_leftover_files(
    command: Command, host: Path, bundle: DebianBundle
) -> None:
    """docker writes config.json anew at each start, and the container's layer keeps the mount points."""
    bundle.request("NVIDIA_VISIBLE_DEVICES=0")
    for edit in read_json(explain(command, bundle, host, "-o", "json"), "explain")["edits"]:
        if edit["kind"] == "mount" and edit["destination"].startswith("/usr/bin/"):
            (bundle.path / "rootfs" / edit["destination"][1:]).touch()
    assert "probably committed" not in explain(command, bundle, host).out
