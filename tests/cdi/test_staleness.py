"""CDI files that no longer fit the host: another driver, other device numbers."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from gpu_oci_hook.cdi import provenance
from gpu_oci_hook.cdi.registry import staleness
from gpu_oci_hook.host.root import Host

RUNNING = "555.42.02"
Spec = dict[str, Any]
LIBRARIES = "/usr/lib/x86_64-linux-gnu"


@pytest.fixture
def host(tmp_path: Path) -> Path:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/devices").write_text(
        "Character devices:\n  1 mem\n195 nvidia\n509 nvidia-uvm\n510 nvidia-caps\n235 nvidia-caps-imex-channels\n\n"
        "Block devices:\n  7 loop\n"
    )
    libraries = tmp_path / LIBRARIES.lstrip("/")
    libraries.mkdir(parents=True)
    (libraries / f"libcuda.so.{RUNNING}").write_text("")
    (libraries / "libcuda.so.550.54.14").write_text("")
    (tmp_path / "dev").mkdir()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/hook").write_text("")
    (tmp_path / "bin/hook").chmod(0o755)
    (tmp_path / "bin/no-program").write_text("")
    return tmp_path


def spec(common: Spec | None = None, **edits: Any) -> Spec:
    return {
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "devices": [{"name": "0", "containerEdits": edits}],
        "containerEdits": common or {},
    }


def mount(path: str, **more: Any) -> Spec:
    return {"hostPath": path, "containerPath": path, "options": ["ro", "nosuid", "nodev", "bind"], **more}


def texts(data: Spec, host: Path, version: str | None = RUNNING) -> list[str]:
    return [one.text for one in staleness.list_stale_findings(data, "/etc/cdi/nvidia.yaml", Host(str(host)), version)]


def test_a_file_for_another_driver_is_told_in_one_sentence_with_its_file_and_the_command(host: Path) -> None:
    (host / LIBRARIES.lstrip("/") / "libcuda.so.550.54.14").unlink()
    data = spec({"mounts": [mount(f"{LIBRARIES}/libcuda.so.550.54.14")]})
    first, second = staleness.list_stale_findings(data, "/etc/cdi/nvidia.yaml", Host(str(host)), RUNNING)
    assert (
        first.text
        == f"the CDI file was written for driver 550.54.14, and the host below {host} runs 555.42.02, 1 missing path"
    )
    assert (first.level, first.file) == ("error", "/etc/cdi/nvidia.yaml")
    assert "gpu-oci-hook cdi generate" in first.hint and "/etc/cdi/nvidia.yaml" in first.hint
    assert second.where == "containerEdits.mounts[0].hostPath"
    assert second.text == f"{LIBRARIES}/libcuda.so.550.54.14 is missing on the host below {host}"


def test_a_file_for_another_driver_whose_files_are_still_there_is_told_too(host: Path) -> None:
    data = spec({"mounts": [mount(f"{LIBRARIES}/libcuda.so.550.54.14")]})
    assert texts(data, host) == [
        f"the CDI file was written for driver 550.54.14, and the host below {host} runs 555.42.02"
    ]


def test_a_file_that_fits_has_no_finding(host: Path) -> None:
    node = {"path": "/dev/nvidia-uvm", "type": "c", "major": 509, "minor": 0}
    data = spec({"mounts": [mount(f"{LIBRARIES}/libcuda.so.{RUNNING}")]}, deviceNodes=[node])
    assert texts(data, host) == []
    assert texts(spec(env=["A=1"]), host) == []


def test_without_a_running_driver_versions_are_not_compared(host: Path) -> None:
    assert texts(spec({"mounts": [mount(f"{LIBRARIES}/libcuda.so.550.54.14")]}), host, None) == []


@pytest.mark.parametrize(
    ("path", "version"),
    [
        (f"{LIBRARIES}/libcuda.so.550.54.14", "550.54.14"),
        (f"{LIBRARIES}/libnvidia-ml.so.550.54", "550.54"),
        (f"{LIBRARIES}/libGLX_nvidia.so.550.54.14", "550.54.14"),
        (f"{LIBRARIES}/vdpau/libvdpau_nvidia.so.550.54.14", "550.54.14"),
        ("/lib/firmware/nvidia/550.54.14/gsp_ga10x.bin", "550.54.14"),
        ("/lib/firmware/nvidia/550.54.14", "550.54.14"),
        ("/usr/lib/xorg/modules/extensions/libglxserver_nvidia.so.550.54.14", "550.54.14"),
        (f"{LIBRARIES}/libcuda.so.1", ""),
        (f"{LIBRARIES}/libcuda.so.1.1", ""),
        (f"{LIBRARIES}/libother.so.550.54.14", ""),  # another vendor's version says nothing
        ("/usr/bin/nvidia-smi", ""),
        ("/opt/550.54.14/libx.so", ""),
    ],
)
def test_the_version_is_read_from_the_drivers_own_file_names(path: str, version: str) -> None:
    assert staleness.parse_driver_versions(path) == ([version] if version else [])


# --- numbers ---------------------------------------------------------------------------------------


def test_a_major_that_is_another_modules_now(host: Path) -> None:
    node = {"path": "/dev/nvidia-uvm", "type": "c", "major": 510, "minor": 0}
    assert texts(spec(deviceNodes=[node]), host) == ["the CDI file says 510, the kernel says 509 (510 is nvidia-caps)"]


@pytest.mark.parametrize(
    ("path", "major", "text"),
    [
        ("/dev/nvidia0", 195, ""),
        ("/dev/nvidiactl", 195, ""),
        ("/dev/nvidia12", 509, "the CDI file says 509, the kernel says 195 (509 is nvidia-uvm)"),
        ("/dev/nvidia-uvm-tools", 234, "the CDI file says 234, the kernel says 509"),
        ("/dev/nvidia-caps/nvidia-cap3", 510, ""),
        ("/dev/nvidia-caps/nvidia-cap3", 509, "the CDI file says 509, the kernel says 510 (509 is nvidia-uvm)"),
        ("/dev/nvidia-caps-imex-channels/channel0", 235, ""),
        ("/dev/nvidia-caps-imex-channels/channel0", 234, "the CDI file says 234, the kernel says 235"),
        ("/dev/nvidia-modeset", 195, "the CDI file says 195, the kernel has no nvidia-modeset (195 is nvidia)"),
        ("/dev/vendor0", 60, ""),
    ],
)
def test_the_majors_of_the_drivers_nodes_are_the_kernels(host: Path, path: str, major: int, text: str) -> None:
    node = {"path": path, "type": "c", "major": major, "minor": 0}
    assert texts(spec(deviceNodes=[node]), host) == ([text] if text else [])


def test_the_host_path_tells_which_node_it_is(host: Path) -> None:
    node = {"path": "/dev/gpu", "hostPath": "/dev/nvidia-uvm", "type": "c", "major": 510, "minor": 0}
    assert texts(spec(deviceNodes=[node]), host) == ["the CDI file says 510, the kernel says 509 (510 is nvidia-caps)"]


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root can make device nodes")
def test_a_node_of_an_earlier_boot_on_the_host_itself(host: Path) -> None:
    os.mknod(host / "dev/nvidia-uvm", stat.S_IFCHR | 0o666, os.makedev(510, 0))
    found = texts(spec(deviceNodes=[{"path": "/dev/nvidia-uvm"}]), host)
    assert found == ["the host's /dev/nvidia-uvm has 510, the kernel says 509 (510 is nvidia-caps)"]
    os.mknod(host / "dev/vendor0", stat.S_IFCHR | 0o666, os.makedev(60, 1))
    node = {"path": "/dev/vendor0", "type": "c", "major": 61, "minor": 1}
    assert texts(spec(deviceNodes=[node]), host) == ["the CDI file says 61:1, the host's /dev/vendor0 is 60:1"]
    assert texts(spec(deviceNodes=[{**node, "major": 60}]), host) == []


# --- paths ------------------------------------------------------------------------------------------


def test_what_is_missing_is_told_each_with_its_place(host: Path) -> None:
    data = spec(
        {"mounts": [mount("/none1"), mount("/bin"), mount("/none2")]},
        deviceNodes=[{"path": "/dev/none"}, {"path": "/dev/full", "type": "c", "major": 60}],
        hooks=[
            {"hookName": "prestart", "path": "/bin/hook"},
            {"hookName": "prestart", "path": "/nowhere/hook"},
            {"hookName": "prestart", "path": "/bin/no-program"},
            {"hookName": "startContainer", "path": "/nowhere/in-the-container"},
        ],
    )
    found = staleness.list_stale_findings(data, "/f", Host(str(host)), RUNNING)
    assert [(one.where, one.text.partition(" is")[0]) for one in found] == [
        ("containerEdits.mounts[0].hostPath", "/none1"),
        ("containerEdits.mounts[2].hostPath", "/none2"),
        ("devices[0].containerEdits.deviceNodes[0].path", "/dev/none"),
        ("devices[0].containerEdits.hooks[1].path", "/nowhere/hook"),
        ("devices[0].containerEdits.hooks[2].path", "/bin/no-program"),
    ]
    pairs = [("containerEdits", data["containerEdits"]), ("devices[0]", data["devices"][0]["containerEdits"])]
    assert staleness.find_spec_mismatch(pairs, Host(str(host)), RUNNING, []).describe() == (
        f"5 missing paths: /none1, /none2, /dev/none and 2 more (the host below {host})"
    )


def test_a_directory_is_no_hooks_program(host: Path) -> None:
    assert texts(spec({"hooks": [{"hookName": "prestart", "path": "/bin"}]}), host) == [
        f"/bin is missing on the host below {host}"
    ]


@pytest.mark.parametrize(
    ("program", "hint"),
    [
        ("/usr/local/bin/gpu-oci-hook", "Install the program: gpu-oci-hook install"),
        ("/opt/x/bin/gpu-oci-hook", "Install the program: gpu-oci-hook install --prefix /opt/x"),
        ("/usr/bin/nvidia-cdi-hook", "Install the program: gpu-oci-hook install --aliases --prefix /usr"),
        ("/usr/bin/nvidia-ctk", "Install the program, or remove the CDI file"),
        ("/site/hook", "Install the program, or remove the CDI file"),
    ],
)
def test_a_file_that_lacks_only_a_program_is_answered_with_its_installation(
    host: Path, program: str, hint: str
) -> None:
    hook = {"hookName": "createContainer", "path": program}
    for hooks in ([hook], [hook, hook]):
        found = staleness.list_stale_findings(spec({"hooks": hooks}), "/etc/cdi/a.yaml", Host(str(host)), RUNNING)
        assert {finding.hint for finding in found} == {hint}
    more = {"hooks": [hook], "mounts": [mount("/none")]}
    for finding in staleness.list_stale_findings(spec(more), "/etc/cdi/a.yaml", Host(str(host)), RUNNING):
        assert "Install the program" not in finding.hint


def test_what_is_no_bind_mount_takes_nothing_of_the_hosts(host: Path) -> None:
    data = spec({"mounts": [{"hostPath": "tmpfs", "containerPath": "/x", "type": "tmpfs"}]})
    assert texts(data, host) == []


def test_our_own_hook_says_for_which_driver_the_file_was_made(host: Path) -> None:
    args = ["gpu-oci-hook", "hook", "create-container", "--folder", "/x", "--driver-version"]
    hook = {"hookName": "createContainer", "path": "/bin/hook", "args": [*args, "550.54.14"]}
    assert texts(spec({"hooks": [hook]}), host) == [
        f"the CDI file was written for driver 550.54.14, and the host below {host} runs 555.42.02"
    ]
    assert texts(spec({"hooks": [{**hook, "args": [*args, RUNNING]}]}), host) == []
    assert texts(spec({"hooks": [{**hook, "args": args}]}), host) == []


@pytest.mark.parametrize("kind", ["nvidia.com/gpu", "vendor.com/dev"])
def test_the_hint_is_our_generator_or_the_tool_of_another_vendor(host: Path, kind: str) -> None:
    data = {**spec({"mounts": [mount("/none")]}), "kind": kind}
    (finding,) = staleness.list_stale_findings(data, "/etc/cdi/x.yaml", Host(str(host)), RUNNING)
    assert ("gpu-oci-hook cdi generate --output /etc/cdi/x.yaml" in finding.hint) == (kind == "nvidia.com/gpu")


def test_the_hint_for_a_file_of_each_kind_of_ours_is_the_command_that_writes_that_kind() -> None:
    assert provenance.build_stale_hint("nvidia.com/gpu", "/f") == "Regenerate it: gpu-oci-hook cdi generate --output /f"
    assert "generate --mode management --output /f" in provenance.build_stale_hint("management.nvidia.com/gpu", "/f")
    assert "generate --vendor runtime.nvidia.com --output /f" in provenance.build_stale_hint(
        "runtime.nvidia.com/gpu", "/f"
    )
    assert "cdi generate" not in provenance.build_stale_hint("vendor.com/dev", "/f")


@pytest.mark.parametrize("more", [{"options": ["ro"]}, {"type": "bind", "options": []}, {"type": "none"}])
def test_a_missing_source_is_told_of_a_mount_that_no_runtime_makes_too(host: Path, more: Spec) -> None:
    data = spec({"mounts": [{"hostPath": "/none", "containerPath": "/x", **more}]})
    assert texts(data, host) == [f"/none is missing on the host below {host}"]
