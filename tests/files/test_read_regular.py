"""Regular files are read whole and bounded; everything else is refused at once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpu_oci_hook.errors import describe_os_error
from gpu_oci_hook.files import read_regular
from gpu_oci_hook.files.read_regular import ImpossibleNameError, UnusableFileError, read_regular_file


def test_a_file_of_exactly_the_limit_is_read_and_a_longer_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 50000)
    assert read_regular_file(str(path), 50000) == b"x" * 50000
    with pytest.raises(UnusableFileError, match="it is larger than 49999 bytes"):
        read_regular_file(str(path), 49999)
    path.write_bytes(b"x" * ((1 << 20) + 1))
    with pytest.raises(UnusableFileError, match="it is larger than 1 MiB"):
        read_regular_file(str(path), 1 << 20)
    path.write_bytes(b"")
    assert read_regular_file(str(path), 0) == b""


@pytest.mark.timeout(5)
@pytest.mark.parametrize("stat_first", [False, True])
@pytest.mark.parametrize("kind", ["fifo", "directory", "device", "link to a device"])
def test_what_is_not_a_regular_file_is_refused_at_once(tmp_path: Path, kind: str, stat_first: bool) -> None:
    path = tmp_path / "file"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path = Path("/dev/zero") if kind == "device" else path
        if kind == "link to a device":
            path.symlink_to("/dev/zero")
    with pytest.raises(UnusableFileError, match="not a regular file") as caught:
        read_regular_file(str(path), 100, stat_first=stat_first)
    assert describe_os_error(caught.value) == f"it {caught.value.predicate}"


def test_a_link_at_the_end_is_followed_only_where_that_is_wanted(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"abc")
    (tmp_path / "link").symlink_to("real")
    directory_fd = os.open(tmp_path, os.O_PATH)
    try:
        assert read_regular_file("link", 10, dir_fd=directory_fd) == b"abc"
        with pytest.raises(OSError, match="symbolic links"):
            read_regular_file("link", 10, dir_fd=directory_fd, follow_symlinks=False)
    finally:
        os.close(directory_fd)


@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_an_impossible_name_is_told_from_a_file_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    with pytest.raises(ImpossibleNameError, match="name"):
        read_regular_file(f"{tmp_path}/{name}", 10)


def test_the_status_that_is_checked_is_that_of_the_file_that_is_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    statuses: list[os.stat_result] = []
    read_regular_file(str(path), 10, check_status=statuses.append)
    assert [status.st_ino for status in statuses] == [path.stat().st_ino]


def test_a_file_of_procfs_is_read_to_its_end() -> None:
    assert read_regular_file("/proc/self/maps", 1 << 20).endswith(b"\n")


@pytest.mark.parametrize("kind", ["whole", "refused"])
def test_no_descriptor_is_lost(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        if kind == "whole":
            read_regular_file(str(path), 10)
            read_regular.read_regular_head(str(path), 2)
        else:
            for unusable in (path, tmp_path):
                with pytest.raises(UnusableFileError):
                    read_regular_file(str(unusable), 2)
    assert len(os.listdir("/proc/self/fd")) == before
