"""Texts below /proc: the real ones of several drivers, and any others without an exception."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_oci_hook.formats import proc

DEVICES = """Character devices:
  1 mem
  4 /dev/vc/0
  4 tty
195 nvidia
195 nvidia-modeset
195 nvidiactl
234 nvidia-caps-imex-channels
235 nvidia-caps
506 nvidia-uvm

Block devices:
  7 loop
259 nvidia-not-a-character-device
"""
CLOSED = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.163.01  Tue Apr  8 12:41:17 UTC 2025\n"
    "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n"
)
OPEN = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (root@host)  Sun\n"
    "GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2~24.04)\n"
)
INFORMATION = (
    "Model: \t\t NVIDIA A100-SXM4-40GB\n"
    "IRQ:   \t\t 212\n"
    "GPU UUID: \t GPU-7d8e0c5a-1111-2222-3333-444455556666\n"
    "Video BIOS: \t 92.00.45.00.03\n"
    "Bus Type: \t PCIe\n"
    "DMA Size: \t 47 bits\n"
    "DMA Mask: \t 0x7fffffffffff\n"
    "Bus Location: \t 0000:0F:00.0\n"
    "Device Minor: \t 3\n"
    "GPU Excluded:\t No\n"
)


def test_character_devices_are_taken_by_their_whole_name_and_block_devices_are_not() -> None:
    found = proc.parse_proc_devices(DEVICES)
    assert found["nvidia-caps"] == 235
    assert found["nvidia-caps-imex-channels"] == 234
    assert found["nvidia-uvm"] == 506
    assert found["nvidia"] == found["nvidiactl"] == 195
    assert "nvidia-not-a-character-device" not in found and "loop" not in found


def test_a_device_line_with_an_odd_number_is_left_out() -> None:
    assert proc.parse_proc_devices("Character devices:\n² nvidia\n" + "9" * 5000 + " nvidiactl\n-1 x\n") == {}


def test_a_text_without_the_section_has_no_devices() -> None:
    assert proc.parse_proc_devices("195 nvidia\n") == {}


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (CLOSED, "550.163.01"),
        (OPEN, "580.65.06"),
        (OPEN.encode(), "580.65.06"),
        ("550.163.01\n", "550.163.01"),
        ("NVRM version: NVIDIA UNIX aarch64 Kernel Module  470.82  Thu\n", "470.82"),
        ("", None),
        ("GCC version:  gcc version 12.2.0\n", None),
        ("NVRM version: something else\n", None),
    ],
)
def test_the_driver_version_is_read_from_closed_and_open_modules_and_sysfs(
    text: str | bytes, version: str | None
) -> None:
    assert proc.parse_driver_version(text) == version


def test_a_gpu_is_read_with_its_address_in_lower_case() -> None:
    assert proc.parse_gpu_information(INFORMATION) == {
        "model": "NVIDIA A100-SXM4-40GB",
        "uuid": "GPU-7d8e0c5a-1111-2222-3333-444455556666",
        "pci": "0000:0f:00.0",
        "minor": 3,
        "excluded": False,
    }


def test_a_gpu_of_an_old_driver_without_the_excluded_line_is_not_excluded() -> None:
    text = INFORMATION.replace("GPU Excluded:\t No\n", "").replace("Device Minor: \t 3\n", "")
    assert proc.parse_gpu_information(text)["excluded"] is False
    assert proc.parse_gpu_information(text)["minor"] == -1


def test_an_excluded_gpu_is_known_as_such() -> None:
    assert proc.parse_gpu_information(INFORMATION.replace("Excluded:\t No", "Excluded:\t Yes"))["excluded"] is True


def test_a_pci_domain_of_eight_digits_is_shortened_only_where_nothing_is_lost() -> None:
    assert proc.parse_gpu_information("Bus Location: 00000000:0F:00.0")["pci"] == "0000:0f:00.0"
    assert proc.parse_gpu_information("Bus Location: 00010000:0F:00.0")["pci"] == "00010000:0f:00.0"


def test_params_are_key_and_value() -> None:
    text = 'ResmanDebugLevel: 4294967295\nModifyDeviceFiles: 1\nDeviceFileMode: 438\nRegistryDwords: ""\n'
    assert proc.parse_key_value_lines(text)["DeviceFileMode"] == "438"
    assert proc.parse_key_value_lines(text)["ModifyDeviceFiles"] == "1"
    assert proc.parse_key_value_lines(text)["RegistryDwords"] == '""'


@given(st.one_of(st.binary(max_size=400), st.text(max_size=400)))
def test_no_text_at_all_raises(text: bytes | str) -> None:
    proc.parse_proc_devices(text)
    proc.parse_driver_version(text)
    proc.parse_gpu_information(text)
    proc.parse_key_value_lines(text)


@given(st.integers(0, len(INFORMATION) - 1), st.characters())
def test_no_change_of_one_character_raises(at: int, char: str) -> None:
    text = INFORMATION[:at] + char + INFORMATION[at + 1 :]
    assert set(proc.parse_gpu_information(text)) == {"model", "uuid", "pci", "minor", "excluded"}
    proc.parse_proc_devices(DEVICES[:at] + char + DEVICES[at + 1 :])
