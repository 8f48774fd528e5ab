"""Load the driver's kernel modules and create its device nodes with the host's nvidia-modprobe.

It runs only when a module is not loaded or a loaded one has no node, and `[host] load-modules` allows it.

Import budget: cold.
"""

from __future__ import annotations

import os
import stat

from gpu_oci_hook.errors import Fault, clip_text, describe_os_error
from gpu_oci_hook.files.trust import describe_foreign_access
from gpu_oci_hook.files.user_namespace import is_process_in_user_namespace
from gpu_oci_hook.host.device_nodes import DeviceMajors, read_device_majors
from gpu_oci_hook.host.nvml.child_process import MAX_OUTPUT, run_bounded_program
from gpu_oci_hook.host.root import Host

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

# Module to the arguments of nvidia-modprobe that load it and create its node.
MODPROBE_ARGUMENTS = {
    "nvidia": ("-c=255",),
    "nvidia-uvm": ("-u", "-c=0"),
    "nvidia-modeset": ("-m",),
}
_MODPROBE_TIMEOUT = 20.0
MODPROBE_PATHS = ("/usr/bin/nvidia-modprobe", "/usr/sbin/nvidia-modprobe", "/run/current-system/sw/bin/nvidia-modprobe")


def load_needed_modules(
    host: Host, majors: DeviceMajors, capabilities: Iterable[str], warnings: list[str]
) -> DeviceMajors:
    """Load the modules that the capabilities need and that are not loaded.

    Arguments:
        warnings: receives a sentence about the first module that could not be loaded.

    Returns:
        The majors afterwards.
    """
    requested = set(capabilities)
    unloaded = [
        module
        for module, needed, loaded in (
            ("nvidia", True, majors.nvidia_loaded),
            ("nvidia-uvm", requested & {"compute", "video"}, majors.uvm is not None),
            ("nvidia-modeset", "display" in requested, majors.modeset is not None),
        )
        if needed and not loaded
    ]
    for module in unloaded:
        try:
            load_kernel_module(host, module)
        except Fault as fault:
            warnings.append(str(fault))
            break  # the others depend on this one, and one sentence is enough
    return read_device_majors(host) if unloaded else majors


def create_nodes(host: Host, missing: dict[str, tuple[str, ...]], minors: Iterable[int], warnings: list[str]) -> None:
    """Create the missing nodes of loaded modules.

    A start does not need the nodes, so nothing is said of a user who cannot create them and of a host without
    nvidia-modprobe.

    Arguments:
        missing: paths by module, see `device_nodes.find_uncreated_nodes`.
        minors: minor numbers of the GPUs.
        warnings: receives a sentence about the first module whose nodes could not be created.
    """
    if os.geteuid() != 0 or is_process_in_user_namespace(unknown=True) or not _has_modprobe(host):
        return
    for module, paths in missing.items():
        arguments = MODPROBE_ARGUMENTS[module]
        if module == "nvidia":
            arguments = (*arguments, *(f"-c={minor}" for minor in minors))
        try:
            _run_modprobe(
                host,
                arguments,
                situation=f"{paths[0]} is missing",
                task=f"create {', '.join(paths)}",
                hint=f"Create it on the host: nvidia-modprobe {' '.join(arguments)}",
            )
        except Fault as fault:
            warnings.append(str(fault))
            break


def load_kernel_module(host: Host, module: str, *, timeout: float = _MODPROBE_TIMEOUT) -> None:
    """Load a module. The caller reads /proc/devices again.

    Arguments:
        module: "nvidia", "nvidia-uvm" or "nvidia-modeset".
        timeout: seconds after which nvidia-modprobe is killed.

    Raises:
        Fault: this process is not root or is in a user namespace, or nvidia-modprobe is missing, can be changed by
            another user, or failed.
    """
    hint = f"Load it on the host: modprobe {module}"
    if os.geteuid() != 0:
        raise Fault(f"module {module} is not loaded, and only root can load it", hint=hint)
    if is_process_in_user_namespace(unknown=True):
        raise Fault(f"module {module} is not loaded, and a user namespace cannot load it", hint=hint)
    _run_modprobe(
        host,
        MODPROBE_ARGUMENTS[module],
        situation=f"module {module} is not loaded",
        task=f"load {module}",
        hint=hint,
        timeout=timeout,
    )


def _run_modprobe(
    host: Host,
    arguments: tuple[str, ...],
    *,
    situation: str,
    task: str,
    hint: str,
    timeout: float = _MODPROBE_TIMEOUT,
) -> None:
    """Run nvidia-modprobe.

    Arguments:
        situation: why it is run, for the error.
        task: what it is to do, for the error.

    Raises:
        Fault: it is missing, can be changed by another user, or failed.
    """
    program = _find_modprobe(host, situation, hint)
    try:
        status, stdout, stderr = run_bounded_program([program, *arguments], {}, timeout)
    except OSError as error:
        raise Fault(f"{program} cannot be run: {describe_os_error(error)}", hint=hint) from None
    if status is None:
        if max(len(stdout), len(stderr)) > MAX_OUTPUT:
            raise Fault(f"{program} wrote more than {MAX_OUTPUT} bytes and was killed", hint=hint)
        raise Fault(f"{program} did not {task} within {timeout:g} seconds", hint=hint)
    if status:
        lines = (stderr or stdout).decode("utf-8", "replace").strip().splitlines()
        reason = f": {clip_text(lines[-1])}" if lines else f" (status {status})"
        raise Fault(f"{program} could not {task}{reason}", hint=hint)


def _has_modprobe(host: Host) -> bool:
    return any(host.resolve_path(path) is not None for path in MODPROBE_PATHS)


def _find_modprobe(host: Host, situation: str, hint: str) -> str:
    """Return the path of nvidia-modprobe in this process.

    Raises:
        Fault: it is missing, is not executable, or a user other than root can change it or its directory.
    """
    for path in MODPROBE_PATHS:
        resolved = host.resolve_path(path)
        if resolved is None:
            continue
        program = host.full_path(resolved)
        for guarded_path in (resolved, os.path.dirname(resolved)):
            status = host.stat_path(guarded_path, follow=False)
            access = "is missing" if status is None else describe_foreign_access(status, root_group=False)
            if access:
                raise Fault(f"{situation}, and {host.full_path(guarded_path)} {access}", hint=hint)
        status = host.stat_path(resolved, follow=False)
        if status is None or not stat.S_ISREG(status.st_mode) or not status.st_mode & 0o100:
            raise Fault(f"{situation}, and {program} is not an executable file", hint=hint)
        return program
    raise Fault(f"{situation}, and the host has no nvidia-modprobe", hint=hint)
