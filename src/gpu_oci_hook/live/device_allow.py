"""Compute the property DeviceAllow of a systemd unit with and without devices (systemd.resource-control(5)).

An entry is a path or a pattern with letters of "rwm". A later entry for the same path replaces an earlier one.

Pure: lists in, lists out.

Import budget: cold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

Device = tuple[int, int]
Entry = tuple[str, str]

_CHAR_LINK = "/dev/char/"
_CHAR_PATTERN = "char-"


def format_device_path(device: Device) -> str:
    """Return the path by which a device is named in DeviceAllow, as low-level runtimes do."""
    return f"{_CHAR_LINK}{device[0]}:{device[1]}"


def add_devices(entries: Iterable[Entry], devices: Iterable[Device]) -> list[Entry]:
    """Return the entries that are missing for reading and writing the devices."""
    known = dict(entries)
    missing = {}
    for device in devices:
        path = format_device_path(device)
        letters = known.get(path, "")
        if not set("rw") <= set(letters):
            missing[path] = "rw" + ("m" if "m" in letters else "")
    return list(missing.items())


def remove_devices(
    entries: Iterable[Entry], devices: Iterable[Device], read_node_number: Callable[[str], Device | None]
) -> list[Entry]:
    """Return the entries without the rights to read and write the devices.

    Arguments:
        read_node_number: returns the numbers of the character device at a path of the host.
    """
    unwanted = set(devices)
    kept = []
    for path, letters in entries:
        if _find_numbers(path, read_node_number) in unwanted:
            letters = "".join(letter for letter in letters if letter not in "rw")
        if letters:
            kept.append((path, letters))
    return kept


def find_allowing_pattern(entries: Iterable[Entry], device: Device, names: Iterable[str]) -> str:
    """Return the pattern that allows reading or writing a device among others; "" if none does.

    Arguments:
        names: of the device's major, from /proc/devices.
    """
    patterns = {f"{_CHAR_PATTERN}{word}" for word in ("*", str(device[0]), *names)}
    return next((path for path, letters in entries if path in patterns and set(letters) & set("rw")), "")


def _find_numbers(path: str, read_node_number: Callable[[str], Device | None]) -> Device | None:
    major, colon, minor = path.removeprefix(_CHAR_LINK).partition(":")
    if path.startswith(_CHAR_LINK) and colon and major.isdecimal() and minor.isdecimal():
        return int(major), int(minor)
    return read_node_number(path) if path.startswith("/") else None
