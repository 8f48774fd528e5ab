"""What `Rootfs` and `Directory` promise to their users; attacks are in test_hostile."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.files import read_regular
from gpu_oci_hook.files.directory import CrossMountError
from gpu_oci_hook.files.path_walk import MAX_CACHED_DIRECTORIES
from gpu_oci_hook.files.rootfs import Rootfs
from support.bundles import snapshot_tree


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_root_that_is_missing_or_a_file_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name in ("missing", "file", "nul\0"):
        with pytest.raises(Fault, match=r"rootfs does not exist|root file system"):
            Rootfs(str(tmp_path / name))


def test_resolve_follows_links_inside_the_root(container_root: Rootfs, image_dir: Path) -> None:
    (image_dir / "usr/lib").mkdir(parents=True)
    (image_dir / "usr/lib64").symlink_to("lib")
    (image_dir / "lib64").symlink_to("/usr/lib64")
    (image_dir / "usr/lib/x").write_text("")
    assert container_root.resolve_path("/lib64/x") == "/usr/lib/x"
    assert container_root.resolve_path("lib64/./x") == "/usr/lib/x"
    assert container_root.resolve_path("/lib64/../lib64//x/") == "/usr/lib/x"
    assert container_root.resolve_path("/lib64/y") is None
    assert container_root.resolve_path("/lib64/x/y") is None
    assert container_root.resolve_path("/lib64/x/..") is None
    assert container_root.resolve_path("/") == "/"
    assert container_root.resolve_path("/../../..") == "/"


def test_two_dots_go_back_from_where_a_link_led(container_root: Rootfs, image_dir: Path) -> None:
    (image_dir / "a/b").mkdir(parents=True)
    (image_dir / "a/file").write_text("")
    (image_dir / "short").symlink_to("a/b")
    assert container_root.resolve_path("/short/../file") == "/a/file"


def test_destination_keeps_what_is_missing(container_root: Rootfs, image_dir: Path) -> None:
    (image_dir / "real").mkdir()
    (image_dir / "usr").symlink_to("real")
    (image_dir / "away").symlink_to("/not/there")
    assert container_root.resolve_destination("/usr/lib/x") == "/real/lib/x"
    assert container_root.resolve_destination("/away/x") == "/not/there/x"
    assert container_root.resolve_destination("/no/../usr/x") == "/real/x"
    assert container_root.resolve_destination("/") == "/"


def test_destination_says_what_is_wrong(container_root: Rootfs, image_dir: Path) -> None:
    (image_dir / "file").write_text("")
    (image_dir / "round").symlink_to("round")
    for path, words in (
        ("/file/x", "not a directory"),
        ("/round/x", "round in a circle"),
        ("/new/" + "n" * 256, "too long"),
        ("/nul\0", "no file can have this name"),
        ("/new/nul\0", "too long"),
        ("/new/\ud800", "no file can have this name"),
    ):
        with pytest.raises(Fault, match=words):
            container_root.resolve_destination(path)
        assert container_root.resolve_path(path) is None


def test_forty_links_are_followed_and_no_more(container_root: Rootfs, image_dir: Path) -> None:
    (image_dir / "0").write_text("end")
    for number in range(1, 42):
        (image_dir / str(number)).symlink_to(str(number - 1))
    assert container_root.read_file("/40", 10) == b"end"
    assert container_root.read_file("/41", 10) is None


def test_status_follows_the_last_link_on_request_only(container_root: Rootfs, image_dir: Path) -> None:
    (image_dir / "file").write_text("12345")
    (image_dir / "link").symlink_to("/file")
    plain, followed = container_root.stat_path("/link"), container_root.stat_path("/link", follow=True)
    assert plain is not None and stat.S_ISLNK(plain.st_mode)
    assert followed is not None and followed.st_size == 5
    assert container_root.stat_path("/nope") is None and container_root.stat_path("/nope", follow=True) is None
    for path in ("/", "", "/file/..", ".", "/x/."):
        info = container_root.stat_path(path)
        assert (info is None) == (path in ("/file/..", "/x/.")), path


def test_readlink_gives_the_text_and_none_for_anything_else(container_root: Rootfs, image_dir: Path) -> None:
    (image_dir / "link").symlink_to("/text/../x")
    assert container_root.readlink("/link") == "/text/../x"
    assert container_root.readlink("/") is None
    assert container_root.readlink("/missing") is None


def test_names_are_sorted_and_bounded(container_root: Rootfs, image_dir: Path) -> None:
    (image_dir / "d").mkdir()
    for name in "cab":
        (image_dir / "d" / name).write_text("")
    assert container_root.list_names("/d") == ["a", "b", "c"]
    assert len(container_root.list_names("/d", limit=2)) == 2
    assert container_root.list_names("/d/a") == [] and container_root.list_names("/none") == []


def test_read_gives_regular_files_up_to_the_limit(container_root: Rootfs, image_dir: Path) -> None:
    (image_dir / "file").write_bytes(b"12345")
    (image_dir / "empty").write_bytes(b"")
    assert container_root.read_file("/file", 5) == b"12345"
    assert container_root.read_file("/file", 4) is None
    assert container_root.read_file("/empty", 0) == b""
    assert container_root.read_file("/", 10) is None


def test_read_works_without_proc(container_root: Rootfs, image_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_regular, "PROC_SELF_FD", "/nowhere/fd")
    (image_dir / "file").write_bytes(b"12345")
    (image_dir / "link").symlink_to("file")
    assert container_root.read_file("/link", 5) == b"12345"
    os.mkfifo(image_dir / "fifo")
    assert container_root.read_file("/fifo", 5) is None
    assert container_root.write_file("/file", b"12345") is False


def test_link_makes_directories_and_leaves_the_right_link_alone(container_root: Rootfs, image_dir: Path) -> None:
    old = os.umask(0o077)
    try:
        assert container_root.make_symlink("/usr/lib/libcuda.so.1", "libcuda.so.550.54") is True
    finally:
        os.umask(old)
    assert os.readlink(image_dir / "usr/lib/libcuda.so.1") == "libcuda.so.550.54"
    assert stat.S_IMODE((image_dir / "usr/lib").stat().st_mode) == 0o755
    before = (image_dir / "usr/lib/libcuda.so.1").lstat()
    assert container_root.make_symlink("/usr/lib/libcuda.so.1", "libcuda.so.550.54") is False
    assert (image_dir / "usr/lib/libcuda.so.1").lstat() == before


@pytest.mark.parametrize("kind", ["link", "dangling", "file", "fifo", "socket", "empty", "full"])
def test_link_and_write_replace_whatever_is_there(container_root: Rootfs, image_dir: Path, kind: str) -> None:
    for name in ("one", "two"):
        put(image_dir / name, kind)
    assert container_root.make_symlink("/one", "target") is True
    assert container_root.write_file("/two", b"data") is True
    assert os.readlink(image_dir / "one") == "target"
    assert (image_dir / "two").read_bytes() == b"data" and not (image_dir / "two").is_symlink()
    rest = {n for n in os.listdir(image_dir) if n not in ("one", "two", "elsewhere")}
    wanted = {"one.gpu-oci-hook-aside", "two.gpu-oci-hook-aside"} if kind in ("empty", "full") else set()
    assert rest == wanted


def put(path: Path, kind: str) -> None:
    if kind == "link":
        (path.parent / "elsewhere").write_text("kept")
        path.symlink_to("elsewhere")
    elif kind == "dangling":
        path.symlink_to("nowhere")
    elif kind == "file":
        path.write_text("old content")
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        subprocess.run([sys.executable, "-c", "import socket,sys; socket.socket(socket.AF_UNIX).bind(sys.argv[1])",
                        path.name], cwd=path.parent, check=True)  # fmt: skip
    elif kind == "char":
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))
    else:
        path.mkdir()
        if kind == "full":
            (path / "inside").write_text("precious")


@pytest.mark.parametrize("kind", ["link", "dangling", "fifo", "socket", "empty", "full"])
def test_clear_leaves_nothing_that_a_mount_could_follow(container_root: Rootfs, image_dir: Path, kind: str) -> None:
    put(image_dir / "x", kind)
    assert container_root.clear_mount_point("/x") is True
    assert not os.path.lexists(image_dir / "x")
    if kind == "full":
        assert (image_dir / "x.gpu-oci-hook-aside/inside").read_text() == "precious"
    if kind == "link":
        assert (image_dir / "elsewhere").read_text() == "kept"


def test_clear_leaves_files_and_nothing_alone(container_root: Rootfs, image_dir: Path) -> None:
    (image_dir / "x").write_text("kept")
    assert container_root.clear_mount_point("/x") is False
    assert container_root.clear_mount_point("/missing") is False
    assert container_root.clear_mount_point("/missing/too") is False
    assert (image_dir / "x").read_text() == "kept"
    assert os.listdir(image_dir) == ["x"]
    with pytest.raises(Fault, match="not a directory"):
        container_root.clear_mount_point("/x/y")


def test_directories_aside_get_a_number_when_the_name_is_taken(container_root: Rootfs, image_dir: Path) -> None:
    for _ in range(3):
        put(image_dir / "x", "full")
        assert container_root.clear_mount_point("/x")
    (image_dir / "x.gpu-oci-hook-aside-3").symlink_to("dangling")
    put(image_dir / "x", "empty")
    assert container_root.clear_mount_point("/x")
    numbers = sorted(n.removeprefix("x.gpu-oci-hook-aside") for n in os.listdir(image_dir))
    assert numbers == ["", "-1", "-2", "-3", "-4"]


def test_a_name_of_255_bytes_can_be_moved_aside_too(container_root: Rootfs, image_dir: Path) -> None:
    name = "ü" * 127 + "x"
    (image_dir / name).mkdir()
    assert container_root.make_symlink("/" + name, "target") is True
    assert os.readlink(image_dir / name) == "target"
    assert len(os.listdir(image_dir)) == 2


def test_write_says_false_when_the_same_is_there(container_root: Rootfs, image_dir: Path) -> None:
    assert container_root.write_file("/etc/ld.so.cache", b"\0" * 5000) is True
    before = (image_dir / "etc/ld.so.cache").stat()
    assert container_root.write_file("/etc/ld.so.cache", b"\0" * 5000) is False
    assert (image_dir / "etc/ld.so.cache").stat().st_ino == before.st_ino
    assert stat.S_IMODE(before.st_mode) == 0o644
    os.chmod(image_dir / "etc/ld.so.cache", 0o600)
    assert container_root.write_file("/etc/ld.so.cache", b"\0" * 5000) is True
    assert stat.S_IMODE((image_dir / "etc/ld.so.cache").stat().st_mode) == 0o644
    assert container_root.write_file("/etc/ld.so.cache", b"\1" * 5000) is True
    assert os.listdir(image_dir / "etc") == ["ld.so.cache"]


def test_mode_is_exact_whatever_the_umask(container_root: Rootfs, image_dir: Path) -> None:
    old = os.umask(0o077)
    try:
        container_root.write_file("/tool", b"x", 0o755)
    finally:
        os.umask(old)
    assert stat.S_IMODE((image_dir / "tool").stat().st_mode) == 0o755


def test_writing_to_no_name_is_a_fault(container_root: Rootfs, image_dir: Path) -> None:
    for path in ("/", "", "/..", "/x/..", "/.", "/nul\0", "/\ud800", "/" + "n" * 256):
        for act in (lambda p: container_root.make_symlink(p, "t"), lambda p: container_root.write_file(p, b"")):
            with pytest.raises(Fault):
                act(path)
    with pytest.raises(Fault, match="no file can have this name"):
        container_root.make_symlink("/link", "nul\0")
    where = container_root.open_directory("/")
    for name in ("", ".", "..", "a/b", "/etc"):
        with pytest.raises(Fault, match="no file can have this name"):
            where.make_symlink(name, "t")
        with pytest.raises(Fault):
            where.write_file(name, b"")
        with pytest.raises(Fault):
            where.clear_mount_point(name)
        assert where.stat_name(name) is None and where.readlink(name) is None
    assert [n for n in os.listdir(image_dir) if n != "x"] == []


def test_a_failed_write_leaves_nothing_behind(
    container_root: Rootfs, image_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (image_dir / "file").write_text("old")

    def full(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(Fault, match=r"/file: .*the disk is full"):
        container_root.write_file("/file", b"new")
    assert os.listdir(image_dir) == ["file"] and (image_dir / "file").read_text() == "old"


def test_a_short_write_is_continued(container_root: Rootfs, image_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:3]))
    container_root.write_file("/file", b"0123456789")
    assert (image_dir / "file").read_bytes() == b"0123456789"


def test_a_directory_handle_does_it_all_in_one_place(container_root: Rootfs, image_dir: Path) -> None:
    (image_dir / "usr").mkdir()
    (image_dir / "lib").symlink_to("usr/lib")
    where = container_root.open_directory("/lib")
    assert where.path == "/usr/lib"
    assert where.make_symlink("a", "b") and where.write_file("c", b"d") and not where.clear_mount_point("c")
    assert where.list_names() == ["a", "c"] and where.readlink("a") == "b"
    assert (image_dir / "usr/lib/c").read_bytes() == b"d"
    with pytest.raises(Fault, match=r"/none: .*missing"):
        container_root.open_directory("/none", create=False)
    with pytest.raises(Fault, match="not a directory"):
        container_root.open_directory("/lib/c")


def test_a_replaced_link_leads_to_its_new_place_at_once(container_root: Rootfs, image_dir: Path) -> None:
    (image_dir / "a").mkdir()
    (image_dir / "b").mkdir()
    container_root.make_symlink("/way", "a")
    container_root.write_file("/way/1", b"")
    container_root.make_symlink("/way", "b")
    container_root.write_file("/way/2", b"")
    assert os.listdir(image_dir / "a") == ["1"] and os.listdir(image_dir / "b") == ["2"]
    put(image_dir / "c", "full")
    container_root.write_file("/c/3", b"")
    container_root.clear_mount_point("/c")
    container_root.write_file("/c/4", b"")
    assert os.listdir(image_dir / "c") == ["4"]


def test_many_names_in_one_directory_walk_once(
    container_root: Rootfs, image_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    container_root.make_symlink("/usr/lib/x86_64-linux-gnu/0", "t")
    calls = []
    real = os.open
    monkeypatch.setattr(os, "open", lambda *a, **k: (calls.append(a), real(*a, **k))[1])
    for number in range(60):
        container_root.make_symlink(f"/usr/lib/x86_64-linux-gnu/{number}", "t")
        container_root.clear_mount_point(f"/usr/lib/x86_64-linux-gnu/file{number}")
        container_root.stat_path(f"/usr/lib/x86_64-linux-gnu/file{number}")
    assert calls == []


def test_no_descriptor_is_lost(image_dir: Path) -> None:
    before = open_files()
    with Rootfs(str(image_dir)) as container_root:
        for number in range(3 * MAX_CACHED_DIRECTORIES):
            container_root.write_file(f"/{number}/x", b"x")
            container_root.read_file(f"/{number}/x", 5)
            container_root.resolve_path(f"/{number}/../x/y")
            container_root.stat_path(f"/{number}/x/../y", follow=True)
            with pytest.raises(Fault):
                container_root.resolve_destination(f"/{number}/x/y")
            assert open_files() <= before + MAX_CACHED_DIRECTORIES + 2
    assert open_files() == before
    container_root.close()
    assert open_files() == before


def test_no_descriptor_reaches_the_program_that_we_become(container_root: Rootfs, image_dir: Path) -> None:
    container_root.write_file("/etc/x", b"")
    container_root.open_directory("/etc")
    held = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{fd}").startswith(str(image_dir)):
                held.append(os.get_inheritable(int(fd)))
        except FileNotFoundError:
            pass  # the listing's own
    assert len(held) >= 2 and not any(held)


def test_a_writable_root_is_told_without_a_trace(container_root: Rootfs, image_dir: Path) -> None:
    os.utime(image_dir, ns=(5, 5))
    assert container_root.is_writable() is True
    assert os.listdir(image_dir) == []
    assert image_dir.stat().st_mtime_ns == 5


def test_writable_works_where_nameless_files_do_not(
    container_root: Rootfs, image_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def no_tmpfile(path: str, flags: int, *rest: int, **names: int) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        return real(path, flags, *rest, **names)

    monkeypatch.setattr(os, "open", no_tmpfile)
    assert container_root.is_writable() is True
    assert os.listdir(image_dir) == []


def test_only_light_modules_are_imported() -> None:
    code = """
        import sys
        sys.path.insert(0, sys.argv[1])
        before = set(sys.modules)
        from gpu_oci_hook.container import image
        from gpu_oci_hook.files import rootfs
        from gpu_oci_hook.plan import loader_files
        print(*sorted(n for n in set(sys.modules) - before if not n.startswith("gpu_oci_hook")))
    """
    source = str(Path(__file__).parents[2] / "src")
    done = subprocess.run(
        [sys.executable, "-IS", "-c", textwrap.dedent(code), source], capture_output=True, text=True, check=True
    )
    assert set(done.stdout.split()) <= {
        "__future__", "_collections_abc", "_stat", "errno", "genericpath", "os", "os.path", "posixpath", "stat",
    }  # fmt: skip


@pytest.mark.root
def test_what_is_made_belongs_to_the_owner_of_its_directory(container_root: Rootfs, image_dir: Path) -> None:
    os.chown(image_dir, 100000, 100001)
    container_root.make_symlink("/usr/lib/link", "target")
    container_root.make_symlink("/usr/lib/link", "other")
    container_root.write_file("/etc/file", b"x")
    for name in ("usr", "usr/lib", "usr/lib/link", "etc", "etc/file"):
        info = (image_dir / name).lstat()
        assert (info.st_uid, info.st_gid) == (100000, 100001), name


@pytest.mark.root
def test_devices_give_way(container_root: Rootfs, image_dir: Path) -> None:
    for name in ("one", "two", "three"):
        put(image_dir / name, "char")
    assert container_root.read_file("/one", 100) is None
    assert (
        container_root.make_symlink("/one", "t")
        and container_root.write_file("/two", b"x")
        and container_root.clear_mount_point("/three")
    )
    assert sorted(os.listdir(image_dir)) == ["one", "two"]


@pytest.mark.root
def test_without_privilege_nothing_is_given_away_and_nothing_fails(tmp_path: Path) -> None:
    """In a child that is nobody: a directory of another owner that everybody may write to."""
    image_dir = tmp_path / "open"
    image_dir.mkdir()
    image_dir.chmod(0o777)
    (image_dir / "closed").mkdir(mode=0o700)
    for above in tmp_path.parents:
        if above.stat().st_uid == 0 and above.is_relative_to("/tmp"):
            above.chmod(above.stat().st_mode | 0o011)
    tmp_path.chmod(0o755)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            with Rootfs(str(image_dir)) as container_root:
                assert (
                    container_root.make_symlink("/a/b", "t")
                    and container_root.write_file("/c", b"x")
                    and container_root.is_writable()
                )
                assert container_root.resolve_path("/closed/x") is None and container_root.list_names("/closed") == []
                try:
                    container_root.write_file("/closed/x", b"")
                except Fault as fault:
                    assert "may not" in str(fault)
                    code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (image_dir / "c").stat().st_uid == 65534


def test_what_a_guard_refuses_stays_as_it_is(container_root: Rootfs, image_dir: Path) -> None:
    (image_dir / "ours").mkdir()
    (image_dir / "theirs").mkdir()
    (image_dir / "theirs/file").write_text("there")
    (image_dir / "theirs/link").symlink_to("file")
    before = snapshot_tree(image_dir)
    container_root.restrict_writes(lambda directory: directory.path == "/ours")
    steps: list[Callable[[], object]] = [
        lambda: container_root.make_symlink("/theirs/link", "t"),
        lambda: container_root.make_symlink("/theirs/new/link", "t"),
        lambda: container_root.write_file("/theirs/file", b"x"),
        lambda: container_root.clear_mount_point("/theirs/link"),
        lambda: container_root.chmod("/theirs/file", 0o600),
        lambda: container_root.open_directory("/theirs/deep/er"),
        lambda: container_root.write_file("/file", b"x"),
    ]
    for step in steps:
        with pytest.raises(CrossMountError, match="it is in another mount"):
            step()
    assert snapshot_tree(image_dir) == before
    assert container_root.make_symlink("/ours/link", "t") and container_root.write_file("/ours/file", b"x")


def test_thousands_of_missing_directories_hold_few_descriptors(container_root: Rootfs) -> None:
    before = open_files()
    for number in range(3000):
        assert container_root.resolve_destination(f"/missing/{number}/name") == f"/missing/{number}/name"
    assert open_files() - before <= 2 * MAX_CACHED_DIRECTORIES
