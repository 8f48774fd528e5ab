"""A file is replaced by a complete one or not at all, and what killed processes leave is removed."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.files import replace
from support.bundles import skip_or_fail


@pytest.fixture
def directory_fd(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)


@pytest.mark.parametrize("umask", [0, 0o077])
@pytest.mark.parametrize("durable", [False, True])
def test_mode_and_content_are_as_given_whatever_the_umask(
    tmp_path: Path, directory_fd: int, umask: int, durable: bool
) -> None:
    old_umask = os.umask(umask)
    try:
        replace.replace_file_at(directory_fd, "x", b"abc", mode=0o640, durable=durable)
    finally:
        os.umask(old_umask)
    assert (tmp_path / "x").read_bytes() == b"abc"
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o640
    assert os.listdir(tmp_path) == ["x"]


def test_a_hard_link_to_the_old_file_keeps_its_content(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"old")
    os.link(tmp_path / "x", tmp_path / "y")
    replace.replace_file(str(tmp_path / "x"), b"new", mode=0o644)
    assert ((tmp_path / "x").read_bytes(), (tmp_path / "y").read_bytes()) == (b"new", b"old")


def test_without_a_mode_owner_and_mode_of_the_old_file_stay_and_it_must_exist(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with pytest.raises(Fault, match="cannot be written"):
        replace.replace_file(str(path), b"new")
    path.write_bytes(b"old")
    path.chmod(0o604)
    if os.geteuid() == 0:
        os.chown(path, 4807, 4808)
    owner = (path.stat().st_uid, path.stat().st_gid)
    replace.replace_file(str(path), b"new")
    assert (path.stat().st_uid, path.stat().st_gid, stat.S_IMODE(path.stat().st_mode)) == (*owner, 0o604)


def test_a_link_is_followed_by_path_and_replaced_in_a_directory(tmp_path: Path, directory_fd: int) -> None:
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real")
    replace.replace_file(str(tmp_path / "link"), b"new", mode=0o644)
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_bytes() == b"new"
    replace.replace_file_at(directory_fd, "link", b"file", mode=0o644)
    assert not (tmp_path / "link").is_symlink() and (tmp_path / "real").read_bytes() == b"new"
    replace.replace_symlink_at(directory_fd, "link", "elsewhere")
    assert os.readlink(tmp_path / "link") == "elsewhere"


def test_a_directory_is_an_error_unless_the_caller_moves_it(tmp_path: Path, directory_fd: int) -> None:
    (tmp_path / "x").mkdir()
    with pytest.raises(IsADirectoryError):
        replace.replace_file_at(directory_fd, "x", b"abc", mode=0o644)
    assert os.listdir(tmp_path) == ["x"]
    replace.replace_file_at(
        directory_fd, "x", b"abc", mode=0o644, move_directory=lambda name: (tmp_path / name).rename(tmp_path / "aside")
    )
    assert sorted(os.listdir(tmp_path)) == ["aside", "x"]


@pytest.mark.parametrize("stale_after", [0.0, 60.0])
def test_temporary_files_are_removed_when_they_are_old_enough(
    tmp_path: Path, directory_fd: int, stale_after: float
) -> None:
    fresh, old = replace.make_temporary_name(), replace.make_temporary_name()
    for name in (fresh, old, ".gpu-oci-hook-simulate", ".gpu-oci-hook-0123456789abcdeX"):
        (tmp_path / name).touch()
        if name != fresh:
            os.utime(tmp_path / name, (1, 1))
    replace.remove_stale_temporaries(directory_fd, stale_after)
    kept = {".gpu-oci-hook-simulate", ".gpu-oci-hook-0123456789abcdeX"} | ({fresh} if stale_after else set())
    assert set(os.listdir(tmp_path)) == kept


def test_a_start_whose_temporary_file_another_one_removes_writes_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_bytes(b"old")
    real = os.rename
    removed = 0

    def rename(source: str, target: str, **more: int) -> None:
        nonlocal removed
        if removed < 3:
            removed += 1
            replace.remove_stale_temporaries(more["src_dir_fd"], 0)  # as a second start of the bundle does
        real(source, target, **more)

    monkeypatch.setattr(os, "rename", rename)
    replace.replace_file(str(tmp_path / "config.json"), b"new", stale_after=0)
    assert (tmp_path / "config.json").read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["config.json"]
    assert removed == 3


@pytest.mark.root
@pytest.mark.parametrize("flag", ["a", "i"])
def test_in_an_append_only_or_immutable_directory_no_temporary_file_stays(flag: str, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/file").write_bytes(b"old")
    if subprocess.run(["chattr", f"+{flag}", tmp_path / "kept"], check=False).returncode:
        skip_or_fail("this file system has no such attributes")
    try:
        with pytest.raises(Fault, match="kernel refuses"):
            replace.replace_file(str(tmp_path / "kept/file"), b"new", mode=0o644)
        assert os.listdir(tmp_path / "kept") == ["file"]
    finally:
        subprocess.run(["chattr", f"-{flag}", tmp_path / "kept"], check=True)
    replace.replace_file(str(tmp_path / "kept/file"), b"new", mode=0o644)
    assert (tmp_path / "kept/file").read_bytes() == b"new"
