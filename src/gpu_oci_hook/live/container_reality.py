"""Compare what a running container should have with what it has: nodes, mounts, links and files.

Everything below the container's root is reached from a held descriptor, in a child process with a deadline: a file
system of the container may be hostile, or dead. Nothing is changed, and nothing of the container is executed.

Import budget: cold.
"""

from __future__ import annotations

import os
import stat
from typing import NamedTuple, cast

from gpu_oci_hook.container.rootfs_edits import generated_file_name
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.files.mounts import MOUNTINFO_LIMIT
from gpu_oci_hook.files.read_regular import read_regular_file
from gpu_oci_hook.files.rootfs import Rootfs
from gpu_oci_hook.live.container_mounts import DELETED_SUFFIX, TableEntry, locate_mounted_files, parse_mount_table
from gpu_oci_hook.live.monitors import PROC, read_start_time
from gpu_oci_hook.live.namespace_process import run_with_deadline
from gpu_oci_hook.model.edits import AddMount, Edit
from gpu_oci_hook.model.file_edits import AddFile, AddLink, PrepareDirectory
from gpu_oci_hook.plan.injection_evidence import is_driver_path

DEADLINE = 10.0  # seconds
_MISSING = "it is missing"


class Difference(NamedTuple):
    """Something that a container should have and lacks.

    Attributes:
        kind: "device", "rule", "mount", "link" or "file".
        name: a path in the container; of a rule, the device's numbers and the access.
        text: what is there instead.
    """

    kind: str
    name: str
    text: str


class Expectation(NamedTuple):
    """What a container should have below its root.

    Attributes:
        nodes: (path, major, minor) of each character device.
        mounts: (source on the host, path) of each mounted file or directory that the host has.
        attached: (path, device and inode of the file) of each mount that was added while the container runs.
        edits: those of a plan whose mounts, links and files are compared; their nodes are among `nodes`.
        generated_dir: the directory of generated files that are bind-mounted.
    """

    nodes: list[tuple[str, int, int]]
    mounts: list[tuple[str, str]]
    attached: list[tuple[str, tuple[int, int]]]
    edits: list[Edit]
    generated_dir: str


def compare_container(pid: int, expected: Expectation) -> list[Difference]:
    """Return the differences, in the order of what is expected.

    Arguments:
        pid: the container's first process, whose root directory counts.

    Raises:
        Fault: its root cannot be read by this user or in time, or the process has ended.
    """
    start_time = read_start_time(pid)
    own_table = parse_mount_table(_read_mount_table(os.getpid()))
    table = locate_mounted_files(parse_mount_table(_read_mount_table(pid)), own_table)

    def compare() -> list[Difference]:
        with Rootfs(f"{PROC}/{pid}/root") as root:
            if not start_time or read_start_time(pid) != start_time:
                raise Fault("the container's first process has ended", where=f"process {pid}")
            return [*_compare_nodes(root, expected.nodes), *_compare_files(root, table, expected)]

    found = cast("list[list[str]]", run_with_deadline(compare, deadline=DEADLINE))
    return [Difference(kind, name, text) for kind, name, text in found]


def _read_mount_table(pid: int) -> bytes:
    try:
        return read_regular_file(f"{PROC}/{pid}/mountinfo", MOUNTINFO_LIMIT)
    except (OSError, ValueError):
        return b""  # opening the root reports the reason


def _compare_nodes(root: Rootfs, nodes: list[tuple[str, int, int]]) -> list[Difference]:
    differences = []
    for path, major, minor in nodes:
        text = describe_wrong_node(root.stat_path(path), major, minor)
        if text:
            differences.append(Difference("device", path, text))
    return differences


def describe_wrong_node(status: os.stat_result | None, major: int, minor: int) -> str:
    """Return what is there instead of a character device; "" if it is there."""
    if status is None:
        return _MISSING
    if not stat.S_ISCHR(status.st_mode):
        return "it is not a character device"
    found = os.major(status.st_rdev), os.minor(status.st_rdev)
    return "" if found == (major, minor) else f"it is {found[0]}:{found[1]} and not {major}:{minor}"


def _compare_files(root: Rootfs, table: list[TableEntry], expected: Expectation) -> list[Difference]:
    """Compare mounts, links and files.

    What repair would put in anew is more: it exchanges a directory of libraries with everything that is mounted in it.
    """
    contents: dict[str, bytes] = {}  # of generated files, by their path on the host
    directories: dict[str, PrepareDirectory] = {}  # by their path on the host
    differences = []
    for edit in expected.edits:
        match edit:
            case PrepareDirectory():
                directories[edit.source] = edit
            case AddFile() if edit.bind_mounted:
                contents[f"{expected.generated_dir}/{generated_file_name(edit.path)}"] = edit.content
            case AddFile():
                text = _describe_wrong_content(root, edit.path, edit.content)
                differences.append(Difference("file", edit.path, text))
            case AddLink():
                differences.append(Difference("link", edit.path, _describe_wrong_link(root, edit.path, edit.target)))
            case AddMount() if edit.source in contents:
                text = _describe_wrong_content(root, edit.destination, contents[edit.source])
                differences.append(Difference("mount", edit.destination, text))
            case AddMount() if edit.source in directories:
                text = _describe_wrong_directory(root, edit.destination, directories[edit.source])
                differences.append(Difference("mount", edit.destination, text))
            case AddMount():
                text = _describe_mount(root, table, edit.source, edit.destination)
                differences.append(Difference("mount", edit.destination, text))
    for source, destination in expected.mounts:
        differences.append(Difference("mount", destination, _describe_mount(root, table, source, destination)))
    for destination, numbers in expected.attached:
        text = describe_attached_mount(root.stat_path(destination), _find_mount(root, table, destination), numbers)
        differences.append(Difference("mount", destination, text))
    differences += _find_other_deleted_files(root, table, expected)
    return [difference for difference in differences if difference.text]


def _describe_wrong_content(root: Rootfs, path: str, content: bytes) -> str:
    if root.read_file(path, len(content)) == content:
        return ""
    return _MISSING if root.stat_path(path) is None else "it has another content"


def _describe_wrong_link(root: Rootfs, path: str, target: str) -> str:
    found = root.readlink(path)
    if found == target:
        return ""
    if found is None:
        return _MISSING if root.stat_path(path) is None else "it is not a link"
    return f"it leads to {found} and not to {target}"


def _describe_wrong_directory(root: Rootfs, path: str, directory: PrepareDirectory) -> str:
    """Return what is wrong with the links of a directory of libraries; "" if nothing is."""
    for name, target in directory.entries:
        text = _describe_wrong_link(root, f"{path}/{name}", target) if target else ""
        if text:
            return f"{name} in it: {text}"
    return ""


def _find_other_deleted_files(root: Rootfs, table: list[TableEntry], expected: Expectation) -> list[Difference]:
    """Find mounts of deleted driver files that nothing expects, such as those of an earlier driver by a hook."""
    planned = [edit.destination for edit in expected.edits if isinstance(edit, AddMount)]
    known = [*planned, *(path for _, path in expected.mounts), *(path for path, _ in expected.attached)]
    resolved = {root.resolve_destination(path) for path in known}
    return [
        Difference("mount", entry.mount_point, _describe_deleted(entry.root.removesuffix(DELETED_SUFFIX)))
        for entry in table
        if entry.root.endswith(DELETED_SUFFIX)
        and is_driver_path(entry.mount_point)
        and entry.mount_point not in resolved
    ]


def _describe_deleted(source: str) -> str:
    return f"{source} was deleted on the host; the container has it until it ends"


def _find_mount(root: Rootfs, table: list[TableEntry], destination: str) -> TableEntry | None:
    """Return the topmost mount at a path of the container."""
    path = root.resolve_destination(destination)
    return next((entry for entry in reversed(table) if entry.mount_point == path), None)


def describe_attached_mount(status: os.stat_result | None, entry: TableEntry | None, numbers: tuple[int, int]) -> str:
    """Return what is wrong with a mount that was added to a running container; "" if nothing is."""
    if status is None:
        return _MISSING
    if (status.st_dev, status.st_ino) != numbers:
        return "nothing is mounted there" if entry is None else f"{entry.root} of another place is mounted there"
    if entry is not None and entry.root.endswith(DELETED_SUFFIX):
        return _describe_deleted(entry.root.removesuffix(DELETED_SUFFIX))
    return ""


def _describe_mount(root: Rootfs, table: list[TableEntry], source: str, destination: str) -> str:
    """Return what is there instead of a mounted file or directory of the host; "" if it is there."""
    status = root.stat_path(destination)
    if status is not None and _is_same(status, source):
        return ""
    entry = _find_mount(root, table, destination)
    return describe_wrong_mount(entry, source, is_there=status is not None, source_exists=os.path.exists(source))


def describe_wrong_mount(entry: TableEntry | None, source: str, *, is_there: bool, source_exists: bool) -> str:
    """Return what is there instead of a mounted file or directory of the host.

    Arguments:
        entry: the topmost mount at the destination.
        is_there: something is at the destination.
        source_exists: the host has the source.
    """
    if entry is None:
        what = "nothing is mounted there" if is_there else _MISSING
        return what if source_exists else f"{what}, and the host has no {source}"
    if entry.root.endswith(DELETED_SUFFIX):
        if source_exists:
            return f"the host has another {source} by now; the container has the one that was deleted"
        return _describe_deleted(source)
    return f"{entry.root} of another place is mounted there" if source_exists else f"the host has no {source}"


def _is_same(status: os.stat_result, source: str) -> bool:
    try:
        return os.path.samestat(status, os.stat(source))
    except (OSError, ValueError):
        return False
