"""`configure`: what it prints, its exit statuses, and command lines that mean nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_oci_hook.cli import configure_command, runtime_launcher
from gpu_oci_hook.engines import change_record, engine_program
from gpu_oci_hook.formats.program_names import LAUNCHER_MARKER
from support.command_line import Command

DIFF = """\
--- a/{file}
+++ b/{file}
@@ -1,3 +1,8 @@
 {{
-  "debug": true
+  "debug": true,
+  "runtimes": {{
+    "gpu-oci": {{
+      "path": "{launcher}"
+    }}
+  }}
 }}
"""


@pytest.fixture
def launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed launcher, records of the test's own, and no engine on this machine."""
    path = tmp_path / "bin/gpu-oci-runtime"
    path.parent.mkdir()
    path.write_bytes(b"#!/bin/sh\n" + LAUNCHER_MARKER + b"\n")
    path.chmod(0o755)
    for module in (engine_program, runtime_launcher):
        monkeypatch.setattr(module, "STANDARD_DIRECTORIES", (str(path.parent),))
    monkeypatch.setattr(change_record, "SYSTEM_DIRECTORY", str(tmp_path / "state/configure"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return path


@pytest.fixture
def file(tmp_path: Path, launcher: Path) -> Path:
    path = tmp_path / "daemon.json"
    path.write_text('{\n  "debug": true\n}\n')
    return path


def test_dry_run_prints_the_diff_and_changes_nothing(command: Command, file: Path, launcher: Path) -> None:
    before = file.read_bytes()
    answer = command("configure", "docker", "--file", file, "--dry-run")
    assert (answer.status, answer.err) == (0, "")
    assert answer.out == DIFF.format(file=str(file).lstrip("/"), launcher=launcher)
    assert file.read_bytes() == before and not (file.parent / "state").exists()


def test_set_up_check_and_undo_say_what_they_did(command: Command, file: Path) -> None:
    words = ("configure", "docker", "--file", str(file))
    before = file.read_bytes()
    answer = command(*words, "--check")
    assert (answer.status, answer.out) == (3, f"docker: not set up ({file})\n")
    answer = command(*words)
    assert answer.status == 0
    assert answer.out.splitlines() == [
        f"docker: wrote {file} (checked as JSON, there is no dockerd here)",
        "next: systemctl reload docker. Running containers go on.",
    ]
    assert command(*words, "--check").out == f"docker: set up ({file})\n"
    assert command(*words).out == f"docker: set up already: {file}\n"
    answer = command(*words, "--undo")
    assert answer.out.splitlines() == [
        f"docker: restored {file} (checked as JSON, there is no dockerd here)",
        "next: systemctl restart docker. It stops running containers unless docker has live-restore.",
    ]
    assert file.read_bytes() == before
    assert command(*words, "--undo").out == f"docker: nothing of ours is in {file}\n"
    assert command(*words, "--check").status == 3


def test_quiet_prints_nothing_but_what_was_asked_for(command: Command, file: Path) -> None:
    words = ("configure", "docker", "--file", str(file), "-q")
    assert (command(*words).out, command(*words, "--undo").out) == ("", "")


def test_drift_has_an_exit_status_of_its_own(command: Command, file: Path, launcher: Path) -> None:
    words = ("configure", "docker", "--file", str(file))
    command(*words, "--set-default")
    file.write_text(file.read_text().replace('"default-runtime": "gpu-oci"', '"default-runtime": "runc"'))
    answer = command(*words, "--check")
    assert (answer.status, answer.out) == (4, f"docker: drifted ({file})\n")
    assert command(*words).status == 0
    assert command(*words, "--check").status == 0
    launcher.unlink()
    answer = command(*words, "--check")
    assert (answer.status, answer.out) == (4, f"docker: drifted ({file})\n")
    assert answer.err == (
        f"warning: {launcher} is missing or not a launcher of gpu-oci-hook; run gpu-oci-hook install\n"
    )


def test_the_name_nvidia_gets_the_alias_that_other_programs_look_for(
    command: Command, file: Path, launcher: Path
) -> None:
    words = ("configure", "docker", "--file", str(file), "--name", "nvidia")
    alias = launcher.parent / "nvidia-container-runtime"
    alias.symlink_to("gpu-oci-runtime")
    assert command(*words).status == 0
    assert f'"path": "{alias}"' in file.read_text()


def test_a_wrong_file_is_refused_by_line(command: Command, file: Path) -> None:
    file.write_text('{\n  "debug": true,\n  # why\n}\n')
    for words in ((), ("--check",), ("--dry-run",)):
        answer = command("configure", "docker", "--file", file, *words)
        assert answer.status == 1
        assert answer.err.startswith(f"gpu-oci-hook: {file}:3:3: not JSON: ") and answer.err.count("\n") == 1


def test_without_a_launcher_nothing_is_written(command: Command, file: Path, launcher: Path) -> None:
    launcher.write_text("#!/bin/sh\n")
    before = file.read_bytes()
    answer = command("configure", "docker", "--file", file)
    assert answer.status == 1 and "gpu-oci-runtime is not installed" in answer.err
    assert answer.err.endswith("Run gpu-oci-hook install first\n")
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (("dokcer",), 2, 'unknown engine "dokcer". Did you mean docker?'),
        (("docker", "--check", "--undo"), 2, "--check changes nothing"),
        (("docker", "--dry-run", "--restart"), 2, "--dry-run changes nothing"),
        (("docker", "--undo", "--name", "x"), 2, "--undo takes back what was set up"),
        (("--file", "/x"), 2, "--file belongs to one engine"),
        (("docker", "--name", "runc"), 2, "--name runc: the engine has a runtime of this name already"),
        (("docker", "--name", "My_Runtime"), 2, "--name My_Runtime: not a name that every engine takes"),
        (("docker", "--runtime", "gpu-oci-runtime"), 2, "--runtime gpu-oci-runtime: not an absolute path"),
        (("docker", "--runtime", "/dev/null"), 1, "--runtime /dev/null: cannot be used: it is not a regular file"),
        ((), 1, "none of these engines is installed: "),
    ],
)
def test_a_command_line_that_means_nothing_is_one_sentence(
    command: Command, file: Path, words: tuple[str, ...], status: int, message: str
) -> None:
    more = ("--file", file) if words and "--file" not in words else ()
    answer = command("configure", *words, *more)
    assert answer.status == status and message in answer.err, answer.err


def test_several_engines_are_not_changed_without_a_yes(command: Command, file: Path, launcher: Path) -> None:
    """The diff is shown, and without a terminal nobody can answer."""
    dockerd = launcher.parent / "dockerd"
    dockerd.write_text("#!/bin/sh\necho Docker version 20.10.24\n")
    dockerd.chmod(0o755)
    before = Path("/etc/docker/daemon.json").exists()
    answer = command("configure")
    assert answer.status == 1 and "nothing was changed: there is no terminal to ask on" in answer.err
    assert '+    "gpu-oci": {' in answer.out
    assert Path("/etc/docker/daemon.json").exists() == before


@pytest.mark.parametrize(
    ("script", "status", "message"),
    [
        ("echo no unit >&2; exit 5", 1, "the file is written, but the engine does not use it yet: no unit"),
        ("exit 0", 0, "docker: knows the runtime gpu-oci"),
    ],
)
def test_restart_runs_the_command_and_asks_the_engine(
    command: Command,
    file: Path,
    launcher: Path,
    monkeypatch: pytest.MonkeyPatch,
    script: str,
    status: int,
    message: str,
) -> None:
    for name, content in (("systemctl", script), ("docker", """echo '{"gpu-oci": {"path": "x"}, "runc": {}}'""")):
        (launcher.parent / name).write_text(f"#!/bin/sh\n{content}\n")
        (launcher.parent / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(launcher.parent))
    answer = command("configure", "docker", "--file", file, "--restart")
    assert answer.status == status and message in answer.out + answer.err
    assert "gpu-oci" in file.read_text()


def test_an_engine_that_runs_without_our_runtime_is_a_failure(
    command: Command, file: Path, launcher: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, content in (("systemctl", "exit 0"), ("docker", "echo '{\"runc\": {}}'")):
        (launcher.parent / name).write_text(f"#!/bin/sh\n{content}\n")
        (launcher.parent / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(launcher.parent))
    answer = command("configure", "docker", "--file", file, "--restart")
    assert answer.status == 1 and "docker runs without the runtime gpu-oci" in answer.err


def test_the_exit_statuses_are_documented() -> None:
    text = (Path(__file__).parents[2] / "docs/commands.md").read_text()
    for status in (configure_command.EXIT_NOT_SET_UP, configure_command.EXIT_DRIFTED):
        assert f"| {status} | " in text
