"""Join the mount namespace of a container's monitor: none that another user has made with more than his rights."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator

import pytest

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.live.join_namespaces import join_mount_namespace
from gpu_oci_hook.live.monitors import read_namespace_id

USER = ["setpriv", "--reuid=1234", "--regid=1234", "--clear-groups"]
OWN_NAMESPACES = ["unshare", "--user", "--map-root-user", "--mount"]

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can join namespaces of others")


@contextlib.contextmanager
def running(*command: str) -> Iterator[int]:
    """Run a command that waits, in a mount namespace of another process or its own."""
    process = subprocess.Popen([*command, "sleep", "60"])
    try:
        end = time.monotonic() + 10
        while read_namespace_id(process.pid, "mnt") in ("", read_namespace_id(os.getpid(), "mnt")):
            assert time.monotonic() < end and process.poll() is None
            time.sleep(0.01)
        yield process.pid
    finally:
        process.kill()
        process.wait()


def test_mounts_of_a_user_are_not_joined_with_the_rights_of_root() -> None:
    """A process of root can be among them, and the user decides what is mounted on the files of our modules."""
    with running(*USER, *OWN_NAMESPACES) as user, running("nsenter", f"--mount=/proc/{user}/ns/mnt") as pid:
        with pytest.raises(Fault, match="belongs to another user namespace than the monitor's") as failure:
            join_mount_namespace(pid)
        assert failure.value.where == f"process {pid}"
    assert os.getcwd() != "/"
