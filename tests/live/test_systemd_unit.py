"""systemd is told about a unit's devices. Here a stand-in has its bus; the real one is in tests/e2e/booted-systemd."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.live import cgroup_programs, systemd_bus, systemd_unit
from gpu_oci_hook.live.device_cgroup import DeviceCgroup, allow_devices, deny_devices
from gpu_oci_hook.live.systemd_unit import change_unit_devices
from support.e2e.systemd_bus import Bus, Unit

CGROUP = "/machine.slice/libpod-1.scope"
UNIT = "libpod-1.scope"
RUNC = [("char-*", "m"), ("/dev/char/1:3", "rwm")]
GPU, OTHER_GPU = (195, 0), (195, 1)
LOSS = "systemctl daemon-reload will take the change back"
OURS = ("/dev/char/195:0", "rw")


@pytest.fixture
def bus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bus]:
    """A bus that knows a container's scope with runc's rules."""
    path = str(tmp_path / "private")
    made = Bus(path, str(tmp_path / "log"))
    made.units[UNIT] = Unit(CGROUP)
    made.units[UNIT].properties.update(DevicePolicy="strict", DeviceAllow=list(RUNC))
    threading.Thread(target=made.serve, daemon=True).start()
    monkeypatch.setattr(systemd_bus, "PRIVATE_SOCKET", path)
    monkeypatch.setattr(systemd_bus, "SYSTEM_SOCKET", str(tmp_path / "no-bus"))
    yield made
    made.server.close()


def list_calls(bus: Bus, member: str) -> list[Any]:
    return [body for name, body in map(json.loads, bus.log.read_text().splitlines()) if name == member]


def allowed(bus: Bus) -> list[tuple[str, str]]:
    return [tuple(entry) for entry in bus.units[UNIT].properties["DeviceAllow"]]


def test_a_device_is_added_to_what_systemd_allows_and_taken_out_again(bus: Bus) -> None:
    assert change_unit_devices(CGROUP, allow=[GPU], deny=[]).notes == []
    assert allowed(bus) == [*RUNC, OURS]
    assert list_calls(bus, "SetUnitProperties") == [[UNIT, True, [["DeviceAllow", ["a(ss)", [list(OURS)]]]]]]
    change_unit_devices(CGROUP, allow=[GPU], deny=[])
    assert len(list_calls(bus, "SetUnitProperties")) == 1, "nothing is set that is set already"
    change_unit_devices(CGROUP, allow=[OTHER_GPU], deny=[])
    assert change_unit_devices(CGROUP, allow=[], deny=[GPU]).notes == []
    assert allowed(bus) == [*RUNC, ("/dev/char/195:1", "rw")]
    (emptied, filled) = list_calls(bus, "SetUnitProperties")[-1][2]
    assert (emptied, filled[1][1][0]) == (["DeviceAllow", ["a(ss)", []]], ["char-*", "m"])


def test_a_change_is_undone(bus: Bus) -> None:
    change_unit_devices(CGROUP, allow=[GPU], deny=[]).undo()
    assert allowed(bus) == RUNC


@pytest.mark.parametrize(
    ("properties", "cgroup"),
    [
        ({"DevicePolicy": "auto", "DeviceAllow": []}, CGROUP),
        ({"ControlGroup": "/other.slice/libpod-1.scope"}, CGROUP),
        ({}, "/machine.slice/libpod-2.scope"),
    ],
    ids=["privileged", "another cgroup of that name", "no such unit"],
)
def test_nothing_is_changed_where_systemd_enforces_no_rules_of_the_container(
    bus: Bus, properties: dict[str, Any], cgroup: str
) -> None:
    bus.units[UNIT].properties.update(properties)
    assert change_unit_devices(cgroup, allow=[GPU], deny=[OTHER_GPU]).notes == []
    assert list_calls(bus, "SetUnitProperties") == []


def test_taking_out_the_last_entry_does_not_allow_everything(bus: Bus) -> None:
    bus.units[UNIT].properties.update(DevicePolicy="auto", DeviceAllow=[OURS])
    change_unit_devices(CGROUP, allow=[], deny=[GPU])
    assert allowed(bus) == [("/dev/null", "rw")]


def test_a_pattern_that_goes_on_allowing_the_device_is_named(bus: Bus) -> None:
    bus.units[UNIT].properties["DeviceAllow"] = [("char-195", "rw")]
    (note,) = change_unit_devices(CGROUP, allow=[], deny=[GPU]).notes
    assert note == f"DeviceAllow=char-195 of libpod-1.scope allows the device 195:0, so {LOSS}"


def test_a_systemd_that_refuses_is_a_note(bus: Bus) -> None:
    bus.refuses_changes = True
    (note,) = change_unit_devices(CGROUP, allow=[GPU], deny=[]).notes
    assert note == f"systemd was not told about the devices of libpod-1.scope, so {LOSS}: not permitted"


def test_a_machine_without_a_bus_is_a_note(bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systemd_bus, "PRIVATE_SOCKET", str(tmp_path / "none"))
    (note,) = change_unit_devices(CGROUP, allow=[GPU], deny=[]).notes
    assert note.endswith(f": {tmp_path}/none: it is missing, {tmp_path}/no-bus: it is missing")


@pytest.mark.parametrize("words", [b"", b"OK 0123456789abcdef0123456789abcdef\r\n", b"nonsense\r\n", b"\0" * 5000])
def test_a_bus_that_is_silent_or_talks_nonsense_is_a_note_in_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: bytes
) -> None:
    path = tmp_path / "private"
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen()
    clients = []

    def serve() -> None:
        clients.append(server.accept()[0])
        clients[0].sendall(words)

    threading.Thread(target=serve, daemon=True).start()
    monkeypatch.setattr(systemd_bus, "PRIVATE_SOCKET", str(path))
    monkeypatch.setattr(systemd_bus, "SYSTEM_SOCKET", str(tmp_path / "no-bus"))
    monkeypatch.setattr(systemd_bus, "DEADLINE", 0.5)
    started = time.monotonic()
    (note,) = change_unit_devices(CGROUP, allow=[GPU], deny=[]).notes
    assert "systemd was not told" in note
    assert time.monotonic() - started < 5
    server.close()


def test_the_systems_message_bus_is_used_where_systemds_own_socket_is_missing(
    bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(systemd_bus, "SYSTEM_SOCKET", systemd_bus.PRIVATE_SOCKET)
    monkeypatch.setattr(systemd_bus, "PRIVATE_SOCKET", str(tmp_path / "none"))
    assert change_unit_devices(CGROUP, allow=[GPU], deny=[]).notes == []
    assert allowed(bus) == [*RUNC, OURS]
    assert len(list_calls(bus, "Hello")) == 1


def test_the_cgroup_changes_after_systemd_and_a_failure_takes_both_back(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def change(paths: list[str], **rules: object) -> None:
        seen.append((allowed(bus), rules))
        if rules["deny"]:
            raise Fault("blinded")

    monkeypatch.setattr(cgroup_programs, "change_cgroup_programs", change)
    cgroup = DeviceCgroup(2, ["/cg"], CGROUP)
    assert allow_devices(cgroup, [GPU]) == []
    with pytest.raises(Fault, match="blinded"):
        deny_devices(cgroup, [GPU])
    assert seen == [([*RUNC, OURS], {"allow": [GPU], "deny": []}), (RUNC, {"allow": [], "deny": [GPU]})]
    assert allowed(bus) == [*RUNC, OURS]


def test_a_cgroup_that_is_no_unit_needs_no_bus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroup_programs, "change_cgroup_programs", lambda paths, **rules: None)
    monkeypatch.setattr(systemd_unit, "SystemdConnection", None)
    for name in ("/docker/1", "/system.slice/docker-1.scope/inner", ""):
        assert allow_devices(DeviceCgroup(2, ["/cg"], name), [GPU]) == []


def test_an_installation_without_the_d_bus_library_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroup_programs, "change_cgroup_programs", lambda paths, **rules: None)
    monkeypatch.delitem(sys.modules, "gpu_oci_hook.live.systemd_unit")
    monkeypatch.delitem(sys.modules, "gpu_oci_hook.live.systemd_bus")
    monkeypatch.setitem(sys.modules, "jeepney", None)
    (note,) = allow_devices(DeviceCgroup(2, ["/cg"], CGROUP), [GPU])
    assert "jeepney" in note and LOSS in note
