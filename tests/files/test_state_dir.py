"""Cached files are believed only if no other user could have written them."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from gpu_oci_hook.files import state_dir
from gpu_oci_hook.files.prepared_directory import prepare_directory


def stat_signature(path: Path) -> tuple[int, int, int]:
    """What a write to a file changes; reading may change its access time alone."""
    status = path.stat()
    return status.st_ino, status.st_mtime_ns, status.st_ctime_ns


def test_what_is_written_is_read_back(isolated_state: Path) -> None:
    assert state_dir.read_state("x") is None
    assert state_dir.write_state("x", b"abc")
    assert state_dir.read_state("x") == b"abc"
    assert (isolated_state / "x").stat().st_mode & 0o777 == 0o644
    assert sorted(os.listdir(isolated_state)) == ["x"]


@pytest.mark.parametrize("mode", [0o666, 0o664, 0o646])
def test_a_file_that_others_could_write_counts_as_not_there(mode: int, isolated_state: Path) -> None:
    state_dir.write_state("x", b"abc")
    (isolated_state / "x").chmod(mode)
    assert state_dir.read_state("x") is None


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o1777])
def test_a_directory_that_others_could_write_is_not_used(mode: int, isolated_state: Path) -> None:
    state_dir.write_state("x", b"abc")
    isolated_state.chmod(mode)
    assert state_dir.read_state("x") is None
    assert not state_dir.write_state("x", b"new")


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give files away")
def test_files_and_directories_of_others_are_not_believed(isolated_state: Path) -> None:
    state_dir.write_state("x", b"abc")
    os.chown(isolated_state / "x", 1000, 1000)
    assert state_dir.read_state("x") is None
    state_dir.write_state("x", b"abc")
    os.chown(isolated_state, 1000, 1000)
    assert state_dir.read_state("x") is None


def test_a_link_in_the_files_or_the_directorys_place_is_not_followed(isolated_state: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"no")
    isolated_state.mkdir(0o755)
    (isolated_state / "x").symlink_to(tmp_path / "secret")
    assert state_dir.read_state("x") is None
    assert state_dir.write_state("x", b"abc")
    assert (tmp_path / "secret").read_bytes() == b"no"
    isolated_state.rename(tmp_path / "other")
    isolated_state.symlink_to(tmp_path / "other")
    assert state_dir.read_state("x") is None


def test_a_fifo_in_the_files_place_never_blocks(isolated_state: Path) -> None:
    isolated_state.mkdir(0o755)
    os.mkfifo(isolated_state / "x", 0o644)
    assert state_dir.read_state("x") is None


def test_where_nothing_can_be_kept_nothing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_dir, "DIRECTORY", "/proc/nowhere")
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    assert not state_dir.write_state("x", b"abc")
    assert state_dir.read_state("x") is None
    with state_dir.StateLock("x"):
        pass


def test_the_users_own_run_directory_stands_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_dir, "DIRECTORY", "/proc/nowhere")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert state_dir.write_state("x", b"abc")
    assert state_dir.read_state("x") == b"abc"
    assert (tmp_path / "gpu-oci-hook" / "x").exists()


def test_the_lock_lets_one_in_at_a_time(isolated_state: Path) -> None:
    inside = 0
    most = 0

    def work() -> None:
        nonlocal inside, most
        for _ in range(20):
            with state_dir.StateLock("x"):
                inside += 1
                most = max(most, inside)
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


def test_a_lock_that_never_comes_free_is_not_waited_for_for_ever(isolated_state: Path) -> None:
    with state_dir.StateLock("x"), state_dir.StateLock("x", timeout=0.05):
        pass


ENTRIES = (("liba.so.1.2", ""), ("liba.so.1", "liba.so.1.2"))


def content(path: Path) -> list[tuple[str, str]]:
    return sorted((p.name, os.readlink(p) if p.is_symlink() else p.read_text()) for p in path.iterdir())


def test_a_prepared_directory_is_made_once(isolated_state: Path) -> None:
    prepare_directory(f"{isolated_state}/libraries-1", ENTRIES)
    before = stat_signature(isolated_state / "libraries-1")
    prepare_directory(f"{isolated_state}/libraries-1", ENTRIES)
    assert stat_signature(isolated_state / "libraries-1") == before
    assert content(isolated_state / "libraries-1") == sorted((n, t) for n, t in ENTRIES)
    assert os.listdir(isolated_state) == ["libraries-1"]


SPOIL = {
    "a library more": lambda path: (path / "libstdc++.so.6").write_text("evil"),
    "a library less": lambda path: (path / "liba.so.1.2").unlink(),
    "another link": lambda path: ((path / "liba.so.1").unlink(), (path / "liba.so.1").symlink_to("/evil")),
    "a file for a link": lambda path: ((path / "liba.so.1").unlink(), (path / "liba.so.1").write_text("evil")),
    "a link for a file": lambda path: ((path / "liba.so.1.2").unlink(), (path / "liba.so.1.2").symlink_to("/evil")),
    "a FIFO for a file": lambda path: ((path / "liba.so.1.2").unlink(), os.mkfifo(path / "liba.so.1.2")),
    "open to all": lambda path: path.chmod(0o777),
    "a link to elsewhere": lambda path: (path.rename(path.parent / "else"), path.symlink_to("else")),
    "a file": lambda path: (path.rename(path.parent / "else"), path.write_text("evil")),
}


@pytest.mark.parametrize("spoil", SPOIL)
def test_a_prepared_directory_that_a_container_has_written_into_is_not_given_to_another(
    spoil: str, isolated_state: Path
) -> None:
    path = isolated_state / "libraries-1"
    prepare_directory(str(path), ENTRIES)
    SPOIL[spoil](path)
    inode = path.lstat().st_ino
    prepare_directory(str(path), ENTRIES)
    assert content(path) == sorted((n, t) for n, t in ENTRIES)
    assert path.lstat().st_mode == 0o040755
    # running containers have the old one mounted: to empty it would take their libraries away
    assert inode in [other.lstat().st_ino for other in isolated_state.iterdir() if other != path]


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777])
def test_a_run_directory_that_others_could_write_is_not_used(
    mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_dir, "DIRECTORY", "/proc/nowhere/run")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "user"))
    (tmp_path / "user").mkdir(0o700)
    assert state_dir.write_state("x", b"abc")
    (tmp_path / "user").chmod(mode)
    assert state_dir.read_state("x") is None
    assert not state_dir.write_state("y", b"abc")
    assert state_dir.find_state_directory() == ""


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give files away")
def test_root_does_not_use_the_run_directory_of_a_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_dir, "DIRECTORY", "/proc/nowhere/run")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "user"))
    (tmp_path / "user").mkdir(0o700)
    assert state_dir.write_state("x", b"abc")
    os.chown(tmp_path / "user", 1000, 1000)
    assert state_dir.read_state("x") is None
    assert state_dir.find_state_directory() == ""
