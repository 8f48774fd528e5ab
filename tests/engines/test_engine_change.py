"""Set up and undo on files: byte for byte as before, killed at any moment, in places where nothing can be written."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_oci_hook.engines import change_record, engine_change
from gpu_oci_hook.engines.docker import DockerEngine
from gpu_oci_hook.engines.engine_change import (
    carry_out,
    choose_wanted_runtime,
    find_setup_state,
    plan_setup,
    plan_undo,
    read_engine_file,
)
from gpu_oci_hook.engines.wanted import WantedRuntime
from gpu_oci_hook.errors import Fault
from support.bundles import skip_or_fail

PROGRAM = "/usr/local/bin/gpu-oci-runtime"
WANTED = WantedRuntime("gpu-oci", PROGRAM)
DEFAULT = WantedRuntime("gpu-oci", PROGRAM, default=True)
ORIGINAL = b'{"debug":true,\n     "dns": ["10.0.0.1"]}'
# Whatever changes a file system, in the functions that are used here.
CHANGES = ("open", "write", "rename", "unlink", "mkdir", "rmdir", "chmod", "fchmod", "fchown", "fsync")


class Scene:
    """docker's configuration file in a directory of the test's own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.file = directory / "etc/docker/daemon.json"
        self.engine = DockerEngine()

    def write(self, data: bytes) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_bytes(data)

    def set_up(self, wanted: WantedRuntime = WANTED) -> None:
        file = read_engine_file(self.engine, str(self.file))
        carry_out(self.engine, plan_setup(self.engine, file, wanted))

    def undo(self) -> None:
        carry_out(self.engine, plan_undo(self.engine, read_engine_file(self.engine, str(self.file))))

    def state(self, wanted: WantedRuntime = WANTED) -> str:
        return find_setup_state(self.engine, read_engine_file(self.engine, str(self.file)), wanted)

    def content(self) -> bytes | None:
        return self.file.read_bytes() if self.file.exists() else None

    def records(self) -> list[Path]:
        return [path for path in (self.directory / "state").rglob("*") if path.is_file()]


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setattr(change_record, "SYSTEM_DIRECTORY", str(tmp_path / "state/gpu-oci-hook/configure"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "etc").mkdir()
    (tmp_path / "state").mkdir()
    return Scene(tmp_path)


def test_undo_restores_the_file_byte_for_byte_with_its_owner_and_mode(scene: Scene) -> None:
    scene.write(ORIGINAL)
    scene.file.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(scene.file, 4807, 4808)
    before = scene.file.stat()
    assert scene.state() == "not set up"
    scene.set_up()
    assert scene.state() == "set up"
    assert PROGRAM.encode() in scene.file.read_bytes()
    (record,) = scene.records()
    assert stat.S_IMODE(record.stat().st_mode) == 0o600, "the former file can have a password of a proxy"
    scene.undo()
    after = scene.file.stat()
    assert scene.file.read_bytes() == ORIGINAL
    assert (after.st_uid, after.st_gid, after.st_mode) == (before.st_uid, before.st_gid, before.st_mode)
    assert scene.records() == []
    assert os.listdir(scene.file.parent) == ["daemon.json"]


def test_undo_removes_the_file_and_the_directory_that_were_not_there(scene: Scene) -> None:
    scene.set_up()
    assert stat.S_IMODE(scene.file.stat().st_mode) == 0o644
    scene.undo()
    assert os.listdir(scene.directory / "etc") == []


def test_undo_keeps_a_directory_that_somebody_uses_by_now(scene: Scene) -> None:
    scene.set_up()
    (scene.file.parent / "key.json").touch()
    scene.undo()
    assert os.listdir(scene.file.parent) == ["key.json"]


def test_a_second_time_changes_nothing_not_even_the_time_of_the_file(scene: Scene) -> None:
    scene.write(ORIGINAL)
    scene.set_up()
    before = scene.file.stat()
    scene.set_up()
    assert (scene.file.stat().st_mtime_ns, scene.file.stat().st_ino) == (before.st_mtime_ns, before.st_ino)


def test_other_options_later_are_undone_to_the_first_file(scene: Scene) -> None:
    scene.write(ORIGINAL)
    for wanted in (
        WANTED,
        DEFAULT,
        WantedRuntime("nvidia", PROGRAM),
        WantedRuntime("gpu-oci", "/opt/bin/gpu-oci-runtime"),
    ):
        scene.set_up(wanted)
        assert scene.state(wanted) == "set up"
    assert b"nvidia" not in scene.file.read_bytes(), "the entry of an earlier name was left"
    scene.undo()
    assert scene.file.read_bytes() == ORIGINAL


def test_after_another_edit_only_our_keys_are_taken_out(scene: Scene) -> None:
    scene.write(ORIGINAL)
    scene.set_up(DEFAULT)
    scene.file.write_bytes(scene.file.read_bytes().replace(b'"debug":true', b'"debug":false'))
    assert scene.state(DEFAULT) == "set up"
    scene.undo()
    assert scene.file.read_bytes() == ORIGINAL.replace(b"true", b"false")


def test_set_up_again_after_another_edit_is_undone_to_that_edit(scene: Scene) -> None:
    scene.write(ORIGINAL)
    scene.set_up()
    edited = scene.file.read_bytes().replace(b'"debug":true', b'"debug":false')
    scene.file.write_bytes(edited)
    scene.set_up(DEFAULT)
    scene.undo()
    assert scene.file.read_bytes() == ORIGINAL.replace(b"true", b"false")


def test_an_entry_that_was_removed_or_changed_by_hand_has_drifted(scene: Scene) -> None:
    scene.write(ORIGINAL)
    scene.set_up(DEFAULT)
    made = scene.file.read_bytes()
    for old, new in ((b"/usr/local/bin/gpu", b"/opt/gpu"), (b'"default-runtime": "gpu-oci"', b'"debug2": false')):
        scene.file.write_bytes(made.replace(old, new))
        assert scene.state(DEFAULT) == "drifted"
    scene.file.write_bytes(b"{}")
    assert scene.state(DEFAULT) == "drifted"
    scene.set_up(DEFAULT)
    assert scene.state(DEFAULT) == "set up"


def test_options_that_are_not_given_stay_as_they_were(scene: Scene) -> None:
    scene.set_up(WantedRuntime("nvidia", PROGRAM, default=True))
    file = read_engine_file(scene.engine, str(scene.file))
    assert choose_wanted_runtime(file, "", PROGRAM, None) == WantedRuntime("nvidia", PROGRAM, default=True)
    assert choose_wanted_runtime(file, "gpu-oci", PROGRAM, False) == WANTED


def test_what_an_administrator_has_set_up_by_hand_is_set_up_and_undo_takes_it_out(scene: Scene) -> None:
    scene.write(b'{"runtimes": {"gpu-oci": {"path": "/usr/local/bin/gpu-oci-runtime"}}, "debug": true}')
    assert scene.state() == "set up"
    scene.set_up()
    assert scene.records() == []
    scene.undo()
    assert scene.file.read_bytes() == b'{"debug": true}'


def test_a_file_without_us_is_left_alone_by_undo(scene: Scene) -> None:
    scene.undo()
    assert scene.content() is None
    scene.write(ORIGINAL)
    before = scene.file.stat().st_mtime_ns
    scene.undo()
    assert (scene.file.read_bytes(), scene.file.stat().st_mtime_ns) == (ORIGINAL, before)


@pytest.mark.parametrize("exists", [True, False])
def test_a_link_is_written_through_and_stays_a_link(scene: Scene, exists: bool) -> None:
    """As dockerd reads it: administrators keep such files in a directory under version control."""
    target = scene.directory / "dotfiles/daemon.json"
    target.parent.mkdir()
    if exists:
        target.write_bytes(ORIGINAL)
    scene.file.parent.mkdir()
    scene.file.symlink_to("../../dotfiles/daemon.json")
    scene.set_up()
    assert scene.file.is_symlink() and PROGRAM.encode() in target.read_bytes()
    scene.undo()
    assert scene.file.is_symlink() and target.exists() == exists
    assert not exists or target.read_bytes() == ORIGINAL


def test_a_file_that_somebody_changes_meanwhile_is_left_alone(scene: Scene) -> None:
    scene.write(ORIGINAL)
    change = plan_setup(scene.engine, read_engine_file(scene.engine, str(scene.file)), WANTED)
    scene.write(b"{}")
    with pytest.raises(Fault, match="was changed by somebody else meanwhile"):
        carry_out(scene.engine, change)
    assert scene.file.read_bytes() == b"{}" and scene.records() == []


def test_a_record_that_another_user_could_have_written_is_refused(scene: Scene) -> None:
    if os.geteuid() != 0:
        skip_or_fail("needs root")
    scene.write(ORIGINAL)
    scene.set_up()
    (record,) = scene.records()
    record.chmod(0o666)
    with pytest.raises(Fault, match="can be written by every user"):
        scene.undo()


def test_a_damaged_record_says_what_to_do(scene: Scene) -> None:
    scene.write(ORIGINAL)
    scene.set_up()
    (record,) = scene.records()
    for data in (b"", b"{}", b"[]", b'{"version": 1}', record.read_bytes().replace(b'"version": 1', b'"version": 9')):
        record.write_bytes(data)
        with pytest.raises(Fault, match="this record of configure is damaged") as caught:
            scene.undo()
        assert "by hand" in caught.value.hint


@pytest.mark.parametrize("kind", ["directory", "fifo", "oversized"])
def test_what_is_not_a_file_of_settings_is_refused(scene: Scene, kind: str) -> None:
    scene.file.parent.mkdir()
    if kind == "directory":
        scene.file.mkdir()
    elif kind == "fifo":
        os.mkfifo(scene.file)
    else:
        scene.file.write_bytes(b" " * (5 << 20))
    with pytest.raises(Fault, match="cannot be read: it is "):
        scene.set_up()


def test_what_the_judge_refuses_changes_nothing(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.write(ORIGINAL)

    def refuse(*_: object) -> str:
        raise Fault("no")

    monkeypatch.setattr(DockerEngine, "judge", refuse)
    with pytest.raises(Fault):
        scene.set_up()
    assert scene.file.read_bytes() == ORIGINAL and scene.records() == []


@pytest.mark.parametrize("has_record", [False, True])
def test_a_file_that_cannot_be_written_leaves_the_record_as_it_was(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, has_record: bool
) -> None:
    scene.write(ORIGINAL)
    if has_record:
        scene.set_up()
    before = (scene.file.read_bytes(), [path.read_bytes() for path in scene.records()])

    def fail(*_: object, **__: object) -> None:
        raise Fault("it cannot be written: the file system is read-only")

    monkeypatch.setattr(engine_change, "replace_file", fail)
    with pytest.raises(Fault, match="the file system is read-only"):
        scene.set_up(DEFAULT)
    assert (scene.file.read_bytes(), [path.read_bytes() for path in scene.records()]) == before


# --- kill -9 ------------------------------------------------------------------------------------------------


def kill_at(number: int, action: Callable[[], None]) -> bool:
    """Run an action in a child that is killed before its `number`-th change. Return whether it was killed."""
    child = os.fork()
    if child == 0:
        try:
            count = 0
            for name in CHANGES:
                real = getattr(os, name)

                def counted(*args: object, real: Callable[..., object] = real, **keywords: object) -> object:
                    nonlocal count
                    count += 1
                    if count == number:
                        os.kill(os.getpid(), signal.SIGKILL)
                    return real(*args, **keywords)

                setattr(os, name, counted)
            action()
            os._exit(0)
        except BaseException:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


@pytest.mark.parametrize("original", [ORIGINAL, None], ids=["a file", "no file"])
@pytest.mark.parametrize("step", ["set up", "change", "undo"])
def test_killed_at_any_step_the_file_is_the_old_or_the_new_one_and_the_next_run_finishes(
    scene: Scene, original: bytes | None, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DockerEngine, "judge", lambda *_: "")  # its program is tested elsewhere
    action: Callable[[], None] = {"set up": scene.set_up, "change": lambda: scene.set_up(DEFAULT), "undo": scene.undo}[
        step
    ]
    kills = 0
    for number in range(1, 200):
        if original is not None:
            scene.write(original)
        if step != "set up":
            scene.set_up()
        old = scene.content()
        killed = kill_at(number, action)
        middle = scene.content()
        action()
        assert middle in (old, scene.content())
        assert scene.state(DEFAULT if step == "change" else WANTED) == ("not set up" if step == "undo" else "set up")
        scene.undo()
        assert scene.content() == original, f"killed before change {number}"
        assert scene.records() == []
        litter = [path for path in (scene.directory / "etc").rglob("*") if path != scene.file]
        assert litter == ([scene.file.parent] if original is not None else [])
        if not killed:
            break
        kills += 1
    assert 4 < kills < 199
