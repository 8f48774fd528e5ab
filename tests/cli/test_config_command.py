"""`config show|default|validate`."""

from __future__ import annotations

import json
import os
import re
import socket
import tomllib
from pathlib import Path

import pytest

from gpu_oci_hook.config import load
from gpu_oci_hook.config.keys import KEYS
from support.command_line import Command

ROOT = Path(__file__).parents[2]


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "config.toml"
    monkeypatch.delenv("GPU_OCI_HOOK_CONFIG", raising=False)
    monkeypatch.setattr(load, "DEFAULT_PATH", str(path))
    return path


def test_default_prints_the_file_that_the_project_ships(command: Command) -> None:
    assert command("config", "default").out == (ROOT / "config/config.toml").read_text()


def test_the_shipped_file_is_valid(command: Command) -> None:
    path = ROOT / "config/config.toml"
    answer = command("config", "validate", path)
    assert (answer.status, answer.out) == (0, f"{path}: valid\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[host]\nroot = "{0}/none"', "[host] root: {0}/none is not a directory"),
        ('[host]\nroot = "{0}"\ndriver-root = "/none"', "[host] driver-root: {0}/none is not a directory (now)"),
        ('[host]\nroot = "{0}"\nlibrary-paths = ["/none"]', "[host] library-paths: {0}/none is not a directory"),
        (
            '[runtime]\nlow-level = ["docker"]',
            "[runtime] low-level: docker is a program of a container engine, not an OCI runtime such as runc or crun",
        ),
        (
            '[runtime]\nlow-level = ["podman", "/bin/sh"]',
            "[runtime] low-level: podman is a program of a container engine, not an OCI runtime such as runc or crun",
        ),
        (
            '[runtime]\nlow-level = ["/none"]',
            "[runtime] low-level: found none of: /none",
        ),
        ('[[inject.extra]]\npath = "{0}/none"\nrequired = true', "[[inject.extra]] 1: path: {0}/none is missing"),
        ('[inject]\nmps-shm = "{0}/none"', "[inject] mps-shm: {0}/none is not a directory"),
        ('[cdi]\nspec-dirs = ["{0}/none"]', "[cdi] spec-dirs: {0}/none is not a directory"),
        ('[host]\ncsv-directory = "{0}/none"', "[host] csv-directory: {0}/none is not a directory"),
        ('[runtime]\nlog-file = "{0}/none/log"', "[runtime] log-file: the directory {0}/none does not exist"),
        (
            '[request]\nsupported-capabilities = ["utility"]',
            "[request] default-capabilities: compute not among [request] supported-capabilities",
        ),
    ],
)
def test_validate_warns_about_what_this_machine_does_not_have(
    command: Command, file: Path, tmp_path: Path, text: str, said: str
) -> None:
    file.write_text(text.format(tmp_path))
    answer = command("config", "validate")
    warnings = [one for one in answer.out.splitlines() if said.format(tmp_path) in one]
    assert (answer.status, answer.err, answer.out.splitlines()[-1]) == (0, "", f"{file}: valid")
    assert len(warnings) == 1 and re.match(rf"{re.escape(str(file))}:[1-3]: warning: \[", warnings[0])
    assert command("config", "validate", "--strict").status == 1
    assert command("config", "validate", "--quiet").out == ""
    document = json.loads(command("config", "validate", "--format", "json").out)
    assert document["valid"] is True and any(said.format(tmp_path) in one for one in document["warnings"])


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("directory", "{0}/directory is a directory; name a regular file"),
        ("fifo", "{0}/fifo is a FIFO, and its lines are lost while nothing reads it; name a regular file"),
        ("link", "{0}/link is a symbolic link, which is not followed; name a regular file"),
        ("socket", "{0}/socket is a socket; name a regular file"),
        ("file/log", "the directory {0}/file is not a directory"),
        ("none/log", "the directory {0}/none does not exist"),
    ],
)
def test_validate_warns_about_a_log_that_starts_cannot_write(
    command: Command, file: Path, tmp_path: Path, name: str, problem: str
) -> None:
    (tmp_path / "directory").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        file.write_text(f'[runtime]\nlow-level = ["/bin/sh"]\nlog-file = "{tmp_path}/{name}"\n')
        answer = command("config", "validate")
    said = f"{file}:3: warning: [runtime] log-file: {problem.format(tmp_path)}"
    assert (answer.status, answer.out) == (0, f"{said}\n{file}: valid\n")


@pytest.mark.parametrize("path", ["/dev/null", "/dev/full"])
def test_a_character_device_can_be_the_log(command: Command, file: Path, path: str) -> None:
    file.write_text(f'runtime.low-level = ["/bin/sh"]\nruntime.log-file = "{path}"\n')
    assert command("config", "validate").out == f"{file}: valid\n"


def test_nothing_is_warned_about_where_all_is_there(command: Command, file: Path, tmp_path: Path) -> None:
    file.write_text(f"runtime.low-level = ['/bin/sh']\nruntime.log-file = '{tmp_path}/log'\n")
    assert command("config", "validate").out == f"{file}: valid\n"


def test_show_prints_every_value_as_toml_with_its_origin(command: Command, file: Path) -> None:
    file.write_text('[request]\n\nmissing-gpu = "warn"\n')
    answer = command("config", "show")
    assert answer.status == 0
    shown = tomllib.loads(answer.out)
    assert shown["request"]["missing-gpu"] == "warn"
    assert [(t, k) for t in shown for k in shown[t]] == [(t, k) for t, k, _, _ in KEYS]
    by_key = {line.split(" = ")[0]: line.rpartition("  # ")[2] for line in answer.out.split("\n") if " = " in line}
    assert by_key.pop("missing-gpu") == f"{file}:3"
    assert set(by_key.values()) == {"default"}


def test_show_survives_its_own_output(command: Command, file: Path) -> None:
    file.write_text("[host]\nroot = '/tmp/a \"b\" \\ ü'\n[runtime]\nlow-level = ['/opt/x y', 'crun']\n")
    first = command("config", "show").out
    file.write_text(first)
    second = command("config", "show").out
    assert tomllib.loads(first) == tomllib.loads(second)
    assert tomllib.loads(first)["host"]["root"] == '/tmp/a "b" \\ ü'


def test_show_survives_its_own_output_with_added_files(command: Command, file: Path) -> None:
    file.write_text('[[inject.extra]]\npath = "/a"\n[[inject.extra]]\npath = "/b \\"x"\nkind = "library"\n')
    first = command("config", "show").out
    assert tomllib.loads(first)["inject"]["extra"] == [{"path": "/a"}, {"path": '/b "x', "kind": "library"}]
    assert 'extra = [{ path = "/a" }, ' in first and f"# {file}:1" in first
    file.write_text(first)
    assert tomllib.loads(command("config", "show").out) == tomllib.loads(first)


def test_show_without_a_file_prints_the_defaults(command: Command, file: Path) -> None:
    answer = command("config", "show")
    assert answer.out.startswith(f"# {file} is missing; using defaults\n")
    assert answer.status == 0
    data = json.loads(command("config", "show", "--format", "json").out)
    assert data["schema"] == "gpu-oci-hook.config/1" and data["path"] is None
    assert data["values"]["runtime"]["low-level"] == {"value": ["runc", "crun"], "origin": "default"}


def test_show_as_json_carries_value_and_origin(command: Command, file: Path) -> None:
    file.write_text("inject = {sockets = false}\n")
    data = json.loads(command("config", "show", "--format", "json").out)
    assert data["path"] == str(file)
    assert data["values"]["inject"]["sockets"] == {"value": False, "origin": f"{file}:1"}
    assert data["values"]["inject"]["firmware"] == {"value": True, "origin": "default"}


def test_show_takes_another_file_and_warns_about_unknown_keys(command: Command, tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text("[inject]\nsocket = false\n")
    answer = command("config", "show", "--config", other)
    assert answer.status == 0
    assert answer.err == f"warning: {other}:2: [inject] socket: unknown key; did you mean sockets?\n"


def test_validate_lists_every_finding_and_exits_1(command: Command, file: Path) -> None:
    file.write_text("[request]\nenv = 3\n[inject]\nno-cgroups = true\n")
    answer = command("config", "validate")
    assert answer.status == 1
    assert answer.out.split("\n") == [
        f"{file}:2: error: [request] env: must be a string, not the number 3",
        f"{file}:4: warning: [inject] no-cgroups: unknown key: decided per container; remove it",
        "",
    ]


def test_validate_shows_a_syntax_error_with_line_and_caret(command: Command, file: Path) -> None:
    file.write_text("[runtime]\nlog-level = = 'info'\n")
    answer = command("config", "validate")
    assert answer.status == 1 and answer.err == ""
    assert answer.out == (f"{file}:2:13: error: not TOML: invalid value\n  log-level = = 'info'\n              ^\n")
    shown = command("config", "show")
    assert shown.err == "gpu-oci-hook: " + answer.out.replace("error: ", "")


def test_an_unknown_key_is_a_warning_that_fails_only_a_strict_check(command: Command, file: Path) -> None:
    file.write_text("[host]\nrooot = '/'\n")
    answer = command("config", "validate")
    lines = answer.out.splitlines()
    assert lines[0] == f"{file}:2: warning: [host] rooot: unknown key; did you mean root?"
    assert (answer.status, answer.err, lines[-1]) == (0, "", f"{file}: valid")
    assert json.loads(command("config", "validate", "-o", "json").out)["findings"][0]["level"] == "warning"
    assert command("config", "validate", "--quiet").out == ""
    strict = command("config", "validate", "--strict", "--quiet")
    assert (strict.status, strict.out.splitlines()[0]) == (1, lines[0]), "the reason of the status is always printed"


def test_validate_takes_the_file_as_the_other_commands_do(command: Command, tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text("[request]\nenv = 3\n")
    answers = [command("config", "validate", *words) for words in ((other,), ("--config", other))]
    assert answers[0] == answers[1] and answers[0].status == 1 and f"{other}:2: error: " in answers[0].out
    assert command("config", "validate", "--config", other, "x.toml").status == 2


def test_validate_as_json_holds_findings_with_places(command: Command, file: Path) -> None:
    file.write_text("[host]\nroot = 'x'\n")
    answer = command("config", "validate", "--format", "json")
    assert answer.status == 1
    assert json.loads(answer.out) == {
        "schema": "gpu-oci-hook.config-findings/1",
        "path": str(file),
        "valid": False,
        "warnings": [],
        "findings": [
            {
                "level": "error",
                "key": "host.root",
                "line": 2,
                "column": 0,
                "kind": "wrong",
                "what": '"x" is not an absolute path',
            }
        ],
    }
    file.write_text("x")
    answer = command("config", "validate", "--format", "json")
    assert answer.status == 1
    (finding,) = json.loads(answer.out)["findings"]
    assert (finding["kind"], finding["line"], finding["column"]) == ("unreadable", 1, 2)
    file.write_text("")
    assert json.loads(command("config", "validate", "--format", "json").out)["valid"] is True


def test_validate_of_a_named_file_that_is_missing_fails_and_of_the_default_place_does_not(
    command: Command, file: Path
) -> None:
    answer = command("config", "validate", file)
    assert (answer.status, answer.err) == (1, f"gpu-oci-hook: {file}: no such file\n")
    answer = command("config", "validate")
    assert (answer.status, answer.out) == (0, f"{file} is missing; using defaults\n")


def test_a_wrong_file_keeps_show_from_showing(command: Command, file: Path) -> None:
    file.write_text("[request]\nenv = 3\n")
    answer = command("config", "show")
    assert answer.status == 1 and answer.out == ""
    assert answer.err == f"gpu-oci-hook: {file}:2: [request] env: must be a string, not the number 3\n"
