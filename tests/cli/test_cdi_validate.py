"""`gpu-oci-hook cdi validate`: every finding of files and directories, as text and as JSON."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from gpu_oci_hook import cli
from gpu_oci_hook.cli import engine_target
from gpu_oci_hook.engines import engine_program
from gpu_oci_hook.simulate import host_tree
from support.command_line import Command

SCHEMA = json.loads((Path(cli.__file__).parent / "cdi-validate.schema.json").read_text())

GOOD = """\
cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices:
- name: "0"
  containerEdits:
    deviceNodes: [{path: /dev/nvidia0}]
"""
# A field that is newer than the version that the file declares.
NEWER = GOOD + "    additionalGids: [44]\n"
NEEDS = "devices[0].containerEdits.additionalGids: this field needs CDI 0.7.0 or later, and the file declares 0.5.0"
READ = "read by docker 25, containerd 1.7, crio 1.26, podman 4.3 or later"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory with a file of each sort."""
    (tmp_path / "a.yaml").write_text(GOOD)
    (tmp_path / "b.json").write_text('{"cdiVersion": "0.3.0",\n "kind": "a.com/bb",\n "kind": "a.com/cc"}')
    (tmp_path / "c.yml").write_text(GOOD)
    (tmp_path / "d.yaml.bak").write_text(GOOD)
    (tmp_path / "e.yaml").mkdir()
    (tmp_path / "e.yaml/inner.yaml").write_text("")
    os.mkfifo(tmp_path / "f.yaml")
    (tmp_path / "g.yaml").symlink_to("g.yaml")
    (tmp_path / "h.yaml").write_text(NEWER)
    for path in tmp_path.glob("[a-d]*"):
        path.chmod(0o644)
    (tmp_path / "h.yaml").chmod(0o600)
    return tmp_path


def document(text: str) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(text)
    jsonschema.validate(parsed, SCHEMA)
    return parsed


def test_a_good_file_is_valid_and_its_readers_are_named(directory: Path, command: Command) -> None:
    answer = command("cdi", "validate", "--no-host", directory / "a.yaml")
    assert (answer.status, answer.err) == (0, "")
    assert answer.out == f"{directory}/a.yaml: valid: 1 device of nvidia.com/gpu, CDI 0.5.0, {READ}\n"


def test_a_file_that_declares_more_than_it_needs_is_told_so(directory: Path, command: Command) -> None:
    (directory / "a.yaml").write_text(GOOD.replace("0.5.0", "0.7.0"))
    answer = command("cdi", "validate", "--no-host", directory / "a.yaml")
    assert "CDI 0.7.0 (needs 0.5.0), read by docker 26.1, " in answer.out and answer.status == 0


def test_every_file_of_a_directory_has_a_line_in_order_and_those_that_engines_ignore_too(
    directory: Path, command: Command
) -> None:
    answer = command("cdi", "validate", "--no-host", directory)
    assert answer.status == 1 and answer.err == ""
    assert answer.out.replace(f"{directory}/", "").splitlines() == [
        f"a.yaml: valid: 1 device of nvidia.com/gpu, CDI 0.5.0, {READ}",
        "b.json:3: error: kind: is present twice: engines refuse the file. Remove one of them",
        "c.yml: info: is ignored by engines, which read only .json and .yaml. Rename it to c.yaml",
        "d.yaml.bak: info: is ignored by engines, which read only .json and .yaml",
        "f.yaml: error: is not a regular file",
        "g.yaml: error: cannot be read: its symbolic links go round in a circle or may not be followed",
        "h.yaml: info: has mode 0600, so rootless engines of other users cannot read it. Run chmod 0644",
        (
            f"h.yaml:7: error: {NEEDS}. "
            "Declare 0.7.0, which docker 26.1, containerd 1.7.16, crio 1.30, podman 5.1 or later read"
        ),
    ]


def test_json_says_the_same(directory: Path, command: Command) -> None:
    answer = command("cdi", "validate", "--no-host", directory, "--format", "json")
    said = document(answer.out)
    assert answer.status == 1 and said["valid"] is False and said["max_version"] is None
    files = {os.path.basename(one["path"]): one for one in said["files"]}
    assert list(files) == ["a.yaml", "b.json", "c.yml", "d.yaml.bak", "f.yaml", "g.yaml", "h.yaml"]
    assert [one["read"] for one in files.values()] == [True, True, False, False, True, True, True]
    assert [one["valid"] for one in files.values()] == [True, False, True, True, False, False, False]
    assert files["a.yaml"]["file"] == {
        "kind": "nvidia.com/gpu",
        "devices": 1,
        "declares": "0.5.0",
        "needs": "0.5.0",
        "needs_because": "devices[0].name: a device name that begins with a digit",
    }
    assert files["b.json"]["file"] is None
    assert files["h.yaml"]["file"]["needs"] == "0.7.0"
    assert [(one["level"], one["line"]) for one in files["h.yaml"]["findings"]] == [("info", 0), ("error", 7)]


def test_a_target_refuses_what_it_cannot_read(directory: Path, command: Command) -> None:
    (directory / "h.yaml").write_text(NEWER.replace("0.5.0", "0.7.0"))
    assert command("cdi", "validate", "--no-host", directory / "h.yaml").status == 0
    assert command("cdi", "validate", "--no-host", directory / "h.yaml", "--target", "docker-26.1").status == 0
    answer = command("cdi", "validate", "--no-host", directory / "h.yaml", "--target", "podman-4.3")
    assert answer.status == 1
    assert "h.yaml:1: error: cdiVersion: podman 4.3 reads CDI up to 0.5.0, and the file declares 0.7.0\n" in answer.out
    needed = "additionalGids: this field needs CDI 0.7.0 or later"
    assert f"{needed}: podman 4.3 refuses the whole file. It can be read by " in answer.out
    assert "valid" not in answer.out


def test_a_greatest_version_does_what_a_target_does(directory: Path, command: Command) -> None:
    path = directory / "h.yaml"
    path.write_text(NEWER.replace("0.5.0", "0.7.0"))
    assert command("cdi", "validate", "--no-host", path, "--max-version", "0.7.0").status == 0
    answer = command("cdi", "validate", "--no-host", path, "--max-version", "0.6.0")
    assert answer.status == 1
    assert "cdiVersion: the file declares CDI 0.7.0, more than --max-version 0.6.0" in answer.out
    # Of both the lesser counts.
    both = ("--max-version", "0.6.0", "--target", "docker-28.3")
    assert command("cdi", "validate", "--no-host", path, *both).out == answer.out
    both = ("--max-version", "0.7.0", "--target", "podman-4.3")
    said = document(command("cdi", "validate", "--no-host", path, *both, "--format", "json").out)
    assert said["max_version"] == "0.5.0"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--target", "podman-3"), "--target: podman 3 does not read CDI files. podman reads them from version 4.1 on"),
        (
            ("--target", "lxc-6"),
            "--target: unknown engine 'lxc-6'. Only charliecloud and gvisor are named without a version. Use one of",
        ),
        (("--max-version", "0.9.0"), '--max-version: "0.9.0" is not a version of CDI. Known are 0.3.0, 0.4.0'),
    ],
)
def test_a_wrong_option_is_a_wrong_command_line(
    directory: Path, command: Command, options: tuple[str, ...], said: str
) -> None:
    answer = command("cdi", "validate", "--no-host", directory, *options)
    assert answer.status == 2 and answer.out == ""
    assert answer.err.startswith(f"gpu-oci-hook: {said}")


def test_a_file_that_engines_ignore_is_checked_when_it_is_named(directory: Path, command: Command) -> None:
    answer = command("cdi", "validate", "--no-host", directory / "c.yml")
    assert answer.status == 0
    assert answer.out.replace(f"{directory}/", "").splitlines() == [
        "c.yml: warning: is ignored by engines, which read only .json and .yaml. Rename it to c.yaml",
        "c.yml: valid: 1 device of nvidia.com/gpu, CDI 0.5.0",
    ]


def test_what_is_not_there_is_an_error_and_the_rest_is_checked(directory: Path, command: Command) -> None:
    answer = command("cdi", "validate", "--no-host", directory / "none.yaml", directory / "a.yaml", "/nonexistent")
    assert answer.status == 1
    lines = answer.out.splitlines()
    assert lines[0] == f"{directory}/none.yaml: error: cannot be read: it is missing"
    assert lines[1].startswith(f"{directory}/a.yaml: valid")
    assert lines[2] == "/nonexistent: error: cannot be read: it is missing"


def test_an_empty_directory_is_fine_and_said_to_be_empty(tmp_path: Path, command: Command) -> None:
    answer = command("cdi", "validate", tmp_path)
    assert (answer.status, answer.out, answer.err) == (0, f"{tmp_path}: info: has no .yaml or .json file\n", "")
    assert document(command("cdi", "validate", "--no-host", tmp_path, "--format", "json").out)["files"] == []


def test_without_a_path_the_configured_directories_are_checked(command: Command, tmp_path: Path) -> None:
    for name, content in (("etc/cdi/a.yaml", GOOD), ("run/mine/b.yaml", "x: 1\n")):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(content)
        (tmp_path / name).chmod(0o644)
    (tmp_path / "etc/link").symlink_to("cdi")
    config = tmp_path / "config.toml"
    config.write_text('[cdi]\nspec-dirs = ["/etc/cdi", "/none", "/etc/link", "/run/mine"]\n')
    words = ("cdi", "validate", "--no-host", "--root", str(tmp_path), "--config", str(config))
    answer = command(*words)
    lines = answer.out.replace(str(tmp_path), "").splitlines()
    assert answer.status == 1 and lines[0].startswith("/etc/cdi/a.yaml: valid: 1 device of nvidia.com/gpu")
    assert lines[1:3] == [
        "/none: info: does not exist",
        "/etc/link: warning: is not a directory, or is a symbolic link: engines do not read it",
    ]
    assert all(line.startswith("/run/mine/b.yaml:") for line in lines[3:]) and len(lines) > 3
    paths = [file["path"] for file in document(command(*words, "-o", "json").out)["files"]]
    assert paths[0].endswith("/etc/cdi/a.yaml") and paths[-1].endswith("/run/mine/b.yaml")


def test_quiet_prints_only_errors_and_verbose_every_finding(directory: Path, command: Command, tmp_path: Path) -> None:
    answer = command("cdi", "validate", "--no-host", directory, "-q")
    assert answer.status == 1 and len(answer.out.splitlines()) == 4
    assert all(": error: " in line for line in answer.out.splitlines())
    path = stale(tmp_path, 52)
    merged = command("cdi", "validate", "--root", tmp_path / "host", path).out.splitlines()
    every = command("cdi", "validate", "--root", tmp_path / "host", path, "--verbose").out.splitlines()
    assert (len(merged), len(every)) == (2, 53) and all(": error: " in line for line in every)


def test_a_warning_fails_only_a_strict_check(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "a.yml"
    path.write_text(GOOD)
    path.chmod(0o644)
    assert command("cdi", "validate", "--no-host", path, "--quiet").out == ""
    for words, status in (((), 0), (("--strict",), 1), (("--strict", "--quiet"), 1)):
        answer = command("cdi", "validate", "--no-host", path, *words)
        assert answer.status == status and f"{path}: warning: is ignored by engines" in answer.out


@pytest.fixture
def fake_podman(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "podman"
    program.write_text("#!/bin/sh\necho podman version 4.3.1+ds1\n")
    program.chmod(0o755)
    for module in (engine_program, engine_target):
        monkeypatch.setattr(module, "STANDARD_DIRECTORIES", ("/nowhere", str(tmp_path)))
    return program


def test_an_engine_without_a_version_is_the_installed_one_and_what_was_read_is_said(
    command: Command, directory: Path, fake_podman: Path
) -> None:
    words = ("cdi", "validate", "--no-host", directory / "h.yaml")
    named, installed = command(*words, "--target", "podman-4.3.1"), command(*words, "--target", "podman")
    assert (installed.status, installed.out) == (named.status, named.out)
    assert installed.err == f"--target podman: podman 4.3.1 is installed here (from {fake_podman} --version)\n"
    assert command(*words, "--target", "podman", "-q").err == ""
    assert document(command(*words, "--target", "podman", "-o", "json").out)["target"] == "podman-4.3.1"


@pytest.mark.parametrize(
    ("content", "mode", "problem"),
    [
        ("#!/bin/sh\necho podman\n", 0o755, "{} --version prints no version"),
        ("#!/bin/sh\necho no home >&2\nexit 1\n", 0o755, "{} --version prints no version: no home"),
        ("#!/bin/sh\nexec /bin/sleep 9\n", 0o755, "{} --version did not end within 0.2 seconds"),
        ("#!/bin/sh\necho 4.3.1\n", 0o777, "{0} can be written by every user, so {0} is not run"),
        ("", 0o644, "podman was not found in /nowhere, {.parent}"),
    ],
)
def test_an_installed_engine_that_cannot_be_asked_is_a_failure_with_a_way_out(
    command: Command, fake_podman: Path, monkeypatch: pytest.MonkeyPatch, content: str, mode: int, problem: str
) -> None:
    monkeypatch.setattr(engine_program, "VERSION_TIME_LIMIT", 0.2 if "sleep" in content else 5.0)
    fake_podman.write_text(content)
    fake_podman.chmod(mode)
    answer = command("cdi", "validate", "--no-host", "--target", "podman", "x.yaml")
    hint = "Name the version as well, such as --target podman-4.1"
    assert (answer.status, answer.out) == (1, "")
    assert answer.err == f"gpu-oci-hook: --target podman: {problem.format(fake_podman)}. {hint}\n"


def test_an_installed_engine_that_reads_no_cdi_files_is_a_failure_of_this_host(
    command: Command, fake_podman: Path
) -> None:
    fake_podman.write_text("#!/bin/sh\necho podman version 3.4.4\n")
    answer = command("cdi", "validate", "--no-host", "--target", "podman", "x.yaml", "-q")
    problem = "podman 3.4.4 does not read CDI files. podman reads them from version 4.1 on"
    assert (answer.status, answer.err) == (1, f"gpu-oci-hook: --target podman: {problem}\n")


@pytest.mark.parametrize(
    ("engine", "printed", "version"),
    [
        ("docker", "Docker version 20.10.24+dfsg1, build 297e128", "20.10.24"),
        ("containerd", "containerd github.com/containerd/containerd/v2 v2.1.9 1a2b3c4", "2.1.9"),
        ("containerd", "containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+b1", "1.6.20"),
        ("crio", "crio version 1.37.0\nVersion: 1.37.0", "1.37.0"),
    ],
)
def test_the_version_is_found_in_what_each_engine_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, printed: str, version: str
) -> None:
    program = tmp_path / engine_target._PROGRAMS[engine]
    program.write_text(f"#!/bin/sh\necho '{printed}'\n")
    program.chmod(0o755)
    monkeypatch.setattr(engine_program, "STANDARD_DIRECTORIES", (str(tmp_path),))
    assert engine_target.read_installed_version(engine) == (str(program), version)


def test_odd_names_and_content_stay_on_one_line(tmp_path: Path, command: Command) -> None:
    path = tmp_path / "a\nb\x1b[31m.yaml"
    path.write_text('"k\\ne\\ey": 1\n')
    answer = command("cdi", "validate", "--no-host", path)
    assert answer.status == 1
    assert "\x1b" not in answer.out
    assert [line.partition(":")[0] for line in answer.out.splitlines()] == [f"{tmp_path}/a\\nb\\x1b[31m.yaml"] * 4
    document(command("cdi", "validate", "--no-host", path, "--format", "json").out)


def test_a_warning_alone_is_no_failure(directory: Path, command: Command) -> None:
    (directory / "a.yaml").write_text(GOOD.replace('"0"', "0777"))
    answer = command("cdi", "validate", "--no-host", directory / "a.yaml")
    assert answer.status == 0
    assert answer.out.splitlines()[0].endswith(
        'a.yaml:4: warning: devices[0].name: 0777 without quotes is read as "511". Put it in quotes'
    )


STALE = """cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices:
- name: "0"
  containerEdits:
    deviceNodes: [{path: /dev/nvidia0}]
containerEdits:
  mounts:
  - hostPath: /usr/lib/x86_64-linux-gnu/libcuda.so.550.54.14
    containerPath: /usr/lib/x86_64-linux-gnu/libcuda.so.550.54.14
    options: [ro, nosuid, nodev, bind]
"""


def test_a_file_of_another_driver_is_an_error_on_this_host(command: Command, tmp_path: Path) -> None:
    host_tree.build_host(tmp_path / "host", driver="555.42.02")
    path = tmp_path / "nvidia.yaml"
    path.write_text(STALE)
    answer = command("cdi", "validate", "--root", tmp_path / "host", path)
    assert answer.status == 1
    assert "the CDI file was written for driver 550.54.14, and the host below " in answer.out
    assert f"gpu-oci-hook cdi generate --output {path}" in answer.out
    where = "containerEdits.mounts[0].hostPath: /usr/lib/x86_64-linux-gnu/libcuda.so.550.54.14"
    assert f"{path}:9: error: {where} is missing on the host below {tmp_path}/host" in answer.out
    assert command("cdi", "validate", "--no-host", path).status == 0


def test_a_host_that_is_not_there_is_a_sentence(command: Command, tmp_path: Path) -> None:
    (tmp_path / "nvidia.yaml").write_text(STALE)
    answer = command("cdi", "validate", "--root", tmp_path / "none", tmp_path / "nvidia.yaml")
    assert answer.status == 1 and "no such directory" in answer.err


@pytest.mark.parametrize(
    "words",
    [(), ("--target", "podman-4.3"), ("--target", "podman-4.3", "--no-hook"), ("--format", "json")],
    ids=["annotation", "hook", "comment", "json"],
)
def test_a_file_that_was_written_incomplete_is_not_plainly_valid(
    command: Command, tmp_path: Path, words: tuple[str, ...]
) -> None:
    host_tree.build_host(tmp_path / "host", gpus=1)
    (tmp_path / "host/dev/nvidia-uvm").rename(tmp_path / "uvm")
    path = tmp_path / ("x.json" if "json" in words else "x.yaml")
    made = ("--root", tmp_path / "host", "--output", path, "--allow-incomplete")
    hook = () if "--no-hook" in words else ("--hook", "/bin/true")
    assert command("cdi", "generate", *made, *hook, *words).status == 0
    answer = command("cdi", "validate", "--root", tmp_path / "host", path)
    assert answer.status == 0 and answer.out.startswith(
        f"{path}: warning: is incomplete, written with --allow-incomplete: /dev/nvidia-uvm is required for compute, "
    )
    assert f". When the host has them, run: gpu-oci-hook cdi refresh --output {path}\n" in answer.out
    (tmp_path / "uvm").rename(tmp_path / "host/dev/nvidia-uvm")
    assert command("cdi", "refresh", "--output", path).out.startswith("wrote ")
    answer = command("cdi", "validate", "--root", tmp_path / "host", path)
    assert answer.status == 0 and answer.out.count("\n") == 1 and answer.out.startswith(f"{path}: valid: ")


def stale(tmp_path: Path, count: int) -> Path:
    """A file of another driver with so many libraries, on a simulated host of this one."""
    host_tree.build_host(tmp_path / "host", driver="555.42.02")
    libraries = [f"/usr/lib/x86_64-linux-gnu/libnvidia-x{number}.so.550.54.14" for number in range(count)]
    mounts = "".join(f"  - {{hostPath: {one}, containerPath: {one}, options: [ro, bind]}}\n" for one in libraries)
    path = tmp_path / "nvidia.yaml"
    path.write_text(f"{GOOD}containerEdits:\n  mounts:\n{mounts}")
    path.chmod(0o644)
    return path


def test_a_driver_that_was_upgraded_is_two_lines_and_one_hint_however_many_paths_are_gone(
    command: Command, tmp_path: Path
) -> None:
    path = stale(tmp_path, 52)
    answer = command("cdi", "validate", "--root", tmp_path / "host", path)
    assert answer.status == 1
    first, second = answer.out.splitlines()
    assert first.startswith(
        f"{path}:1: error: the CDI file was written for driver 550.54.14, and the host below {tmp_path}/host runs "
        "555.42.02, 52 missing paths. Reg"
    )
    assert second == (
        f"{path}:9: error: containerEdits.mounts[0].hostPath: /usr/lib/x86_64-linux-gnu/libnvidia-x0.so.550.54.14 "
        f"is missing on the host below {tmp_path}/host (and 51 more paths)"
    )
    answer = command("cdi", "validate", "--root", tmp_path / "host", path, "--format", "json")
    found = document(answer.out)["files"][0]["findings"]
    assert len(found) == 53 and all(one["cure"] for one in found), "programs get all of it"


def test_what_an_engine_cannot_read_in_ten_devices_is_told_once(command: Command, tmp_path: Path) -> None:
    device = "- name: d{}\n  containerEdits: {{env: [A=1], additionalGids: [44]}}\n"
    path = tmp_path / "a.yaml"
    path.write_text(f"cdiVersion: 0.7.0\nkind: a.com/bb\ndevices:\n{''.join(map(device.format, range(10)))}")
    path.chmod(0o644)
    answer = command("cdi", "validate", "--no-host", path, "--target", "podman-4.3")
    version, field = answer.out.splitlines()
    assert "cdiVersion: podman 4.3 reads CDI up to 0.5.0, and the file declares 0.7.0" in version
    needed = "devices[0].containerEdits.additionalGids: this field needs CDI 0.7.0 or later"
    assert f"{needed}: podman 4.3 refuses the whole file" in field
    assert "(and 9 more locations). It can be read by " in field


@pytest.mark.parametrize("option", ["--target podman-4.3", "--max-version 0.5.0"])
def test_a_file_of_ours_that_an_engine_cannot_read_is_told_the_command_that_writes_one_that_it_can(
    command: Command, tmp_path: Path, option: str
) -> None:
    path = tmp_path / "nvidia.yaml"
    path.write_text("# gpu-oci-hook hook create-container\n" + NEWER.replace("0.5.0", "0.7.0"))
    path.chmod(0o644)
    answer = command("cdi", "validate", "--no-host", path, *option.split())
    assert answer.out.count(f"Regenerate it: gpu-oci-hook cdi generate {option} --output {path}") == 1
    assert "It can be read by" not in answer.out


def test_a_mount_that_no_runtime_makes_is_an_error_with_its_line(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(
        f"{GOOD}    mounts:\n    - {{hostPath: /etc, containerPath: /x, options: [ro]}}\n"
        "    - {hostPath: tmpfs, containerPath: /t, type: tmpfs}\n"
        "    - {hostPath: /etc, containerPath: /y, type: bind}\n"
    )
    path.chmod(0o644)
    answer = command("cdi", "validate", "--no-host", path)
    assert answer.status == 1
    assert answer.out == (
        f"{path}:8: error: devices[0].containerEdits.mounts[0]: has neither bind nor rbind in its options, so runtimes "
        "do not mount it and the container does not start (and 1 more location). Add rbind to its options\n"
    )
