"""What a running container has, against what it should have: here this process's own root stands for it."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.live import container_reality
from gpu_oci_hook.live.container_mounts import TableEntry
from gpu_oci_hook.live.container_reality import (
    Difference,
    Expectation,
    compare_container,
    describe_attached_mount,
    describe_wrong_mount,
    describe_wrong_node,
)
from gpu_oci_hook.model.edits import AddMount, Edit
from gpu_oci_hook.model.file_edits import AddFile, AddLink, PrepareDirectory

GENERATED = "/bundle/gpu-oci-hook"


def status(mode: int, numbers: tuple[int, int] = (0, 0), *, inode: int = 0, device: int = 0) -> os.stat_result:
    return os.stat_result((mode, inode, device, 1, 0, 0, 0, 0, 0, 0), {"st_rdev": os.makedev(*numbers)})


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (status(stat.S_IFCHR | 0o666, (195, 0)), ""),
        (status(stat.S_IFCHR | 0o600, (195, 1)), "it is 195:1 and not 195:0"),
        (status(stat.S_IFBLK | 0o600, (195, 0)), "it is not a character device"),
        (status(stat.S_IFLNK | 0o777), "it is not a character device"),
        (None, "it is missing"),
    ],
)
def test_a_node_is_judged_by_type_and_numbers(found: os.stat_result | None, text: str) -> None:
    assert describe_wrong_node(found, 195, 0) == text


def entry(root: str) -> TableEntry:
    return TableEntry("8:1", root, "/usr/lib/libcuda.so.1", "ext4", "/dev/sda1")


@pytest.mark.parametrize(
    ("mounted", "is_there", "source_exists", "text"),
    [
        (None, False, True, "it is missing"),
        (None, True, True, "nothing is mounted there"),
        (None, False, False, "it is missing, and the host has no /lib/s"),
        (entry("/lib/s//deleted"), True, False, "/lib/s was deleted on the host; the container has it until it ends"),
        (
            entry("/lib/s//deleted"),
            True,
            True,
            "the host has another /lib/s by now; the container has the one that was deleted",
        ),
        (entry("/other"), True, True, "/other of another place is mounted there"),
        (entry("/other"), True, False, "the host has no /lib/s"),
    ],
)
def test_a_mount_is_judged_by_the_mount_table(
    mounted: TableEntry | None, text: str, *, is_there: bool, source_exists: bool
) -> None:
    assert describe_wrong_mount(mounted, "/lib/s", is_there=is_there, source_exists=source_exists) == text


def test_an_attached_mount_is_judged_by_the_file_that_was_mounted() -> None:
    file = status(stat.S_IFREG | 0o644, inode=7, device=3)
    assert describe_attached_mount(file, entry("/lib/s"), (3, 7)) == ""
    assert describe_attached_mount(None, None, (3, 7)) == "it is missing"
    assert describe_attached_mount(file, None, (3, 8)) == "nothing is mounted there"
    assert describe_attached_mount(file, entry("/x"), (3, 8)) == "/x of another place is mounted there"
    assert "/lib/s was deleted on the host" in describe_attached_mount(file, entry("/lib/s//deleted"), (3, 7))


@pytest.fixture
def compare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Difference]]:
    """Compare a directory as the root of a container's process; the machine's own /proc has the process."""
    proc, root = tmp_path / "proc", tmp_path / "root"
    (proc / "7").mkdir(parents=True)
    root.mkdir()
    (proc / "7/root").symlink_to(root)
    (proc / "7/mountinfo").write_text("")
    monkeypatch.setattr(container_reality, "PROC", str(proc))
    monkeypatch.setattr(container_reality, "read_start_time", lambda pid: 1)

    def run(*edits: Edit, mounts: list[tuple[str, str]] | None = None) -> list[Difference]:
        return compare_container(7, Expectation([], mounts or [], [], list(edits), GENERATED))

    return run


def test_links_files_and_mounts_below_the_root_are_compared(
    tmp_path: Path, compare: Callable[..., list[Difference]]
) -> None:
    root, source = tmp_path / "root", tmp_path / "library"
    source.write_text("driver")
    os.link(source, root / "there")
    (root / "other").write_text("image's own")
    (root / "link").symlink_to("wrong")
    (root / "file").write_text("old")
    edits = [
        AddMount(str(source), "/there", (), "reason"),
        AddMount(str(source), "/other", (), "reason"),
        AddLink("/link", "right", "reason"),
        AddLink("/gone", "right", "reason"),
        AddLink("/file", "right", "reason"),
        AddFile("/file", b"old", "reason"),
        AddFile("/link2", b"old", "reason"),
    ]
    assert compare(*edits, mounts=[(str(source), "/there"), (str(tmp_path / "gone"), "/nowhere")]) == [
        Difference("mount", "/other", "nothing is mounted there"),
        Difference("link", "/link", "it leads to wrong and not to right"),
        Difference("link", "/gone", "it is missing"),
        Difference("link", "/file", "it is not a link"),
        Difference("file", "/link2", "it is missing"),
        Difference("mount", "/nowhere", f"it is missing, and the host has no {tmp_path}/gone"),
    ]


def test_a_generated_file_and_a_directory_of_libraries_are_compared_by_content(
    tmp_path: Path, compare: Callable[..., list[Difference]]
) -> None:
    root = tmp_path / "root"
    (root / "lib").mkdir()
    (root / "lib/libcuda.so.1").symlink_to("libcuda.so.550")
    (root / "cache").write_text("new")
    name = container_reality.generated_file_name("/cache")
    directory = PrepareDirectory(
        "/run/x", "/lib", (("libcuda.so.1", "libcuda.so.550"), ("libcuda.so.550", "")), "reason"
    )
    edits = [
        AddFile("/cache", b"new", "reason", bind_mounted=True),
        AddMount(f"{GENERATED}/{name}", "/cache", (), "reason"),
        directory,
        AddMount("/run/x", "/lib", (), "reason"),
    ]
    assert compare(*edits) == []
    (root / "cache").write_text("old")
    (root / "lib/libcuda.so.1").unlink()
    assert compare(*edits) == [
        Difference("mount", "/cache", "it has another content"),
        Difference("mount", "/lib", "libcuda.so.1 in it: it is missing"),
    ]


def test_a_deleted_driver_file_that_nothing_expects_is_named_and_no_other_one(
    tmp_path: Path, compare: Callable[..., list[Difference]]
) -> None:
    (tmp_path / "proc/7/mountinfo").write_text(
        "1 0 8:1 /usr/lib/libcuda.so.535//deleted /lib/libcuda.so.535 ro - ext4 /dev/sda1 rw\n"
        "2 0 8:1 /home/data//deleted /data rw - ext4 /dev/sda1 rw\n"
    )
    (found,) = compare()
    assert found.name == "/lib/libcuda.so.535"
    assert found.text == "/usr/lib/libcuda.so.535 was deleted on the host; the container has it until it ends"


def test_links_of_the_container_do_not_lead_to_the_host(
    tmp_path: Path, compare: Callable[..., list[Difference]]
) -> None:
    source = tmp_path / "library"
    source.write_text("driver")
    (tmp_path / "root/lib").symlink_to(tmp_path)
    assert compare(AddMount(str(source), "/lib/library", (), "reason")) == [
        Difference("mount", "/lib/library", "it is missing")
    ]


def test_a_root_that_does_not_answer_is_given_up(
    compare: Callable[..., list[Difference]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container_reality, "DEADLINE", 0.3)
    monkeypatch.setattr(container_reality, "_compare_nodes", lambda root, nodes: time.sleep(60))
    with pytest.raises(Fault, match=r"did not answer for 0\.3 seconds"):
        compare()


def test_a_process_that_is_another_one_by_now_is_not_looked_at(
    compare: Callable[..., list[Difference]], monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([1, 2])
    monkeypatch.setattr(container_reality, "read_start_time", lambda pid: next(times))
    with pytest.raises(Fault, match="has ended"):
        compare()
