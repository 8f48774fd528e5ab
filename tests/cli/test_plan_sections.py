"""A plan as lines for people: sections, and what a line leaves out because another says it."""

from __future__ import annotations

from gpu_oci_hook.cli.plan_sections import build_plan_sections
from gpu_oci_hook.model.edits import (
    AddDeviceNode,
    AddDeviceRule,
    AddGroup,
    AddHook,
    AddMount,
    DropHook,
    Edit,
    SetEnvVariable,
)
from gpu_oci_hook.model.file_edits import AddFile, AddLink, PrepareDirectory
from gpu_oci_hook.plan.devices import NODE_MOUNT_OPTIONS
from gpu_oci_hook.plan.mounting import READ_ONLY_MOUNT_OPTIONS, SOCKET_MOUNT_OPTIONS

LIB64, LIB = "/usr/local/nvidia/lib64", "/usr/local/nvidia/lib"


def told(*edits: Edit, root: str = "/") -> dict[str, dict[str, list[str]]]:
    return dict(build_plan_sections(edits, "/b/gpu-oci-hook", root))


def test_a_node_and_its_rule_are_one_line_with_what_is_unusual() -> None:
    found = told(
        AddDeviceNode("/dev/nvidia0", 195, 0, 0o666, 0, 0, "asked"),
        AddDeviceRule(195, 0, "rw", "opens it"),
        AddDeviceNode("/dev/nvidiactl", 195, 255, 0o660, 0, 44, "asked"),
        AddGroup(44, "its group"),
    )
    assert found["devices"] == {
        "asked": ["/dev/nvidia0           c 195:0 rw", "/dev/nvidiactl         c 195:255  mode 0660  owner 0:44"]
    }
    assert found["environment, groups and hooks"] == {"its group": ["additional group 44"]}


def test_a_bound_node_is_a_device_too() -> None:
    found = told(
        AddMount("/dev/nvidia0", "/dev/nvidia0", NODE_MOUNT_OPTIONS, "bound"), AddDeviceRule(195, 0, "rw", "opens it")
    )
    assert found == {"devices": {"bound": ["/dev/nvidia0           c 195:0 rw"]}}
    assert told(AddMount("/h/dev/nvidia0", "/dev/nvidia0", NODE_MOUNT_OPTIONS, "bound"), root="/h") == {
        "devices": {"bound": ["/dev/nvidia0"]}
    }


def test_a_rule_without_a_node_keeps_its_line() -> None:
    assert told(AddDeviceRule(1, 2, "rw", "why")) == {"devices": {"why": ["allow c 1:2 rw"]}}


def test_libraries_are_named_once_below_the_directories_that_they_come_from_and_go_to() -> None:
    found = told(
        PrepareDirectory("/run/x/libraries-1", LIB64, (("libcuda.so.1", ""),), "place"),
        AddMount("/run/x/libraries-1", LIB64, READ_ONLY_MOUNT_OPTIONS, "place"),
        PrepareDirectory("/run/x/libraries-2", LIB, (("libcuda.so.1", ""),), "place"),
        AddMount("/run/x/libraries-2", LIB, READ_ONLY_MOUNT_OPTIONS, "place"),
        AddMount("/usr/lib64/libcuda.so.1", f"{LIB64}/libcuda.so.1", READ_ONLY_MOUNT_OPTIONS, "compute"),
        AddMount("/usr/lib32/libcuda.so.2", f"{LIB}/libcuda.so.1", READ_ONLY_MOUNT_OPTIONS, "compute"),
    )
    assert found["libraries"] == {
        f"compute, from /usr/lib64 to {LIB64}": ["libcuda.so.1"],
        f"compute, from /usr/lib32 to {LIB}": ["libcuda.so.1 <- libcuda.so.2"],
    }
    assert found["library directory"]["place"][1] == "prepared in /run/x/libraries-1"
    assert list(found) == ["library directory", "libraries"]


def test_a_mount_says_source_and_options_only_where_they_are_not_the_usual_ones() -> None:
    found = told(
        AddMount("/usr/bin/a", "/usr/bin/a", READ_ONLY_MOUNT_OPTIONS, "r"),
        AddMount("/h/usr/bin/b", "/usr/bin/b", READ_ONLY_MOUNT_OPTIONS, "r"),
        AddMount("/hh/usr/bin/c", "/usr/bin/c", READ_ONLY_MOUNT_OPTIONS, "r"),
        AddMount("/h/run/s", "/var/run/s", SOCKET_MOUNT_OPTIONS, "r"),
        root="/h",
    )
    assert found == {
        "programs and other files": {
            "r": [
                "/usr/bin/a",
                "/usr/bin/b",
                "/usr/bin/c <- /hh/usr/bin/c",
                "/var/run/s <- /run/s (nosuid,nodev,noexec,rbind,rprivate)",
            ]
        }
    }


def test_sections_have_a_fixed_order_and_a_file_tells_of_its_mount() -> None:
    found = told(
        DropHook("prestart", "/x", "twice"),
        AddLink("/a", "/b", "l"),
        SetEnvVariable("A", "b", "e"),
        AddFile("/etc/f", b"xy", "f", bind_mounted=True),
        AddMount("/b/gpu-oci-hook/etc-f", "/etc/f", READ_ONLY_MOUNT_OPTIONS, "f"),
        AddHook("createContainer", "/m", ("m", "x"), ("P=1",), "h"),
    )
    assert list(found.items()) == [
        ("generated files", {"f": ["/etc/f (2 bytes, bind-mounted from the bundle)"]}),
        ("links", {"l": ["/a -> /b"]}),
        ("environment, groups and hooks", {"e": ["A=b"], "h": ["createContainer: /m x"]}),
        ("removed", {"twice": ["prestart: /x"]}),
    ]
