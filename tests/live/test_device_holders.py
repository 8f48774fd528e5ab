"""The processes of a container that hold a device open are found by the device's numbers."""

from __future__ import annotations

import os
import subprocess

import pytest

from gpu_oci_hook.live.device_holders import list_device_holders
from support.bundles import skip_or_fail

pytestmark = pytest.mark.root


def test_a_process_that_holds_the_device_is_named_and_others_are_not() -> None:
    if os.geteuid() != 0:
        skip_or_fail("needs root")
    script = "mknod -m 666 /tmp/other c 1 5; exec 5</tmp/other; echo ready; exec sleep 60"
    command = ["unshare", "--mount", "sh", "-ec", f"mount -t tmpfs -o dev tmpfs /tmp; {script}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        (holder,) = list_device_holders(process.pid, [(1, 5), (195, 0)])
        assert (holder.pid, holder.command, holder.devices) == (process.pid, "sleep", ["1:5"])
        assert list_device_holders(process.pid, [(195, 0)]) == []
        assert list_device_holders(process.pid, []) == []
    finally:
        process.kill()
        process.wait()
        process.stdout.close()  # type: ignore[union-attr]
