"""JetPack's lists: every kind of line, what becomes of it, and when the answer is a new one."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_oci_hook.config.keys import Config
from gpu_oci_hook.formats import elf_builder
from gpu_oci_hook.host.platforms import tegra, tegra_csv
from gpu_oci_hook.host.root import Host
from gpu_oci_hook.model.machine import Inventory
from support.fake_cache import FakeCache

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root can make device nodes")
LISTS = "etc/nvidia-container-runtime/host-files-for-container.d"
LIB = "/usr/lib/aarch64-linux-gnu"

# One line of each type, two of them without a file.
EVERY_TYPE = f"""dev, /dev/nvhost-gpu
dev, /dev/nvidiactl
lib, {LIB}/tegra/libcuda.so.1.1
dir, /usr/local/cuda-10.2
sym, {LIB}/libcuda.so
bogus, /x
"""


def write(root: Path, path: str, data: bytes | str = "x") -> Path:
    place = root / path.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(data if isinstance(data, bytes) else data.encode())
    return place


def link(root: Path, path: str, target: str) -> None:
    place = root / path.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(target)


def board(root: Path, **lists: str) -> Path:
    """A board with these lists, and the files that EVERY_TYPE names."""
    for name, text in lists.items():
        write(root, f"{LISTS}/{name}.csv", text)
    write(root, "/etc/nv_tegra_release", "# R36 (release), REVISION: 4.3, GCID: 1\n")
    write(root, f"{LIB}/tegra/libcuda.so.1.1", elf_builder.build_shared_object(soname="libcuda.so.1", arch="aarch64"))
    link(root, f"{LIB}/libcuda.so", "tegra/libcuda.so.1.1")
    return root


def look(
    root: Path, *, every: bool = False, ignore: tuple[str, ...] = (), cache: FakeCache | None = None
) -> tuple[tegra.TegraPlatform, Inventory]:
    host = Host(str(root))
    made = tegra.TegraPlatform(host, ())
    made.list_gpus([])
    found = made.collect_inventory(host, Config(csv_ignore=ignore), [], None, cache or FakeCache(), all_lists=every)
    return made, found


def said(made: tegra.TegraPlatform) -> dict[str, str]:
    return {f"{kind}, {path}": what for _, kind, path, what in made.report_list_lines()}


def files(found: Inventory) -> set[tuple[str, str]]:
    return {(file.kind, file.container_path) for file in found.files}


@ROOT
def test_every_kind_of_line_has_its_verdict(tmp_path: Path) -> None:
    board(tmp_path, devices=EVERY_TYPE)
    write(tmp_path, "dev/null").unlink()
    os.mknod(tmp_path / "dev/nvhost-gpu", 0o20660, os.makedev(501, 1))
    made, found = look(tmp_path)
    assert said(made) == {
        "dev, /dev/nvhost-gpu": "matched",
        "dev, /dev/nvidiactl": "missing",
        f"lib, {LIB}/tegra/libcuda.so.1.1": "matched",
        "dir, /usr/local/cuda-10.2": "missing",
        f"sym, {LIB}/libcuda.so": "matched",
        "bogus, /x": "unknown type: valid are dev, dir, lib, sym",
    }
    assert made.report_list_lines()[1][0] == f"/{LISTS}/devices.csv:2"
    assert files(found) == {("library", f"{LIB}/tegra/libcuda.so.1.1"), ("config", "/etc/nv_tegra_release")}
    assert made.csv_links == ((f"{LIB}/libcuda.so", "tegra/libcuda.so.1.1", "devices.csv:5"),)
    (cuda,) = (file for file in found.files if file.kind == "library")
    assert (cuda.soname, cuda.arch, cuda.name) == ("libcuda.so.1", "aarch64", "libcuda.so.1.1")
    assert found.version == "", "1.1 is no driver's version"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("\t\n\n  \n", []),
        ("# a comment\ndev, /a", [(2, "dev", "/a")]),
        (",", [(1, "", "")]),
        ("dev,", [(1, "dev", "")]),
        ("dev ,/a/path", [(1, "dev", "/a/path")]),
        ("  lib\t,  /a,b,c  ", [(1, "lib", "/a,b,c")]),
        ("not-dev", [(1, "not-dev", "")]),
        ("dev, /a\r\nlib, /b\r\n", [(1, "dev", "/a"), (2, "lib", "/b")]),
    ],
)
def test_lines_are_split_at_their_first_comma(text: str, expected: list[tuple[int, str, str]]) -> None:
    assert tegra_csv.parse_csv_lines(text) == expected


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("dev, /etc/nv_tegra_release", "wrong type: not a character device"),
        ("dir, /etc/nv_tegra_release", "wrong type: not a directory"),
        ("lib, /etc", "wrong type: a directory"),
        ("lib, /fifo", "wrong type: not a regular file"),
        ("lib, /empty", "wrong type: an empty file"),
        ("sym, /dangling", "missing"),
        ("sym, /loop", "missing"),
        ("lib, relative/path", "not an absolute path without .."),
        ("lib, /a/../../../etc/shadow", "not an absolute path without .."),
        ("lib,", "no path"),
        ("Lib, /empty", "unknown type: valid are dev, dir, lib, sym"),
        ("dev, /dev/nothing*", "missing"),
        ("lib, /nowhere/*.so", "missing"),
        ("dir, /", "wrong type: the root directory"),
        ("sym, /up", "wrong type: the root directory"),
        ("lib, /round/*/*/*/*/*/*/*/*/*/*/*/*/*", "too many: it matches more than 4096 paths"),
        ("dev, /round/*/*/*/*/*/*/*/*/*/*/*/*/*", "too many: it matches more than 4096 paths"),
    ],
)
def test_a_line_that_gives_nothing_says_why(tmp_path: Path, line: str, what: str) -> None:
    board(tmp_path, l4t=line)
    write(tmp_path, "/empty", "")
    os.mkfifo(tmp_path / "fifo")
    link(tmp_path, "/dangling", "nowhere")
    link(tmp_path, "/loop", "loop")
    link(tmp_path, "/up", "..")
    for name in ("one", "two"):
        link(tmp_path, f"/round/{name}", ".")
    made, found = look(tmp_path)
    assert list(said(made).values()) == [what]
    assert files(found) == {("config", "/etc/nv_tegra_release")}


@ROOT
@pytest.mark.parametrize("kind", ["list", "directory"])
def test_root_believes_no_list_that_another_user_could_write(tmp_path: Path, kind: str) -> None:
    """It says what is mounted, as the configuration does."""
    board(tmp_path, l4t="lib, /file\n")
    write(tmp_path, "/file")
    place = Path(f"{tmp_path}/{LISTS}{'/l4t.csv' * (kind == 'list')}")
    os.chown(place, 12345, 0)
    cache = FakeCache()
    made, found = look(tmp_path, cache=cache)
    assert said(made) == {} and files(found) == {("config", "/etc/nv_tegra_release")}
    assert f"{place} belongs to user 12345, so it" in found.problems[0]
    os.chown(place, 0, 0)
    assert said(look(tmp_path, cache=cache)[0]) == {"lib, /file": "matched"}, "mended is mended at once"
    place.chmod(0o777)
    assert "can be written by every user" in look(tmp_path)[1].problems[0]


@ROOT
def test_one_path_has_one_spelling(tmp_path: Path) -> None:
    board(tmp_path, devices="dev, /dev//./thing\n", l4t="lib, //opt/./file/\n")
    write(tmp_path, "/opt/file")
    (tmp_path / "dev").mkdir()
    os.mknod(tmp_path / "dev/thing", stat.S_IFCHR | 0o666, os.makedev(500, 0))
    made, found = look(tmp_path)
    assert said(made) == {"dev, /dev/thing": "matched", "lib, /opt/file": "matched"}
    assert ("config", "/opt/file") in files(found)


def test_wildcards_stand_for_names_and_not_for_slashes(tmp_path: Path) -> None:
    board(tmp_path, drivers="lib, /opt/lib?/v[12]/*.so\n")
    for path in ("lib1/v1/a.so", "lib1/v1/.hidden.so", "lib2/v2/b.so", "lib2/v3/c.so", "lib2/v1/d/e.so", "lib/v1/f.so"):
        write(tmp_path, f"/opt/{path}")
    _, found = look(tmp_path)
    assert files(found) - {("config", "/etc/nv_tegra_release")} == {
        ("config", "/opt/lib1/v1/a.so"),
        ("config", "/opt/lib2/v2/b.so"),
    }


def test_the_whole_chain_of_links_is_rebuilt_and_its_end_comes_along(tmp_path: Path) -> None:
    board(tmp_path, drivers="sym, /opt/current/libx.so\n")
    write(tmp_path, "/data/v2/libx.so.1.0", elf_builder.build_shared_object(soname="libx.so.1", arch="aarch64"))
    link(tmp_path, "/data/v2/libx.so.1", "libx.so.1.0")
    link(tmp_path, "/data/v2/libx.so", "/data/v2/libx.so.1")
    link(tmp_path, "/opt/current", "../data/v2")
    made, found = look(tmp_path)
    assert {(path, target) for path, target, _ in made.csv_links} == {
        ("/opt/current/libx.so", "/data/v2/libx.so"),
        ("/data/v2/libx.so", "/data/v2/libx.so.1"),
        ("/data/v2/libx.so.1", "libx.so.1.0"),
    }
    assert ("library", "/data/v2/libx.so.1.0") in files(found)


def test_a_link_to_a_directory_brings_the_directory(tmp_path: Path) -> None:
    board(tmp_path, drivers="sym, /usr/local/cuda\n")
    write(tmp_path, "/usr/local/cuda-12/bin/nvcc")
    link(tmp_path, "/usr/local/cuda", "cuda-12")
    made, found = look(tmp_path)
    assert ("tree", "/usr/local/cuda-12") in files(found)
    assert [made.csv_links[0][:2]] == [("/usr/local/cuda", "cuda-12")]


def test_links_never_lead_out_of_the_hosts_root(tmp_path: Path) -> None:
    board(tmp_path / "h", drivers="sym, /out\nlib, /up\n")
    write(tmp_path, "secret")
    link(tmp_path / "h", "/out", str(tmp_path / "secret"))
    link(tmp_path / "h", "/up", "../../../secret")
    made, _ = look(tmp_path / "h")
    assert set(said(made).values()) == {"missing"}


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("/a/*.so", "/a/x.so", True),
        ("/a/*.so", "/a/b/x.so", False),
        ("*.so", "/a/x.so", False),
        ("**/*.so", "/a/b/x.so", True),
        ("**/libcuda.so", "/a/b/libcuda.so.1", False),
        ("/a/libx.so.[0-9]", "/a/libx.so.1", True),
        ("/a/libx.so", "/a/libx.so", True),
    ],
)
def test_patterns_of_ignored_links(pattern: str, path: str, expected: bool) -> None:
    assert tegra_csv.is_ignored_link(path, (pattern,)) is expected


def test_only_links_are_ignored(tmp_path: Path) -> None:
    board(tmp_path, drivers=f"sym, {LIB}/libcuda.so\nlib, {LIB}/tegra/libcuda.so.1.1\n")
    made, found = look(tmp_path, ignore=("**/libcuda.so*",))
    assert said(made) == {
        f"sym, {LIB}/libcuda.so": "ignored: [host] csv-ignore",
        f"lib, {LIB}/tegra/libcuda.so.1.1": "matched",
    }
    assert made.csv_links == ()
    assert ("library", f"{LIB}/tegra/libcuda.so.1.1") in files(found)


def test_three_lists_count_and_all_only_when_asked_for(tmp_path: Path) -> None:
    names = {"devices": "1", "drivers": "2", "l4t": "3", "multimedia": "4"}
    board(tmp_path, **{name: f"lib, /file{number}\n" for name, number in names.items()})
    write(tmp_path, f"{LISTS}/UPPER.CSV", "lib, /file5\n")
    for name in (".csv", "not.txt", "sub/deep.csv"):
        write(tmp_path, f"{LISTS}/{name}", "lib, /file6\n")
    made, _ = look(tmp_path)
    assert list(said(made)) == ["lib, /file1", "lib, /file2", "lib, /file3"]
    made, _ = look(tmp_path, every=True)
    assert set(said(made)) == {f"lib, /file{number}" for number in range(1, 6)}


def test_a_board_without_lists_says_where_they_were_looked_for(tmp_path: Path) -> None:
    _, found = look(board(tmp_path))
    assert found.problems == (
        f"no list of the board's nodes and files in {tmp_path}/{LISTS}: searched for devices.csv, drivers.csv, l4t.csv",
    )


def test_a_list_that_is_no_file_or_empty_costs_a_sentence(tmp_path: Path) -> None:
    board(tmp_path, drivers="", l4t="lib, /x\n")
    (tmp_path / LISTS / "devices.csv").mkdir()
    made, found = look(tmp_path)
    assert list(said(made)) == ["lib, /x"]
    assert [problem.rpartition("/")[2] for problem in found.problems] == [
        "devices.csv is a directory, so it is ignored",
        "drivers.csv is empty, so it is ignored",
    ]


def test_what_a_whole_directory_brings_is_not_mounted_twice(tmp_path: Path) -> None:
    board(tmp_path, drivers=f"dir, {LIB}/tegra\nlib, {LIB}/tegra/libcuda.so.1.1\nlib, {LIB}/tegra/data.json\n")
    write(tmp_path, f"{LIB}/tegra/data.json")
    _, found = look(tmp_path)
    assert files(found) - {("config", "/etc/nv_tegra_release")} == {
        ("tree", f"{LIB}/tegra"),
        ("library", f"{LIB}/tegra/libcuda.so.1.1"),  # its SONAME has to be known
    }


def test_the_answer_is_cached_until_something_changes(tmp_path: Path) -> None:
    board(tmp_path, drivers=f"lib, {LIB}/tegra/*\nsym, /later\nlib, /opt/deep/file\n")
    cache = FakeCache()
    look(tmp_path, cache=cache)
    _, again = look(tmp_path, cache=cache)
    assert cache.puts == 1
    assert ("library", f"{LIB}/tegra/libcuda.so.1.1") in files(again)
    changes: list[Callable[[], object]] = [
        lambda: write(tmp_path, f"{LIB}/tegra/libnew.so", "data"),
        lambda: link(tmp_path, "/later", f"{LIB}/tegra/libnew.so"),
        lambda: write(tmp_path, "/opt/deep/file"),
        lambda: write(tmp_path, f"{LISTS}/l4t.csv", "lib, /etc/nv_tegra_release\n"),
        lambda: write(tmp_path, f"{LISTS}/drivers.csv", "lib, /opt/deep/file\n"),
        (tmp_path / "opt/deep/file").unlink,
    ]
    for number, change in enumerate(changes):
        change()
        made, _ = look(tmp_path, cache=cache)
        assert cache.puts == 2 + number, number
    assert said(made)["lib, /opt/deep/file"] == "missing"


@ROOT
def test_nodes_are_looked_at_every_time(tmp_path: Path) -> None:
    board(tmp_path, devices="dev, /dev/nvgpu/igpu?/*\n")
    (tmp_path / "dev/nvgpu/igpu0").mkdir(parents=True)
    cache = FakeCache()
    made, _ = look(tmp_path, cache=cache)
    assert list(said(made).values()) == ["missing"]
    os.mknod(tmp_path / "dev/nvgpu/igpu0/ctrl", 0o20660, os.makedev(502, 2))
    made, _ = look(tmp_path, cache=cache)
    assert list(said(made).values()) == ["matched"]
    assert cache.puts == 1


@pytest.mark.parametrize(
    ("release", "expected"),
    [
        ("# R32 (release), REVISION: 3.1, GCID: 1", ("10.0", "10.0")),
        ("# R32 (release), REVISION: 7.1, GCID: 1", ("10.2", "10.2")),
        ("# R35 (release), REVISION: 4.1, GCID: 1", ("11.4", "11.4")),
        ("# R36 (release), REVISION: 3.0, GCID: 1", ("12.2", "12.2")),
        ("# R36 (release), REVISION: 4.3, GCID: 1", ("12.6", "12.6")),
        ("# R38 (release), REVISION: 2.0, GCID: 1", ("13.0", "13.0")),
        ("# R99 (release), REVISION: 1.0, GCID: 1", ("", "13.0")),
        ("# R28 (release), REVISION: 2.1, GCID: 1", ("", "")),
        ("garbage", ("", "")),
        ("", ("", "")),
        ("# R36 (release)", ("", "")),
    ],
)
def test_the_boards_release_tells_its_cuda_version(release: str, expected: tuple[str, str]) -> None:
    assert tegra.lookup_l4t_cuda_version(release) == expected
