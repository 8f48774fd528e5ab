"""What is remembered: only from files that nobody else could have written."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from gpu_oci_hook import state


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(state, "DIRECTORY", str(tmp_path / "run"))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    return tmp_path / "run"


def test_what_is_written_is_read_back(place: Path) -> None:
    assert state.read("x") is None
    assert state.write("x", b"abc")
    assert state.read("x") == b"abc"
    assert (place / "x").stat().st_mode & 0o777 == 0o644
    assert sorted(os.listdir(place)) == ["x"]


@pytest.mark.parametrize("mode", [0o666, 0o664, 0o646])
def test_a_file_that_others_could_write_counts_as_not_there(mode: int, place: Path) -> None:
    state.write("x", b"abc")
    (place / "x").chmod(mode)
    assert state.read("x") is None


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o1777])
def test_a_directory_that_others_could_write_is_not_used(mode: int, place: Path) -> None:
    state.write("x", b"abc")
    place.chmod(mode)
    assert state.read("x") is None
    assert not state.write("x", b"new")


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give files away")
def test_files_and_directories_of_others_are_not_believed(place: Path) -> None:
    state.write("x", b"abc")
    os.chown(place / "x", 1000, 1000)
    assert state.read("x") is None
    state.write("x", b"abc")
    os.chown(place, 1000, 1000)
    assert state.read("x") is None


def test_a_link_in_the_files_or_the_directorys_place_is_not_followed(place: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"no")
    place.mkdir(0o755)
    (place / "x").symlink_to(tmp_path / "secret")
    assert state.read("x") is None
    assert state.write("x", b"abc")
    assert (tmp_path / "secret").read_bytes() == b"no"
    place.rename(tmp_path / "other")
    place.symlink_to(tmp_path / "other")
    assert state.read("x") is None


def test_a_fifo_in_the_files_place_never_blocks(place: Path) -> None:
    place.mkdir(0o755)
    os.mkfifo(place / "x", 0o644)
    assert state.read("x") is None


def test_where_nothing_can_be_kept_nothing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "DIRECTORY", "/proc/nowhere")
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    assert not state.write("x", b"abc")
    assert state.read("x") is None
    with state.Lock("x"):
        pass


def test_the_users_own_run_directory_stands_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "DIRECTORY", "/proc/nowhere")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert state.write("x", b"abc")
    assert state.read("x") == b"abc"
    assert (tmp_path / "gpu-oci-hook" / "x").exists()


def test_the_lock_lets_one_in_at_a_time(place: Path) -> None:
    inside = 0
    most = 0

    def work() -> None:
        nonlocal inside, most
        for _ in range(20):
            with state.Lock("x"):
                inside += 1
                most = max(most, inside)
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


def test_a_lock_that_never_comes_free_is_not_waited_for_for_ever(place: Path) -> None:
    with state.Lock("x"), state.Lock("x", patience=0.05):
        pass
