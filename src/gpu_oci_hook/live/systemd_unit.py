"""Tell systemd about the devices of a container whose cgroup it manages.

systemd computes the device rules of a unit from its property DeviceAllow, again at every `systemctl daemon-reload`. A
device that the property lacks is lost then, so it changes together with the cgroup's rules.

Import budget: cold.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from contextlib import closing
from typing import NamedTuple

from gpu_oci_hook.formats.proc import parse_proc_devices
from gpu_oci_hook.live.device_allow import Device, Entry, add_devices, find_allowing_pattern, remove_devices
from gpu_oci_hook.live.systemd_bus import NoSuchUnitError, SystemdConnection, SystemdError

_KINDS = {".scope": "Scope", ".service": "Service"}
_AUTO = "auto"
_HARMLESS_ENTRY = ("/dev/null", "rw")
_LOSS = "systemctl daemon-reload will take the change back"


class UnitChange(NamedTuple):
    """What was changed in systemd.

    Attributes:
        notes: what a person should know, one sentence each.
        undo: takes the change back as far as systemd permits.
    """

    notes: list[str]
    undo: Callable[[], None]


_NO_CHANGE = UnitChange([], lambda: None)


def change_unit_devices(cgroup: str, *, allow: list[Device], deny: list[Device]) -> UnitChange:
    """Change which devices systemd allows a unit, until it ends.

    Nothing is changed where systemd enforces no rules for the unit, as for a privileged container.

    Arguments:
        cgroup: path of the unit in the hierarchy. If systemd has no unit with this cgroup, nothing is done.
    """
    unit = cgroup.rpartition("/")[2]
    try:
        with closing(SystemdConnection()) as systemd:
            rules = _read_device_rules(systemd, unit, cgroup)
            if rules is None:
                return _NO_CHANGE
            policy, old = rules
            added = add_devices(old, allow)
            if added:
                systemd.set_device_allow(unit, added, replace=False)
            kept = remove_devices(old, deny, _read_node_number)
            if kept != old:
                # Without an entry, the policy "auto" allows everything; the one for /dev/null allows nothing new.
                kept = kept or ([_HARMLESS_ENTRY] if policy == _AUTO else [])
                systemd.set_device_allow(unit, kept, replace=True)
            notes = _find_allowing_patterns(unit, kept, deny)
    except NoSuchUnitError:
        return _NO_CHANGE
    except SystemdError as error:
        return UnitChange([f"systemd was not told about the devices of {unit}, so {_LOSS}: {error}"], lambda: None)
    return UnitChange(notes, (lambda: _restore(unit, old)) if added or kept != old else _NO_CHANGE.undo)


def _read_device_rules(systemd: SystemdConnection, unit: str, cgroup: str) -> tuple[str, list[Entry]] | None:
    """Return (DevicePolicy, DeviceAllow) of a unit; None if it is another cgroup's, or systemd enforces nothing."""
    path = systemd.find_unit(unit)
    kind = next(kind for suffix, kind in _KINDS.items() if unit.endswith(suffix))
    if systemd.read_property(path, kind, "ControlGroup") != cgroup:
        return None
    policy = str(systemd.read_property(path, kind, "DevicePolicy"))
    entries = [(str(device), str(letters)) for device, letters in systemd.read_property(path, kind, "DeviceAllow")]
    # An entry would make systemd deny everything else of a unit whose policy is "auto" (facts: systemd-device-allow).
    return (policy, entries) if entries or policy != _AUTO else None


def _restore(unit: str, entries: list[Entry]) -> None:
    try:
        with closing(SystemdConnection()) as systemd:
            systemd.set_device_allow(unit, entries, replace=True)
    except SystemdError:
        pass  # the failure that is being taken back is the one to report


def _find_allowing_patterns(unit: str, entries: list[Entry], devices: list[Device]) -> list[str]:
    """Return a sentence for each device that systemd goes on allowing among others."""
    notes = []
    for major, minor in devices:
        pattern = find_allowing_pattern(entries, (major, minor), _read_major_names(major))
        if pattern:
            notes.append(f"DeviceAllow={pattern} of {unit} allows the device {major}:{minor}, so {_LOSS}")
    return notes


def _read_major_names(major: int) -> list[str]:
    try:
        with open("/proc/devices", "rb") as file:
            return [name for name, number in parse_proc_devices(file.read(1 << 16)).items() if number == major]
    except OSError:
        return []


def _read_node_number(path: str) -> Device | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return (os.major(status.st_rdev), os.minor(status.st_rdev)) if stat.S_ISCHR(status.st_mode) else None
