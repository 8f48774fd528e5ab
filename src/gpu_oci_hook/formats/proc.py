"""The texts that the kernel and NVIDIA's module show below /proc, as plain data.

Cost rule: on the hot path, so no imports at all and one pass over each text. The texts may come from a tree
of files that somebody made, so nothing here raises: what cannot be understood is left out.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypedDict

    class GpuInformation(TypedDict):
        """What one /proc/driver/nvidia/gpus/*/information says."""

        model: str
        uuid: str
        pci: str
        minor: int
        excluded: bool


def parse_proc_devices(text: bytes | str) -> dict[str, int]:
    """The character devices of /proc/devices: whole driver name to major number.

    Only the section "Character devices:" counts; a name that is registered twice keeps its first major.
    """
    found: dict[str, int] = {}
    inside = False
    for line in _split_lines(text):
        words = line.split(None, 1)
        if len(words) == 2 and inside and _is_number(words[0]):
            found.setdefault(words[1].strip(), int(words[0]))
        elif line.rstrip().endswith(":"):
            inside = line.strip() == "Character devices:"
    return found


def parse_driver_version(text: bytes | str) -> str | None:
    """The driver's version, from /proc/driver/nvidia/version or /sys/module/nvidia/version, or None.

    Understands the closed module ("NVIDIA UNIX x86_64 Kernel Module  550.163.01  Tue ..."), the open one
    ("NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build ..."), and a bare version.
    """
    lines = _split_lines(text)
    for line in lines:
        if line.startswith("NVRM version:"):
            for word in line.split():
                if _is_version(word):
                    return word
    if lines and _is_version(lines[0].strip()):
        return lines[0].strip()
    return None


def parse_gpu_information(text: bytes | str) -> GpuInformation:
    """One GPU, from /proc/driver/nvidia/gpus/<address>/information.

    Returns model, uuid (as written: question marks until the GPU has been initialised once), pci (lower case,
    domain of four digits), minor (-1 when not said) and excluded. Strings that are not said are empty.
    """
    said = parse_key_value_lines(text)
    minor = said.get("Device Minor", "")
    return {
        "model": said.get("Model", ""),
        "uuid": said.get("GPU UUID", ""),
        "pci": _normalize_pci_address(said.get("Bus Location", "")),
        "minor": int(minor) if _is_number(minor) else -1,
        "excluded": said.get("GPU Excluded", "No").lower() in ("yes", "1", "true"),
    }


def parse_key_value_lines(text: bytes | str) -> dict[str, str]:
    """A text of "Key: value" lines, such as /proc/driver/nvidia/params, as a dict of stripped strings."""
    found: dict[str, str] = {}
    for line in _split_lines(text):
        key, colon, value = line.partition(":")
        if colon:
            found[key.strip()] = value.strip()
    return found


def disable_modify_device_files(text: bytes) -> bytes:
    """The module's parameters with `ModifyDeviceFiles: 0`: the driver's libraries then make no nodes."""
    return b"".join(
        b"ModifyDeviceFiles: 0\n" if line.startswith(b"ModifyDeviceFiles:") else line
        for line in text.splitlines(keepends=True)
    )


def parse_small_number(text: str) -> int:
    """Return a decimal number of at most seven digits, -1 for any other text."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 7 else -1


def _split_lines(text: bytes | str) -> list[str]:
    if isinstance(text, bytes):
        text = text.decode("utf-8", "replace")
    # Not splitlines(): that also splits at form feeds and Unicode separators, which a model name could hold.
    return [line for line in text.split("\n") if line.strip()]


def _is_number(word: str) -> bool:
    """Decimal and small enough for any device number (and for int(), which refuses very long ones)."""
    return word.isascii() and word.isdigit() and len(word) <= 9


def _is_version(word: str) -> bool:
    parts = word.split(".")
    return len(word) <= 32 and 2 <= len(parts) <= 4 and all(p.isascii() and p.isdigit() for p in parts)


def _normalize_pci_address(address: str) -> str:
    domain, colon, rest = address.lower().partition(":")
    if colon and len(domain) > 4 and not domain[:-4].strip("0"):
        domain = domain[-4:]
    return domain + colon + rest
