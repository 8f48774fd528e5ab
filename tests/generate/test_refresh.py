"""A CDI file kept like the machine: written when something changed, removed with the driver, watched for ever."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gpu_oci_hook.cdi.own_kinds import ContentOptions
from gpu_oci_hook.cdi.spec import reading
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.files import state_dir
from gpu_oci_hook.generate.recipe import SpecRecipe
from gpu_oci_hook.generate.refresh import RefreshResult, refresh_spec_file, watch_spec_file
from gpu_oci_hook.simulate import host_tree
from support.bundles import host_config, skip_or_fail
from support.generated_specs import DRIVER_VERSION, Spec, index_devices, needs_device_nodes, read_hook_arguments
from support.nvml_double import NvmlDouble, find_compiler

pytestmark = [needs_device_nodes, pytest.mark.usefixtures("isolated_state")]


class Kept:
    """A host and its file."""

    def __init__(self, root: Path, **more: Any) -> None:
        self.host = root / "host"
        self.path = root / "cdi/nvidia.com-gpu.yaml"
        self.build(**more)

    def build(self, driver: str = DRIVER_VERSION, gpus: int = 2, **more: Any) -> host_tree.SimulatedHost:
        return host_tree.build_host(self.host, gpus=gpus, driver=driver, **more)

    def refresh(self, **more: Any) -> RefreshResult:
        return refresh_spec_file(
            str(self.path), SpecRecipe(ContentOptions()), host_config(self.host), state_dir.StateCache(), **more
        )

    def spec(self) -> Spec:
        data = reading.read_spec_file(str(self.path)).data
        assert isinstance(data, dict)
        return data


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept(tmp_path)


def test_the_first_refresh_writes_and_the_next_one_does_not(kept: Kept) -> None:
    assert kept.refresh().action == "wrote"
    os.utime(kept.path, (1, 1))
    before = kept.path.stat()
    assert kept.refresh().action == "unchanged"
    assert (kept.path.stat().st_ino, kept.path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_an_upgraded_driver_is_noticed(kept: Kept) -> None:
    kept.refresh()
    kept.build("555.42.02")
    assert kept.refresh().action == "wrote"
    assert read_hook_arguments(kept.spec()).driver_version == "555.42.02"


def test_a_gpu_that_came_is_noticed(kept: Kept) -> None:
    kept.refresh()
    kept.build(gpus=3)
    assert kept.refresh().action == "wrote"
    assert "2" in index_devices(kept.spec())


def test_mig_devices_that_came_and_went_are_noticed(kept: Kept) -> None:
    if not find_compiler():
        skip_or_fail("MIG devices by UUID; there is no C compiler for NVML's double")
    kept.refresh()
    NvmlDouble(kept.build(mig=("1g,1g", "0")))
    assert kept.refresh().action == "wrote"
    before = index_devices(kept.spec())
    assert {"0:0", "0:1"} <= set(before)
    NvmlDouble(kept.build(mig=("2g", "0")))
    assert kept.refresh().action == "wrote"
    after = index_devices(kept.spec())
    assert "0:1" not in after and after["0:0"] != before["0:0"]


def test_a_node_with_another_group_is_noticed(kept: Kept) -> None:
    kept.refresh()
    os.chown(kept.host / "dev/nvidiactl", 0, 27)
    assert kept.refresh().action == "wrote"
    assert kept.spec()["containerEdits"]["deviceNodes"][0]["gid"] == 27


def test_a_file_changed_by_hand_is_put_right(kept: Kept) -> None:
    kept.refresh()
    kept.path.write_text(kept.path.read_text() + "# mine\n")
    assert kept.refresh().action == "wrote"
    assert not kept.path.read_text().endswith("# mine\n")


def test_without_a_driver_our_file_is_removed_and_comes_back_with_it(kept: Kept, tmp_path: Path) -> None:
    kept.refresh()
    (kept.host / "proc").rename(tmp_path / "aside")
    result = kept.refresh()
    assert result.action == "removed" and result.message.startswith(
        f"removed {kept.path}: this machine has no NVIDIA GPU"
    )
    assert not kept.path.exists()
    assert kept.refresh().action == "nothing"
    (tmp_path / "aside").rename(kept.host / "proc")
    assert kept.refresh().action == "wrote"


@pytest.mark.parametrize("data", ["---\ncdiVersion: 0.5.0\nkind: nvidia.com/gpu\n", "root:x:0:0\n"])
def test_a_foreign_file_stays_as_it_is(kept: Kept, tmp_path: Path, data: str) -> None:
    kept.path.parent.mkdir()
    kept.path.write_text(data)
    with pytest.raises(Fault, match="was not written by gpu-oci-hook and is left unchanged"):
        kept.refresh()
    assert kept.path.read_text() == data
    (kept.host / "proc").rename(tmp_path / "aside")
    assert kept.refresh().action == "nothing" and kept.path.read_text() == data
    (tmp_path / "aside").rename(kept.host / "proc")
    assert kept.refresh(force=True).action == "wrote"


def test_a_fault_leaves_the_file_as_it_is(kept: Kept) -> None:
    kept.refresh()
    before = kept.path.read_bytes()
    (kept.host / "dev/nvidia-uvm").unlink()
    with pytest.raises(Fault, match="/dev/nvidia-uvm is required for compute"):
        kept.refresh()
    assert kept.path.read_bytes() == before


# --- the watch --------------------------------------------------------------------------------------------------------


class Stop(BaseException):
    """Ends a watch from its waiting."""


def watched(results: list[RefreshResult | Exception]) -> tuple[list[str], list[float]]:
    """What a watch says and how long it waits when its looks end so."""
    said: list[str] = []
    waits: list[float] = []
    left = list(results)

    def look() -> RefreshResult:
        found = left.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if not left:
            raise Stop

    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    try:
        with pytest.raises(Stop):
            watch_spec_file(look, said.append, interval=3, sleep=wait)
    finally:
        for number, handler in zip((signal.SIGTERM, signal.SIGINT), handlers, strict=True):
            signal.signal(number, handler)
    return said, waits


def test_a_watch_says_what_changed_and_nothing_when_nothing_did() -> None:
    same = RefreshResult("unchanged", "unchanged x", ("a warning",))
    said, waits = watched(
        [RefreshResult("wrote", "wrote x", ("a warning",)), same, same, RefreshResult("removed", "removed x")]
    )
    assert said == ["wrote x", "warning: a warning", "removed x"]
    assert waits == [3, 3, 3, 3]


def test_a_watch_survives_whatever_goes_wrong_with_one_line_each_time_it_begins() -> None:
    full = OSError(28, "No space left on device", "/x")
    said, _ = watched(
        [Fault("no", where="here"), Fault("no", where="here"), full, ValueError("odd"),
         RefreshResult("nothing", "none"), RefreshResult("nothing", "none"), Fault("no", where="here")]
    )  # fmt: skip
    assert said == [
        "gpu-oci-hook: here: no", "gpu-oci-hook: /x: the disk is full",
        "gpu-oci-hook: internal error: ValueError: odd", "none", "gpu-oci-hook: here: no",
    ]  # fmt: skip


def test_a_watch_that_takes_long_waits_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 2.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(times))
    assert watched([RefreshResult("unchanged", "")])[1] == [20]


WATCH = """
import sys
from gpu_oci_hook.files import state_dir
state_dir.DIRECTORY = sys.argv[1]
from gpu_oci_hook.cli import main
main(["cdi", "refresh", "--watch", "--interval", "0.1", "--hook", "/bin/true", *sys.argv[2:]])
"""


def test_the_watch_of_the_command_line_follows_the_machine_and_ends_at_once(kept: Kept, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("[host]\nload-modules = false\nodd = 1\n")
    env = {"GPU_OCI_HOOK_CONFIG": str(tmp_path / "config.toml"), "PATH": "/usr/bin"}
    process = subprocess.Popen(
        [sys.executable, "-c", WATCH, tmp_path / "state", "--root", kept.host, "--output", kept.path],
        stderr=subprocess.PIPE, text=True, env=env,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        assert process.stderr.readline().startswith(f"wrote {kept.path}: nvidia.com/gpu, 6 device names")
        assert "odd" in process.stderr.readline(), "what is odd about the configuration, once and not at every look"
        assert process.stderr.readline().startswith("warning: the file needs CDI 0.7.0 (additionalGids)")
        time.sleep(0.5)
        (kept.host / "dev/nvidia-uvm").rename(tmp_path / "uvm")
        assert process.stderr.readline().startswith("gpu-oci-hook: /dev/nvidia-uvm is required for compute")
        (tmp_path / "uvm").rename(kept.host / "dev/nvidia-uvm")
        os.chown(kept.host / "dev/nvidiactl", 0, 27)
        assert process.stderr.readline().startswith(f"wrote {kept.path}")
        (kept.host / "proc").rename(tmp_path / "aside")
        assert process.stderr.readline().startswith(f"removed {kept.path}")
        (tmp_path / "aside").rename(kept.host / "proc")
        line = process.stderr.readline()
        while line.startswith("nothing to write"):
            line = process.stderr.readline()
        assert line.startswith(f"wrote {kept.path}")
        assert process.stderr.readline().startswith("warning: the file needs CDI 0.7.0"), "said of the new file again"
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
        assert time.monotonic() - began < 2
        assert process.stderr.read() == ""
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def test_a_watch_writes_the_file_as_it_was_made_even_when_it_was_gone_meanwhile(kept: Kept, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("[host]\nload-modules = false\n")
    env = {"GPU_OCI_HOOK_CONFIG": str(tmp_path / "config.toml"), "PATH": "/usr/bin"}
    kept.path.parent.mkdir()
    words = ["cdi", "generate", "--root", kept.host, "--hook", "/bin/true", "--output", kept.path]
    code = "import sys; from gpu_oci_hook.cli import main; main(sys.argv[1:])"
    made = [sys.executable, "-c", code, *words, "--name", "type-index", "--target", "podman-4.3"]
    subprocess.run(made, env=env, check=True, capture_output=True)
    before = kept.path.read_bytes()
    process = subprocess.Popen(
        [sys.executable, "-c", WATCH, tmp_path / "state", "--root", kept.host, "--output", kept.path],
        stderr=subprocess.PIPE, text=True, env=env,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("warning: additionalGids (44, 104) is left out")
        (kept.host / "proc").rename(tmp_path / "aside")
        line = process.stderr.readline()
        assert line.startswith(f"removed {kept.path}")
        assert line.endswith("(with its recorded options --name type-index --target podman-4.3)\n")
        assert not kept.path.exists()
        (tmp_path / "aside").rename(kept.host / "proc")
        while not line.startswith("wrote "):
            line = process.stderr.readline()
        assert kept.path.read_bytes() == before
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()
