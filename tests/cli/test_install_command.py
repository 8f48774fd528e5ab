"""`install`: launchers that start, replace older launchers, and never foreign files."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from gpu_oci_hook import VERSION
from gpu_oci_hook.cli import install_command, launchers
from gpu_oci_hook.cli.insecure_paths import find_insecure_paths, find_unreachable_paths
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.formats import program_names
from support.command_line import Command

ROOT = Path(__file__).parents[2]
NAMES = {"gpu-oci-runtime", "gpu-oci-hook"}
ALIASES = {"nvidia-container-runtime", "nvidia-container-runtime-hook", "nvidia-cdi-hook", "nvidia-container-cli"}


def test_install_writes_two_launchers_that_start(command: Command, tmp_path: Path) -> None:
    answer = command("install", "--prefix", tmp_path, "--native", "never")
    assert answer.status == 0
    assert {path.name for path in (tmp_path / "bin").iterdir()} == NAMES
    for name in NAMES:
        path = tmp_path / "bin" / name
        assert f"wrote {path}\n" in answer.out
        assert path.stat().st_mode & 0o7777 == 0o755
        first = path.read_bytes().split(b"\n")[0].decode()
        python, flags = first.removeprefix("#!").split(" ")
        assert flags == "-ISXutf8" and Path(python).is_absolute()
        assert Path(python).resolve() == Path(python) and not Path(python).is_relative_to(sys.prefix)
    run = subprocess.run([tmp_path / "bin/gpu-oci-hook", "--version"], env={}, capture_output=True, text=True)
    assert (run.returncode, run.stdout, run.stderr) == (0, f"gpu-oci-hook version {VERSION}\n", "")


COMPILED = b"\x7fELF"


def test_with_a_compiler_the_runtime_is_a_program_that_starts_the_python_launcher(
    command: Command, tmp_path: Path
) -> None:
    answer = command("install", "--prefix", tmp_path)
    assert answer.status == 0
    runtime, python = tmp_path / "bin/gpu-oci-runtime", tmp_path / "libexec/gpu-oci-hook/gpu-oci-runtime"
    assert f"wrote {python}\n" in answer.out and f"wrote {runtime}\n" in answer.out
    assert runtime.read_bytes().startswith(COMPILED) and runtime.stat().st_mode & 0o7777 == 0o755
    assert python.read_bytes().startswith(b"#!/")
    assert list(python.parent.iterdir()) == [python]
    for path in (runtime, python):
        assert program_names.is_runtime_launcher(path.read_bytes()[:4096])
        run = subprocess.run([path, "--version"], env={}, capture_output=True, text=True)
        assert (run.returncode, run.stdout.split("\n")[0]) == (0, f"gpu-oci-runtime version {VERSION}")


@pytest.mark.parametrize(
    ("compiler", "reason"),
    [
        ("", "there is no C compiler: none of cc, gcc, clang is in PATH"),
        ("echo 'x.c:1: fatal error: stdio.h: No such file' >&2; exit 1", "x.c:1: fatal error: stdio.h: No such file"),
        ("exit 0", "the compiler wrote no program"),
        ("for last; do :; done; printf '#!/bin/sh\\n' >$last; chmod +x $last", "it does not start gpu-oci-runtime"),
    ],
)
def test_without_a_working_compiler_the_python_launcher_takes_its_place(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiler: str, reason: str
) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "chmod").symlink_to("/bin/chmod")
    if compiler:
        (programs / "cc").write_text(f"#!/bin/sh\n{compiler}\n")
        (programs / "cc").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    answer = command("install", "--prefix", tmp_path)
    assert answer.status == 0
    assert (tmp_path / "bin/gpu-oci-runtime").read_bytes().startswith(b"#!/")
    assert "Python is started for every call of gpu-oci-runtime: " in answer.out and reason in answer.out
    answer = command("install", "--prefix", tmp_path, "--native", "always")
    assert answer.status == 1 and reason in answer.err and "Install gcc and libc6-dev" in answer.err


def test_the_launchers_can_be_exchanged_for_each_other(command: Command, tmp_path: Path) -> None:
    runtime = tmp_path / "bin/gpu-oci-runtime"
    for native, start in (("never", b"#!/"), ("always", COMPILED), ("never", b"#!/"), ("auto", COMPILED)):
        assert command("install", "--prefix", tmp_path, "--native", native).status == 0
        assert runtime.read_bytes().startswith(start)
        run = subprocess.run([runtime, "--version"], env={}, capture_output=True, text=True)
        assert run.stdout.startswith(f"gpu-oci-runtime version {VERSION}\n")


def test_the_launched_command_line_is_deaf_to_the_environment(command: Command, tmp_path: Path) -> None:
    command("install", "--prefix", tmp_path)
    evil = tmp_path / "evil"
    evil.mkdir()
    for name in ("click", "sitecustomize", "usercustomize", "json"):
        (evil / f"{name}.py").write_text(f"open({str(tmp_path / 'touched')!r}, 'w')")
    run = subprocess.run(
        [tmp_path / "bin/gpu-oci-hook", "config", "default"],
        env={"PYTHONPATH": str(evil), "PYTHONSTARTUP": str(evil / "json.py"), "HOME": str(evil)},
        cwd=evil,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0 and run.stdout == (ROOT / "config/config.toml").read_text()
    assert not (tmp_path / "touched").exists()


def test_the_launched_shim_becomes_the_low_level_runtime(command: Command, tmp_path: Path) -> None:
    command("install", "--prefix", tmp_path)
    low = tmp_path / "low"
    low.write_text("#!/bin/sh\necho I am $$ with $*\n")
    low.chmod(0o755)
    config = tmp_path / "c.toml"
    config.write_text(f"runtime.low-level = ['{low}']")
    config.chmod(0o644)
    process = subprocess.Popen(
        [tmp_path / "bin/gpu-oci-runtime", "--root", "/r", "state", "x"],
        env={"GPU_OCI_HOOK_CONFIG": str(config)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    out, err = process.communicate()
    assert (process.returncode, out, err) == (0, f"I am {process.pid} with --root /r state x\n", "")


def test_installing_again_changes_nothing(command: Command, tmp_path: Path) -> None:
    command("install", "--prefix", tmp_path, "--aliases")
    before = {path.name: path.lstat() for path in (tmp_path / "bin").iterdir()}
    answer = command("install", "--prefix", tmp_path, "--aliases")
    assert answer.status == 0
    assert answer.out.count("unchanged ") == 1 + len(NAMES) + len(ALIASES)
    assert {path.name: path.lstat().st_mtime_ns for path in (tmp_path / "bin").iterdir()} == {
        name: status.st_mtime_ns for name, status in before.items()
    }


def test_aliases_are_relative_links_to_the_launchers(command: Command, tmp_path: Path) -> None:
    answer = command("install", "--prefix", tmp_path, "--aliases")
    assert answer.status == 0
    links = {path.name: os.readlink(path) for path in (tmp_path / "bin").iterdir() if path.is_symlink()}
    assert set(links) == ALIASES
    assert links["nvidia-container-runtime"] == "gpu-oci-runtime"
    assert set(links.values()) == NAMES


def test_an_older_launcher_is_replaced_and_its_mode_mended(command: Command, tmp_path: Path) -> None:
    command("install", "--prefix", tmp_path)
    old = tmp_path / "bin/gpu-oci-runtime"
    text = old.read_bytes()
    old.write_bytes(b"#!/old -IS\n" + program_names.LAUNCHER_MARKER + b"\n")
    (tmp_path / "bin/gpu-oci-hook").chmod(0o600)
    answer = command("install", "--prefix", tmp_path)
    assert f"replaced {old}\n" in answer.out and "made executable" in answer.out
    assert old.read_bytes() == text and os.access(tmp_path / "bin/gpu-oci-hook", os.X_OK)


def test_other_users_can_run_the_launchers_whatever_the_umask(command: Command, tmp_path: Path) -> None:
    old_umask = os.umask(0o077)
    try:
        assert command("install", "--prefix", tmp_path / "prefix").status == 0
        assert os.umask(0o077) == 0o077
    finally:
        os.umask(old_umask)
    paths = [tmp_path / "prefix", *(tmp_path / "prefix").rglob("*")]
    assert {path.name: path.stat().st_mode & 0o777 for path in paths} == {path.name: 0o755 for path in paths}


def test_the_launchers_are_among_the_paths_that_other_users_must_reach(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find_closed_directory(paths: list[str]) -> list[str]:
        return [f"closed: {path}" for path in paths if path.startswith(str(tmp_path))]

    monkeypatch.setattr(install_command, "find_unreachable_paths", find_closed_directory)
    warnings = command("install", "--prefix", tmp_path).err
    for launcher in ("bin/gpu-oci-runtime", "libexec/gpu-oci-hook/gpu-oci-runtime"):
        assert f"warning: closed: {tmp_path / launcher}\n" in warnings


def test_not_even_force_replaces_a_directory_and_then_nothing_is_written(command: Command, tmp_path: Path) -> None:
    (tmp_path / "bin/gpu-oci-hook").mkdir(parents=True)
    answer = command("install", "--prefix", tmp_path, "--force")
    assert (answer.status, answer.out) == (1, "")
    assert (
        answer.err
        == f"gpu-oci-hook: {tmp_path}/bin/gpu-oci-hook: it is a directory; nothing was changed. Remove it first\n"
    )
    assert [path.name for path in (tmp_path / "bin").iterdir()] == ["gpu-oci-hook"]


def test_a_prefix_that_is_a_link_to_nowhere_is_no_directory(command: Command, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    answer = command("install", "--prefix", tmp_path / "link")
    assert answer.err == f"gpu-oci-hook: --prefix {tmp_path}/link: not a directory\n"


@pytest.mark.parametrize("kind", ["file", "link", "directory", "fifo"])
@pytest.mark.parametrize("name", ["gpu-oci-hook", "nvidia-cdi-hook"])
def test_a_foreign_file_is_left_alone_and_nothing_is_written(
    command: Command, tmp_path: Path, kind: str, name: str
) -> None:
    (tmp_path / "bin").mkdir()
    path = tmp_path / "bin" / name
    if kind == "file":
        path.write_text("#!/bin/sh\n")
    elif kind == "link":
        path.symlink_to("/usr/bin/true")
    elif kind == "directory":
        path.mkdir()
    else:
        os.mkfifo(path)
    answer = command("install", "--prefix", tmp_path, "--aliases")
    assert answer.status == 1
    assert (
        answer.err.startswith(f"gpu-oci-hook: {path}: gpu-oci-hook did not write this file") and "--force" in answer.err
    )
    assert [one.name for one in (tmp_path / "bin").iterdir()] == [name]


def test_force_replaces_a_foreign_file_but_not_through_a_link(command: Command, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "bin/gpu-oci-hook").symlink_to(tmp_path / "victim")
    answer = command("install", "--prefix", tmp_path, "--force")
    assert answer.status == 0
    assert (tmp_path / "victim").read_text() == "mine"
    assert not (tmp_path / "bin/gpu-oci-hook").is_symlink()


def test_a_broken_config_does_not_break_install(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "c.toml").write_text("curl -fsSL https://example.com | sh")
    monkeypatch.setenv("GPU_OCI_HOOK_CONFIG", str(tmp_path / "c.toml"))
    assert command("install", "--prefix", tmp_path).status == 0


def test_a_relative_prefix_is_taken_from_the_current_directory(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert f"wrote {tmp_path}/here/bin/gpu-oci-hook" in command("install", "--prefix", "here").out


def test_an_empty_prefix_is_a_sentence(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    answer = command("install", "--prefix", "")
    assert (answer.status, answer.err.partition(".")[0]) == (2, "gpu-oci-hook: --prefix is empty")
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_compiled_is_a_warning_with_the_user_who_can(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(install_command.compileall, "compile_dir", lambda *_, **__: False)
    owner = Path(install_command.__file__).parents[1].stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    answer = command("install", "--prefix", tmp_path)
    assert answer.status == 0 and "is up to date" not in answer.out
    (warning,) = [line for line in answer.err.splitlines() if "byte code" in line]
    assert warning.startswith("warning: the Python byte code of ") and warning.endswith(
        "is not up to date, and this user cannot write it: every start compiles it again and is slower; "
        f"run gpu-oci-hook install as user {owner}, who owns it"
    )


def test_compiled_code_that_this_user_cannot_write_is_up_to_date(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command("install", "--prefix", tmp_path)

    def refuse(path: str, content: bytes, *, mode: int) -> None:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(install_command, "replace_file", refuse)
    answer = command("install", "--prefix", tmp_path)
    assert "byte code" not in answer.err and "Python byte code of " in answer.out


def test_places_that_keep_other_users_from_running_the_launchers_are_named() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        home, program = Path(name), Path(name) / "bin/python3"
        program.parent.mkdir(mode=0o755)
        program.write_text("")
        for path, mode, program_mode in ((home, 0o700, 0o755), (program, 0o755, 0o750)):
            home.chmod(mode)
            program.chmod(program_mode)
            (sentence,) = find_unreachable_paths([str(program)])
            expected = f"{path} has mode {path.stat().st_mode & 0o7777:04o}, so other users cannot run {program}: "
            assert sentence.startswith(expected)
        program.chmod(0o755)
        assert find_unreachable_paths([str(program)]) == []


def test_a_prefix_that_cannot_be_written_is_a_sentence(command: Command, tmp_path: Path) -> None:
    (tmp_path / "bin").write_text("")
    answer = command("install", "--prefix", tmp_path)
    assert answer.status == 1
    assert answer.err == f"gpu-oci-hook: {tmp_path}/bin: not a directory\n"
    answer = command("install", "--prefix", tmp_path / "bin")
    assert (answer.status, answer.err) == (1, f"gpu-oci-hook: --prefix {tmp_path}/bin: not a directory\n")
    answer = command("install", "--prefix", "/proc/foo")
    assert (answer.status, answer.err) == (1, "gpu-oci-hook: --prefix /proc/foo: no file can be created there\n")


def base(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setattr(sys, "_base_executable", path, raising=False)


def test_an_interpreter_with_a_long_path_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("d" * 120) / "python3"
    deep.parent.mkdir()
    deep.write_text("")
    deep.chmod(0o755)
    base(monkeypatch, str(deep))
    with pytest.raises(Fault, match="too long for a script's first line \\(127 characters\\)"):
        launchers.find_interpreter()


def test_an_interpreter_with_a_blank_in_its_path_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my python").write_text("")
    (tmp_path / "my python").chmod(0o755)
    base(monkeypatch, str(tmp_path / "my python"))
    with pytest.raises(Fault, match="blank"):
        launchers.find_interpreter()


def test_an_interpreter_that_cannot_be_run_or_is_relative_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    base(monkeypatch, "/etc/passwd")
    with pytest.raises(Fault, match="not executable"):
        launchers.find_interpreter()
    base(monkeypatch, "python3")
    with pytest.raises(Fault, match="absolute path"):
        launchers.find_interpreter()


def test_an_interpreter_that_cannot_load_the_shim_is_refused(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base(monkeypatch, "/bin/false")
    answer = command("install", "--prefix", tmp_path)
    assert answer.status == 1 and "cannot run gpu-oci-runtime" in answer.err
    assert not (tmp_path / "bin").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="chown needs root")
def test_root_is_warned_of_places_where_others_could_write(tmp_path: Path) -> None:
    good = tmp_path / "good"
    good.mkdir(mode=0o755)
    assert not [text for text in find_insecure_paths([str(good)]) if str(good) in text]
    for name, uid, gid, mode, why in (
        ("users", 1000, 0, 0o755, "belongs to user 1000"),
        ("all", 0, 0, 0o777, "can be written by every user"),
        ("group", 0, 50, 0o775, "can be written by group 50"),
    ):
        path = tmp_path / name
        path.mkdir()
        path.chmod(mode)
        os.chown(path, uid, gid)
        (path / "below").mkdir()
        texts = [text for text in find_insecure_paths([str(path / "below")]) if text.startswith(f"{path} ")]
        assert len(texts) == 1 and why in texts[0] and "as root" in texts[0]


def test_packaging_shows_the_templates_that_install_uses() -> None:
    for name in NAMES:
        text = (ROOT / "packaging/launchers" / f"{name}.in").read_bytes()
        assert program_names.LAUNCHER_MARKER in text and text.startswith(b"#!@PYTHON@ -ISXutf8\n")
