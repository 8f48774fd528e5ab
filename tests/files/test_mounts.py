"""Mounts by descriptor: what the kernel says of one, a file over a file, and a root that crun has made read-only."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import gpu_oci_hook
from gpu_oci_hook.files import mounts
from gpu_oci_hook.files.directory import read_mount_id

SOURCE = Path(gpu_oci_hook.__file__).resolve().parents[1]
ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root can mount")
# Another interpreter, or a later one, whose inner module is not what we know.
STRANGE = ("", "sys.modules['_ctypes_'] = 1; import _ctypes, ctypes; del _ctypes.call_function\n")


def run(code: str, *, prepare: str = "true") -> str:
    """Runs code in a mount namespace of its own, after shell commands there; what it prints."""
    script = f"{prepare} && exec {sys.executable} -c {chr(34)}$CODE{chr(34)}"
    text = f"import os, sys\nsys.path[:0] = [{str(SOURCE)!r}]\n{code}"
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script],
        env={**os.environ, "CODE": text}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_kernel_tells_what_a_descriptor_is_a_part_of() -> None:
    for path, kind in (("/proc", "proc"), ("/dev/shm", "tmpfs")):
        fd = os.open(path, os.O_PATH)
        try:
            found = mounts.read_mount_of_fd(fd)
        finally:
            os.close(fd)
        assert found is not None and found.filesystem_type == kind


def test_what_is_no_descriptor_lies_in_no_mount() -> None:
    assert read_mount_id(999_999) == b""
    assert mounts.read_mount_of_fd(999_999) is None
    assert mounts.read_mount_info(b"") is None
    assert mounts.read_mount_info(b"0") is None


@ROOT
@pytest.mark.parametrize("strange", STRANGE, ids=["fast", "slow"])
def test_a_file_is_laid_over_another_and_cannot_be_written(tmp_path: Path, strange: str) -> None:
    (tmp_path / "source").write_text("source")
    (tmp_path / "target").write_text("target")
    said = run(
        f"{strange}from gpu_oci_hook.files import mounts\n"
        f"fd = os.open({str(tmp_path)!r}, os.O_PATH)\n"
        f"mounts.bind_file_over({str(tmp_path / 'source')!r}, fd, 'target')\n"
        f"print(open({str(tmp_path / 'target')!r}).read())\n"
        f"try: open({str(tmp_path / 'target')!r}, 'w')\n"
        "except OSError as error: print(error.errno)\n"
    )
    assert said.split() == ["source", "30"]
    assert (tmp_path / "target").read_text() == "target"


@ROOT
@pytest.mark.parametrize("strange", STRANGE, ids=["fast", "slow"])
def test_what_the_kernel_refuses_is_an_error_with_its_number(tmp_path: Path, strange: str) -> None:
    (tmp_path / "target").touch()
    said = run(
        f"{strange}from gpu_oci_hook.files import mounts\n"
        f"fd = os.open({str(tmp_path)!r}, os.O_PATH)\n"
        f"try: mounts.bind_file_over({str(tmp_path / 'nothing')!r}, fd, 'target')\n"
        "except OSError as error: print(error.errno)\n"
    )
    assert said == "2"


@ROOT
@pytest.mark.parametrize(
    ("prepare", "written"),
    [
        ("mount --bind {0} {0} && mount -o remount,bind,ro {0}", True),  # as crun does
        ("mount --bind {0} {0} && mount -o remount,bind,ro {0} && mount --bind {0} {0}", False),  # as an engine, before
        ("mount -t tmpfs -o ro none {0}", False),
        ("mount -t tmpfs none {0} && mount --bind {0} {0} && mount -o remount,bind,ro {0}", True),
        ("mount -t tmpfs none {0} && mount -o remount,ro {0} && mount --bind {0} {0}", False),
    ],
)
def test_only_what_the_runtime_has_made_read_only_is_written_to(tmp_path: Path, prepare: str, written: bool) -> None:
    said = run(
        "from gpu_oci_hook.files.rootfs import Rootfs\n"
        f"root = Rootfs({str(tmp_path)!r})\n"
        "print(root.is_writable())\n"
        "layer = root.open_writable_layer()\n"
        "written = layer is not None and layer.write_file('/a/b', b'x') and root.read_file('/a/b', 9) == b'x'\n"
        "print(written and not root.is_writable())\n",
        prepare=prepare.format(tmp_path),
    )
    assert said.split() == ["False", str(written)]
