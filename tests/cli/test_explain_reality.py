"""The comparison of a running container with its plan: what is expected, counted and printed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_oci_hook.cli import explain_reality
from gpu_oci_hook.cli.explain_reality import Reality, build_reality_data, compare_with_container, print_reality
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.live.container_changes import Change
from gpu_oci_hook.live.container_reality import Difference, Expectation
from gpu_oci_hook.live.device_access import DeviceRules
from gpu_oci_hook.model.edits import AddDeviceNode, AddDeviceRule, AddMount, Edit
from gpu_oci_hook.model.file_edits import AddLink

UUID = "GPU-44b97862"
GPU: list[Edit] = [
    AddDeviceNode("/dev/nvidia0", 195, 0, 0o666, 0, 0, f"GPU 0 ({UUID}): NVIDIA_VISIBLE_DEVICES=0"),
    AddDeviceRule(195, 0, "rw", "allows the node"),
    AddMount("/lib/libcuda.so.1", "/usr/lib/libcuda.so.1", (), "capability compute"),
    AddLink("/usr/lib/libcuda.so", "libcuda.so.1", "link"),
]
LISTED = DeviceRules("/cg/devices.list", lines="c 195:0 rw\nc 195:1 rw\n")


class Scene:
    """A container whose config.json, plan and content a test chooses."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, found: list[Difference] | Fault) -> None:
        self.expected: list[Expectation] = []

        def compare(pid: int, expected: Expectation) -> list[Difference]:
            self.expected.append(expected)
            if isinstance(found, Fault):
                raise found
            return found

        monkeypatch.setattr(explain_reality, "compare_container", compare)

    def run(self, edits: list[Edit], *, rules: DeviceRules = LISTED, **values: Any) -> Reality | None:
        defaults: dict[str, Any] = {"init_pid": 7, "device_rules": rules, "attached_changes": (), "detached": ()}
        bundle: Any = SimpleNamespace(**{**defaults, **values.pop("bundle", {})})
        outcome: Any = SimpleNamespace(plan=SimpleNamespace(edits=edits), bundle="/bundle")
        evidence = SimpleNamespace(nodes=values.get("nodes", []), mounts=values.get("mounts", []))
        presence: Any = SimpleNamespace(evidence=evidence)
        return compare_with_container(bundle, values.get("spec", {}), outcome, presence)


def test_a_container_that_has_everything_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reality = Scene(monkeypatch, []).run(GPU)
    assert reality is not None
    print_reality(reality)
    assert capsys.readouterr().out == (
        "\nin the container now\n  1 of 1 device nodes, 1 of 1 device rules, 1 of 1 mounts, 1 of 1 links\n"
    )


def test_what_differs_is_named_and_what_was_detached_is_marked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = [Difference("device", "/dev/nvidia0", "it is missing")]
    denied = DeviceRules("/cg/devices.list", lines="c 1:3 rwm\n")
    reality = Scene(monkeypatch, found).run(GPU, rules=denied, bundle={"detached": (UUID,)})
    assert reality is not None
    print_reality(reality)
    assert capsys.readouterr().out.splitlines()[2:] == [
        "  0 of 1 device nodes, 0 of 1 device rules, 1 of 1 mounts, 1 of 1 links",
        "  device    /dev/nvidia0: it is missing (detached)",
        "  rule      195:0 rw: it is denied: no rule in /cg/devices.list allows it (detached)",
    ]


def test_a_container_that_has_nothing_of_it_gets_no_list(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [("device", "/dev/nvidia0"), ("mount", "/usr/lib/libcuda.so.1"), ("link", "/usr/lib/libcuda.so")]
    found = [Difference(kind, name, "it is missing") for kind, name in names]
    reality = Scene(monkeypatch, found).run(GPU, rules=DeviceRules("/cg", lines=""))
    assert reality is not None
    print_reality(reality)
    assert capsys.readouterr().out.splitlines()[2:] == [
        "  0 of 1 device nodes, 0 of 1 device rules, 0 of 1 mounts, 0 of 1 links"
    ]
    data: Any = build_reality_data(reality)
    assert len(data["differences"]) == 4


def test_rules_and_files_that_cannot_be_read_are_not_known(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reality = Scene(monkeypatch, []).run(GPU, rules=DeviceRules("/cg", problem="/cg: the kernel refuses it"))
    assert reality is not None
    print_reality(reality)
    assert capsys.readouterr().out.splitlines()[2:] == [
        "  1 of 1 device nodes, 1 of 1 mounts, 1 of 1 links",
        "  the device rules are not known: /cg: the kernel refuses it",
    ]
    data: Any = build_reality_data(reality)
    assert data["counts"]["rule"] == {"expected": 1, "present": None}
    reality = Scene(monkeypatch, Fault("it did not answer")).run(GPU)
    assert reality is not None
    assert reality.problems == ["the container's files are not known: it did not answer"]
    assert reality.totals == {"device": 0, "rule": 1, "mount": 0, "link": 0, "file": 0}


def test_gpus_of_config_json_and_of_attach_are_expected_too(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = {
        "linux": {
            "devices": [
                {"path": "/dev/nvidia1", "type": "c", "major": 195, "minor": 1},
                {"path": "/dev/fuse", "type": "c", "major": 10, "minor": 229},
            ],
            "resources": {
                "devices": [
                    {"allow": False, "access": "rwm"},
                    {"allow": True, "type": "c", "major": 195, "minor": 1},
                    {"allow": True, "type": "c", "major": 10, "minor": 229, "access": "rw"},
                ]
            },
        }
    }
    changes = (Change("node", "/dev/nvidia2", (195, 2)), Change("mount", "/x/libcuda.so.1", (8, 77)))
    scene = Scene(monkeypatch, [Difference("mount", "/lib/libcuda.so.535", "deleted")])
    reality = scene.run(
        [],
        spec=spec,
        nodes=[("/dev/nvidia1", "c 195:1")],
        mounts=[("/lib/b", "/usr/lib/b")],
        bundle={"attached_changes": changes},
    )
    (expected,) = scene.expected
    assert expected.nodes == [("/dev/nvidia1", 195, 1), ("/dev/nvidia2", 195, 2)]
    assert (expected.mounts, expected.attached) == ([("/lib/b", "/usr/lib/b")], [("/x/libcuda.so.1", (8, 77))])
    assert reality is not None
    assert reality.totals == {"device": 2, "rule": 2, "mount": 3, "link": 0, "file": 0}, "one mount was not expected"
    assert [(difference.kind, difference.name) for difference in reality.differences] == [
        ("mount", "/lib/libcuda.so.535"),
        ("rule", "195:2 rw"),
    ]


def test_a_container_that_does_not_run_or_should_have_nothing_is_not_compared(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scene = Scene(monkeypatch, [])
    assert scene.run(GPU, bundle={"init_pid": 0}) is None
    assert scene.run([]) is None
    assert scene.expected == []
    assert build_reality_data(None) is None
