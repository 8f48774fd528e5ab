"""Attacks by images and by a concurrent process. `untouched_host` fails a test that changes it."""

from __future__ import annotations

import os
import posix
import socket
import stat
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_oci_hook.container import image
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.files.path_walk import MAX_STEPS
from gpu_oci_hook.files.rootfs import Rootfs
from gpu_oci_hook.plan import loader_files
from support.bundles import snapshot_tree

LIBRARIES = ("libcuda.so", "libcuda.so.1", "libnvidia-ml.so.1")

# Each path that an injection touches, and what of `host` an attacker would like us to hit there.
TOUCHED = {
    "usr": ".",
    "usr/lib": "lib",
    "usr/lib/x86_64-linux-gnu": "lib",
    "usr/lib64": "lib",
    "usr/lib/x86_64-linux-gnu/libcuda.so": "lib/libcuda.so.1",
    "usr/lib/x86_64-linux-gnu/libcuda.so.1": "lib/libcuda.so.1",
    "usr/lib/x86_64-linux-gnu/libcuda.so.550.54": "lib/libcuda.so.1",
    "usr/bin": "bin",
    "usr/bin/nvidia-smi": "bin/nvidia-smi",
    "usr/local/cuda/compat": "compat",
    "etc": ".",
    "etc/ld.so.cache": "ld.so.cache",
    "etc/ld.so.conf": "ld.so.conf",
    "etc/ld.so.conf.d": "ld.so.conf.d",
    "etc/ld.so.conf.d/00-gpu-oci-hook.conf": "ld.so.conf.d/00-gpu-oci-hook.conf",
    "etc/ld-musl-x86_64.path": "ld-musl-x86_64.path",
    "lib/ld-musl-x86_64.so.1": "lib/libcuda.so.1",
}

WAYS: dict[str, Callable[[Path, Path], str]] = {
    "absolute": lambda untouched_host, at: str(untouched_host),
    "dots": lambda untouched_host, at: "../" * 40 + str(untouched_host)[1:],
    "exact dots": lambda untouched_host, at: os.path.relpath(untouched_host, at.parent),
    "root and dots": lambda untouched_host, at: "/" + "../" * 40 + str(untouched_host)[1:],
    "through a name": lambda untouched_host, at: "lost/../" * 3 + "../" * 40 + str(untouched_host)[1:],
    "proc": lambda untouched_host, at: "/proc/self/root" + str(untouched_host),
    "proc cwd": lambda untouched_host, at: "/proc/self/cwd/" + "../" * 40 + str(untouched_host)[1:],
    "many slashes": lambda untouched_host, at: "//" + str(untouched_host) + "//",
}


def inject(container_root: Rootfs) -> list[str]:
    """Everything that an injection does below a root; the faults of its steps."""
    faults = []
    try:
        facts = image.inspect_image(container_root, "x86_64")
    except Fault as fault:
        return [str(fault)]
    assert facts.compat_libcudas == ()
    where = facts.library_dir
    found = loader_files.build_loader_files(
        facts, [(n, f"{where}/{n}", "x86_64") for n in LIBRARIES], [where, facts.library_dir32]
    )
    steps: list[Callable[[], object]] = []
    for path, content in found.files:
        steps.append(lambda p=path, c=content: container_root.write_file(p, c))  # type: ignore[misc]
    for name in LIBRARIES:
        steps.append(lambda n=name: container_root.make_symlink(f"{where}/{n}", f"{n}.550.54"))  # type: ignore[misc]
    for path in (f"{where}/libcuda.so.550.54", "/usr/bin/nvidia-smi"):
        steps.append(lambda p=path: container_root.clear_mount_point(p))  # type: ignore[misc]
    # what another image would have got
    steps.append(lambda: container_root.write_file("/etc/ld-musl-x86_64.path", b"/x\n"))
    steps.append(lambda: container_root.write_file("/etc/ld.so.conf", b"include /etc/ld.so.conf.d/*.conf\n"))
    steps.append(lambda: container_root.make_symlink("/usr/lib64/gbm/nvidia-drm_gbm.so", "../libnvidia-allocator.so.1"))
    for step in steps:
        try:
            step()
        except Fault as fault:
            faults.append(str(fault))
    return faults


def test_an_ordinary_image_is_changed_once(container_root: Rootfs, debian_image: Path) -> None:
    """The routine that all attacks below are made on does its work where nobody attacks."""
    assert inject(container_root) == []
    first = snapshot_tree(debian_image, temporaries=True)
    where = debian_image / "usr/lib/x86_64-linux-gnu"
    assert [os.readlink(where / name) for name in LIBRARIES] == [f"{name}.550.54" for name in LIBRARIES]
    assert inject(container_root) == []
    assert snapshot_tree(debian_image, temporaries=True) == first


def replace(image_dir: Path, at: str) -> Path:
    """Make room for an attack at a path."""
    path = image_dir / at
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.is_dir():
        path.rename(image_dir / "was")
    return path


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("at", TOUCHED)
def test_a_link_out_of_the_root_stays_inside(
    container_root: Rootfs, debian_image: Path, untouched_host: Path, at: str, way: str
) -> None:
    path = replace(debian_image, at)
    path.symlink_to(WAYS[way](untouched_host / TOUCHED[at], path))
    faults = inject(container_root)
    assert faults == []
    assert container_root.read_file("/" + at, 1 << 20) != b"host's secret\n"
    assert b"host's secret\n" not in [
        container_root.read_file(f"/{at}/{n}", 100) for n in container_root.list_names("/" + at)
    ]


def test_conf_directory_that_is_the_hosts_etc(container_root: Rootfs, debian_image: Path) -> None:
    for text in ("/etc", "/../../../../etc"):
        path = debian_image / "etc/ld.so.conf.d"
        path.rmdir()
        path.symlink_to(text)
        assert inject(container_root) == []
        assert (debian_image / "etc/00-gpu-oci-hook.conf").is_file()
        assert not os.path.exists("/etc/00-gpu-oci-hook.conf")
        path.unlink()
        path.mkdir()


@pytest.mark.parametrize("at", TOUCHED)
def test_links_that_go_round_end_in_a_fault_or_in_a_container(
    container_root: Rootfs, debian_image: Path, untouched_host: Path, at: str
) -> None:
    path = replace(debian_image, at)
    path.symlink_to("/" + at)
    for fault in inject(container_root):
        assert "round in a circle" in fault
    other = debian_image / "two"
    path.unlink(missing_ok=True) if path.is_symlink() else None
    if not path.exists():
        path.symlink_to("/two")
        other.symlink_to("/" + at)
        inject(container_root)


def special(path: Path, kind: str) -> None:
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        here = os.getcwd()
        os.chdir(path.parent)  # sun_path is short
        try:
            with socket.socket(socket.AF_UNIX) as server:
                server.bind(path.name)
        finally:
            os.chdir(here)
    elif kind == "directory":
        path.mkdir()
    elif kind == "full directory":
        (path / "a/b").mkdir(parents=True)
        (path / "a/b/c").write_text("x")
    else:
        # /dev/random would answer for ever, a tape or a watchdog would notice being opened
        os.mknod(path, {"char": stat.S_IFCHR, "block": stat.S_IFBLK}[kind] | 0o666, os.makedev(1, 8))


@pytest.mark.root
@pytest.mark.parametrize("kind", ["fifo", "socket", "char", "block", "directory", "full directory"])
@pytest.mark.parametrize("at", TOUCHED)
def test_special_files_neither_block_nor_stop(container_root: Rootfs, debian_image: Path, at: str, kind: str) -> None:
    special(replace(debian_image, at), kind)
    start = time.monotonic()
    faults = inject(container_root)
    assert time.monotonic() - start < 2
    for fault in faults:
        assert "not a directory" in fault, fault
    if "directory" in kind or TOUCHED[at].count("/") or at == "etc/ld.so.cache":
        assert faults == []


def test_a_huge_sparse_cache_is_replaced_quickly(container_root: Rootfs, debian_image: Path) -> None:
    with open(debian_image / "etc/ld.so.cache", "wb") as cache:
        cache.write(b"glibc-ld.so.cache1.1")
        cache.truncate(1 << 30)
    start = time.monotonic()
    assert inject(container_root) == []
    assert time.monotonic() - start < 1
    assert (debian_image / "etc/ld.so.cache").stat().st_size < 1000


def test_a_file_that_grows_while_it_is_read_is_bounded(
    container_root: Rootfs, image_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (image_dir / "file").write_bytes(b"x" * 10)
    real = posix.read

    def grow(fd: int, size: int) -> bytes:
        with open(image_dir / "file", "ab") as file:
            file.write(b"x" * 1000)
        return real(fd, size)

    monkeypatch.setattr(posix, "read", grow)
    assert container_root.read_file("/file", 500) is None


def test_hard_links_to_the_hosts_files_keep_their_content(
    container_root: Rootfs, debian_image: Path, untouched_host: Path
) -> None:
    """Layer stores share inodes. The link count is taken by name, so the watched files are copies' names."""
    for at, name in TOUCHED.items():
        if not (untouched_host / name).is_file() or (debian_image / at).exists():
            continue
        (debian_image / at).parent.mkdir(parents=True, exist_ok=True)
        os.link(untouched_host / name, debian_image / at)
    assert inject(container_root) == []
    assert (untouched_host / "ld.so.cache").read_text() == "host's secret\n"


def test_odd_names_pass_through_unharmed(container_root: Rootfs, debian_image: Path) -> None:
    odd = [b"new\nline", b"\xff\xfe", b"\x1b[2J", b"a b", b"#c", b"..."]
    compat = debian_image / "usr/local/cuda/compat"
    compat.mkdir(parents=True)
    for name in odd:
        (compat / os.fsdecode(b"libcuda.so." + name)).write_text("x")
        (compat / os.fsdecode(name)).write_text("x")
        path = "/odd/" + os.fsdecode(name)
        assert container_root.make_symlink(path, "t") is True and container_root.make_symlink(path, "t") is False
        assert container_root.write_file(path, b"x") is True and container_root.clear_mount_point(path) is False
        assert container_root.resolve_path(path) == path
    assert sorted(map(os.fsencode, os.listdir(debian_image / "odd"))) == sorted(odd)
    facts = image.inspect_image(container_root, "x86_64")
    assert facts.compat_libcudas == () and len(facts.compat_names) == len(odd)
    with pytest.raises(Fault) as caught:
        container_root.write_file("/odd/new\nline/x", b"")
    assert "\n" not in str(caught.value) and "\\n" in str(caught.value)


def test_a_library_directory_with_an_odd_name_writes_no_line_of_its_own(
    container_root: Rootfs, debian_image: Path
) -> None:
    evil = debian_image / "x\n/evil"
    evil.mkdir(parents=True)
    (debian_image / "usr/lib/x86_64-linux-gnu").rmdir()
    (debian_image / "usr/lib/x86_64-linux-gnu").symlink_to("/x\n/evil")
    facts = image.inspect_image(container_root, "x86_64")
    found = loader_files.build_loader_files(facts, [("libcuda.so.1", "/x", "x86_64")], [facts.library_dir])
    assert dict(found.files)[loader_files.LD_CONF_DROP_IN].decode().count("\n") == 1
    assert found.needs_ld_library_path and "\n" not in " ".join(found.notes)


@pytest.mark.parametrize("where", ["/", "/proc", "/proc/self/fd", "/sys/x", "/dev", "/dev/shm"])
def test_a_library_directory_under_a_mount_is_not_taken(container_root: Rootfs, debian_image: Path, where: str) -> None:
    for name in ("usr/lib/x86_64-linux-gnu", "usr/lib64"):
        (debian_image / name).rmdir()
        (debian_image / name).symlink_to(where)
    (debian_image / where[1:]).mkdir(parents=True, exist_ok=True)
    assert image.inspect_image(container_root, "x86_64").library_dir == image.FALLBACK_LIBRARY_DIR


def test_two_thousand_components_are_walked(container_root: Rootfs, image_dir: Path) -> None:
    fd = os.open(image_dir, os.O_RDONLY)
    for _ in range(2000):
        os.mkdir("d", dir_fd=fd)
        below = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.symlink("/short", "up", dir_fd=fd)
    os.symlink("../" * 1300, "dots", dir_fd=fd)
    os.close(fd)
    (image_dir / "short").write_text("x")
    deep = "/d" * 2000
    try:
        start = time.process_time()  # of a machine that has more to do than this
        assert container_root.resolve_path(deep) == deep
        assert container_root.read_file(deep + "/up", 10) == b"x"
        assert (
            container_root.make_symlink(deep + "/x", "t") is True
            and container_root.clear_mount_point(deep + "/x") is True
        )
        # each ".." walks again: bounded, whatever the answer
        container_root.resolve_path(deep + "/dots")
        with pytest.raises(Fault):
            container_root.resolve_destination("/d/.." * (MAX_STEPS + 1))
        assert container_root.resolve_path("/x" * 100000) is None
        assert time.process_time() - start < 10
    finally:  # no later run could remove it: shutil.rmtree ends in a RecursionError
        subprocess.run(["rm", "-rf", str(image_dir / "d")], check=True)


def test_a_path_longer_than_the_kernel_takes_ends_at_once(container_root: Rootfs) -> None:
    """An image can put one into LD_LIBRARY_PATH or ld.so.conf: megabytes of short components."""
    path = "/a" * 2_000_000
    start = time.monotonic()
    with pytest.raises(Fault, match="the name is too long"):
        container_root.resolve_destination(path)
    with pytest.raises(Fault, match="the name is too long"):
        container_root.open_directory(path, create=False)
    assert container_root.resolve_path(path) is None and container_root.stat_path(path) is None
    assert time.monotonic() - start < 2


def test_links_that_double_their_text_end_soon(container_root: Rootfs, image_dir: Path) -> None:
    for number in range(1, 60):
        (image_dir / f"l{number}").symlink_to(f"/l{number - 1}/../l{number - 1}/.." * 100)
    (image_dir / "l0").mkdir()
    start = time.monotonic()
    assert container_root.resolve_path("/l59") is None
    assert time.monotonic() - start < 2


@pytest.mark.root
def test_immutable_and_read_only_places_are_told_in_words(container_root: Rootfs, debian_image: Path) -> None:
    (debian_image / "etc/ld.so.cache").write_bytes(b"old")
    (debian_image / "right").symlink_to("target")
    done = subprocess.run(["chattr", "+i", "etc/ld.so.cache", "usr/lib/x86_64-linux-gnu"], cwd=debian_image)
    if done.returncode == 0:
        try:
            faults = inject(container_root)
            assert any("/etc/ld.so.cache" in f and "the kernel refuses it" in f for f in faults)
            assert any("x86_64-linux-gnu/libcuda.so.1" in f for f in faults)
        finally:
            subprocess.run(["chattr", "-i", "etc/ld.so.cache", "usr/lib/x86_64-linux-gnu"], cwd=debian_image)
    subprocess.run(["mount", "--bind", str(debian_image), str(debian_image)], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", str(debian_image)], check=True)
    try:
        with Rootfs(str(debian_image)) as closed:
            assert closed.is_writable() is False and image.inspect_image(closed, "x86_64").writable is False
            faults = inject(closed)
            assert faults and all("read-only" in f for f in faults), faults
            assert closed.make_symlink("/right", "target") is False
            assert closed.write_file("/etc/debian_version", b"12.0\n") is False
            assert closed.clear_mount_point("/usr/bin/nvidia-smi") is False
    finally:
        subprocess.run(["umount", str(debian_image)], check=True)


@pytest.mark.root
def test_directories_of_a_lower_overlay_layer_give_way(tmp_path: Path) -> None:
    """overlayfs refuses to rename them (EXDEV) unless redirect_dir is on."""
    for name in ("lower/full/sub/deep", "lower/empty", "upper", "work", "merged"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "lower/full").chmod(0o750)
    (tmp_path / "lower/full/sub/deep/file").write_text("precious")
    (tmp_path / "lower/full/sub/link").symlink_to("nowhere")
    options = "redirect_dir=off," + ",".join(f"{k}dir={tmp_path}/{k}" for k in ("lower", "upper", "work"))
    merged = tmp_path / "merged"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, str(merged)], check=True)
    try:
        with pytest.raises(OSError, match="cross-device"):
            os.rename(merged / "full", merged / "full2")
        with Rootfs(str(merged)) as container_root:
            assert container_root.is_writable() is True
            assert (
                container_root.make_symlink("/full", "t") is True and container_root.clear_mount_point("/empty") is True
            )
        assert os.readlink(merged / "full") == "t"
        aside = merged / "full.gpu-oci-hook-aside"
        assert (aside / "sub/deep/file").read_text() == "precious"
        assert stat.S_IMODE(aside.stat().st_mode) == 0o750
        assert os.readlink(aside / "sub/link") == "nowhere"
        assert (tmp_path / "lower/full/sub/deep/file").exists()
    finally:
        subprocess.run(["umount", str(merged)], check=True)


@pytest.mark.root
def test_too_large_a_directory_of_a_lower_layer_ends_in_a_sentence(tmp_path: Path) -> None:
    for name in ("lower" + "/d" * 80, "upper", "work", "merged"):
        (tmp_path / name).mkdir(parents=True)
    options = "redirect_dir=off," + ",".join(f"{k}dir={tmp_path}/{k}" for k in ("lower", "upper", "work"))
    merged = tmp_path / "merged"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, str(merged)], check=True)
    try:
        with Rootfs(str(merged)) as container_root, pytest.raises(Fault, match="cannot make room"):
            container_root.clear_mount_point("/d")
    finally:
        subprocess.run(["umount", str(merged)], check=True)


# Swaps two names atomically (renameat2, RENAME_EXCHANGE) until told to stop, and says how often it did.
SWAPPER = """
    import ctypes, signal, sys
    libc = ctypes.CDLL(None, use_errno=True)
    one, two = (p.encode() for p in sys.argv[1:])
    stop = []
    signal.signal(signal.SIGTERM, lambda *a: stop.append(1))
    count = 0
    print("ready", flush=True)
    while not stop:
        if libc.renameat2(-100, one, -100, two, 2) == 0:
            count += 1
    print(count, flush=True)
"""


def race(one: Path, two: Path, attempt: Callable[[], None], seconds: float = 1.2) -> int:
    """Call something over and over while another process swaps two names; how often they were swapped."""
    swapper = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SWAPPER), str(one), str(two)], stdout=subprocess.PIPE, text=True
    )
    assert swapper.stdout is not None
    try:
        assert swapper.stdout.readline() == "ready\n"
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            attempt()
    finally:
        swapper.terminate()
        swaps = int(swapper.stdout.read())
        swapper.wait()
    return swaps


def test_the_race_is_one_that_checking_a_path_first_loses(debian_image: Path, tmp_path: Path) -> None:
    """The control: what `realpath` and `open` write ends up outside, so the races below mean something."""
    outside = tmp_path / "outside"
    outside.mkdir()
    target, decoy = debian_image / "etc/ld.so.conf.d", debian_image / "decoy"
    decoy.symlink_to(outside)

    def naive() -> None:
        try:
            checked = os.path.realpath(target)
            if checked.startswith(str(debian_image)):
                with open(os.path.join(checked, "written"), "w"):
                    pass
        except OSError:
            pass

    for _ in range(20):
        race(target, decoy, naive, 0.5)
        if os.listdir(outside):
            break
    assert os.listdir(outside) == ["written"]


@pytest.mark.parametrize("at", ["etc/ld.so.conf.d", "etc", "usr/lib/x86_64-linux-gnu", "usr/lib", "usr"])
def test_a_directory_swapped_for_a_link_to_the_host(debian_image: Path, untouched_host: Path, at: str) -> None:
    decoy = debian_image / "decoy"
    decoy.symlink_to(untouched_host / TOUCHED[at])
    seen: dict[str | None, int] = {}

    def attempt() -> None:
        with Rootfs(str(debian_image)) as container_root:
            found = container_root.resolve_path("/" + at)
            seen[found] = seen.get(found, 0) + 1
            for fault in inject(container_root):
                assert "circle" in fault or "missing" in fault or "resource busy" in fault, fault
            assert container_root.read_file(f"/{at}/ld.so.cache", 100) != b"host's secret\n"
            assert "libcuda.so.1.d" not in container_root.list_names("/" + at)
            container_root.clear_mount_point(f"/{at}/00-gpu-oci-hook.conf")

    swaps = race(debian_image / at, decoy, attempt)
    assert swaps > 100
    assert seen.get("/" + at, 0) > 0, seen


@pytest.mark.parametrize("other", ["link", "fifo", "directory"])
def test_a_file_swapped_for_something_else(debian_image: Path, untouched_host: Path, other: str) -> None:
    cache, decoy = debian_image / "etc/ld.so.cache", debian_image / "decoy"
    cache.write_bytes(b"container's own")
    if other == "link":
        decoy.symlink_to(untouched_host / "ld.so.cache")
    else:
        special(decoy, other)
    seen = set()

    def attempt() -> None:
        with Rootfs(str(debian_image)) as container_root:
            seen.add(container_root.read_file("/etc/ld.so.cache", 100))
            status = container_root.stat_path("/etc/ld.so.cache")
            assert status is not None
            container_root.readlink("/etc/ld.so.cache")

    assert race(cache, decoy, attempt) > 100
    assert seen == {b"container's own", None}


@pytest.mark.parametrize("other", ["link", "fifo", "directory"])
def test_a_file_swapped_while_it_is_written(debian_image: Path, untouched_host: Path, other: str) -> None:
    cache, decoy = debian_image / "etc/ld.so.cache", debian_image / "decoy"
    cache.write_bytes(b"container's own")
    count = 0

    def attempt() -> None:
        nonlocal count
        count += 1
        with Rootfs(str(debian_image)) as container_root:
            try:
                container_root.write_file("/etc/ld.so.cache", b"ours %d" % (count % 7))
                container_root.make_symlink("/etc/ld.so.cache", f"ours {count % 5}")
                container_root.clear_mount_point("/etc/ld.so.cache")
            except Fault as fault:
                assert "busy" in str(fault) or "exists" in str(fault), fault
        # what the attacker keeps putting back
        if not os.path.lexists(decoy):
            decoy.symlink_to(untouched_host / "ld.so.cache") if other == "link" else special(decoy, other)
        if not os.path.lexists(cache):
            cache.write_bytes(b"container's own")

    assert race(cache, decoy, attempt) > 20
