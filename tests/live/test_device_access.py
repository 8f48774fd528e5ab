"""What the kernel's rules say about a device, against what opening it says."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest
from test_cgroup_programs import play
from test_device_program import DUMPS, PRELUDE, SYSTEMD, assemble

from gpu_oci_hook.files.directory import make_os_error
from gpu_oci_hook.live import device_access, device_program
from gpu_oci_hook.live.device_access import query_device_access
from gpu_oci_hook.live.device_cgroup import DeviceCgroup, allow_devices, deny_devices

GPU, NULL = (195, 0, "rw"), (1, 3, "rw")
RUNC = DUMPS["runc 1.1.5"]
# What `net.core.bpf_jit_harden = 2` makes of "if r4 == 195 return 1, else 0".
BLINDED = assemble(
    *PRELUDE,
    (0xB4, 0x0B, 0, 0x1234 ^ 195),
    (0xA4, 0x0B, 0, 0x1234),
    (0x5D, 0xB4, 2, 0),
    (0xB7, 0, 0, 1),
    (0x95, 0, 0, 0),
    (0xB7, 0, 0, 0),
    (0x95, 0, 0, 0),
)
WITH_MAP = assemble((0x18, 0x11, 0, 7), (0, 0, 0, 0), (0x85, 0, 0, 1), (0x95, 0, 0, 0))


def query(monkeypatch: pytest.MonkeyPatch, *programs: bytes) -> list[tuple[bool | None, str]]:
    """Query the GPU and /dev/null in a cgroup for which these programs decide."""
    monkeypatch.setattr(device_access, "_dump_programs", lambda path: list(programs))
    answers = query_device_access(DeviceCgroup(2, ["/cg/x"]), [GPU, NULL])
    return [(answer.allowed, answer.reason) for answer in answers]


def test_each_program_of_the_cgroup_and_above_must_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    extended = device_program.change_device_rules(RUNC, allow=[(195, 0)])
    ours = "a rule that gpu-oci-hook has added allows it"
    program = "the device program allows it"
    denies = "a device program for /cg/x denies it"
    assert query(monkeypatch) == [(True, "the cgroup has no device program")] * 2
    assert query(monkeypatch, RUNC) == [(False, denies), (True, program)]
    assert query(monkeypatch, extended) == [(True, ours), (True, program)]
    assert (
        query(monkeypatch, extended, RUNC) == query(monkeypatch, RUNC, extended) == [(False, denies), (True, program)]
    )
    denied = device_program.change_device_rules(RUNC, deny=[(1, 3)])
    assert query(monkeypatch, denied, SYSTEMD)[1] == (False, "a rule that gpu-oci-hook has added denies it")


def test_a_blinded_program_is_evaluated_and_an_unreadable_one_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [allowed for allowed, _ in query(monkeypatch, BLINDED)] == [True, False]
    hidden = (
        "a device program for /cg/x cannot be read: the kernel hides its instructions "
        "(sysctl kernel.kptr_restrict, or no CAP_SYSLOG)"
    )
    assert query(monkeypatch, bytes(64)) == [(None, hidden)] * 2
    assert [allowed for allowed, _ in query(monkeypatch, WITH_MAP)] == [None, None]
    assert [allowed for allowed, _ in query(monkeypatch, WITH_MAP, RUNC)] == [False, None]


def test_what_this_user_may_not_read_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> list[bytes]:
        raise make_os_error(errno.EPERM)

    monkeypatch.setattr(device_access, "_dump_programs", refuse)
    (answer,) = query_device_access(DeviceCgroup(2, ["/cg/x"]), [GPU])
    assert answer.allowed is None
    assert answer.reason == "/cg/x: the kernel refuses it to this user"


def test_a_process_that_has_ended_is_unknown_and_a_machine_without_device_cgroups_allows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (answer,) = query_device_access(2**22 + 1, [GPU])
    assert (answer.allowed, "cannot find the container's cgroup" in answer.reason) == (None, True)
    monkeypatch.setattr(device_access, "find_device_cgroup", lambda pid: None)
    assert query_device_access(1, [GPU])[0].allowed is True


@pytest.mark.root
@pytest.mark.parametrize("program", DUMPS)
def test_the_answers_are_those_of_the_kernel(tmp_path: Path, program: str) -> None:
    """The rules of a cgroup, of one below it, and of both, after changes of ours."""
    for opened, answered in play(tmp_path, "query_rules", program):
        assert opened == answered


@pytest.mark.root
def test_version_1_is_read_from_the_rules(group: Path, open_in: Callable[[Path], dict[tuple[int, int], int]]) -> None:
    cgroup = DeviceCgroup(1, [str(group)])

    def compare() -> list[str]:
        opened = open_in(group)
        answers = query_device_access(cgroup, [(*device, "rw") for device in opened])
        assert [answer.allowed for answer in answers] == [error != errno.EPERM for error in opened.values()]
        return [answer.reason for answer in answers]

    assert compare()[0] == f"no rule in {group}/devices.list allows it"
    allow_devices(cgroup, [(195, 0), (1, 3)])
    assert compare()[0] == 'the rule "c 195:0 rw" allows it'
    deny_devices(cgroup, [(195, 0)])
    compare()
    (group / "devices.allow").write_text("c 195:* r")
    assert [a.allowed for a in query_device_access(cgroup, [(195, 9, "r"), (195, 9, "w"), GPU])] == [True, False, False]
    (group / "devices.allow").write_text("a")
    assert compare()[0] == 'the rule "a *:* rwm" allows it; the kernel does not list exceptions from it'
    missing = query_device_access(DeviceCgroup(1, [f"{group}/gone"]), [GPU])[0]
    assert (missing.allowed, missing.reason) == (None, f"{group}/gone/devices.list: it is missing")
