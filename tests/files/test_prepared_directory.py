"""Prepared directories in the state directory: few, removed when unused, never taken from a running container."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from gpu_oci_hook.files import prepared_cleanup, prepared_directory
from gpu_oci_hook.files.prepared_directory import (
    MAX_SHARED_DIRECTORIES,
    TooManyDirectoriesError,
    prepare_shared_directory,
)

ENTRIES = (("liba.so.1.2", ""), ("liba.so.1", "liba.so.1.2"))


def fill(state: Path, *, age: float = 0.0) -> None:
    """Prepare as many directories as there may be."""
    for number in range(MAX_SHARED_DIRECTORIES):
        prepare_shared_directory(f"{state}/libraries-{number}", ENTRIES)
        then = time.time() - age
        os.utime(state / f"libraries-{number}", (then, then))


def list_prepared(state: Path) -> set[str]:
    return {name for name in os.listdir(state) if name.startswith("libraries-")}


def test_there_are_never_more_than_the_limit(isolated_state: Path) -> None:
    fill(isolated_state)
    with pytest.raises(TooManyDirectoriesError):
        prepared_cleanup.prepare_after_cleanup(f"{isolated_state}/libraries-new", ENTRIES)
    assert len(list_prepared(isolated_state)) == MAX_SHARED_DIRECTORIES
    prepare_shared_directory(f"{isolated_state}/libraries-0", ENTRIES)  # one that is there is used as ever


def test_unused_ones_make_room(isolated_state: Path) -> None:
    fill(isolated_state, age=2 * prepared_cleanup.UNUSED_AFTER)
    prepare_shared_directory(f"{isolated_state}/libraries-0", ENTRIES)  # a use
    prepared_cleanup.prepare_after_cleanup(f"{isolated_state}/libraries-new", ENTRIES)
    assert list_prepared(isolated_state) == {"libraries-0", "libraries-new"}


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for a mount namespace")
def test_one_that_a_process_has_mounted_stays(isolated_state: Path, tmp_path: Path) -> None:
    fill(isolated_state, age=2 * prepared_cleanup.UNUSED_AFTER)
    (tmp_path / "container").mkdir()
    script = 'mount --bind "$1/libraries-3" "$2" && echo mounted && exec sleep 60'
    process = subprocess.Popen(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh",
         str(isolated_state), str(tmp_path / "container")], stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None and process.stdout.readline() == b"mounted\n"
        prepared_cleanup.prepare_after_cleanup(f"{isolated_state}/libraries-new", ENTRIES)
        assert list_prepared(isolated_state) == {"libraries-3", "libraries-new"}
        assert sorted(os.listdir(f"/proc/{process.pid}/root{tmp_path}/container")) == ["liba.so.1", "liba.so.1.2"]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()  # type: ignore[union-attr]


def test_the_search_for_unused_ones_is_not_made_at_each_start(
    isolated_state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(isolated_state)
    searched: list[list[str]] = []
    monkeypatch.setattr(prepared_cleanup, "_list_unmounted", lambda names, proc: searched.append(names) or [])
    for _ in range(5):
        with pytest.raises(TooManyDirectoriesError):
            prepared_cleanup.prepare_after_cleanup(f"{isolated_state}/libraries-new", ENTRIES)
    assert len(searched) == 1


def test_a_use_is_recorded_now_and_then_only(isolated_state: Path) -> None:
    path = isolated_state / "libraries-1"
    prepare_shared_directory(str(path), ENTRIES)
    before = path.stat().st_mtime_ns
    prepare_shared_directory(str(path), ENTRIES)
    assert path.stat().st_mtime_ns == before
    then = time.time() - 2 * prepared_directory._TOUCH_INTERVAL
    os.utime(path, (then, then))
    prepare_shared_directory(str(path), ENTRIES)
    assert time.time() - path.stat().st_mtime < 60


def test_a_directory_that_others_can_write_gets_none(isolated_state: Path) -> None:
    isolated_state.mkdir()
    isolated_state.chmod(0o777)
    with pytest.raises(OSError):
        prepare_shared_directory(f"{isolated_state}/libraries-1", ENTRIES)
    assert list_prepared(isolated_state) == set()


def test_unfinished_ones_of_starts_at_the_same_time_do_not_count(isolated_state: Path) -> None:
    prepare_shared_directory(f"{isolated_state}/libraries-0", ENTRIES)
    for number in range(2 * MAX_SHARED_DIRECTORIES):
        (isolated_state / f"libraries-1.{1000 + number}").mkdir()
    prepare_shared_directory(f"{isolated_state}/libraries-1", ENTRIES)
    assert {"libraries-0", "libraries-1"} <= list_prepared(isolated_state)
