"""UUIDs that /proc does not show until a GPU is used: NVML is asked, once, and only for a request that needs it."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.host.gpus import read_gpus
from gpu_oci_hook.host.nvml import failure_cache, gpu_uuids
from gpu_oci_hook.host.root import Host
from gpu_oci_hook.simulate import host_tree
from support.bundles import (
    container_spec,
    host_config,
    inject_in_process,
    list_device_numbers,
    make_bundle,
    skip_or_fail,
)
from support.command_line import Command
from support.fake_cache import FakeCache
from support.nvml_double import NvmlDouble, find_compiler

pytestmark = pytest.mark.usefixtures("isolated_state")

UNKNOWN = "GPU-????????-????-????-????-????????????"


@pytest.fixture
def double(tmp_path: Path) -> NvmlDouble:
    """A host with two GPUs whose UUIDs only NVML knows."""
    if not find_compiler():
        skip_or_fail("NVML's answers; there is no C compiler for its double")
    double = NvmlDouble(host_tree.build_host(tmp_path / "host", gpus=2))
    for path in (tmp_path / "host/proc/driver/nvidia/gpus").glob("*/information"):
        text = re.sub(r"GPU-[0-9a-f-]+", UNKNOWN, path.read_text())
        path.chmod(0o644)
        path.write_text(text)
    return double


def gpu_nodes(bundle: Path, double: NvmlDouble, *asked: str, mounts: tuple[str, ...] = ()) -> set[str]:
    """The GPU nodes of a container with this request."""
    directory = "/var/run/nvidia-container-devices"
    found = [{"source": "/dev/null", "destination": f"{directory}/{name}", "type": "bind"} for name in mounts]
    spec = container_spec(*[f"NVIDIA_VISIBLE_DEVICES={one}" for one in asked], mounts=found)
    after = inject_in_process(make_bundle(bundle, spec), host_config(double.report.directory))
    return {path for path in list_device_numbers(after) if path.removeprefix("/dev/nvidia").isdigit()}


def test_a_gpu_by_uuid_is_found_with_nvmls_answer_which_is_kept(double: NvmlDouble, tmp_path: Path) -> None:
    first, second = double.report.gpus
    assert gpu_nodes(tmp_path / "a", double, second.uuid) == {f"/dev/nvidia{second.minor}"}
    assert gpu_nodes(tmp_path / "b", double, first.uuid[:12]) == {f"/dev/nvidia{first.minor}"}
    assert gpu_nodes(tmp_path / "c", double, "void", mounts=()) == set()
    assert double.call_count == 1


def test_device_mounts_and_cdi_names_too(double: NvmlDouble, tmp_path: Path) -> None:
    second = double.report.gpus[1]
    assert gpu_nodes(tmp_path / "a", double, "x", mounts=(second.uuid,)) == {f"/dev/nvidia{second.minor}"}
    assert gpu_nodes(tmp_path / "b", double, f"nvidia.com/gpu={second.uuid}") == {f"/dev/nvidia{second.minor}"}


def test_cdi_generate_writes_the_uuids(double: NvmlDouble, tmp_path: Path, command: Command) -> None:
    (tmp_path / "config.toml").write_text(f'[host]\nroot = "{double.report.directory}"\nload-modules = false\n')
    answer = command("cdi", "generate", "--name", "uuid", "--output", str(tmp_path / "gpu.json"))
    assert answer.status == 0, answer.err
    names = [device["name"] for device in json.loads((tmp_path / "gpu.json").read_text())["devices"]]
    assert names[:2] == [gpu.uuid for gpu in double.report.gpus]


@pytest.mark.parametrize("asked", ["0", "all", "0-1", "none"])
def test_requests_that_need_no_uuid_do_not_ask(double: NvmlDouble, tmp_path: Path, asked: str) -> None:
    gpu_nodes(tmp_path / "b", double, asked)
    assert double.call_count == 0


def test_an_nvml_that_fails_is_said_with_the_way_on(double: NvmlDouble, tmp_path: Path) -> None:
    double.set_mode("crash")
    with pytest.raises(Fault) as caught:
        gpu_nodes(tmp_path / "b", double, double.report.gpus[0].uuid)
    assert "the driver does not know the UUID of GPU 0 to 1 yet" in caught.value.what
    assert "NVML crashed" in caught.value.what
    assert "persistence mode" in caught.value.hint and "by index" in caught.value.hint


def test_a_uuid_that_nvml_does_not_know_either_is_no_gpu(double: NvmlDouble, tmp_path: Path) -> None:
    with pytest.raises(Fault, match=r'there is no GPU "GPU-00000000'):
        gpu_nodes(tmp_path / "b", double, "GPU-00000000-1111-2222-3333-444444444444")


@pytest.mark.parametrize("lie", ["not-a-uuid", "GPU-1", "twice"])
def test_an_answer_that_is_not_credible_is_refused(
    double: NvmlDouble, monkeypatch: pytest.MonkeyPatch, lie: str
) -> None:
    gpus, _ = read_gpus(Host(double.report.directory))
    uuid = double.report.gpus[0].uuid if lie == "twice" else lie

    def answer(addresses: list[str], *, library: str) -> list[object]:
        return [type("Answer", (), {"error": "", "uuid": uuid}) for _ in addresses]

    monkeypatch.setattr(gpu_uuids, "query_nvml_gpus", answer)
    with pytest.raises(Fault, match="NVML answers wrongly"):
        gpu_uuids.identify_gpus(gpus, "550.163.01", FakeCache(), lambda: "")
    assert all(gpu.uuid == UNKNOWN for gpu in gpus)


# --- failures are remembered -----------------------------------------------------------------------


class Clock:
    """The seconds since boot."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(failure_cache, "_read_clock", lambda: self.now)


def test_a_slow_failure_is_remembered_for_a_minute_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, cache, calls = Clock(monkeypatch), FakeCache(), 0

    def hang() -> str:
        nonlocal calls
        calls += 1
        clock.now += 10
        raise Fault("NVML did not answer within 10 seconds", hint="Turn persistence mode on")

    for _ in range(3):
        with pytest.raises(Fault) as caught:
            failure_cache.query_unless_failed(hang, "550.1", cache)
        clock.now += 20
    assert calls == 1
    assert caught.value.what == (
        "NVML did not answer within 10 seconds (40 seconds ago; it is not queried again before 20 seconds have passed)"
    )
    assert caught.value.hint == "Turn persistence mode on"
    with pytest.raises(Fault, match=r"within 10 seconds. Turn"):
        failure_cache.query_unless_failed(hang, "550.2", cache)
    assert calls == 2, "another driver is asked"
    clock.now += 61
    assert failure_cache.query_unless_failed(lambda: "well", "550.2", cache) == "well"
    assert failure_cache.query_unless_failed(lambda: "well", "550.2", cache) == "well"


def test_a_quick_failure_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch)
    cache = FakeCache()

    def fail() -> str:
        raise Fault("the Python package nvidia-ml-py is not installed")

    for _ in range(2):
        with pytest.raises(Fault, match=r"is not installed$"):
            failure_cache.query_unless_failed(fail, "550.1", cache)
    assert failure_cache.query_unless_failed(lambda: 1, "550.1", cache) == 1
    assert not cache.puts


def test_damaged_memory_is_no_failure() -> None:
    cache = FakeCache()
    cache.blobs["nvml-failure"] = b"nonsense"
    assert failure_cache.query_unless_failed(lambda: 1, "550.1", cache) == 1


def test_mig_devices_by_uuid_wait_once_for_an_nvml_that_hangs(tmp_path: Path) -> None:
    """Sixteen GPUs in seven parts and an NVML that hangs: each refresh and each start waited ten seconds."""
    if not find_compiler():
        skip_or_fail("NVML's answers; there is no C compiler for its double")
    double = NvmlDouble(host_tree.build_host(tmp_path / "host", gpus=1, mig=["7"]))
    double.set_mode("sleep")
    uuid = double.report.gpus[0].mig[3].uuid
    times, texts = [], []
    for name in ("a", "b"):
        started = time.monotonic()
        with pytest.raises(Fault) as caught:
            gpu_nodes(tmp_path / name, double, uuid)
        times.append(time.monotonic() - started)
        texts.append(caught.value.what)
    assert times[1] < times[0] / 2
    assert double.call_count == 1
    assert "seconds ago; it is not queried again before" in texts[1]
