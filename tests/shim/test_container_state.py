"""Commands for a container reach the low-level runtime that has its state."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_oci_hook.shim import container_state
from gpu_oci_hook.shim.container_state import choose_program, find_container_id, find_state_directory


@pytest.mark.parametrize(
    ("line", "container"),
    [
        ("kill c 9", "c"),
        ("kill --all c TERM", "c"),
        ("delete --force c", "c"),
        ("exec --tty --user 0 -e A=b -e=c --cwd / c ls -l", "c"),
        ("exec --process=/p c", "c"),
        ("exec -p /p --pid-file x c", "c"),
        ("update --memory 5 --resources - c", "c"),
        ("update --memory=5 -r=- c", "c"),
        ("checkpoint --image-path /i --leave-running c", "c"),
        ("ps --format json c", "c"),
        ("state -- c", "c"),
        ("state", ""),
        ("state --", ""),
    ],
)
def test_the_container_is_found_after_the_flags_of_its_command(line: str, container: str) -> None:
    command, *rest = line.split()
    assert find_container_id(command, rest) == container


def test_each_runtime_has_its_own_state_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, file in (("ran", "state.json"), ("crun-made", "status")):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).touch()
    assert find_state_directory("/usr/sbin/runc", str(tmp_path), "ran") == f"{tmp_path}/ran"
    assert find_state_directory("/usr/bin/crun", str(tmp_path), "crun-made") == f"{tmp_path}/crun-made"
    assert find_state_directory("/usr/bin/crun", str(tmp_path), "ran") == ""
    assert find_state_directory("/usr/sbin/runc", str(tmp_path), "crun-made") == ""
    for name in ("", ".", "..", "../ran", "a\0b"):
        assert find_state_directory("/usr/sbin/runc", str(tmp_path / "ran"), name) == ""
    (tmp_path / "crun").mkdir()
    (tmp_path / "crun-made").rename(tmp_path / "crun/made")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert find_state_directory("/usr/bin/crun", "", "made") == f"{tmp_path}/crun/made"


def test_a_runtime_that_is_gone_is_not_chosen(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c/status").touch()
    program = tmp_path / "crun"
    assert choose_program("/usr/sbin/runc", (str(program),), str(tmp_path), "c") == "/usr/sbin/runc"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert choose_program("/usr/sbin/runc", (str(program),), str(tmp_path), "c") == str(program)


CODE = """import os
from gpu_oci_hook.files import state_dir
state_dir.DIRECTORY = os.environ["HERE"] + "/state"
from gpu_oci_hook.shim.main import main
main()
"""


class Runtimes:
    """Two low-level runtimes that say their names, and the shim with a configuration that names one of them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.root = directory / "root"
        for name in ("runc", "crun"):
            program = directory / name
            program.write_text(f"#!/bin/sh\necho {name}\n")
            program.chmod(0o755)

    def configure(self, name: str) -> None:
        (self.directory / "config.toml").write_text(f'[runtime]\nlow-level = ["{self.directory}/{name}"]\n')

    def make_state(self, container: str, file: str) -> None:
        (self.root / container).mkdir(parents=True)
        (self.root / container / file).touch()

    def call(self, *words: str, **env: str) -> str:
        config = str(self.directory / "config.toml")
        env = {"GPU_OCI_HOOK_CONFIG": config, "HERE": str(self.directory), "PATH": "/usr/bin:/bin", **env}
        line = [sys.executable, "-c", CODE, "--root", str(self.root), *words]
        done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=60, check=True)
        return done.stdout.strip()


@pytest.fixture
def runtimes(tmp_path: Path) -> Runtimes:
    return Runtimes(tmp_path)


def test_after_a_change_each_container_keeps_its_runtime(runtimes: Runtimes) -> None:
    runtimes.configure("runc")
    runtimes.make_state("old", "state.json")
    assert runtimes.call("state", "old") == "runc"
    runtimes.configure("crun")
    runtimes.make_state("new", "status")
    for words in (["state"], ["kill"], ["delete", "--force"], ["exec"], ["start"], ["update", "--memory", "5"]):
        assert runtimes.call(*words, "old") == "runc", words
        assert runtimes.call(*words, "new") == "crun", words
        assert runtimes.call(*words, "unknown") == "crun", words
    for words in (["create", "old"], ["run", "old"], ["list"], ["features"]):
        assert runtimes.call(*words) == "crun"
    # podman calls kill and delete without PATH, for which nothing was cached before the change.
    assert runtimes.call("kill", "old", "9", PATH="") == "runc"
    runtimes.configure("runc")
    assert runtimes.call("kill", "new") == "crun"
    assert runtimes.call("kill", "old") == "runc"


def test_without_a_change_no_state_is_looked_for(runtimes: Runtimes, monkeypatch: pytest.MonkeyPatch) -> None:
    runtimes.configure("crun")
    runtimes.make_state("other", "state.json")
    assert runtimes.call("state", "other") == "crun"
    assert (runtimes.directory / "state/used-runtimes").read_bytes().endswith(os.fsencode(runtimes.directory / "crun"))


def test_the_defaults_without_a_root_are_the_runtimes_own(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(container_state.os.path, "lexists", lambda path: bool(seen.append(path)))
    for program in ("/usr/sbin/runc", "/usr/bin/crun", "/usr/bin/youki"):
        assert find_state_directory(program, "", "id") == ""
    assert seen == ["/run/runc/id/state.json", "/run/crun/id/status", "/run/youki/id/state.json"]
