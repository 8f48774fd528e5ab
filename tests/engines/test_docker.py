"""docker on this machine: the file that it reads, what dockerd says of the new one, and how a change takes effect."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpu_oci_hook.engines import docker, engine_program
from gpu_oci_hook.engines.docker import DockerEngine
from gpu_oci_hook.engines.wanted import WantedRuntime
from gpu_oci_hook.errors import Fault

PATH = "/etc/docker/daemon.json"
WANTED = WantedRuntime("gpu-oci", "/usr/local/bin/gpu-oci-runtime")
DEFAULT = WantedRuntime("gpu-oci", "/usr/local/bin/gpu-oci-runtime", default=True)
# Prints its arguments and the file that it is to check, and refuses files with the word "refuse".
DOCKERD = """#!/bin/sh
[ "$1" = --version ] && exec echo "Docker version {version}, build x"
echo "$@" > {log}
while [ "$1" != --config-file ]; do shift; done
grep -q refuse "$2" || exit 0
echo "unable to configure the Docker daemon with file $2: the following directives don't match: refuse" >&2
exit 1
"""


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A dockerd of version 28.5.2 that writes its arguments to this file; no daemon runs."""
    log = tmp_path / "log"
    write_dockerd(tmp_path, "28.5.2")
    monkeypatch.setattr(engine_program, "STANDARD_DIRECTORIES", (str(tmp_path), "/usr/bin", "/bin"))
    monkeypatch.setattr(docker, "list_daemon_arguments", lambda _: [])
    return log


def write_dockerd(directory: Path, version: str) -> None:
    program = directory / "dockerd"
    program.write_text(DOCKERD.format(version=version, log=directory / "log"))
    program.chmod(0o755)


def test_dockerd_checks_a_copy_with_the_flags_of_the_daemon_that_runs(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = ["/usr/sbin/dockerd", "--config-file", "/x", "-H", "fd://", "--debug", "--config-file=/y"]
    monkeypatch.setattr(docker, "list_daemon_arguments", lambda _: [running])
    assert DockerEngine().judge(b"{}", WANTED, PATH) == "checked by dockerd 28.5.2 --validate"
    words = log.read_text().split()
    assert words[:2] == ["--validate", "--config-file"] and words[3:] == ["-H", "fd://", "--debug"]
    assert not os.path.exists(words[2]), "the copy was left"


def test_the_words_of_dockerd_are_shown_with_the_name_of_the_real_file(log: Path) -> None:
    with pytest.raises(Fault) as caught:
        DockerEngine().judge(b'{"refuse": 1}', WANTED, PATH)
    assert caught.value.where == PATH
    assert caught.value.what == (
        "dockerd 28.5.2 refuses the changed file; nothing was changed: unable to configure the Docker daemon with file "
        f"{PATH}: the following directives don't match: refuse"
    )


def test_an_older_dockerd_cannot_be_asked_and_refuses_a_byte_order_mark(log: Path, tmp_path: Path) -> None:
    write_dockerd(tmp_path, "20.10.24+dfsg1")
    assert DockerEngine().judge(b"{}", WANTED, PATH) == "checked as JSON, dockerd 20.10.24 has no --validate"
    with pytest.raises(Fault, match=r"byte order mark, which dockerd 20\.10\.24 refuses") as caught:
        DockerEngine().judge(b"\xef\xbb\xbf{}", WANTED, PATH)
    assert caught.value.where == f"{PATH}:1"
    assert not log.exists()


@pytest.mark.parametrize("flag", [["--default-runtime", "runc"], ["--default-runtime=runc"]])
def test_a_default_on_dockerds_command_line_is_a_conflict(
    log: Path, monkeypatch: pytest.MonkeyPatch, flag: list[str]
) -> None:
    monkeypatch.setattr(docker, "list_daemon_arguments", lambda _: [["dockerd", *flag]])
    DockerEngine().judge(b"{}", WANTED, PATH)
    with pytest.raises(Fault, match="dockerd is started with --default-runtime"):
        DockerEngine().judge(b"{}", DEFAULT, PATH)


@pytest.mark.parametrize("flag", [["--config-file", "/srv/d.json"], ["--config-file=/srv/d.json"]])
def test_the_file_is_the_one_that_the_running_daemon_reads(monkeypatch: pytest.MonkeyPatch, flag: list[str]) -> None:
    monkeypatch.setattr(docker, "list_daemon_arguments", lambda _: [["dockerd", *flag]])
    assert DockerEngine().find_config_path() == "/srv/d.json"


def test_without_a_daemon_it_is_the_file_of_this_users_docker(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert DockerEngine().find_config_path() == PATH
    assert DockerEngine().find_apply_command(undo=False).words == ("systemctl", "reload", "docker")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_CONFIG_HOME", "/home/a/config")
    assert DockerEngine().find_config_path() == "/home/a/config/docker/daemon.json"
    assert DockerEngine().find_apply_command(undo=True).words == ("systemctl", "--user", "restart", "docker")


def test_dockers_snap_is_refused_because_it_cannot_call_us(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_program, "STANDARD_DIRECTORIES", (str(tmp_path),))
    monkeypatch.setattr(docker, "list_daemon_arguments", lambda _: [])
    monkeypatch.setattr(docker, "_SNAP", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    path = DockerEngine().find_config_path()
    assert path == f"{tmp_path}/config/daemon.json"
    with pytest.raises(Fault, match="docker of the snap is confined"):
        DockerEngine().add_runtime(None, WANTED, path)
