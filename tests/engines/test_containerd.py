"""containerd on this machine: which file it reads, where a copy is checked, and what it says of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpu_oci_hook.engines import containerd, engine_program
from gpu_oci_hook.engines.containerd import ContainerdEngine
from gpu_oci_hook.engines.wanted import WantedRuntime
from gpu_oci_hook.errors import Fault

WANTED = WantedRuntime("gpu-oci", "/usr/local/bin/gpu-oci-runtime")
# Prints the file that it is to dump, with the handler that containerd 2 has by itself, and keeps its path.
CONTAINERD = """#!/bin/sh
[ "$1" = --version ] && exec echo "containerd github.com/containerd/containerd/v2 v2.1.9 x"
[ "$2" = default ] && exec echo 'version = 3'
echo "$2" >> {log}
if grep -q refuse "$2"; then echo "containerd: invalid plugin config in $2" >&2; exit 1; fi
grep -q replaced "$2" && exec echo 'version = 3'
cat "$2"
"""


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A containerd of version 2.1.9 that notes which files it is asked about; no daemon runs."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "containerd").write_text(CONTAINERD.format(log=tmp_path / "log"))
    (programs / "containerd").chmod(0o755)
    monkeypatch.setattr(engine_program, "STANDARD_DIRECTORIES", (str(programs), "/usr/bin", "/bin"))
    monkeypatch.setattr(containerd, "list_daemon_arguments", lambda _: [])
    return tmp_path / "log"


@pytest.mark.parametrize(
    ("imports", "beside"), [('["/etc/containerd/conf.d/*.toml"]', False), ('["conf.d/*.toml"]', True), ("[]", False)]
)
def test_the_copy_is_beside_the_file_only_where_an_import_is_relative(
    tmp_path: Path, log: Path, imports: str, beside: bool
) -> None:
    file = tmp_path / "etc/config.toml"
    file.parent.mkdir()
    table = '[plugins."io.containerd.cri.v1.runtime".containerd]\nignore_blockio_not_enabled_errors = false\n'
    data = f"version = 3\nimports = {imports}\n{table}".encode()
    file.write_bytes(data)
    engine = ContainerdEngine()
    made = engine.add_runtime(data, WANTED, str(file))
    assert engine.judge(made, WANTED, str(file)) == "checked by containerd 2.1.9 config dump"
    asked = log.read_text().split()
    assert len(asked) == 3 and all((Path(path).parent == file.parent) == beside for path in asked)
    assert os.listdir(file.parent) == ["config.toml"], "a copy was left"


def test_the_words_of_containerd_are_shown_with_the_name_of_the_real_file(tmp_path: Path, log: Path) -> None:
    file = str(tmp_path / "config.toml")
    with pytest.raises(Fault) as caught:
        ContainerdEngine().add_runtime(b"# refuse\n", WANTED, file)
    assert caught.value.where == file
    assert caught.value.what == (
        f"containerd refuses the file; nothing was changed: containerd: invalid plugin config in {file}"
    )


def test_a_runtime_that_containerd_does_not_see_is_refused(tmp_path: Path, log: Path) -> None:
    engine, file = ContainerdEngine(), str(tmp_path / "config.toml")
    made = engine.add_runtime(b"# replaced\n", WANTED, file)
    with pytest.raises(Fault, match="containerd would not use the runtime gpu-oci of this file") as caught:
        engine.judge(made, WANTED, file)
    assert "docs/engines.md" in caught.value.hint


@pytest.mark.parametrize(
    ("words", "path"),
    [
        (["containerd"], "/etc/containerd/config.toml"),
        (["containerd", "-c", "/srv/c.toml"], "/srv/c.toml"),
        (["containerd", "--config=/srv/c.toml"], "/srv/c.toml"),
        (["containerd", "--config", "/var/run/docker/containerd/containerd.toml"], "/etc/containerd/config.toml"),
        (["containerd", "-c", "/var/lib/rancher/k3s/agent/etc/containerd/config.toml"], "/etc/containerd/config.toml"),
    ],
)
def test_the_file_is_the_running_daemons_unless_another_program_has_started_it(
    monkeypatch: pytest.MonkeyPatch, words: list[str], path: str
) -> None:
    monkeypatch.setattr(containerd, "list_daemon_arguments", lambda _: [words])
    assert ContainerdEngine().find_config_path() == path


def test_a_containerd_without_its_cri_plugin_is_not_set_up_unasked(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "config.toml"
    monkeypatch.setattr(containerd, "_DEFAULT_PATH", str(file))
    assert ContainerdEngine().is_installed()
    file.write_text('disabled_plugins = ["cri"]\n')
    assert not ContainerdEngine().is_installed()
    with pytest.raises(Fault, match="the CRI plugin is switched off"):
        ContainerdEngine().add_runtime(file.read_bytes(), WANTED, str(file))


def test_without_containerd_nobody_knows_what_its_runtimes_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_program, "STANDARD_DIRECTORIES", (str(tmp_path),))
    assert not ContainerdEngine().is_installed()
    with pytest.raises(Fault, match="containerd is not installed"):
        ContainerdEngine().add_runtime(None, WANTED, "/etc/containerd/config.toml")
