"""Loading a kernel module of the driver by the host's own nvidia-modprobe.

Cost rule: cold; only when a module is not loaded and `[host] load-modules` allows it.
"""

from __future__ import annotations

import os
import stat

from gpu_oci_hook.errors import Fault, clip_text, describe_os_error
from gpu_oci_hook.formats.proc import is_identity_map
from gpu_oci_hook.host.device_nodes import DeviceMajors, read_device_majors
from gpu_oci_hook.host.nvml.child_process import MAX_OUTPUT, run_bounded_program
from gpu_oci_hook.host.root import Host

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

# Module to nvidia-modprobe's arguments: each loads the module and makes the node that goes with it.
MODPROBE_ARGUMENTS = {
    "nvidia": ("-c=255",),
    "nvidia-uvm": ("-u", "-c=0"),
    "nvidia-modeset": ("-m",),
}
MODPROBE_PATHS = ("/usr/bin/nvidia-modprobe", "/usr/sbin/nvidia-modprobe", "/run/current-system/sw/bin/nvidia-modprobe")


def load_needed_modules(
    host: Host, majors: DeviceMajors, capabilities: Iterable[str], warnings: list[str]
) -> DeviceMajors:
    """Loads the modules that are needed for the capabilities and not loaded.

    Arguments:
        warnings: takes a sentence for each module that could not be loaded.

    Returns:
        The majors as they are afterwards.
    """
    asked = set(capabilities)
    wanted = [
        module
        for module, needed, there in (
            ("nvidia", True, majors.nvidia_loaded),
            ("nvidia-uvm", asked & {"compute", "video"}, majors.uvm is not None),
            ("nvidia-modeset", "display" in asked, majors.modeset is not None),
        )
        if needed and not there
    ]
    for module in wanted:
        try:
            load_kernel_module(host, module)
        except Fault as fault:
            warnings.append(str(fault))
            break  # without the first there is no sense in the others, and one sentence is enough
    return read_device_majors(host) if wanted else majors


def load_kernel_module(host: Host, module: str, *, timeout: float = 20.0) -> None:
    """Loads a module; the caller looks at /proc/devices again.

    Arguments:
        module: "nvidia", "nvidia-uvm" or "nvidia-modeset".
        timeout: seconds after which the program is killed.

    Raises:
        Fault: we are not root, are inside a user namespace, the program is missing, could be somebody else's,
            or failed.
    """
    cure = f"Load it on the host: modprobe {module}"
    if os.geteuid() != 0:
        raise Fault(f"module {module} is not loaded, and only root can load it", hint=cure)
    if not _in_initial_user_namespace():
        raise Fault(f"module {module} is not loaded, and a user namespace cannot load it", hint=cure)
    program = _find_modprobe(host, module, cure)
    argv = [program, *MODPROBE_ARGUMENTS[module]]
    try:
        status, out, err = run_bounded_program(argv, {}, timeout)
    except OSError as error:
        raise Fault(f"{program} cannot be run: {describe_os_error(error)}", hint=cure) from None
    if status is None:
        if max(len(out), len(err)) > MAX_OUTPUT:
            raise Fault(f"{program} does not stop talking and was killed", hint=cure)
        raise Fault(f"{program} did not load {module} within {timeout:g} seconds", hint=cure)
    if status:
        said = (err or out).decode("utf-8", "replace").strip().splitlines()
        reason = f": {clip_text(said[-1])}" if said else f" (status {status})"
        raise Fault(f"{program} could not load {module}{reason}", hint=cure)


def _find_modprobe(host: Host, module: str, hint: str) -> str:
    for path in MODPROBE_PATHS:
        real = host.resolve_path(path)
        if real is None:
            continue
        place = host.full_path(real)
        for step in (real, os.path.dirname(real)):
            status = host.stat_path(step, follow=False)
            if status is None or status.st_uid != 0 or status.st_mode & 0o022:
                what = "owned by another user than root or can be written by others"
                raise Fault(f"module {module} is not loaded, and {host.full_path(step)} is {what}", hint=hint)
        status = host.stat_path(real, follow=False)
        if status is None or not stat.S_ISREG(status.st_mode) or not status.st_mode & 0o100:
            raise Fault(f"module {module} is not loaded, and {place} is no program", hint=hint)
        return place
    raise Fault(f"module {module} is not loaded, and the host has no nvidia-modprobe", hint=hint)


def _in_initial_user_namespace() -> bool:
    try:
        with open("/proc/self/uid_map", "rb") as file:
            return is_identity_map(file.read(4096))
    except OSError:
        return False
