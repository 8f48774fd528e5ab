"""Valid CDI files, as dicts: one for each version, and one with every field."""

from __future__ import annotations

import copy
from typing import Any

Spec = dict[str, Any]


def minimal_spec(version: str = "0.3.0", **edits: Any) -> Spec:
    """Build a file with one device that has these edits (a variable by default)."""
    device = {"name": "dev", "containerEdits": edits or {"env": ["A=b"]}}
    return {"cdiVersion": version, "kind": "vendor.com/class", "devices": [device]}


# By version: a file that uses what this version introduced.
SPECS_BY_VERSION: dict[str, Spec] = {
    "0.3.0": minimal_spec("0.3.0"),
    "0.4.0": minimal_spec("0.4.0", mounts=[{"hostPath": "/a", "containerPath": "/b", "type": "bind"}]),
    "0.5.0": minimal_spec("0.5.0", deviceNodes=[{"path": "/dev/a", "hostPath": "/dev/b"}]),
    "0.6.0": minimal_spec("0.6.0") | {"annotations": {"example.com/key": "value"}},
    "0.7.0": minimal_spec("0.7.0", additionalGids=[44], intelRdt={"closID": "a", "enableCMT": True}),
    "0.8.0": minimal_spec("0.8.0"),
    "1.0.0": minimal_spec("1.0.0"),
    "1.1.0": minimal_spec("1.1.0", netDevices=[{"hostInterfaceName": "eth0", "name": "net0"}]),
}

FULL_SPEC: Spec = {
    "cdiVersion": "1.1.0",
    "kind": "vendor.com/cla.ss",
    "annotations": {"whatever": "it is", "example.com/other": ""},
    "devices": [
        {
            "name": "0:1",
            "annotations": {"key": "value"},
            "containerEdits": {
                "env": ["A=b", "EMPTY="],
                "deviceNodes": [
                    {"path": "/dev/a"},
                    {
                        "path": "/dev/b", "hostPath": "/dev/c", "type": "c", "major": 195, "minor": 0, "fileMode": 438,
                        "permissions": "rw", "uid": 0, "gid": 44,
                    },
                    {"path": "/dev/p", "type": "p", "permissions": ""},
                ],
                "netDevices": [{"hostInterfaceName": "eth0", "name": "net0"}],
                "hooks": [
                    {"hookName": "createContainer", "path": "/x", "args": ["x", ""], "env": ["P=/bin"], "timeout": 5},
                    {"hookName": "prestart", "path": "/y"},
                ],
                "mounts": [
                    {"hostPath": "/lib/a", "containerPath": "/lib/a", "options": ["ro", "bind"]},
                    {"hostPath": "tmpfs", "containerPath": "/t", "type": "tmpfs"},
                ],
                "intelRdt": {
                    "closID": "guaranteed", "l3CacheSchema": "L3:0=f", "memBwSchema": "MB:0=10",
                    "schemata": ["L3:0=f"], "enableMonitoring": True,
                },
                "additionalGids": [44, 109],
            },
        },
        {"name": "all", "containerEdits": {"intelRdt": {}}},
    ],
    "containerEdits": {"env": ["COMMON=1"]},
}  # fmt: skip


def with_change(spec: Spec, *way: Any, to: Any = None, remove: bool = False) -> Spec:
    """Return a copy of a file where the value at the end of the path is replaced or removed."""
    new = copy.deepcopy(spec)
    place: Any = new
    for step in way[:-1]:
        place = place[step]
    if remove:
        del place[way[-1]]
    else:
        place[way[-1]] = to
    return new
