"""Changes in a container's root: listed before they are made, and taken back afterwards whatever has become of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpu_oci_hook.files.rootfs import Rootfs
from gpu_oci_hook.formats.ldcache import dump_ld_cache, merge_ld_cache, parse_ld_cache
from gpu_oci_hook.live.container_changes import Change, ChangeReverter, list_changes
from gpu_oci_hook.model.edits import AddMount, Edit
from gpu_oci_hook.model.file_edits import AddFile, AddLink
from support.bundles import snapshot_tree

LIBRARY = "/usr/lib/libcuda.so.1"
OURS = "/usr/local/nvidia/lib64"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    for name in ("usr/lib", "usr/bin", "etc"):
        (root / name).mkdir(parents=True)
    (root / "etc/ld.so.cache").write_bytes(
        dump_ld_cache(merge_ld_cache(None, [("libc.so.6", "/lib/libc.so.6", 0x303)]))
    )
    (root / "etc/ld.so.cache").chmod(0o640)
    return root


def revert(root: Path, changes: list[Change]) -> ChangeReverter:
    view = Rootfs(str(root))
    reverter = ChangeReverter(view, view, str(root.parent / "copies"))
    reverter.revert(changes)
    return reverter


def facts(root: Path) -> dict[str, object]:
    return {path: entry[:4] for path, entry in snapshot_tree(root).items()}


def test_links_and_files_come_back_as_they_were(root: Path) -> None:
    (root / "usr/lib/libcuda.so.1").symlink_to("libcuda.so.1.old")
    before = facts(root)
    view = Rootfs(str(root))
    edits: list[Edit] = [
        AddLink(LIBRARY, f"{OURS}/libcuda.so.1", ""),
        AddLink("/usr/lib/new/libcuda.so", f"{OURS}/libcuda.so.1", ""),
        AddFile("/etc/ld.so.cache", b"merged", ""),
        AddFile("/etc/ld.so.conf.d/00-gpu-oci-hook.conf", OURS.encode(), ""),
    ]
    changes = list_changes(edits, view, view, str(root.parent / "copies"))
    assert [change.kind for change in changes] == ["link", "directory", "link", "file", "directory", "file"]
    for edit in edits:
        if isinstance(edit, AddLink):
            view.make_symlink(edit.path, edit.target)
        elif isinstance(edit, AddFile):
            view.write_file(edit.path, edit.content)
    assert facts(root) != before
    assert revert(root, changes).notes == []
    assert facts(root) == before


def test_what_was_not_made_or_belongs_to_the_container_by_now_stays(root: Path) -> None:
    (root / "usr/lib/libcuda.so.1").symlink_to("libcuda.so.1.old")
    (root / "etc/ld.so.conf.d").mkdir()
    (root / "etc/ld.so.conf.d/own.conf").write_text("/own")
    (root / "usr/bin/nvidia-smi").write_text("not empty")
    before = facts(root)
    changes = [
        Change("link", LIBRARY, content="/elsewhere"),
        Change("link", "/missing/directory/link", content="/elsewhere"),
        Change("file", "/etc/ld.so.conf.d/own.conf", content="0" * 64),
        Change("directory", "/etc/ld.so.conf.d"),
        Change("file-point", "/usr/bin/nvidia-smi"),
        Change("node", "/usr/bin/nvidia-smi", (195, 0)),
        Change("mount", "/usr/bin/nvidia-smi", (1, 2)),
    ]
    assert revert(root, changes).notes == []
    assert facts(root) == before


def test_of_a_cache_that_was_rebuilt_only_our_entries_go(root: Path) -> None:
    rebuilt = merge_ld_cache(
        parse_ld_cache((root / "etc/ld.so.cache").read_bytes()),
        [("libcuda.so.1", f"{OURS}/libcuda.so.1", 0x303), ("libnew.so", "/usr/lib/libnew.so", 0x303)],
    )
    (root / "etc/ld.so.cache").write_bytes(dump_ld_cache(rebuilt))
    source = os.stat(root)
    changes = [
        Change("mount", OURS, (source.st_dev, source.st_ino)),
        Change("file", "/etc/ld.so.cache", content="0" * 64),
    ]
    assert revert(root, changes).notes == []
    entries = parse_ld_cache((root / "etc/ld.so.cache").read_bytes()).entries
    assert sorted(entry.name for entry in entries) == ["libc.so.6", "libnew.so"]


def test_mount_points_and_their_directories_are_listed_once_and_removed(root: Path) -> None:
    source = root.parent / "driver"
    source.write_text("x")
    (root.parent / "libraries").mkdir()
    (root / "usr/bin/nvidia-smi").symlink_to("/elsewhere")
    before = facts(root)
    edits = [
        AddMount(str(root.parent / "libraries"), OURS, (), ""),
        AddMount(str(source), f"{OURS}/libcuda.so.1", (), "", clear_mount_point=False),
        AddMount(str(source), "/usr/bin/nvidia-smi", (), ""),
    ]
    view = Rootfs(str(root))
    changes = list_changes(edits, view, view, str(root.parent / "copies"))
    assert [(change.kind, change.path) for change in changes] == [
        ("directory", "/usr/local"),
        ("directory", "/usr/local/nvidia"),
        ("directory", OURS),
        ("mount", OURS),
        ("mount", f"{OURS}/libcuda.so.1"),
        ("cleared", "/usr/bin/nvidia-smi"),
        ("file-point", "/usr/bin/nvidia-smi"),
        ("mount", "/usr/bin/nvidia-smi"),
    ]
    (root / OURS[1:]).mkdir(parents=True)
    (root / "usr/bin/nvidia-smi").unlink()
    (root / "usr/bin/nvidia-smi").touch()
    assert revert(root, changes).notes == []
    assert facts(root) == before
