"""What holds for every command: help, exit statuses, one line for a failure."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from gpu_oci_hook import VERSION, cli
from gpu_oci_hook.errors import Fault
from support.command_line import Command


def test_help_names_every_command(command: Command) -> None:
    answer = command("--help")
    assert answer.status == 0
    for name in ("list", "explain", "apply", "simulate", "config", "install"):
        assert f"\n  {name} " in answer.out


def test_the_version_is_the_packages(command: Command) -> None:
    assert command("--version").out == f"gpu-oci-hook, version {VERSION}\n"


@pytest.mark.parametrize(
    "words", [["nope"], ["config", "show", "--format", "yaml"], ["--nope"], ["explain", "--format", "yaml"]]
)
def test_a_wrong_command_line_exits_2_and_says_how_to_get_help(command: Command, words: list[str]) -> None:
    answer = command(*words)
    assert answer.status == 2
    assert "Usage: gpu-oci-hook" in answer.err and answer.out == ""


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (Fault("it broke", where="/x", hint="Mend it"), "gpu-oci-hook: /x: it broke. Mend it\n"),
        (Fault("a\nb\x1b[31m"), "gpu-oci-hook: a\\nb\\x1b[31m\n"),
        (PermissionError(13, "Permission denied", "/x"), "gpu-oci-hook: /x: this user may not read it\n"),
        (OSError(28, "No space left on device"), "gpu-oci-hook: the disk is full\n"),
    ],
)
def test_a_failure_is_one_line_and_exit_status_1(
    command: Command, monkeypatch: pytest.MonkeyPatch, error: Exception, line: str
) -> None:
    from gpu_oci_hook.cli.root_command import root_command

    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr(root_command, "main", fail)
    answer = command("list")
    assert (answer.status, answer.out, answer.err) == (1, "", line)


def test_a_mistake_of_ours_is_one_line_with_its_place(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpu_oci_hook.cli.root_command import root_command

    def fail(**_: object) -> None:
        raise KeyError("x")

    monkeypatch.setattr(root_command, "main", fail)
    answer = command("list")
    assert answer.status == 1
    assert answer.err.startswith("gpu-oci-hook: internal error: KeyError at ")
    assert answer.err.count("\n") == 1


@pytest.mark.parametrize("name", ["/usr/bin/nvidia-container-runtime-hook", "nvidia-container-runtime-hook"])
def test_a_hook_alias_says_that_the_runtime_does_the_work(command: Command, name: str) -> None:
    answer = command("prestart", name=name)
    assert answer.status == 1
    assert "docker run --runtime gpu-oci" in answer.err
    assert '"default-runtime": "gpu-oci" in /etc/docker/daemon.json' in answer.err


def test_a_missing_library_is_a_sentence(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "gpu_oci_hook.cli.root_command", raising=False)
    monkeypatch.setitem(sys.modules, "click", None)
    answer = command("list")
    assert answer.status == 1
    assert answer.err == ("gpu-oci-hook: the command line needs the Python package click. Install it for this Python\n")


def test_a_reader_that_leaves_early_causes_no_complaint() -> None:
    code = "from gpu_oci_hook.cli import main; main(['config', 'default'])"
    read, write = os.pipe()
    os.close(read)
    run = subprocess.run([sys.executable, "-c", code], stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert run.stderr == "" and run.returncode == 1


@pytest.mark.parametrize("words", [["list"], ["config", "default"], ["--help"]])
def test_an_output_that_takes_nothing_is_one_sentence(words: list[str]) -> None:
    code = f"from gpu_oci_hook.cli import main; main({words!r})"
    with open("/dev/full", "w") as full:
        run = subprocess.run([sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, text=True)
    assert run.returncode == 1 and run.stderr.count("\n") == 1
    assert run.stderr.startswith("gpu-oci-hook: ") and "the disk is full" in run.stderr


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-"])
def test_a_closed_output_is_one_sentence_or_none(closed: str) -> None:
    code = "from gpu_oci_hook.cli import main; main(['list'])"
    run = subprocess.run(["sh", "-c", f'"$0" -c "$1" {closed}', sys.executable, code], capture_output=True, text=True)
    said = "" if "2>" in closed else "gpu-oci-hook: standard output is closed, so there is nowhere to print to\n"
    assert (run.returncode, run.stdout, run.stderr) == (1, "", said)


def test_main_exits_with_the_status(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["config", "default"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("# Configuration of gpu-oci-hook")


@pytest.mark.parametrize("words", [("hook", "--help"), ("hook", "create-container", "--help"), ("hook", "-h")])
def test_a_person_who_asks_about_the_hook_is_told(command: Command, words: tuple[str, ...]) -> None:
    answer = command(*words)
    assert answer.status == 0 and "Not meant to be run by hand" in " ".join(answer.out.split())
