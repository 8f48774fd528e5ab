"""What a container can open by its config.json alone, before the plan adds anything."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_oci_hook.plan.open_devices import OpenDevices

DENY_ALL = {"allow": False, "access": "rwm"}
ALLOW_ALL = {"allow": True, "access": "rwm"}
MKNOD_ONLY = {"allow": True, "type": "c", "major": -1, "minor": -1, "access": "m"}
GPU_RULE = {"allow": True, "type": "c", "major": 195, "minor": 1, "access": "rwm"}
NODE = {"path": "/dev/nvidia1", "type": "c", "major": 195, "minor": 1}
MKNOD = ("CAP_MKNOD",)


def explain(
    *rules: dict[str, Any],
    nodes: tuple[dict[str, Any], ...] = (),
    bounding: tuple[str, ...] = (),
    mounts: tuple[str, ...] = (),
    user_namespace: bool = False,
    enforced: bool = True,
) -> str:
    spec = {
        "process": {"capabilities": {"bounding": list(bounding)}},
        "mounts": [{"source": path, "destination": "/x", "options": ["rbind"]} for path in mounts],
        "linux": {
            "devices": list(nodes),
            "resources": {"devices": list(rules)},
            "namespaces": [{"type": "user"}] if user_namespace else [],
        },
    }
    return OpenDevices(spec, rules_enforced=enforced).explain_open(195, 1, "/dev/nvidia1")


EVERY = "linux.resources.devices[{}] allows every device, as in a privileged container"


@pytest.mark.parametrize(
    ("made", "wanted"),
    [
        (explain(ALLOW_ALL, nodes=(NODE,)), EVERY.format(0)),
        (explain(DENY_ALL, ALLOW_ALL, bounding=MKNOD), EVERY.format(1)),
        (explain({"allow": True, "type": "a", "access": "rwm"}, nodes=(NODE,)), EVERY.format(0)),
        (explain({"allow": True, "major": -1, "minor": -1}, nodes=(NODE,)), EVERY.format(0)),
        (explain(DENY_ALL, GPU_RULE, nodes=(NODE,)), "linux.resources.devices[1] allows it"),
        (explain(DENY_ALL, {**GPU_RULE, "minor": None}, nodes=(NODE,)), "linux.resources.devices[1] allows it"),
        (explain(DENY_ALL, GPU_RULE, mounts=("/dev",)), "linux.resources.devices[1] allows it"),
        (explain(mounts=("/dev/nvidia1",), user_namespace=True, enforced=False), "config.json mounts /dev/nvidia1"),
        (explain(mounts=("/",), enforced=False), "config.json mounts /"),
    ],
)
def test_what_is_open_has_its_reason(made: str, wanted: str) -> None:
    assert made == wanted


@pytest.mark.parametrize(
    "made",
    [
        explain(),
        explain(nodes=(NODE,)),
        explain(DENY_ALL, MKNOD_ONLY, bounding=MKNOD),
        explain(DENY_ALL, MKNOD_ONLY, nodes=(NODE,)),
        explain(ALLOW_ALL, DENY_ALL, nodes=(NODE,)),
        explain(ALLOW_ALL),
        explain(ALLOW_ALL, bounding=MKNOD, user_namespace=True),
        explain(DENY_ALL, {**GPU_RULE, "minor": 0}, nodes=(NODE,)),
        explain(DENY_ALL, {**GPU_RULE, "type": "b"}, nodes=(NODE,)),
        explain(DENY_ALL, {**GPU_RULE, "access": "r"}, nodes=(NODE,)),
        explain(ALLOW_ALL, {"allow": False, "access": "w"}, nodes=(NODE,)),
        explain(mounts=("/dev/nvidia10", "/dev/nvidia0"), enforced=False),
        explain(mounts=("/dev/nvidia1",)),
    ],
)
def test_what_is_denied_or_missing_is_not_open(made: str) -> None:
    assert made == ""


@pytest.mark.parametrize("value", [[], {}, "195", 1.5, True])
@pytest.mark.parametrize("key", ["major", "minor", "type", "access", "allow"])
def test_values_of_a_wrong_type_open_nothing_and_raise_nothing(key: str, value: Any) -> None:
    assert explain(DENY_ALL, {**GPU_RULE, key: value}, nodes=({**NODE, key: value},)) in (
        "",
        "linux.resources.devices[1] allows it",
    )
