"""Which device comes from which file: directories, priorities, conflicts, neighbours, and the cache."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from gpu_oci_hook.cdi.registry import scan, spec_dirs
from gpu_oci_hook.cdi.spec import reading
from gpu_oci_hook.cdi.spec.reading import read_spec_file
from gpu_oci_hook.host.root import Host
from support.fake_cache import FakeCache
from support.spec_dirs import DIRECTORIES, make_registry, make_spec, write_host_file

A, B = "vendor.com/dev=a", "vendor.com/dev=b"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root can give files away")


def test_no_directory_and_an_empty_one_have_no_devices(tmp_path: Path) -> None:
    assert make_registry(tmp_path).list_device_names() == []
    (tmp_path / "etc/cdi").mkdir(parents=True)
    assert make_registry(tmp_path).list_device_names() == []


@pytest.mark.parametrize("there", ["etc/cdi", "var/run/cdi"])
def test_one_directory_is_enough(tmp_path: Path, there: str) -> None:
    path = write_host_file(tmp_path, f"{there}/x.json", make_spec("a"))
    assert make_registry(tmp_path).find_device_file(A) == str(path)


def test_a_later_directory_wins_and_gives_way_again(tmp_path: Path) -> None:
    first = write_host_file(tmp_path, "etc/cdi/x.json", make_spec("a", "b"))
    second = write_host_file(tmp_path, "var/run/cdi/y.json", make_spec("a"))
    found = make_registry(tmp_path)
    assert (found.find_device_file(A), found.find_device_file(B)) == (str(second), str(first))
    second.unlink()
    assert make_registry(tmp_path).find_device_file(A) == str(first)


@pytest.mark.parametrize("directory", ["etc/cdi", "var/run/cdi"])
def test_a_device_in_two_files_of_one_directory_is_not_used(tmp_path: Path, directory: str) -> None:
    one = write_host_file(tmp_path, f"{directory}/1.json", make_spec("a", "b"))
    two = write_host_file(tmp_path, f"{directory}/2.json", make_spec("a", "c"))
    assert make_registry(tmp_path).list_device_names() == [B, "vendor.com/dev=c"]
    looked = scan.SpecScan(Host(str(tmp_path)), DIRECTORIES)
    assert [file.path for file in looked.conflicts[A]] == [str(one), str(two)]


def test_a_conflict_is_not_settled_by_a_later_directory(tmp_path: Path) -> None:
    """As in the reference library, whose list of conflicts knows no priorities; podman 4.3 does so too."""
    for path in ("etc/cdi/1.json", "etc/cdi/2.json", "var/run/cdi/3.json"):
        write_host_file(tmp_path, path, make_spec("a"))
    assert make_registry(tmp_path).list_device_names() == []


def test_the_same_name_of_two_kinds_is_no_conflict(tmp_path: Path) -> None:
    write_host_file(tmp_path, "etc/cdi/1.json", make_spec("a"))
    write_host_file(tmp_path, "etc/cdi/2.json", make_spec("a", kind="vendor.com/other"))
    assert make_registry(tmp_path).list_device_names() == [A, "vendor.com/other=a"]


@pytest.mark.parametrize("name", ["x.yml", "x.json.bak", "x", "x.JSON", "sub/x.json", "x.yaml/x.json"])
def test_only_json_and_yaml_files_of_the_directory_itself_are_read(tmp_path: Path, name: str) -> None:
    write_host_file(tmp_path, f"etc/cdi/{name}", make_spec("a"))
    assert make_registry(tmp_path).list_device_names() == []


@pytest.mark.parametrize("name", ["x.json", "x.yaml", ".json", ".hidden.yaml", "a b.json"])
def test_these_are_read(tmp_path: Path, name: str) -> None:
    write_host_file(tmp_path, f"etc/cdi/{name}", make_spec("a"))
    assert make_registry(tmp_path).list_device_names() == [A]


def test_a_linked_file_counts_and_a_linked_directory_does_not(tmp_path: Path) -> None:
    write_host_file(tmp_path, "opt/real/x.json", make_spec("a"))
    (tmp_path / "etc/cdi").mkdir(parents=True)
    (tmp_path / "etc/cdi/x.json").symlink_to("/opt/real/x.json")  # inside the host's root
    assert make_registry(tmp_path).list_device_names() == [A]
    (tmp_path / "etc/cdi/x.json").unlink()
    (tmp_path / "var/run").mkdir(parents=True)
    (tmp_path / "var/run/cdi").symlink_to("/opt/real")
    assert make_registry(tmp_path).list_device_names() == []


def test_links_above_a_directory_are_followed(tmp_path: Path) -> None:
    write_host_file(tmp_path, "run/cdi/x.json", make_spec("a"))
    (tmp_path / "var").mkdir()
    (tmp_path / "var/run").symlink_to("/run")
    assert make_registry(tmp_path).find_device_file(A) == f"{tmp_path}/var/run/cdi/x.json"


BROKEN = {
    "not json": "{",
    "a list": "[]",
    "empty": "",
    "an unknown field": make_spec("z") | {"new": 1},
    "no devices": make_spec(),
    "an unknown version": make_spec("z") | {"cdiVersion": "9.0.0"},
    "the same name twice": make_spec("z", "z"),
    "no edits": {"cdiVersion": "0.5.0", "kind": "vendor.com/dev", "devices": [{"name": "z", "containerEdits": {}}]},
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_neighbour_harms_nothing_else(tmp_path: Path, what: str) -> None:
    write_host_file(tmp_path, "etc/cdi/x.json", make_spec("a"))
    for name in ("0.json", "z.json"):
        write_host_file(tmp_path, f"etc/cdi/{name}", BROKEN[what])
    assert make_registry(tmp_path).list_device_names() == [A]
    looked = scan.SpecScan(Host(str(tmp_path)), DIRECTORIES)
    assert [bool(file.errors) for file in looked.files] == [True, False, True]


def test_what_is_no_file_harms_nothing_else_and_does_not_block(tmp_path: Path) -> None:
    write_host_file(tmp_path, "etc/cdi/x.json", make_spec("a"))
    os.mkfifo(tmp_path / "etc/cdi/fifo.json")
    (tmp_path / "etc/cdi/loop.json").symlink_to("loop.json")
    (tmp_path / "etc/cdi/nowhere.yaml").symlink_to("/nowhere")
    (tmp_path / "etc/cdi/directory.yaml").symlink_to("/etc")
    (tmp_path / "etc/cdi/zero.json").symlink_to("/dev/zero")
    assert make_registry(tmp_path).list_device_names() == [A]
    looked = scan.SpecScan(Host(str(tmp_path)), DIRECTORIES)
    assert len([file for file in looked.files if file.errors]) == 5


@needs_root
@pytest.mark.parametrize(("owner", "mode"), [(4807, 0o644), (0, 0o666), (0, 0o602)])
def test_as_root_a_file_that_others_can_write_does_not_count(tmp_path: Path, owner: int, mode: int) -> None:
    path = write_host_file(tmp_path, "etc/cdi/x.json", make_spec("a"))
    os.chown(path, owner, 0)
    path.chmod(mode)
    assert make_registry(tmp_path).list_device_names() == []
    finding = scan.SpecScan(Host(str(tmp_path)), DIRECTORIES).files[0].errors[0]
    assert "the CDI file" in finding.text and finding.hint.startswith("Run: ch")


@needs_root
@pytest.mark.parametrize(("owner", "mode"), [(4807, 0o755), (0, 0o777), (0, 0o1777)])
def test_as_root_the_files_of_a_directory_that_others_can_write_do_not_count(
    tmp_path: Path, owner: int, mode: int
) -> None:
    """A user's link to a file of root's would count as root's."""
    write_host_file(tmp_path, "root/old.json", make_spec("a"))
    write_host_file(tmp_path, "var/run/cdi/x.json", make_spec("b"))
    directory = tmp_path / "etc/cdi"
    directory.mkdir(parents=True)
    (directory / "x.json").symlink_to("/root/old.json")
    os.lchown(directory / "x.json", 4807, 4807)
    os.chown(directory, owner, 0)
    directory.chmod(mode)
    cache = FakeCache(lockable=False)
    assert make_registry(tmp_path, cache).list_device_names() == [B]
    finding = scan.SpecScan(Host(str(tmp_path)), DIRECTORIES).files[0].errors[0]
    assert "its files are refused while running as root" in finding.text
    assert finding.hint.startswith("Run: ch") and str(directory) in finding.hint
    os.chown(directory, 0, 0)
    directory.chmod(0o755)
    assert make_registry(tmp_path, cache).list_device_names() == [A, B]


@needs_root
def test_what_counts_is_whose_file_is_read_and_not_whose_lay_there_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody who may write where a link leads exchanges root's file for another one between two looks."""
    path = write_host_file(tmp_path, "etc/cdi/x.json", make_spec("a"))
    theirs = write_host_file(tmp_path, "theirs", make_spec("evil"))
    os.chown(theirs, 4807, 0)
    read = read_spec_file

    def exchange(*arguments: Any) -> reading.SpecDocument:
        theirs.replace(path)
        return read(*arguments)

    monkeypatch.setattr(scan, "read_spec_file", exchange)
    (file,) = scan.SpecScan(Host(str(tmp_path)), DIRECTORIES).files
    assert file.data is None and "belongs to user 4807" in file.errors[0].text
    assert file.status is not None and file.status.st_uid == 4807


def test_a_directory_of_thousands_of_files_is_read_up_to_a_number_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (spec_dirs, scan):
        monkeypatch.setattr(module, "MAX_SPEC_FILES", 3)
    for name in "abcde":
        write_host_file(tmp_path, f"etc/cdi/{name}.json", make_spec(name))
    assert make_registry(tmp_path).list_device_names() == [f"vendor.com/dev={name}" for name in "abc"]
    looked = scan.SpecScan(Host(str(tmp_path)), DIRECTORIES)
    assert "5 CDI files" in looked.problems[0].text


# --- what a name brings --------------------------------------------------------------------------


def parts(root: Path, *names: str) -> list[tuple[str, str]]:
    return [(Path(part.path).name, part.where) for part in make_registry(root).resolve_devices(list(names))]


def test_a_files_own_edits_come_once_before_its_first_device(tmp_path: Path) -> None:
    write_host_file(tmp_path, "etc/cdi/1.json", make_spec("a", "b") | {"containerEdits": {"env": ["F=1"]}})
    write_host_file(tmp_path, "etc/cdi/2.json", make_spec("c"))
    device = "devices[{}].containerEdits"
    assert parts(tmp_path, B, "vendor.com/dev=c", A) == [
        ("1.json", "containerEdits"),
        ("1.json", device.format(1)),
        ("2.json", "containerEdits"),
        ("2.json", device.format(0)),
        ("1.json", device.format(0)),
    ]


def test_a_name_twice_is_one(tmp_path: Path) -> None:
    write_host_file(tmp_path, "etc/cdi/1.json", make_spec("a"))
    assert len(parts(tmp_path, A, A)) == 2


# --- cache ----------------------------------------------------------------------------------------


@pytest.fixture
def old(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files count as settled at once."""
    monkeypatch.setattr(scan, "_SETTLE_TIME_NS", -1)


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one with each file that is read."""
    seen: list[int] = []
    read = read_spec_file

    def counted(*arguments: Any) -> object:
        seen.append(1)
        return read(*arguments)

    monkeypatch.setattr(scan, "read_spec_file", counted)
    return seen


def test_a_second_look_reads_no_file(tmp_path: Path, old: None, scans: list[int]) -> None:
    cache = FakeCache(lockable=False)
    write_host_file(tmp_path, "etc/cdi/1.json", make_spec("a"))
    first = make_registry(tmp_path, cache)
    assert len(scans) == 1
    second = make_registry(tmp_path, cache)
    assert len(scans) == 1
    assert [part.edits for part in first.resolve_devices([A])] == [part.edits for part in second.resolve_devices([A])]
    assert second.find_device_file(A) == first.find_device_file(A)


CHANGES = {
    "a new file": lambda root: write_host_file(root, "etc/cdi/2.json", make_spec("b")),
    "a file in the other directory": lambda root: write_host_file(root, "var/run/cdi/2.json", make_spec("b")),
    "another content": lambda root: write_host_file(root, "etc/cdi/1.json", make_spec("a", "c")),
    "another content of the same size": lambda root: write_host_file(root, "etc/cdi/1.json", make_spec("b")),
    "a file gone": lambda root: (root / "etc/cdi/1.json").unlink(),
    "another mode": lambda root: (root / "etc/cdi/1.json").chmod(0o600),
    "another name": lambda root: (root / "etc/cdi/1.json").rename(root / "etc/cdi/3.json"),
    "another file by that name": lambda root: (root / "new").rename(root / "etc/cdi/1.json"),
    "the directory gone": lambda root: (root / "etc/cdi").rename(root / "etc/gone"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_any_change_is_noticed(tmp_path: Path, old: None, change: str) -> None:
    cache = FakeCache(lockable=False)
    write_host_file(tmp_path, "new", make_spec("q"))
    write_host_file(tmp_path, "etc/cdi/1.json", make_spec("a"))
    before = spec_dirs.read_spec_dir_signatures(Host(str(tmp_path)), DIRECTORIES)
    make_registry(tmp_path, cache)
    CHANGES[change](tmp_path)
    assert spec_dirs.read_spec_dir_signatures(Host(str(tmp_path)), DIRECTORIES) != before
    assert make_registry(tmp_path, cache).list_device_names() == make_registry(tmp_path).list_device_names()


def test_what_lies_beside_the_spec_files_is_no_change(tmp_path: Path) -> None:
    write_host_file(tmp_path, "etc/cdi/1.json", make_spec("a"))
    before = spec_dirs.read_spec_dir_signatures(Host(str(tmp_path)), DIRECTORIES)
    write_host_file(tmp_path, "etc/cdi/README", "x")
    assert spec_dirs.read_spec_dir_signatures(Host(str(tmp_path)), DIRECTORIES) == before


def test_a_file_of_this_very_moment_is_not_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its next change could leave its status as it is: clocks of file systems tick some hundred times a second."""
    monkeypatch.setattr(scan, "_SETTLE_TIME_NS", 1 << 62)
    cache = FakeCache(lockable=False)
    write_host_file(tmp_path, "etc/cdi/1.json", make_spec("a"))
    make_registry(tmp_path, cache)
    assert not cache.blobs


@pytest.mark.parametrize("damage", [b"", b"\0", b"(", b"N", b"i\1\0\0\0"])
def test_a_damaged_cache_costs_time_and_nothing_else(tmp_path: Path, old: None, damage: bytes) -> None:
    cache = FakeCache(lockable=False)
    write_host_file(tmp_path, "etc/cdi/1.json", make_spec("a"))
    make_registry(tmp_path, cache)
    (name,) = cache.blobs
    cache.blobs[name] = damage
    assert make_registry(tmp_path, cache).list_device_names() == [A]


def test_other_directories_have_a_cache_of_their_own(tmp_path: Path, old: None) -> None:
    cache = FakeCache(lockable=False)
    write_host_file(tmp_path, "etc/cdi/1.json", make_spec("a"))
    write_host_file(tmp_path, "opt/cdi/1.json", make_spec("b"))
    assert make_registry(tmp_path, cache).list_device_names() == [A]
    assert make_registry(tmp_path, cache, ("/opt/cdi",)).list_device_names() == [B]
    assert make_registry(tmp_path, cache).list_device_names() == [A]
    assert len(cache.blobs) == 2


@pytest.fixture
def few_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The content of few bytes is kept."""
    monkeypatch.setattr(scan, "KEPT_SIZE", 200)


@pytest.fixture
def read_files(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are parsed."""
    names: list[str] = []

    def read(path: str, *more: Any) -> reading.SpecDocument:
        names.append(Path(path).name)
        return read_spec_file(path, *more)

    monkeypatch.setattr(scan, "read_spec_file", read)
    return names


def write_old_files(root: Path) -> None:
    for name in "abc":
        large = make_spec(name, env=[f"{name}=1", "X=" + "x" * 300])
        path = write_host_file(root, f"etc/cdi/{name}.json", large | {"containerEdits": {"env": ["C=" + name]}})
        os.utime(path, (1, 1))


def test_devices_of_files_that_are_not_kept_in_memory_resolve_all_the_same(
    tmp_path: Path, old: None, few_kept: None, read_files: list[str]
) -> None:
    write_old_files(tmp_path)
    cache = FakeCache(lockable=False)
    first = make_registry(tmp_path, cache)
    assert all(edits is None for _, _, edits in first._files)
    read_files.clear()
    for _ in range(2):
        parts = make_registry(tmp_path, cache).resolve_devices([A])
        assert [part.where for part in parts] == ["containerEdits", "devices[0].containerEdits"]
        assert parts[0].edits == {"env": ["C=a"]} and parts[1].edits["env"][0] == "a=1"  # type: ignore[index]
    assert read_files == ["a.json"], "the file that is used is parsed once"


def test_a_change_of_one_file_does_not_read_the_large_ones_again(
    tmp_path: Path, old: None, few_kept: None, read_files: list[str]
) -> None:
    write_old_files(tmp_path)
    cache = FakeCache(lockable=False)
    make_registry(tmp_path, cache)
    assert sorted(read_files) == ["a.json", "b.json", "c.json"]
    read_files.clear()
    write_host_file(tmp_path, "etc/cdi/b.json", make_spec("other", env=["X=" + "y" * 300]))
    assert make_registry(tmp_path, cache).list_device_names() == [A, "vendor.com/dev=other", "vendor.com/dev=c"]
    assert read_files == ["b.json"]


def test_the_files_of_a_directory_are_read_up_to_a_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "MAX_TOTAL_SIZE", 1 << 20)
    for name in "abc":
        write_host_file(tmp_path, f"etc/cdi/{name}.json", make_spec(name, env=["X=" + "x" * (500 << 10)]))
    looked = scan.SpecScan(Host(str(tmp_path)), DIRECTORIES)
    assert [file.is_valid for file in looked.files] == [True, True, False]
    assert looked.files[2].errors[0].text == "is not read: the CDI files up to it have more than 1 MiB"


def test_the_registry_itself_needs_neither_yaml_nor_the_checks() -> None:
    """The import of `registry` in a fresh interpreter; `test_imports` looks at a whole start."""
    import subprocess

    code = "import sys; from gpu_oci_hook.cdi.registry import registry; print(sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "yaml" not in done.stdout and "gpu_oci_hook.cdi.registry.scan" not in done.stdout
