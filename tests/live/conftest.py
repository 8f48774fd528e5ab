"""Cgroups of version 1 for tests that change and read device rules in the real kernel."""

from __future__ import annotations

import os
import stat
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kernel_judge import open_node, run_in_cgroup

from support.bundles import skip_or_fail

HIERARCHY = Path("/sys/fs/cgroup/devices")


@pytest.fixture
def group() -> Iterator[Path]:
    """A cgroup of version 1 that denies every device."""
    if os.geteuid() or not (HIERARCHY / "devices.list").exists():
        skip_or_fail("a device cgroup: needs root and cgroup v1")
    path = HIERARCHY / f"gpu-oci-hook-test-{uuid.uuid4().hex[:8]}"
    path.mkdir()
    try:
        (path / "devices.deny").write_text("a")
        yield path
    finally:
        if (path / "inner").exists():
            (path / "inner").rmdir()
        path.rmdir()


@pytest.fixture
def open_in(tmp_path: Path) -> Callable[[Path], dict[tuple[int, int], int]]:
    """Open the nodes in a cgroup; return the errno of each."""
    nodes = {}
    for major, minor in ((195, 0), (195, 1), (1, 3)):
        nodes[major, minor] = tmp_path / f"{major}-{minor}"
        os.mknod(nodes[major, minor], stat.S_IFCHR | 0o666, os.makedev(major, minor))

    def open_all(group: Path) -> dict[tuple[int, int], int]:
        errors = run_in_cgroup(group, lambda: [open_node(path, 6) for path in nodes.values()])
        return dict(zip(nodes, errors, strict=True))

    return open_all
