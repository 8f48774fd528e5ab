"""The shim's reading of an engine's command line, and its way to become runc."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_oci_hook import VERSION
from gpu_oci_hook.shim.main import CommandLine
from support.bundles import Shim, container_spec, make_bundle

# The shim with its state beside the test's configuration: tests that run at the same time must not share /run.
CODE = """import os
from gpu_oci_hook.files import state_dir
state_dir.DIRECTORY = os.path.dirname(os.environ["GPU_OCI_HOOK_CONFIG"]) + "/state"
from gpu_oci_hook.shim.main import main
main()
"""
SHIM = [sys.executable, "-c", CODE]


def call(line: str) -> tuple[str, str, str, str]:
    found = CommandLine(line.split())
    return found.command, found.config_json_path(), found.log_path, found.log_format


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("", ""),
        ("create c", "create"),
        ("--version", ""),
        ("--root /r state create", "state"),
        ("--root create state foo", "state"),
        ("--root=/r --log /l --log-format json create --bundle /b id", "create"),
        ("-root /r -log=/l create id", "create"),
        ("--debug --systemd-cgroup run id", "run"),
        ("--cgroup-manager cgroupfs create id", "create"),
        ("--cgroup-man cgroupfs create id", "create"),
        ("--rootless true --criu /x delete --force create", "delete"),
        ("--tomorrow value create id", "create"),
        ("--tomorrow create id", "create"),
        ("-- create id", "create"),
        ("start create", "start"),
        ("kill create 9", "kill"),
        ("--log", ""),
        ("-", "-"),
    ],
)
def test_the_command_is_the_first_word_that_is_no_flag_and_no_flags_value(line: str, command: str) -> None:
    assert call(line)[0] == command


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ("create id", "config.json"),
        ("create --bundle /b id", "/b/config.json"),
        ("create --bundle=/b id", "/b/config.json"),
        ("create -b /b id", "/b/config.json"),
        ("create -b=/b id", "/b/config.json"),
        ("create -bundle /b id", "/b/config.json"),
        ("create -b=/foo/=bar id", "/foo/=bar/config.json"),
        ("create --pid-file -b --bundle /b id", "/b/config.json"),
        ("create --console-socket create -b /b id", "/b/config.json"),
        ("create -b /a -b /b id", "/b/config.json"),
        ("create id --bundle /b", "/b/config.json"),
        ("create id -- --bundle /b", "config.json"),
        ("create --not-bundle /x id", "config.json"),
        ("run -b /b --config other.json id", "other.json"),
        ("run -b /b --config ./config.json id", "./config.json"),
        ("run -b /b --config config.json id", "/b/config.json"),
        ("run -b /b -fother.json id", "other.json"),
        ("create -b/b id", "/b/config.json"),
        ("create --bun /b id", "/b/config.json"),
        ("create --bundl=/b id", "/b/config.json"),
        ("run -db/b id", "/b/config.json"),
        ("run -d -b /b id", "/b/config.json"),
        ("create --pid /b --no-pivot -b /c id", "/c/config.json"),
        ("create --conf /c.json -b /b id", "/c.json"),
        ("create --cons /s -b /b id", "/b/config.json"),
        ("run -b /b -f /abs.json id", "/abs.json"),
        ("create --bundle", "config.json"),
        ("start --bundle /b id", "config.json"),
    ],
)
def test_the_bundle_is_found_in_all_its_forms(line: str, path: str) -> None:
    assert call(line)[1] == path


@pytest.mark.parametrize(
    ("line", "container"),
    [
        ("--root /r create --bundle /b --pid-file p --no-pivot id", "id"),
        ("run id", "id"),
        ("create id --bundle /b", "id"),
        ("create -b /b -- --id", "--id"),
        ("create --bundle /b", ""),
        ("start id", ""),
    ],
)
def test_the_container_is_the_word_that_is_no_flag(line: str, container: str) -> None:
    assert CommandLine(line.split()).container_id == container


def test_a_bundle_whose_name_begins_with_an_equals_sign_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "=b").mkdir()
    monkeypatch.chdir(tmp_path)
    assert call("create -b=b id")[1] == "=b/config.json"  # crun's reading
    assert call("create -b=c id")[1] == "c/config.json"  # runc's


def test_the_log_is_a_global_flag_in_both_forms() -> None:
    assert call("--log /l --log-format json create x")[2:] == ("/l", "json")
    assert call("--log=/l --log-format=text create --log /other x")[2:] == ("/l", "text")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A low-level runtime that says how it was called, and a configuration that names it."""
    low = tmp_path / "low"
    low.write_text(
        '#!/bin/sh\nfor a; do printf "%s\\n" "$a"; done > "$0.args"\n'
        'grep -E "^Sig(Ign|Blk)" /proc/self/status > "$0.signals"\n'
        'echo $$ > "$0.pid"\nenv > "$0.env"\nls -l /proc/self/fd > "$0.fds"\n'
    )
    low.chmod(0o755)
    config = tmp_path / "config.toml"
    (tmp_path / "machine").mkdir()
    config.write_text(f'[runtime]\nlow-level = ["{low}"]\n[host]\nroot = "{tmp_path}/machine"\nload-modules = false\n')
    monkeypatch.setenv("GPU_OCI_HOOK_CONFIG", str(config))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return low


def bundle(tmp_path: Path, *env: str) -> Path:
    directory = tmp_path / "bundle"
    (directory / "rootfs").mkdir(parents=True)
    spec = {"ociVersion": "1.0.2", "process": {"env": list(env)}, "root": {"path": "rootfs"}}
    (directory / "config.json").write_text(json.dumps(spec))
    return directory


def shim(*words: str, **options: object) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*SHIM, *words], capture_output=True, timeout=60, **options)  # type: ignore[call-overload, no-any-return]


def test_every_other_command_becomes_the_low_level_runtime_as_it_came(machine: Path) -> None:
    for words in (["--root", "/r", "start", "create"], ["--help"], ["kill", "a b", "\n"], []):
        result = shim(*words)
        assert (result.returncode, result.stdout, result.stderr) == (0, b"", b"")
        assert Path(f"{machine}.args").read_text() == "".join(f"{word}\n" for word in words)


@pytest.mark.parametrize("words", [["--version"], ["-v"], ["--root", "/r", "-V"], ["--version", "state"]])
def test_the_version_is_ours_and_then_that_of_the_low_level_runtime(machine: Path, words: list[str]) -> None:
    machine.write_text('#!/bin/sh\nfor a; do printf "%s\\n" "$a"; done > "$0.args"\necho low version 7; exit 3\n')
    result = shim(*words)
    assert (result.returncode, result.stderr) == (3, b"")
    assert result.stdout.decode() == f"gpu-oci-runtime version {VERSION}\nlow version 7\n"
    assert Path(f"{machine}.args").read_text() == "".join(f"{word}\n" for word in words)


def test_the_version_is_printed_without_a_low_level_runtime_too(machine: Path) -> None:
    machine.unlink()
    result = shim("--version")
    assert (result.returncode, result.stdout.decode()) == (0, f"gpu-oci-runtime version {VERSION}\n")
    assert result.stderr.count(b"\n") == 1
    assert b"found none of" in result.stderr and b"Install runc or crun" in result.stderr
    assert shim("state", "x").returncode == 1


@pytest.mark.parametrize("name", ["docker", "/usr/bin/podman", "containerd"])
def test_an_engine_does_not_count_as_a_low_level_runtime(machine: Path, name: str) -> None:
    config = Path(os.environ["GPU_OCI_HOOK_CONFIG"])
    config.write_text(f'[runtime]\nlow-level = ["{name}"]\n')
    result = shim("state", "x")
    assert result.returncode == 1
    assert (
        f"{name} is a program of a container engine, not an OCI runtime such as runc or crun" in result.stderr.decode()
    )
    config.write_text(f'[runtime]\nlow-level = ["{name}", "{machine}"]\n')
    assert shim("state", "x").returncode == 0


def test_the_process_stays_the_same_and_signals_are_as_the_kernel_gives_them(machine: Path) -> None:
    process = subprocess.Popen([*SHIM, "state", "x"])
    assert process.wait(60) == 0
    assert int(Path(f"{machine}.pid").read_text()) == process.pid
    ignored = _read_ignored_signals(Path("/proc/self/status"))  # nohup ignores SIGHUP, for example
    restored = sum(1 << number - 1 for number in (signal.SIGPIPE, signal.SIGXFSZ))  # by Popen
    assert _read_ignored_signals(Path(f"{machine}.signals")) == ignored & ~restored


def _read_ignored_signals(path: Path) -> int:
    """Return the mask of ignored signals in a file like /proc/PID/status."""
    (line,) = [line for line in path.read_text().splitlines() if line.startswith("SigIgn:")]
    return int(line.split()[1], 16)


def test_path_may_be_absent(machine: Path) -> None:
    env = {key: os.environ[key] for key in ("GPU_OCI_HOOK_CONFIG", "XDG_RUNTIME_DIR")}
    assert shim("delete", "x", env=env).returncode == 0


@pytest.mark.parametrize(
    "locale",
    [
        {},
        {"LC_CTYPE": "C"},
        {"LC_CTYPE": ""},
        {"LC_CTYPE": "C.UTF-8"},
        {"LC_CTYPE": "de_DE.UTF-8"},
        {"LANG": "C"},
        {"LANG": "de_DE.UTF-8"},
        {"LC_ALL": "C"},
        {"LC_ALL": "C", "LC_CTYPE": "C.UTF-8"},
        {"LC_ALL": "", "LANG": "POSIX"},
    ],
    ids=str,
)
@pytest.mark.parametrize("word", ["state", "create"])
def test_the_runtime_gets_the_environment_of_the_call(tmp_path: Path, word: str, locale: dict[str, str]) -> None:
    """The interpreter sets LC_CTYPE where it finds no locale (PEP 538)."""
    shim = Shim(tmp_path / "shim", tmp_path)
    shim.stub.write_text(f"#!/bin/sh\ncat /proc/$$/environ > {tmp_path}/environ\n")
    env = {**shim.env, **locale, "ODD": os.fsdecode(b"\xff\n"), "LC_CTYPE_": "x", "PYTHONCOERCECLOCALE": "warn"}
    made = make_bundle(tmp_path / "bundle", container_spec())
    done = subprocess.run([shim.path, word, "-b", made, "id"], env=env, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    entries = (tmp_path / "environ").read_bytes().split(b"\0")[:-1]
    own = [entry for entry in entries if entry.startswith(b"GPU_OCI_HOOK_PROCESS=")]
    assert len(own) == 1
    assert sorted(set(entries) - {*own}) == sorted(os.fsencode(f"{name}={value}") for name, value in env.items())
    assert len(entries) == len(env) + 1


def test_inherited_descriptors_reach_the_runtime(machine: Path) -> None:
    with open("/dev/null") as null:
        assert shim("start", "x", pass_fds=[null.fileno()]).returncode == 0
        assert f" {null.fileno()} -> " in Path(f"{machine}.fds").read_text()


def test_a_bundle_that_asks_for_nothing_stays_untouched(machine: Path, tmp_path: Path) -> None:
    directory = bundle(tmp_path, "PATH=/bin")
    config = directory / "config.json"
    before = (config.read_bytes(), config.stat().st_mtime_ns, config.stat().st_ino)
    assert shim("create", "--bundle", str(directory), "id").returncode == 0
    assert (config.read_bytes(), config.stat().st_mtime_ns, config.stat().st_ino) == before


def test_a_missing_config_json_is_for_the_runtime_to_complain_about(machine: Path, tmp_path: Path) -> None:
    assert shim("create", "--bundle", str(tmp_path / "none"), "id").returncode == 0


def identity(path: Path) -> tuple[int, ...]:
    """Everything about a file but when it was read."""
    status = os.lstat(path)
    return status.st_ino, status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def _huge(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(32 << 20)
        file.write(b'"NVIDIA_VISIBLE_DEVICES=0"')


BROKEN = {
    "a FIFO": (_fifo, "not a regular file"),
    "a directory": (_directory, "not a regular file"),
    "a device": (_device, "not a regular file"),
    "33 MB": (_huge, "larger than 32 MiB"),
    "truncated": (lambda path: path.write_text('{"process":{"env":["NVIDIA_VISIBLE_DEVICES=0"'), "not valid JSON"),
    "an array": (lambda path: path.write_text('["NVIDIA_VISIBLE_DEVICES=0"]'), "must be a JSON object"),
    "text": (lambda path: path.write_text("NVIDIA_VISIBLE_DEVICES=0"), "not valid JSON"),
    "not UTF-8": (lambda path: path.write_bytes(b'{"NVIDIA_VISIBLE_DEVICES":"\xff"}'), "not UTF-8"),
    "too deep": (lambda path: path.write_text('{"NVIDIA_VISIBLE_DEVICES":' + "[" * 100000), "nested too deeply"),
    "two values": (lambda path: path.write_text('{"NVIDIA_VISIBLE_DEVICES":1} {}'), "extra data at line 1, column 30"),
}


@pytest.mark.parametrize("at", [0, (1 << 20) - 3, 33 << 20])
def test_a_huge_config_json_that_asks_for_nothing_is_the_runtimes_alone(at: int, machine: Path, tmp_path: Path) -> None:
    directory = bundle(tmp_path)
    with (directory / "config.json").open("wb") as file:
        file.write(b" " * at + b"NVIDIA_VISIBLE_DEVICE!")
        file.truncate(40 << 20)
    before = identity(directory / "config.json")
    assert shim("create", "--bundle", str(directory), "id").returncode == 0
    assert Path(f"{machine}.args").exists()
    assert identity(directory / "config.json") == before
    with (directory / "config.json").open("r+b") as file:
        file.seek(at)
        file.write(b"NVIDIA_VISIBLE_DEVICES")
    assert b"larger than 32 MiB" in shim("create", "--bundle", str(directory), "id").stderr


@pytest.mark.parametrize("name", BROKEN)
def test_a_config_json_that_cannot_be_read_is_refused_with_one_sentence(
    name: str, machine: Path, tmp_path: Path
) -> None:
    spoil, said = BROKEN[name]
    directory = bundle(tmp_path)
    spoil(directory / "config.json")
    before = identity(directory / "config.json")
    result = shim("create", "--bundle", str(directory), "id")
    assert result.returncode == 1
    assert said in result.stderr.decode()
    assert result.stderr.count(b"\n") == 1
    assert b"Traceback" not in result.stderr
    assert identity(directory / "config.json") == before
    assert not Path(f"{machine}.args").exists()


def test_a_failure_is_one_json_line_in_the_engines_log_and_the_same_text_on_stderr(
    machine: Path, tmp_path: Path
) -> None:
    directory = bundle(tmp_path, "NVIDIA_VISIBLE_DEVICES=all")
    log = tmp_path / "log.json"
    log.write_text('{"level":"info","msg":"before"}\n')
    result = shim("--log", f"file:{log}", "--log-format", "json", "create", "-b", str(directory), "id")
    assert result.returncode == 1
    lines = log.read_text().splitlines()
    assert len(lines) == 2
    entry = json.loads(lines[1])
    assert entry["level"] == "error"
    assert set(entry) == {"level", "msg", "time"}
    assert result.stderr.decode() == entry["msg"] + "\n"
    assert "no NVIDIA GPU" in entry["msg"]
    assert "no such file or directory" not in entry["msg"].lower()


def test_a_failure_is_a_text_line_when_the_engine_wants_text(machine: Path, tmp_path: Path) -> None:
    directory = bundle(tmp_path, "NVIDIA_VISIBLE_DEVICES=all")
    log = tmp_path / "log"
    assert shim(f"--log={log}", "create", "-b", str(directory), "id").returncode == 1
    assert 'level=error msg="gpu-oci-runtime: ' in log.read_text()


@pytest.mark.parametrize(
    "env",
    [
        ["NVIDIA_VISIBLE_DEVICES=" + "x" * 100_000],
        ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=" + "\x1b" * 100_000],
        ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_REQUIRE_CUDA=" + "cuda>99 " * 10_000 + "&"],
        ["NVIDIA_VISIBLE_DEVICES=/" + "\U0001f680" * 25_000],
    ],
)
def test_a_failure_stays_short_whatever_an_image_says(env: list[str], machine: Path, tmp_path: Path) -> None:
    # conmon quotes 8 KiB; a pipe that nobody empties holds 64.
    log = tmp_path / "log.json"
    result = shim("--log", str(log), "--log-format", "json", "create", "-b", str(bundle(tmp_path, *env)), "id")
    assert result.returncode == 1
    assert result.stderr.count(b"\n") == 1
    assert len(result.stderr) < 8000
    assert json.loads(log.read_text())["msg"] == result.stderr.decode().rstrip("\n")


@pytest.mark.parametrize("target", ["journald:x", "syslog:x", "/nowhere/log", "/dev/full"])
def test_a_log_that_cannot_be_written_changes_nothing(target: str, machine: Path, tmp_path: Path) -> None:
    directory = bundle(tmp_path, "NVIDIA_VISIBLE_DEVICES=all")
    result = shim("--log", target, "--log-format", "json", "create", "-b", str(directory), "id", cwd=tmp_path)
    assert result.returncode == 1
    assert b"no NVIDIA GPU" in result.stderr


def test_without_a_low_level_runtime_the_sentence_says_what_was_looked_for_and_where(
    machine: Path, tmp_path: Path
) -> None:
    (tmp_path / "config.toml").write_text('[runtime]\nlow-level = ["nonesuch", "/no/runc"]\n')
    result = shim("state", "x")
    assert result.returncode == 1
    text = result.stderr.decode()
    for part in ("nonesuch, /no/runc", "/usr/local/sbin", "config.toml: [runtime] low-level"):
        assert part in text


def test_the_shim_never_becomes_itself(machine: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.write_text(f"#!{sys.executable} -IS\n{CODE}")
    copy.chmod(0o755)
    link = tmp_path / "link"
    link.symlink_to(copy)
    (tmp_path / "config.toml").write_text(f'[runtime]\nlow-level = ["{link}", "{copy}"]\n')
    result = shim("state", "x")
    assert result.returncode == 1
    assert b"candidates that are this program itself: 2" in result.stderr


def test_a_wrapper_that_calls_the_shim_again_does_not_go_round_for_ever(machine: Path, tmp_path: Path) -> None:
    launcher = tmp_path / "launcher"
    launcher.write_text(f"#!{sys.executable}\n{CODE}")
    launcher.chmod(0o755)
    machine.write_text(f'#!/bin/sh\nexec {launcher} "$@"\n')
    result = shim("state", "x")
    assert result.returncode == 1
    assert b"leads back to this program" in result.stderr


@pytest.mark.parametrize("text", ["[runtime", "[runtime]\nlow-level = 7\n", "\0", "x = 1979-13-01"])
def test_a_broken_configuration_never_keeps_a_container_from_being_stopped_or_started_without_a_gpu(
    text: str, machine: Path, tmp_path: Path
) -> None:
    assert shim("state", "x").returncode == 0  # caches the runtime
    (tmp_path / "config.toml").write_text(text)
    assert shim("kill", "x", "9").returncode == 0
    assert Path(f"{machine}.args").read_text() == "kill\nx\n9\n"
    directory = bundle(tmp_path, "CUDA_VERSION=12", "NVIDIA_REQUIRE_CUDA=cuda>=12")
    assert shim("create", "-b", str(directory), "x").returncode == 0
    (directory / "config.json").write_text('{"process":{"env":["NVIDIA_VISIBLE_DEVICES=all"]}}')
    result = shim("create", "-b", str(directory), "x")
    assert result.returncode == 1
    assert b"config.toml" in result.stderr


def test_a_named_configuration_that_is_missing_refuses_only_containers_that_ask_for_a_gpu(
    machine: Path, tmp_path: Path
) -> None:
    assert shim("state", "x").returncode == 0  # caches the runtime
    (tmp_path / "config.toml").unlink()
    directory = bundle(tmp_path)
    for words in (["kill", "x", "9"], ["create", "-b", str(directory), "x"]):
        assert shim(*words).returncode == 0
        assert Path(f"{machine}.args").read_text().split() == words
    (directory / "config.json").write_text('{"process":{"env":["NVIDIA_VISIBLE_DEVICES=all"]}}')
    result = shim("create", "-b", str(directory), "x")
    assert result.returncode == 1
    assert b"config.toml: the config file that GPU_OCI_HOOK_CONFIG names is missing" in result.stderr


def test_a_changed_configuration_or_runtime_counts_at_the_next_call(machine: Path, tmp_path: Path) -> None:
    assert shim("state", "x").returncode == 0
    other = tmp_path / "other"
    other.write_text('#!/bin/sh\necho other > "$0.args"\n')
    other.chmod(0o755)
    (tmp_path / "config.toml").write_text(f'[runtime]\nlow-level = ["{other}"]\n')
    assert shim("state", "x").returncode == 0
    assert Path(f"{other}.args").read_text() == "other\n"


def test_ctrl_c_ends_us_without_a_traceback() -> None:
    code = (
        "import os; from gpu_oci_hook.shim import main as shim\nshim.load_runtime = lambda: os.kill(os.getpid(), 2)\n"
    )
    result = subprocess.run([sys.executable, "-c", code + "shim.main()"], capture_output=True, timeout=60)
    assert (result.returncode, result.stderr) == (-2, b"")
