"""What people see when we refuse: the engine's user gets our sentence, whichever way the engine carries it.

containerd and docker read the last error of the JSON log, podman the whole log as one JSON object or else
conmon's copy of stderr, CRI-O stderr alone. So the contract is one JSON line in the log and the same text on
stderr.
"""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import pytest

from support.e2e import engines, machine
from support.e2e.engines import BareRuntime, ContainerRequest, Engine
from support.e2e.host import InstalledRuntime, SimulatedHost

CASES = {
    "unknown GPU": (["NVIDIA_VISIBLE_DEVICES=9"], ["NVIDIA_VISIBLE_DEVICES", "9"]),
    "unknown capability": (
        ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,grafics"],
        ["NVIDIA_DRIVER_CAPABILITIES", "grafics", "graphics"],
    ),
    "requirement not met": (
        ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_REQUIRE_CUDA=cuda>=99.9"],
        ["NVIDIA_REQUIRE_CUDA", "99.9"],
    ),
    "requirement that cannot be read": (
        ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_REQUIRE_CUDA=cuda>>1"],
        ["NVIDIA_REQUIRE_CUDA"],
    ),
}

# Sentences of engines that lost the reason.
LOST = ("unable to retrieve OCI runtime error", "no logs from conmon", "container process is already dead")


@pytest.mark.parametrize("case", CASES, ids=lambda name: name.replace(" ", "-"))
def test_the_engine_user_sees_our_sentence(engine: Engine, case: str) -> None:
    env, words = CASES[case]
    done = engine.run(ContainerRequest(["/bin/true"], env))
    assert done.status == engine.refusal, done
    for word in words:
        assert word in done.text, done
    for text in (*LOST, "Traceback"):
        assert text not in done.text, done


def failing_bundle(place: engines.EngineHome) -> tuple[BareRuntime, Path]:
    """A bundle that asks for a GPU that does not exist."""
    bare_runtime = BareRuntime("runc", "v1", "run")
    bare_runtime.start(place)
    return bare_runtime, bare_runtime.bundle(ContainerRequest(["/bin/true"], ["NVIDIA_VISIBLE_DEVICES=9"]))


@pytest.fixture
def place(
    workspace: Path, image: Path, runtime: InstalledRuntime, simulated: SimulatedHost, tmp_path: Path
) -> engines.EngineHome:
    """A place for bundles by hand."""
    return engines.EngineHome(tmp_path, image, lambda low_level: runtime.wrapper(low_level, simulated.root))


def shim(place: engines.EngineHome, *words: str) -> machine.CommandResult:
    """The shim itself with these words."""
    return machine.run_command([str(place.runtime("runc")), "--root", str(place.directory / "state"), *words])


def test_one_json_line_in_the_log_and_the_same_text_on_stderr(place: engines.EngineHome) -> None:
    _, bundle = failing_bundle(place)
    log = place.directory / "log.json"
    done = shim(place, "--log", str(log), "--log-format", "json", "create", "--bundle", str(bundle), "c1")
    assert done.status == 1
    assert done.stdout == ""
    lines = log.read_text().splitlines()
    assert len(lines) == 1, lines
    entry = json.loads(lines[0])
    assert sorted(entry) == ["level", "msg", "time"]
    assert entry["level"] == "error"
    assert datetime.fromisoformat(entry["time"]).tzinfo is not None
    assert entry["msg"] in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_log_is_appended_to(place: engines.EngineHome) -> None:
    _, bundle = failing_bundle(place)
    log = place.directory / "log.json"
    log.write_text('{"level":"info","msg":"before"}\n')
    shim(place, f"--log={log}", "--log-format=json", "create", "-b", str(bundle), "c1")
    assert [json.loads(line)["level"] for line in log.read_text().splitlines()] == ["info", "error"]


def test_a_text_log_gets_a_text_line(place: engines.EngineHome) -> None:
    _, bundle = failing_bundle(place)
    log = place.directory / "log.txt"
    done = shim(place, "--log", f"file:{log}", "create", "--bundle", str(bundle), "c1")
    assert done.status == 1
    lines = log.read_text().splitlines()
    assert len(lines) == 1
    assert "NVIDIA_VISIBLE_DEVICES" in lines[0]
    assert not lines[0].startswith("{")


def test_a_log_that_cannot_be_opened_leaves_stderr(place: engines.EngineHome) -> None:
    _, bundle = failing_bundle(place)
    done = shim(place, "--log", "/proc/nowhere/log", "--log-format", "json", "create", "--bundle", str(bundle), "c1")
    assert done.status == 1
    assert "NVIDIA_VISIBLE_DEVICES" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_failure_leaves_the_bundle_alone(place: engines.EngineHome) -> None:
    _, bundle = failing_bundle(place)
    before = (bundle / "config.json").read_bytes()
    names = sorted(path.name for path in bundle.iterdir())
    assert shim(place, "create", "--bundle", str(bundle), "c1").status == 1
    assert (bundle / "config.json").read_bytes() == before
    assert sorted(path.name for path in bundle.iterdir()) == names


@pytest.mark.parametrize("words", [["features"], ["--help"], ["list"]], ids=" ".join)
def test_everything_else_is_the_low_level_runtime(place: engines.EngineHome, words: list[str]) -> None:
    ours = shim(place, *words)
    theirs = machine.run_command([machine.find_program("runc"), "--root", str(place.directory / "state"), *words])
    assert (ours.status, ours.stdout, ours.stderr) == (theirs.status, theirs.stdout, theirs.stderr)


def test_the_version_is_ours_and_then_the_low_level_runtimes(place: engines.EngineHome) -> None:
    ours = shim(place, "--version").check()
    theirs = machine.run_command([machine.find_program("runc"), "--version"]).check()
    first, _, rest = ours.stdout.partition("\n")
    assert first.startswith("gpu-oci-runtime version ")
    assert (rest, ours.stderr) == (theirs.stdout, "")


def test_silence_on_success(place: engines.EngineHome, simulated: SimulatedHost) -> None:
    bare_runtime = BareRuntime("runc", "v1", "run")
    bare_runtime.start(place)
    done = bare_runtime.run(ContainerRequest(["/bin/echo", "alone"], ["NVIDIA_VISIBLE_DEVICES=all"]))
    assert (done.status, done.stdout, done.stderr) == (0, "alone\n", "")
