"""CDI spec directories in a simulated host, and the registry that reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gpu_oci_hook.cdi.registry.registry import Registry
from gpu_oci_hook.host.root import Host
from support.fake_cache import FakeCache

DIRECTORIES = ("/etc/cdi", "/var/run/cdi")
Spec = dict[str, Any]


def make_spec(*names: str, kind: str = "vendor.com/dev", **edits: Any) -> Spec:
    """Build a spec with these devices, each with the edits or a variable of its own."""
    return {
        "cdiVersion": "0.5.0",
        "kind": kind,
        "devices": [{"name": name, "containerEdits": edits or {"env": [f"{name.upper()}=1"]}} for name in names],
    }


def write_host_file(root: Path, path: str, content: Spec | str) -> Path:
    """Write a file below the host's root."""
    place = root / path.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(content if isinstance(content, str) else json.dumps(content))
    return place


def make_registry(root: Path, cache: FakeCache | None = None, directories: tuple[str, ...] = DIRECTORIES) -> Registry:
    """Build the registry of the host."""
    return Registry(Host(str(root)), directories, cache or FakeCache(lockable=False))
