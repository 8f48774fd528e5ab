"""What holds for every command: help, exit statuses, one line for a failure."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml

from gpu_oci_hook import VERSION, cli
from gpu_oci_hook.cli.root_command import root_command
from gpu_oci_hook.errors import Fault
from support.command_line import Command, read_json


def test_help_names_every_command(command: Command) -> None:
    answer = command("--help")
    assert answer.status == 0
    for name in ("list", "explain", "apply", "simulate", "config", "install"):
        assert f"\n  {name} " in answer.out


def test_the_version_is_the_packages(command: Command) -> None:
    assert command("--version").out == f"gpu-oci-hook version {VERSION}\n"


@pytest.mark.parametrize(
    ("words", "problem", "see"),
    [
        (["nope"], "unknown command nope", ""),
        (["lst"], "unknown command lst. Did you mean list?", ""),
        (["explian"], "unknown command explian. Did you mean explain?", ""),
        (["generate"], "unknown command generate. Did you mean cdi generate?", ""),
        (["validate"], "unknown command validate. Did you mean cdi validate or config validate?", ""),
        (["cdi", "lsit"], "unknown command lsit. Did you mean list?", " cdi"),
        (["config", "validat"], "unknown command validat. Did you mean validate?", " config"),
        (["--nope"], "unknown option --nope", ""),
        (["list", "--fromat", "json"], "unknown option --fromat. Did you mean --format?", " list"),
        (["list", "--no-nvlm"], "unknown option --no-nvlm. Did you mean --no-nvml?", " list"),
        (["list", "-o", "jsn"], '--output/--format: "jsn" is not one of text, json, yaml. Did you mean json?', " list"),
        (["list", "--root"], "option --root needs a value", " list"),
        (["cdi", "list", "--root"], "option --root needs a value", " cdi list"),
        (["list", "--nvml=3"], "option --nvml takes no value", " list"),
        (["list", "extra"], "unexpected argument extra", " list"),
        (["simulate"], "missing argument DIRECTORY", " simulate"),
        (
            ["simulate", "x", "--driver", "latest"],
            "invalid driver version 'latest'. Give a version such as 550.163.01",
            " simulate",
        ),
        (["simulate", "x", "--mig", "99"], '"99" does not fit a GPU. Use at most its 7 slices', " simulate"),
        (
            ["list", "--driver-root", "x"],
            "--driver-root x: not an absolute path. Give its path as seen from the host root",
            " list",
        ),
        (["simulate", "x", "--arch", "mips"], '--arch: "mips" is not one of x86_64, aarch64', " simulate"),
        (["explain", "--pid", "json"], '--pid: "json" is not a whole number of at least 1', " explain"),
        (["explain", "--pid", "0"], '--pid: "0" is not a whole number of at least 1', " explain"),
        (["attach", "--pid", "it's 1.5"], '--pid: "it\'s 1.5" is not a whole number of at least 1', " attach"),
        (["simulate", "x", "--imex", "9999"], '--imex: "9999" is not a whole number from 0 to 2048', " simulate"),
        (["simulate", "x", "--gpus", "-3"], '--gpus: "-3" is not a whole number of at least 0', " simulate"),
        (["cdi", "refresh", "--interval", "x"], '--interval: "x" is not a number from 0.1 to 86400', " cdi refresh"),
        (["cdi", "refresh", "--interval", "0"], '--interval: "0.0" is not a number from 0.1 to 86400', " cdi refresh"),
        (
            ["cdi", "refresh", "--interval", "nan"],
            '--interval: "nan" is not a number from 0.1 to 86400',
            " cdi refresh",
        ),
        (
            ["cdi", "refresh", "--interval", "inf"],
            '--interval: "inf" is not a number from 0.1 to 86400',
            " cdi refresh",
        ),
        (["cdi", "refresh", "--output", "-"], "--output: refresh needs a file, not standard output", " cdi refresh"),
        (["no\nway"], "unknown command no\\nway", ""),
    ],
)
def test_a_wrong_command_line_is_told_as_a_failure_is_with_the_way_to_the_help(
    command: Command, words: list[str], problem: str, see: str
) -> None:
    answer = command(*words)
    assert (answer.status, answer.out) == (2, "")
    assert answer.err == f"gpu-oci-hook: {problem}\nSee 'gpu-oci-hook{see} --help'\n"


@pytest.mark.parametrize("words", [[], ["cdi"], ["config"]])
def test_no_command_prints_the_help_as_an_error(command: Command, words: list[str]) -> None:
    answer = command(*words)
    assert (answer.status, answer.out) == (2, "")
    assert answer.err.startswith("Usage: gpu-oci-hook") and "Commands:" in answer.err


def test_an_interrupted_command_exits_as_the_signal_does(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gpu_oci_hook.cli.list_command.load_command_config", interrupt)
    assert command("list").status == 130


@pytest.mark.parametrize("words", [[], ["list"], ["cdi"], ["cdi", "generate"]], ids=" ".join)
def test_help_and_version_are_commands_too(command: Command, words: list[str]) -> None:
    assert command("help", *words) == command(*words, "--help")
    assert command("version") == command("--version")
    assert command("help", *words, "nope").status == 2


def test_a_shell_completes_commands_and_options() -> None:
    code = "from gpu_oci_hook.cli import main; main()"
    for line, expected in (("gpu-oci-hook cdi v", "plain,validate"), ("gpu-oci-hook list --fi", "plain,--files")):
        environment = {
            **os.environ,
            "_GPU_OCI_HOOK_COMPLETE": "bash_complete",
            "COMP_WORDS": line,
            "COMP_CWORD": str(line.count(" ")),
        }
        run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
        assert (run.returncode, run.stdout.splitlines()) == (0, [expected]), run.stderr


def test_the_hook_is_not_in_the_help_but_has_its_own(command: Command) -> None:
    assert " hook " not in command("--help").out.partition("Commands:")[2]
    assert "create-container" in command("hook", "--help").out


@pytest.mark.parametrize(
    "words",
    [
        ["list", "--no-nvml"],
        ["explain", "--bundle", "{}"],
        ["simulate", "{}/sim"],
        ["config", "show"],
        ["config", "validate"],
        ["cdi", "list"],
        ["cdi", "resolve", "nvidia.com/gpu=0"],
        ["cdi", "validate", "{}/none.yaml"],
    ],
    ids=lambda words: "-".join(words[:2]),
)
def test_every_command_that_prints_data_prints_the_same_as_json_and_as_yaml(
    command: Command, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GPU_OCI_HOOK_CONFIG", raising=False)
    (tmp_path / "config.json").write_text("{}")
    words = [word.format(tmp_path) for word in words]
    answers = [
        command(*words, option, form)
        for option, form in (("-o", "json"), ("--output", "yaml"), ("--format", "json"), ("--format", "yaml"))
    ]
    as_json, as_yaml = json.loads(answers[0].out), yaml.safe_load(answers[1].out)
    assert as_json == as_yaml
    assert answers[1].out.startswith("schema: gpu-oci-hook.") and "!!" not in answers[1].out
    name = re.fullmatch(r"gpu-oci-hook\.([a-z-]+)/1", as_json["schema"])
    assert name and next(iter(as_yaml)) == "schema"
    read_json(answers[0], name[1])
    assert [answer.out for answer in answers[2:]] == [answer.out for answer in answers[:2]]


def test_quiet_leaves_out_warnings_and_progress_and_keeps_results(command: Command, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("[host]\nzzz = 1\n")
    words = ("config", "show", "--config", str(tmp_path / "config.toml"))
    loud, quiet = command(*words), command(*words, "-q")
    assert "zzz" in loud.err and (quiet.err, quiet.out) == ("", loud.out)
    simulated = command("simulate", str(tmp_path / "host"), "--quiet")
    assert (simulated.status, simulated.out, simulated.err) == (0, "", "")


def list_commands(group: click.Group, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command that the help shows, with the words that call it."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from list_commands(command, (*words, name))
        else:
            yield (*words, name), command


COMMANDS = dict(list_commands(root_command))


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_has_the_common_options_with_the_same_meaning(words: tuple[str, ...]) -> None:
    options = {name: param for param in COMMANDS[words].params for name in param.opts}
    if words != ("config", "default"):
        assert options["-q"] is options["--quiet"]
    assert options.get("-v") is options.get("--verbose")
    writes_file = words in (("cdi", "generate"), ("cdi", "refresh"))
    if "--format" in options and not writes_file:
        assert options["-o"] is options["--output"] is options["--format"]
        choices = options["-o"].type
        assert isinstance(choices, click.Choice) and tuple(choices.choices[:3]) == ("text", "json", "yaml")
    assert COMMANDS[words].help


def test_output_in_a_pipe_and_with_no_color_has_no_escape_sequences(tmp_path: Path) -> None:
    code = "from gpu_oci_hook.cli import main; main(['config', 'show'])"
    piped = subprocess.run([sys.executable, "-c", code], capture_output=True)
    assert b"\x1b" not in piped.stdout
    for no_color in ("", "1"):
        run = ["script", "-qec", f'"{sys.executable}" -c "{code}"', "/dev/null"]
        environment = {**os.environ, "TERM": "xterm", "NO_COLOR": no_color, "GPU_OCI_HOOK_CONFIG": str(tmp_path / "c")}
        (tmp_path / "c").write_text("[host]\nroot = '/'\n")
        shown = subprocess.run(run, capture_output=True, env=environment, stdin=subprocess.DEVNULL)
        assert (b"\x1b[32m" in shown.stdout) == (not no_color), shown.stdout


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


@pytest.mark.parametrize(
    "words", [["list"], ["config", "default"], ["--help"], ["list", "--help"], ["--version"], ["version"]], ids=" ".join
)
def test_an_output_that_takes_nothing_is_one_sentence(words: list[str]) -> None:
    code = f"from gpu_oci_hook.cli import main; main({words!r})"
    with open("/dev/full", "w") as full:
        run = subprocess.run([sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, text=True)
    said = "gpu-oci-hook: standard output: the output cannot be written: the disk is full\n"
    assert (run.returncode, run.stderr) == (1, said)


def test_nvidias_command_line_names_the_output_that_takes_nothing() -> None:
    code = "import sys; sys.argv = ['nvidia-container-cli', '--version']; from gpu_oci_hook.cli import main; main()"
    with open("/dev/full", "w") as full:
        run = subprocess.run([sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, text=True)
    assert run.returncode == 1
    assert run.stderr.endswith("standard output: the output cannot be written: the disk is full\n")


def test_a_deleted_current_directory_is_named(command: Command, tmp_path: Path) -> None:
    host = tmp_path / "host"
    assert command("simulate", str(host)).status == 0
    words = ["cdi", "generate", "--output", "x.yaml", "--no-hook", "--quiet", "--root", str(host)]
    code = f"from gpu_oci_hook.cli import main; main({words!r})"
    (tmp_path / "gone").mkdir()
    run = subprocess.run(
        ["sh", "-c", 'rmdir "$PWD"; "$0" -c "$1"', sys.executable, code],
        cwd=tmp_path / "gone",
        capture_output=True,
        text=True,
    )
    what = "the current directory was deleted. Change to another directory"
    assert (run.returncode, run.stderr) == (1, f"gpu-oci-hook: {what}\n")


def test_errors_that_cannot_be_printed_leave_the_exit_status() -> None:
    code = "from gpu_oci_hook.cli import main; main(['nope'])"
    for env in ({}, {"PYTHONUNBUFFERED": "1"}):  # the buffer is written at exit once more
        with open("/dev/full", "w") as full:
            assert subprocess.run([sys.executable, "-c", code], stderr=full, env=env).returncode == 2


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


@pytest.mark.parametrize(
    "words",
    [
        ("hook", "--help"),
        ("hook", "create-container", "--help"),
        ("hook", "-h"),
        ("prestart", "--help"),
        ("precreate", "-h"),
    ],
)
def test_a_person_who_asks_about_the_hook_is_told(command: Command, words: tuple[str, ...]) -> None:
    answer = command(*words)
    assert answer.status == 0 and "Not meant to be run by hand" in " ".join(answer.out.split())
