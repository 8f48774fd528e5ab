"""The compiled launcher: it becomes the low-level runtime only where the Python program would do nothing else."""

from __future__ import annotations

import io
import os
import random
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_oci_hook import VERSION
from gpu_oci_hook.cli.native_launcher import compile_native_launcher, find_compiler
from gpu_oci_hook.files import state_dir
from gpu_oci_hook.inject import pipeline
from gpu_oci_hook.reporting import failure
from gpu_oci_hook.shim import container_state, launcher_records, main, resource_update

HARNESS = Path(__file__).with_name("native_launcher_harness.c")
SOURCE = Path(main.__file__).parents[1] / "launchers/gpu-oci-runtime.c"
PYTHON = "/python-launcher"
CASES = int(os.environ.get("GPU_OCI_HOOK_LAUNCHER_CASES", "100000"))

Decision = list[bytes]


class Machine:
    """A configuration, a low-level runtime, bundles, and the launcher compiled for their state directory."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory = directory
        self.state = directory / "state"
        self.low = directory / "runc"
        self.low.write_text('#!/bin/sh\necho "low-level $*"\n')
        self.low.chmod(0o755)
        self.config = directory / "config.toml"
        self.config.write_text(
            f"[runtime]\nlow-level = ['{self.low}']\n[cdi]\nannotation-prefixes = ['odd.example/']\n"
        )
        self.config.chmod(0o644)
        monkeypatch.setattr(state_dir, "DIRECTORY", str(self.state))
        monkeypatch.setenv("GPU_OCI_HOOK_CONFIG", str(self.config))
        monkeypatch.setenv("PATH", "/usr/bin:/bin")
        monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
        monkeypatch.delenv(main.LOOP_GUARD_VARIABLE, raising=False)
        self._make_bundles()
        self.program = directory / "launcher"
        self._compile(self.program, [str(SOURCE)], PYTHON)
        self.harness = directory / "harness"
        self._compile(self.harness, ["-Wno-unused-result", f'-DSOURCE="{SOURCE}"', str(HARNESS)], PYTHON)

    def _compile(self, program: Path, arguments: list[str], python: str) -> None:
        subprocess.run(
            [find_compiler(), "-O1", "-Wall", "-Wextra", "-Werror", *arguments, "-o", str(program)]
            + [f'-DPYTHON_LAUNCHER="{python}"', f'-DVERSION="{VERSION}"', f'-DSTATE_DIRECTORY="{self.state}"'],
            check=True,
        )

    def _make_bundles(self) -> None:
        contents = {
            "plain": b'{"process": {"env": ["PATH=/bin"]}}',
            "asks": b'{"process": {"env": ["NVIDIA_VISIBLE_DEVICES=all"]}}',
            "annotated": b'{"annotations": {"odd.example/x": "nvidia.com/gpu=0"}}',
            "empty": b"",
            "broken": b"{",
        }
        for name, content in contents.items():
            (self.directory / name).mkdir()
            (self.directory / name / "config.json").write_bytes(content)
        (self.directory / "fifo").mkdir()
        os.mkfifo(self.directory / "fifo/config.json")
        (self.directory / "linked").mkdir()
        (self.directory / "linked/config.json").symlink_to(self.directory / "plain/config.json")
        (self.directory / "large").mkdir()
        with (self.directory / "large/config.json").open("wb") as file:
            file.truncate(9 << 20)
        (self.directory / "missing").mkdir()
        self.bundles = [
            str(self.directory / name) for name in (*contents, "fifo", "linked", "large", "missing", "gone")
        ]

    def write_cache(self) -> None:
        """Let the Python program write its cache, as the first call after boot does."""
        main.load_runtime()

    def ask_launcher(self, calls: list[list[bytes]]) -> list[Decision]:
        """Return the program and the words that the launcher becomes, for each call."""
        data = b"".join(
            struct.pack("=I", len(words)) + b"".join(struct.pack("=I", len(word)) + word for word in words)
            for words in calls
        )
        run = subprocess.run([self.harness], input=data, capture_output=True, check=True, cwd=self.directory)
        output, decisions = io.BytesIO(run.stdout), []
        while count := output.read(4):
            sizes = struct.unpack("=I", count)[0]
            decisions.append([output.read(struct.unpack("=I", output.read(4))[0]) for _ in range(sizes)])
        return decisions


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    monkeypatch.chdir(tmp_path)
    yield Machine(tmp_path, monkeypatch)


class PythonDecision:
    """What the Python program does with a call: the runtime that it becomes, and whether it does anything before."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.words: Decision = []
        self.acts = False
        monkeypatch.setattr(sys, "argv", [])
        monkeypatch.setattr(main, "exec_runtime", self._record_exec)
        monkeypatch.setattr(main, "_reserve_descriptor", lambda: -1)  # no exec closes it here
        monkeypatch.setattr(main, "_print_version", lambda error=None: None)
        monkeypatch.setattr(pipeline, "inject_gpus", self._record_action)
        monkeypatch.setattr(failure, "report_failure", self._record_action)
        monkeypatch.setattr(resource_update, "keep_devices", self._keep_arguments)
        monkeypatch.setattr(container_state, "choose_program", self._choose)

    def _record_exec(self, path: str, arguments: list[str]) -> None:
        self.words = [os.fsencode(path), *map(os.fsencode, arguments)]

    def _record_action(self, *_: object, **__: object) -> None:
        self.acts = True

    def _keep_arguments(self, program: str, root: str, arguments: list[str], triggers: object) -> list[str]:
        self.acts = True
        return arguments

    def _choose(self, program: str, *_: object) -> str:
        self.acts = True
        return program

    def ask(self, words: list[bytes]) -> Decision:
        """Return the low-level runtime and its words if Python does nothing but become it, else an empty list."""
        self.words, self.acts = [], False
        arguments = [os.fsdecode(word) for word in words[1:]]
        sys.argv = ["gpu-oci-runtime", *arguments]
        try:
            main.main()
        except SystemExit:
            return []
        return [] if self.acts else self.words


def make_engine_call(choose: random.Random, bundles: list[str]) -> list[str]:
    """Return a command line as an engine writes it."""
    bundle = choose.choice(bundles)
    before = choose.choice(
        [
            ["--root", "/run/containerd/runc/moby", "--log", f"{bundle}/log.json", "--log-format", "json"],
            ["--root", "/r", "--log", "/l", "--log-format", "json", "--systemd-cgroup"],
            ["--log-format=json", "--log=/l"],
            ["--systemd-cgroup", "--root=/run/runc"],
            [],
        ]
    )
    after = choose.choice(
        [
            ["create", "--bundle", bundle, "--pid-file", f"{bundle}/init.pid", "id"],
            ["create", "--bundle", bundle, "--pid-file", "/p", "--console-socket", "/s", "id"],
            ["create", "--no-pivot", "-b", bundle, "id"],
            ["run", f"--bundle={bundle}", "-d", "--pid-file=/p", "id"],
            ["start", "id"],
            ["state", "id"],
            ["kill", "--all", "id", "9"],
            ["delete", "--force", "id"],
            ["exec", "--process", "/p", "--pid-file", "/f", "--detach", "id"],
            ["update", "--resources", "-", "id"],
            ["features"],
            ["--version"],
        ]
    )
    return ["gpu-oci-runtime", *before, *after]


WORDS = [
    "create", "run", "update", "state", "start", "exec", "delete", "restore", "--version", "-v", "-V", "--version=1",
    "--", "-", "", "--bundle", "-b", "-b=", "--bundle=", "--config", "-f", "-fother", "--config=config.json",
    "--root", "--log", "--pid-file", "-d", "-db", "--bun", "--no-pivot", "--detach", "--unknown", "--unknown=1",
    "-bundle", "--keep", "id", "ü", "\udcff", "=", "--=", "--b", "--help", "-h", "--preserve-fds", "3",
    "--console-socket", "--log-format=json", "--systemd-cgroup", "--debug", "-", "/", ".", "config.json", "--criu",
]  # fmt: skip


def mutate_call(choose: random.Random, words: list[str], bundles: list[str]) -> list[str]:
    """Return a command line with some words exchanged, taken out, repeated or put in."""
    words = list(words)
    for _ in range(choose.choice((0, 1, 1, 2, 4))):
        at = choose.randrange(1, len(words) + 1)
        new = choose.choice(
            (choose.choice(WORDS), choose.choice(WORDS) + choose.choice(bundles), choose.choice(bundles))
        )
        match choose.randrange(4):
            case 0:
                words.insert(at, new)
            case 1:
                words[at : at + 1] = [new]
            case 2:
                del words[at : at + 1]
            case _:
                words[at:at] = words[max(1, at - 2) : at]
    return words


def test_launcher_and_python_agree_on_random_command_lines(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the launcher becomes the low-level runtime, Python would become the same one, and do nothing before."""
    machine.write_cache()
    choose = random.Random(20261130)
    calls = [make_engine_call(choose, machine.bundles) for _ in range(CASES)]
    calls = [mutate_call(choose, words, machine.bundles) for words in calls]
    encoded = [[os.fsencode(word) for word in words] for words in calls]
    decisions = machine.ask_launcher(encoded)
    assert len(decisions) == len(calls)
    python = PythonDecision(monkeypatch)
    became = avoidable = 0
    for words, decision in zip(encoded, decisions, strict=True):
        expected = python.ask(words)
        if decision[0] == PYTHON.encode():
            assert decision[1:] == words[1:]
            avoidable += bool(expected)
        else:
            assert decision == expected, words
            became += 1
    assert became > CASES // 3  # that the launcher says no often is its whole use
    assert avoidable < CASES // 3


def test_every_engine_call_that_asks_for_nothing_starts_no_python(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.write_cache()
    choose = random.Random(7)
    plain = [str(machine.directory / "plain"), str(machine.directory / "linked"), str(machine.directory / "broken")]
    calls = [make_engine_call(choose, plain) for _ in range(500)]
    calls = [words for words in calls if "update" not in words and not ("--version" in words and len(words) > 2)]
    for words, decision in zip(calls, machine.ask_launcher([[w.encode() for w in c] for c in calls]), strict=True):
        assert decision == [str(machine.low).encode(), *[word.encode() for word in words[1:]]]


@pytest.mark.parametrize(
    "change",
    [
        "no-cache", "empty-cache", "flipped-bit", "cut-cache", "writable-cache", "linked-cache", "fifo-cache",
        "writable-directory",
        "config-changed", "config-removed", "runtime-changed", "other-path", "no-path", "other-config", "loop",
        "old-version",
        "large-cache",
    ],
)  # fmt: skip
def test_every_doubt_starts_python(machine: Machine, change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.write_cache()
    cache = machine.state / "runtime"
    call = [[b"gpu-oci-runtime", b"state", b"id"]]
    assert machine.ask_launcher(call) == [[str(machine.low).encode(), b"state", b"id"]]
    data = cache.read_bytes()
    match change:
        case "no-cache":
            cache.unlink()
        case "empty-cache":
            cache.write_bytes(b"")
        case "flipped-bit":
            cache.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        case "cut-cache":
            cache.write_bytes(data[:-1])
        case "writable-cache":
            cache.chmod(0o666)
        case "linked-cache":
            cache.rename(machine.state / "elsewhere")
            cache.symlink_to("elsewhere")
        case "fifo-cache":
            cache.unlink()
            os.mkfifo(cache)
        case "writable-directory":
            machine.state.chmod(0o777)
        case "config-changed":
            machine.config.write_text(machine.config.read_text() + "\n")
        case "config-removed":
            machine.config.unlink()
        case "runtime-changed":
            machine.low.write_text("#!/bin/sh\n")
        case "other-path":
            monkeypatch.setenv("PATH", "/usr/bin")
        case "no-path":
            monkeypatch.delenv("PATH")
        case "other-config":
            monkeypatch.setenv("GPU_OCI_HOOK_CONFIG", f"{machine.directory}/./config.toml")
        case "old-version":
            monkeypatch.setattr(launcher_records, "VERSION", "0.0.1")
            cache.unlink()
            machine.config.write_text(machine.config.read_text() + "\n")
            machine.write_cache()
        case "large-cache":
            cache.write_bytes(data + bytes(2 << 20))
        case _:
            assert change == "loop"
            script = f"{main.LOOP_GUARD_VARIABLE}=$$ exec {machine.program} state id"
            run = subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True, check=False)
            assert run.returncode == 1 and PYTHON in run.stderr
            return
    assert machine.ask_launcher(call) == [[PYTHON.encode(), b"state", b"id"]]


def test_an_earlier_low_level_runtime_is_pythons_to_choose(machine: Machine) -> None:
    machine.write_cache()
    other = machine.directory / "crun"
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    machine.config.write_text(f"[runtime]\nlow-level = ['{other}']\n")
    machine.write_cache()
    assert machine.ask_launcher([[b"gpu-oci-runtime", b"state", b"id"]]) == [[PYTHON.encode(), b"state", b"id"]]


def test_the_program_keeps_its_process_and_prints_our_version_first(machine: Machine) -> None:
    machine.write_cache()
    run = subprocess.run([machine.program, "--version"], capture_output=True, text=True, check=True)
    assert run.stdout == f"gpu-oci-runtime version {VERSION}\nlow-level --version\n"
    machine.low.write_text(f'#!/bin/sh\necho "$$ ${main.LOOP_GUARD_VARIABLE}"\n')
    machine.write_cache()
    with subprocess.Popen([machine.program, "state", "id"], stdout=subprocess.PIPE, text=True) as process:
        assert process.communicate()[0] == f"{process.pid} {process.pid}\n"


def test_a_runtime_that_cannot_be_run_is_left_to_python_to_explain(machine: Machine) -> None:
    machine.low.write_text("#!/nonexistent\n")
    machine.write_cache()
    run = subprocess.run([machine.program, "state", "id"], capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert run.stderr == (
        f"gpu-oci-runtime: {PYTHON}: cannot be run (No such file or directory): run gpu-oci-hook install again\n"
    )


def test_a_python_launcher_of_any_name_can_be_compiled_in(tmp_path: Path) -> None:
    directory = tmp_path / 'odd "name" \\ ü?%s'
    directory.mkdir()
    python = directory / "python"
    python.write_text(f'#!/bin/sh\necho "gpu-oci-runtime version {VERSION} from Python"\n')
    python.chmod(0o755)
    program = tmp_path / "program"
    program.write_bytes(compile_native_launcher(find_compiler(), python, directory))
    program.chmod(0o755)
    run = subprocess.run([program], capture_output=True, text=True, check=True)  # without a word, Python decides
    assert run.stdout == f"gpu-oci-runtime version {VERSION} from Python\n"
    assert not [path for path in directory.iterdir() if path != python]
