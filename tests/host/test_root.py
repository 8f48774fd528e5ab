"""The host as a directory: links stay inside, nothing blocks, nothing is read without bound."""

from __future__ import annotations

import errno
import os
import posix
from pathlib import Path

import pytest

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.host.root import Host


@pytest.fixture(params=["own root", "slash"])
def tree(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Host, str]:
    """The same tree as a root of its own and as a place below "/": both must agree."""
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/real").write_bytes(b"content")
    (tmp_path / "etc/link").symlink_to("real")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dangling").symlink_to("etc/missing")
    os.mkfifo(tmp_path / "fifo")
    if request.param == "slash":
        return Host(), str(tmp_path)
    return Host(str(tmp_path)), ""


def test_a_way_that_was_walked_over_the_root_does_not_stand_for_another(tmp_path: Path) -> None:
    for name in ("b/c", "d/x", "d/b", "a"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "r").symlink_to("/")
    host = Host(str(tmp_path))
    assert host.resolve_path("/d/x/../../b/c") == "/b/c"
    assert host.resolve_path("/d/x/../b/c") is None
    assert host.resolve_path("/a/../b") == "/b"
    assert host.resolve_path("/a/b") is None and host.resolve_path("/a/b/c") is None
    assert host.resolve_path("/r/d/b") == "/d/b"
    assert host.resolve_path("/d/b") == "/d/b"


def test_a_file_and_a_link_to_it_are_read(tree: tuple[Host, str]) -> None:
    host, base = tree
    assert host.read_file(f"{base}/etc/real", 100) == b"content"
    assert host.read_file(f"{base}/etc/link", 100) == b"content"
    assert host.resolve_path(f"{base}/etc/link") == f"{base}/etc/real"


@pytest.mark.parametrize("name", ["loop", "dangling", "nothing", "etc/real/below", "a\0b", "x" * 300])
def test_what_is_not_there_is_none(tree: tuple[Host, str], name: str) -> None:
    host, base = tree
    assert host.read_file(f"{base}/{name}", 100) is None
    assert host.resolve_path(f"{base}/{name}") is None
    assert host.stat_path(f"{base}/{name}") is None
    assert host.list_names(f"{base}/{name}") == []


@pytest.mark.timeout(5)
@pytest.mark.parametrize("name", ["fifo", "etc"])
def test_a_special_file_is_refused_and_never_blocks(tree: tuple[Host, str], name: str) -> None:
    host, base = tree
    with pytest.raises(Fault, match="regular file"):
        host.read_file(f"{base}/{name}", 100)


def test_a_file_over_its_limit_is_refused(tree: tuple[Host, str]) -> None:
    host, base = tree
    assert host.read_file(f"{base}/etc/real", 7) == b"content"
    with pytest.raises(Fault, match="larger than 6 bytes"):
        host.read_file(f"{base}/etc/real", 6)


def test_the_status_of_a_link_is_told_apart_from_its_target(tree: tuple[Host, str]) -> None:
    host, base = tree
    followed = host.stat_path(f"{base}/etc/link")
    itself = host.stat_path(f"{base}/etc/link", follow=False)
    assert followed is not None and itself is not None
    assert followed.st_size == 7
    assert followed.st_ino != itself.st_ino


def test_names_are_sorted(tree: tuple[Host, str]) -> None:
    host, base = tree
    assert host.list_names(f"{base}/etc") == ["link", "real"]


def test_absolute_links_and_dot_dot_stay_inside_the_root(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("secret")
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    (root / "etc/inside").write_text("inside")
    (root / "absolute").symlink_to("/etc/inside")
    (root / "climbing").symlink_to("../../../../../../etc/inside")
    (root / "escape").symlink_to(str(outside))
    (root / "escape2").symlink_to("../outside")
    (root / "directory").symlink_to("/etc")
    host = Host(str(root))
    assert host.read_file("/absolute", 100) == b"inside"
    assert host.read_file("/climbing", 100) == b"inside"
    assert host.read_file("/directory/inside", 100) == b"inside"
    assert host.read_file("/../../etc/inside", 100) == b"inside"
    assert host.read_file("/escape", 100) is None
    assert host.read_file("/escape2", 100) is None
    assert host.resolve_path("/directory/inside") == "/etc/inside"


def test_the_links_on_the_way_can_be_asked_for(tmp_path: Path) -> None:
    (tmp_path / "store/v1").mkdir(parents=True)
    (tmp_path / "current").symlink_to("/store/v1")
    links: list[str] = []
    assert Host(str(tmp_path)).resolve_path("/current", links) == "/store/v1"
    assert links == ["/current"]
    links = []
    assert Host().resolve_path(f"{tmp_path}/current", links) is None  # "/store/v1" of the machine itself
    assert f"{tmp_path}/current" in links


def test_forty_links_are_followed_and_no_more(tmp_path: Path) -> None:
    (tmp_path / "end").write_text("end")
    last = "end"
    for number in range(41):
        (tmp_path / f"l{number}").symlink_to(last)
        last = f"l{number}"
    host = Host(str(tmp_path))
    assert host.resolve_path("/l39") == "/end"
    assert host.resolve_path("/l40") is None


def test_a_driver_root_is_a_root_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "run/nvidia/driver/etc").mkdir(parents=True)
    (tmp_path / "run/nvidia/driver/etc/x").write_text("driver")
    (tmp_path / "var").mkdir()
    (tmp_path / "var/run").symlink_to("/run")
    below = Host(str(tmp_path)).sub_host("/var/run/nvidia/driver")
    assert below.root == f"{tmp_path}/run/nvidia/driver"
    assert below.read_file("/etc/x", 100) == b"driver"
    assert Host().sub_host("/").root == "/"


@pytest.mark.parametrize(
    ("given", "root", "path"),
    [("/", "/", "/a/b"), ("//", "/", "/a/b"), ("/x/", "/x", "/x/a/b"), ("/x/../y", "/y", "/y/a/b")],
)
def test_roots_and_paths_are_tidy(given: str, root: str, path: str) -> None:
    host = Host(given)
    assert host.root == root
    assert host.full_path("/a/b") == path
    assert host.full_path("a/./c/..//b/") == path


def test_proc_files_are_regular_files() -> None:
    data = Host().read_file("/proc/self/status", 65536)
    assert data is not None and data.startswith(b"Name:")


def test_an_unreadable_file_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str, flags: int, **_: object) -> int:
        raise PermissionError(errno.EACCES, "refused")

    (tmp_path / "closed").write_text("x")
    host = Host(str(tmp_path))
    monkeypatch.setattr(posix, "open", refuse)  # root reads everything, so the kernel's answer is played
    with pytest.raises(Fault, match="may not read"):
        host.read_file("/closed", 10)
