"""`nvidia-container-cli configure`: give GPUs and the driver's files to a container that has not started.

The plan is made as for every other container. There is no config.json: the options are the request, and the mount
table tells what is mounted in the container. A child process plans and changes, in the container's mount namespace.

Import budget: cold.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from gpu_oci_hook.cli.container_cli.command_line import ConfigureOptions, GlobalOptions
from gpu_oci_hook.cli.container_cli.container_request import build_request
from gpu_oci_hook.cli.container_cli.machine_query import choose_requested_devices, load_machine_config, open_machine
from gpu_oci_hook.cli.container_cli.phase_faults import PhaseFault, name_phase
from gpu_oci_hook.container.rootfs_edits import GENERATED_DIR, prepare_shared_directories
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.files.mounts import read_mount_info
from gpu_oci_hook.files.read_regular import PROC_SELF_FD, read_regular_file
from gpu_oci_hook.files.rootfs import Rootfs, refuse_host_root
from gpu_oci_hook.files.state_dir import StateCache
from gpu_oci_hook.formats.oci import Object
from gpu_oci_hook.hook.called_container import Container
from gpu_oci_hook.inject.gather import (
    Machine,
    gather_container_facts,
    gather_plan_input,
    lacks_requested_gpu,
)
from gpu_oci_hook.inject.no_gpu import report_missing_gpu
from gpu_oci_hook.inject.pipeline import gather_matching_inventory
from gpu_oci_hook.inject.requirements import check_machine_requirements
from gpu_oci_hook.live.container_editor import ContainerEditor
from gpu_oci_hook.live.container_mounts import describe_container_mounts, find_mounts_from, parse_mount_table
from gpu_oci_hook.live.device_cgroup import allow_devices, find_device_cgroup
from gpu_oci_hook.live.monitors import read_namespace_id
from gpu_oci_hook.live.mount_api import clone_root
from gpu_oci_hook.live.namespace_process import run_in_mount_namespace, run_with_deadline
from gpu_oci_hook.live.scratch_mount import SCRATCH_SOURCE, make_scratch_directory, mount_scratch
from gpu_oci_hook.model.edits import AddDeviceNode, AddDeviceRule, AddMount, Edit
from gpu_oci_hook.model.machine import DriverFile, Inventory
from gpu_oci_hook.model.outcome import ChosenDevices
from gpu_oci_hook.model.request import Request
from gpu_oci_hook.plan.build import build_plan

_MOUNT_TABLE = "/proc/self/mountinfo"
_MOUNT_TABLE_LIMIT = 32 << 20
_SAFE_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


@contextmanager
def ignore_environment() -> Iterator[None]:
    """Work without the environment: callers put variables of the image into it (facts: container-cli-callers)."""
    import posix  # the state directory is found by its table

    saved, saved_table = dict(os.environ), dict(posix.environ)
    os.environ.clear()
    posix.environ.clear()
    os.environ["PATH"] = _SAFE_PATH
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(saved)
        posix.environ.update(saved_table)


def configure_container(global_options: GlobalOptions, options: ConfigureOptions) -> tuple[list[str], list[str]]:
    """Configure a container; return one line for each change, and warnings.

    Raises:
        PhaseFault: something that was requested cannot be given. Nodes and mounts are then taken back.
    """
    config = load_machine_config(global_options)
    if not options.uses_compat_libraries:
        config.cuda_compat = "never"
    request = build_request(options.devices, options.capabilities, options.requirements, config)
    warnings: list[str] = []
    machine = open_machine(request, config, StateCache(), warnings)
    if lacks_requested_gpu(machine, request):
        with name_phase("device"):
            report_missing_gpu(machine, request, warnings)
    chosen = choose_requested_devices(machine, request, warnings)
    with name_phase("detection"):
        inventory = gather_matching_inventory(machine, request, chosen)
        inventory.files = tuple(file for file in inventory.files if not _is_withheld(file, options))
    if request.requirements:
        with name_phase("requirement"):
            check_machine_requirements(machine, request, chosen.gpus, warnings)
    changes, notes, devices = _change_container(options, machine, request, chosen, inventory)
    if options.changes_cgroup and devices:
        with name_phase("mount", "failed to add device rules"):
            cgroup = find_device_cgroup(options.pid or os.getpid())
            if cgroup is not None:
                notes = [*notes, *allow_devices(cgroup, devices)]
                changes += [f"device rule for {major}:{minor}" for major, minor in devices]
    return changes, list(dict.fromkeys([*warnings, *notes]))


def _is_withheld(file: DriverFile, options: ConfigureOptions) -> bool:
    """Tell whether an option leaves out a file."""
    if file.kind == "firmware":
        return not options.adds_firmware
    return file.kind == "socket" and any(f"/{name}/" in file.path for name in options.withheld_sockets)


def _change_container(
    options: ConfigureOptions, machine: Machine, request: Request, chosen: ChosenDevices, inventory: Inventory
) -> tuple[list[str], list[str], list[tuple[int, int]]]:
    """Plan and change the container in its mount namespace.

    Returns:
        One line for each change, notes, and the device numbers to allow.
    """
    in_user_namespace = options.pid > 0 and read_namespace_id(options.pid, "user") != read_namespace_id(
        os.getpid(), "user"
    )

    def plan_and_apply() -> object:
        with name_phase("container"):
            rootfs, spec = _open_container(options.rootfs, in_user_namespace=in_user_namespace)
        with name_phase("mount"), mount_scratch(scratch):
            image = _open_image(rootfs)
            container = gather_container_facts(spec, scratch, image, machine, chosen)
            plan = build_plan(gather_plan_input(machine, request, chosen, inventory, container))
            edits = [edit for edit in plan.edits if options.adds_nodes or not _makes_node(edit)]
            editor = _apply_edits(edits, spec, scratch, rootfs.path)
        return {
            "changes": editor.changes,
            "notes": [*plan.warnings, *machine.problems, *editor.notes],
            "devices": [(edit.major, edit.minor) for edit in edits if isinstance(edit, AddDeviceRule)],
        }

    with name_phase("container"), make_scratch_directory() as scratch:
        result = _run_in_container(options.pid, plan_and_apply)
    devices = [(int(major), int(minor)) for major, minor in result["devices"]]
    return result["changes"], result["notes"], devices


def _run_in_container(pid: int, function: Callable[[], object]) -> dict[str, Any]:
    """Call a function in the mount namespace of a process, or in this process's own for 0; return its result.

    Raises:
        PhaseFault: the function raised it.
        Fault: the namespace cannot be entered, or the function took too long.
    """

    def call_and_keep_phase() -> object:
        try:
            return function()
        except PhaseFault as fault:
            return {"failure": [fault.phase, fault.what, fault.where, fault.hint]}

    is_own = not pid or read_namespace_id(pid, "mnt") == read_namespace_id(os.getpid(), "mnt")
    result = run_with_deadline(call_and_keep_phase) if is_own else run_in_mount_namespace(pid, call_and_keep_phase)
    assert isinstance(result, dict)
    if "failure" in result:
        phase, what, where, hint = result["failure"]
        raise PhaseFault(phase, Fault(what, where=where, hint=hint))
    return result


def _open_container(path: str, *, in_user_namespace: bool) -> tuple[Rootfs, Object]:
    """Open a container's root, and build a config.json of what is known about the container.

    Raises:
        Fault: it cannot be opened, is the host's root, or has been configured before.
    """
    resolved = os.path.realpath(path)
    rootfs = Rootfs(resolved)
    refuse_host_root(rootfs)
    mount = read_mount_info(rootfs.get_mount_id())
    if mount is not None and mount.shared:
        raise Fault(
            "the container shares its mounts with the host, where new ones would appear too",
            where=path,
            hint="Mount its root file system privately (mount --make-private) in a mount namespace of its own",
        )
    table = parse_mount_table(read_regular_file(_MOUNT_TABLE, _MOUNT_TABLE_LIMIT))
    if find_mounts_from(table, resolved, SCRATCH_SOURCE):
        raise Fault("this container has been configured already", where=path, hint="Set up a new one")
    # What the container may do is not known, so it counts as one that may do everything: it then shares no directory
    # with other containers.
    spec: Object = {
        "root": {"path": resolved, "readonly": not rootfs.is_writable()},
        "process": {"capabilities": {"bounding": ["CAP_SYS_ADMIN"]}},
        "mounts": describe_container_mounts(table, resolved),
        "linux": {"namespaces": [{"type": "user"}] if in_user_namespace else []},
    }
    return rootfs, spec


def _open_image(rootfs: Rootfs) -> Rootfs:
    """Open a container's root without the mounts below it, which the plan is made for as before a start.

    Where the kernel cannot clone it (before Linux 5.2), it is the root itself: links of the image that lead into a
    mount then count as leading elsewhere.
    """
    try:
        root_fd = os.open(rootfs.path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            clone_fd = clone_root(root_fd, writable=False)
        finally:
            os.close(root_fd)
    except OSError:
        return rootfs
    image = Rootfs(f"{PROC_SELF_FD}/{clone_fd}")
    image.path = rootfs.path
    os.close(clone_fd)
    return image


def _apply_edits(edits: list[Edit], spec: Object, scratch: str, rootfs_path: str) -> ContainerEditor:
    generated_dir = f"{scratch}/{GENERATED_DIR}"
    prepare_shared_directories(edits, generated_dir)
    editor = ContainerEditor(Container(scratch, spec, Rootfs(rootfs_path)).rootfs, generated_dir)
    editor.apply_edits(edits)
    return editor


def _makes_node(edit: Edit) -> bool:
    """Tell whether an edit creates a device node, or mounts the host's."""
    if isinstance(edit, AddMount):
        try:
            return stat.S_ISCHR(os.stat(edit.source).st_mode)
        except OSError:
            return False
    return isinstance(edit, AddDeviceNode)
