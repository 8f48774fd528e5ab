"""Parse the files of the kernel and of NVIDIA's module below /proc.

The files may come from a simulated host, so nothing here raises: what cannot be parsed is left out.

Import budget: GPU container.
"""

from __future__ import annotations

from gpu_oci_hook.formats.driver_version import is_driver_version

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypedDict

    class GpuInformation(TypedDict):
        """The fields of a file /proc/driver/nvidia/gpus/*/information."""

        model: str
        uuid: str
        pci: str
        minor: int
        excluded: bool


def parse_proc_devices(text: bytes | str) -> dict[str, int]:
    """Return the major number of each character device driver in /proc/devices.

    A name that is registered twice keeps its first major.
    """
    majors: dict[str, int] = {}
    in_section = False
    for line in _split_lines(text):
        fields = line.split(None, 1)
        if len(fields) == 2 and in_section and _is_number(fields[0]):
            majors.setdefault(fields[1].strip(), int(fields[0]))
        elif line.rstrip().endswith(":"):
            in_section = line.strip() == "Character devices:"
    return majors


def parse_driver_version(text: bytes | str) -> str | None:
    """Return the driver's version in /proc/driver/nvidia/version or /sys/module/nvidia/version; None without one.

    It may be the line of the closed module ("NVIDIA UNIX x86_64 Kernel Module  550.163.01  Tue ..."), of the open one
    ("NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build ..."), or the version alone.
    """
    lines = _split_lines(text)
    for line in lines:
        if line.startswith("NVRM version:"):
            for word in line.split():
                if is_driver_version(word):
                    return word
    if lines and is_driver_version(lines[0].strip()):
        return lines[0].strip()
    return None


def parse_gpu_information(text: bytes | str) -> GpuInformation:
    """Return the fields of one GPU's /proc/driver/nvidia/gpus/<address>/information.

    The uuid is as written, with question marks until the GPU has been initialised once. The pci address is in lower
    case, with a domain of four digits. A missing minor is -1, every other missing field "".
    """
    fields = parse_key_value_lines(text)
    minor = fields.get("Device Minor", "")
    return {
        "model": fields.get("Model", ""),
        "uuid": fields.get("GPU UUID", ""),
        "pci": _normalize_pci_address(fields.get("Bus Location", "")),
        "minor": int(minor) if _is_number(minor) else -1,
        "excluded": fields.get("GPU Excluded", "No").lower() in ("yes", "1", "true"),
    }


def parse_key_value_lines(text: bytes | str) -> dict[str, str]:
    """Return the "Key: value" lines of a text, such as /proc/driver/nvidia/params, without surrounding blanks."""
    values: dict[str, str] = {}
    for line in _split_lines(text):
        key, colon, value = line.partition(":")
        if colon:
            values[key.strip()] = value.strip()
    return values


def disable_modify_device_files(text: bytes) -> bytes:
    """Return the module's parameters with `ModifyDeviceFiles: 0`, so that the driver's libraries create no nodes."""
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
    # Not splitlines(), which also splits at form feeds and Unicode separators: a model name could have them.
    return [line for line in text.split("\n") if line.strip()]


def _is_number(word: str) -> bool:
    """Tell whether text is a decimal number that is short enough for a device number."""
    return word.isascii() and word.isdigit() and len(word) <= 9


def _normalize_pci_address(address: str) -> str:
    domain, colon, rest = address.lower().partition(":")
    if colon and len(domain) > 4 and not domain[:-4].strip("0"):
        domain = domain[-4:]
    return domain + colon + rest
