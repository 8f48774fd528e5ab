"""Loading a module: only root, only the host's own program, and never one that others could have written."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.host import kernel_modules
from gpu_oci_hook.host.device_nodes import DeviceMajors, read_device_majors
from gpu_oci_hook.host.root import Host


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host with a program that notes how it was called; we play root of the initial user namespace."""
    place = tmp_path / "usr/bin/nvidia-modprobe"
    place.parent.mkdir(parents=True)
    place.parent.chmod(0o755)
    place.write_text(f'#!/bin/sh\necho "$0 $@" > {tmp_path}/called\nenv > {tmp_path}/env\npwd >> {tmp_path}/called\n')
    place.chmod(0o755)
    monkeypatch.setattr(kernel_modules, "is_process_in_user_namespace", lambda **_: False)
    return place


def test_the_hosts_program_is_called_with_an_empty_environment(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_PRELOAD_NOT", "secret")
    root = program.parents[2]
    kernel_modules.load_kernel_module(Host(str(root)), "nvidia-uvm")
    assert (root / "called").read_text() == f"{program} -u -c=0\n/\n"
    assert "secret" not in (root / "env").read_text()


@pytest.mark.parametrize(("what", "mode"), [("file", 0o777), ("file", 0o775), ("directory", 0o777)])
def test_a_program_that_others_can_write_is_never_run(program: Path, what: str, mode: int) -> None:
    (program if what == "file" else program.parent).chmod(mode)
    with pytest.raises(Fault, match=r"can be written by (every user|group 0)"):
        kernel_modules.load_kernel_module(Host(str(program.parents[2])), "nvidia")
    assert not (program.parents[2] / "called").exists()


def test_a_program_of_another_owner_is_never_run(program: Path) -> None:
    os.chown(program, 12345, 0)
    with pytest.raises(Fault, match="belongs to user 12345"):
        kernel_modules.load_kernel_module(Host(str(program.parents[2])), "nvidia")
    assert not (program.parents[2] / "called").exists()


def test_only_root_of_the_initial_namespace_loads(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(str(program.parents[2]))
    monkeypatch.setattr(kernel_modules, "is_process_in_user_namespace", lambda **_: True)
    with pytest.raises(Fault, match="a user namespace cannot load it"):
        kernel_modules.load_kernel_module(host, "nvidia")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(Fault, match="only root") as caught:
        kernel_modules.load_kernel_module(host, "nvidia-uvm")
    assert "modprobe nvidia-uvm" in str(caught.value)
    assert not (program.parents[2] / "called").exists()


def test_a_host_without_the_program_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_modules, "is_process_in_user_namespace", lambda **_: False)
    with pytest.raises(Fault, match="has no nvidia-modprobe"):
        kernel_modules.load_kernel_module(Host(str(tmp_path)), "nvidia")


def test_a_failure_carries_the_programs_last_words(program: Path) -> None:
    program.write_text("#!/bin/sh\necho one >&2\necho 'no such device' >&2\nexit 1\n")
    with pytest.raises(Fault, match="could not load nvidia-modeset: no such device"):
        kernel_modules.load_kernel_module(Host(str(program.parents[2])), "nvidia-modeset")


def test_what_is_no_program_is_told(program: Path) -> None:
    program.write_bytes(b"\x7fELF nonsense")
    with pytest.raises(Fault, match="cannot be run"):
        kernel_modules.load_kernel_module(Host(str(program.parents[2])), "nvidia")
    program.chmod(0o644)
    with pytest.raises(Fault, match="is not an executable file"):
        kernel_modules.load_kernel_module(Host(str(program.parents[2])), "nvidia")


def test_a_hanging_program_is_killed(program: Path) -> None:
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    start = time.monotonic()
    with pytest.raises(Fault, match=r"within 0\.2 seconds"):
        kernel_modules.load_kernel_module(Host(str(program.parents[2])), "nvidia", timeout=0.2)
    assert time.monotonic() - start < 10


def test_what_a_hanging_program_has_started_ends_with_it(program: Path) -> None:
    note = program.parents[2] / "started"
    program.write_text(f"#!/bin/sh\nsleep 60 &\necho $! > {note}.new; mv {note}.new {note}\nwait\n")
    with pytest.raises(Fault, match=r"within 1 seconds"):
        kernel_modules.load_kernel_module(Host(str(program.parents[2])), "nvidia", timeout=1)
    started = Path(f"/proc/{note.read_text().strip()}/stat")
    end = time.monotonic() + 5
    while started.exists() and started.read_text().rpartition(")")[2].split()[0] != "Z" and time.monotonic() < end:
        time.sleep(0.01)
    assert not started.exists() or started.read_text().rpartition(")")[2].split()[0] == "Z"


def test_a_program_that_cannot_be_killed_does_not_hold_us(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that waits in the driver."""
    victims: list[int] = []
    monkeypatch.setattr(os, "killpg", lambda group, _: victims.append(group))
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    start = time.monotonic()
    try:
        with pytest.raises(Fault, match=r"within 0\.2 seconds"):
            kernel_modules.load_kernel_module(Host(str(program.parents[2])), "nvidia", timeout=0.2)
        assert time.monotonic() - start < 5
    finally:
        for victim in victims:
            os.kill(victim, signal.SIGKILL)


def test_a_program_that_does_not_stop_talking_is_stopped(program: Path) -> None:
    program.write_text("#!/bin/sh\nexec yes\n")
    start = time.monotonic()
    with pytest.raises(Fault, match="wrote more than 1048576 bytes"):
        kernel_modules.load_kernel_module(Host(str(program.parents[2])), "nvidia", timeout=20)
    assert time.monotonic() - start < 10


def test_only_what_is_needed_and_not_loaded_is_loaded(program: Path) -> None:
    root = program.parents[2]
    (root / "proc").mkdir()
    (root / "proc/devices").write_text("Character devices:\n195 nvidia\n")
    program.write_text(f"#!/bin/sh\necho $@ >> {root}/called\necho 509 nvidia-uvm >> {root}/proc/devices\n")
    host = Host(str(root))
    warnings: list[str] = []
    numbers = kernel_modules.load_needed_modules(host, read_device_majors(host), ("utility",), warnings)
    assert not (root / "called").exists()
    numbers = kernel_modules.load_needed_modules(host, numbers, ("compute", "utility"), warnings)
    assert (root / "called").read_text() == "-u -c=0\n"
    assert numbers.uvm == 509
    assert warnings == []


def test_a_module_that_cannot_be_loaded_is_one_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_modules, "is_process_in_user_namespace", lambda **_: False)
    warnings: list[str] = []
    numbers = kernel_modules.load_needed_modules(
        Host(str(tmp_path)), DeviceMajors({}), ("compute", "display"), warnings
    )
    assert not numbers.nvidia_loaded
    assert len(warnings) == 1
    assert "no nvidia-modprobe" in warnings[0]
