"""A plan as lines for people: sections, and what a line leaves out because another says it."""

from __future__ import annotations

from gpu_oci_hook.cli.explanation import sections
from gpu_oci_hook.plan.devices import NODE
from gpu_oci_hook.plan.edits import (
    DeviceNode,
    DeviceRule,
    Directory,
    DropHook,
    Edit,
    Env,
    File,
    Gid,
    Hook,
    Link,
    Mount,
)
from gpu_oci_hook.plan.files import READ_ONLY, SOCKET

LIB64, LIB = "/usr/local/nvidia/lib64", "/usr/local/nvidia/lib"


def told(*edits: Edit, root: str = "/") -> dict[str, dict[str, list[str]]]:
    return dict(sections(edits, "/b/gpu-oci-hook", root))


def test_a_node_and_its_rule_are_one_line_with_what_is_unusual() -> None:
    found = told(
        DeviceNode("/dev/nvidia0", 195, 0, 0o666, 0, 0, "asked"),
        DeviceRule(195, 0, "rw", "opens it"),
        DeviceNode("/dev/nvidiactl", 195, 255, 0o660, 0, 44, "asked"),
        Gid(44, "its group"),
    )
    assert found["devices"] == {
        "asked": ["/dev/nvidia0           c 195:0 rw", "/dev/nvidiactl         c 195:255  mode 0660  owner 0:44"]
    }
    assert found["environment, groups and hooks"] == {"its group": ["additional group 44"]}


def test_a_bound_node_is_a_device_too() -> None:
    found = told(Mount("/dev/nvidia0", "/dev/nvidia0", NODE, "bound"), DeviceRule(195, 0, "rw", "opens it"))
    assert found == {"devices": {"bound": ["/dev/nvidia0           c 195:0 rw"]}}
    assert told(Mount("/h/dev/nvidia0", "/dev/nvidia0", NODE, "bound"), root="/h") == {
        "devices": {"bound": ["/dev/nvidia0"]}
    }


def test_a_rule_without_a_node_keeps_its_line() -> None:
    assert told(DeviceRule(1, 2, "rw", "why")) == {"devices": {"why": ["allow c 1:2 rw"]}}


def test_libraries_are_named_once_below_the_directories_that_they_come_from_and_go_to() -> None:
    found = told(
        Directory("/run/x/libraries-1", LIB64, (("libcuda.so.1", ""),), "place"),
        Mount("/run/x/libraries-1", LIB64, READ_ONLY, "place"),
        Directory("/run/x/libraries-2", LIB, (("libcuda.so.1", ""),), "place"),
        Mount("/run/x/libraries-2", LIB, READ_ONLY, "place"),
        Mount("/usr/lib64/libcuda.so.1", f"{LIB64}/libcuda.so.1", READ_ONLY, "compute"),
        Mount("/usr/lib32/libcuda.so.2", f"{LIB}/libcuda.so.1", READ_ONLY, "compute"),
    )
    assert found["libraries"] == {
        f"compute, from /usr/lib64 to {LIB64}": ["libcuda.so.1"],
        f"compute, from /usr/lib32 to {LIB}": ["libcuda.so.1 <- libcuda.so.2"],
    }
    assert found["directory of the libraries"]["place"][1] == "prepared in /run/x/libraries-1"
    assert list(found) == ["directory of the libraries", "libraries"]


def test_a_mount_says_source_and_options_only_where_they_are_not_the_usual_ones() -> None:
    found = told(
        Mount("/usr/bin/a", "/usr/bin/a", READ_ONLY, "r"),
        Mount("/h/usr/bin/b", "/usr/bin/b", READ_ONLY, "r"),
        Mount("/hh/usr/bin/c", "/usr/bin/c", READ_ONLY, "r"),
        Mount("/h/run/s", "/var/run/s", SOCKET, "r"),
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
        Link("/a", "/b", "l"),
        Env("A", "b", "e"),
        File("/etc/f", b"xy", "f", mounted=True),
        Mount("/b/gpu-oci-hook/etc-f", "/etc/f", READ_ONLY, "f"),
        Hook("createContainer", "/m", ("m", "x"), ("P=1",), "h"),
    )
    assert list(found.items()) == [
        ("generated files", {"f": ["/etc/f (2 bytes, bind-mounted from the bundle)"]}),
        ("links", {"l": ["/a -> /b"]}),
        ("environment, groups and hooks", {"e": ["A=b"], "h": ["createContainer: /m x"]}),
        ("taken out", {"twice": ["prestart: /x"]}),
    ]
