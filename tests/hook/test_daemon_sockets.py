"""The sockets and directories of daemons that the CDI hook mounts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpu_oci_hook.files.rootfs import Rootfs
from gpu_oci_hook.hook.called_container import Container
from gpu_oci_hook.hook.daemon_sockets import mount_daemon_sockets


@pytest.fixture
def container(tmp_path: Path) -> Container:
    (tmp_path / "rootfs").mkdir()
    return Container(str(tmp_path), {"root": {"path": "rootfs"}}, Rootfs(str(tmp_path / "rootfs")))


@pytest.mark.root
def test_a_daemons_directory_that_another_user_has_made_is_not_mounted(container: Container, tmp_path: Path) -> None:
    """A CDI file is read long after it was written, and /tmp/nvidia-mps is anybody's once the daemon has ended."""
    source = tmp_path / "nvidia-mps"
    source.mkdir()
    os.chown(source, 4807, 4807)
    mount_daemon_sockets(container, [(str(source), "/tmp/nvidia-mps")])
    assert container.notes == ["skipped /tmp/nvidia-mps: the host's directory belongs to user 4807"]
    assert list((tmp_path / "rootfs").iterdir()) == []


@pytest.mark.parametrize("kind", ["a link", "a file"])
def test_what_is_neither_a_socket_nor_a_directory_is_not_mounted(
    container: Container, tmp_path: Path, kind: str
) -> None:
    source = tmp_path / "socket"
    if kind == "a link":
        source.symlink_to("/etc")
    else:
        source.touch()
    mount_daemon_sockets(container, [(str(source), "/run/socket")])
    assert container.notes == ["skipped /run/socket: the host's file is neither a socket nor a directory"]
    assert list((tmp_path / "rootfs").iterdir()) == []


def test_a_daemon_that_does_not_run_is_passed_over_silently(container: Container, tmp_path: Path) -> None:
    mount_daemon_sockets(container, [(str(tmp_path / "socket"), "/run/socket")])
    assert container.notes == []
