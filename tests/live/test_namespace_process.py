"""A function in the mount namespace of another process: its result, its failure, and the deadline."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.live.namespace_process import run_in_mount_namespace
from support.bundles import skip_or_fail

pytestmark = pytest.mark.root

Start = Callable[[str], int]


@pytest.fixture
def start() -> Iterator[Start]:
    """Shell commands -> process of a mount namespace in which they have been run."""
    if os.geteuid() != 0:
        skip_or_fail("needs root")
    processes: list[subprocess.Popen[str]] = []

    def make(commands: str) -> int:
        script = f"{commands}\necho ready\nexec sleep 600"
        command = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", script]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process.pid

    yield make
    for process in processes:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_the_function_sees_the_mounts_of_the_process_and_this_one_does_not(start: Start) -> None:
    pid = start("mount -t tmpfs none /mnt; echo inside > /mnt/file")
    assert run_in_mount_namespace(pid, lambda: Path("/mnt/file").read_text()) == "inside\n"
    assert not os.path.exists("/mnt/file")


def test_a_fault_keeps_its_place_and_its_hint_and_another_error_is_a_sentence(start: Start) -> None:
    pid = start("true")

    def fail() -> None:
        raise Fault("refused", where="/dev/x", hint="Do something else")

    with pytest.raises(Fault) as caught:
        run_in_mount_namespace(pid, fail)
    assert (caught.value.what, caught.value.where, caught.value.hint) == ("refused", "/dev/x", "Do something else")
    with pytest.raises(Fault, match="ZeroDivisionError: "):
        run_in_mount_namespace(pid, lambda: 1 // 0)
    with pytest.raises(Fault, match="was killed"):
        run_in_mount_namespace(pid, lambda: os.kill(os.getpid(), 9))


def test_a_function_that_hangs_is_killed_at_the_deadline(start: Start) -> None:
    pid = start("true")
    begin = time.monotonic()
    with pytest.raises(Fault, match=r"did not answer for 0\.3 seconds"):
        run_in_mount_namespace(pid, lambda: time.sleep(60), deadline=0.3)
    assert time.monotonic() - begin < 20


def test_this_processs_own_namespace_is_refused() -> None:
    with pytest.raises(Fault, match="no mount namespace of its own"):
        run_in_mount_namespace(os.getpid(), lambda: None)
    with pytest.raises(Fault, match="cannot find the container's mounts"):
        run_in_mount_namespace(1 << 30, lambda: None)


def test_a_process_that_has_changed_its_root_is_refused(start: Start) -> None:
    commands = """
    mount -t tmpfs none /mnt
    mkdir /mnt/old /mnt/bin /mnt/usr /mnt/lib /mnt/lib64 /mnt/proc
    for name in bin usr lib lib64; do mount --rbind /$name /mnt/$name; done
    cd /mnt
    pivot_root . old
    """
    pid = start(commands)
    with pytest.raises(Fault, match="has changed its root already"):
        run_in_mount_namespace(pid, lambda: None)
