"""Loading a kernel module of the driver by the host's own nvidia-modprobe.

Cost rule: cold; only when a module is not loaded and `[host] load-modules` allows it.
"""

from __future__ import annotations

import os
import stat

from gpu_oci_hook.errors import Fault, clipped, words
from gpu_oci_hook.formats import proc
from gpu_oci_hook.host import children
from gpu_oci_hook.host.nodes import Majors, majors
from gpu_oci_hook.host.root import Host

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

# Module to nvidia-modprobe's arguments: each loads the module and makes the node that goes with it.
ARGUMENTS = {
    "nvidia": ("-c=255",),
    "nvidia-uvm": ("-u", "-c=0"),
    "nvidia-modeset": ("-m",),
}
PLACES = ("/usr/bin/nvidia-modprobe", "/usr/sbin/nvidia-modprobe", "/run/current-system/sw/bin/nvidia-modprobe")


def load(host: Host, numbers: Majors, capabilities: Iterable[str], warnings: list[str]) -> Majors:
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
            ("nvidia", True, numbers.loaded),
            ("nvidia-uvm", asked & {"compute", "video"}, numbers.uvm is not None),
            ("nvidia-modeset", "display" in asked, numbers.modeset is not None),
        )
        if needed and not there
    ]
    for module in wanted:
        try:
            load_module(host, module)
        except Fault as fault:
            warnings.append(str(fault))
            break  # without the first there is no sense in the others, and one sentence is enough
    return majors(host) if wanted else numbers


def load_module(host: Host, module: str, *, timeout: float = 20.0) -> None:
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
        raise Fault(f"module {module} is not loaded, and only root can load it", cure=cure)
    if not _initial_namespace():
        raise Fault(f"module {module} is not loaded, and a user namespace cannot load it", cure=cure)
    program = _program(host, module, cure)
    argv = [program, *ARGUMENTS[module]]
    try:
        status, out, err = children.run(argv, {}, timeout)
    except OSError as error:
        raise Fault(f"{program} cannot be run: {words(error)}", cure=cure) from None
    if status is None:
        if max(len(out), len(err)) > children.MOST:
            raise Fault(f"{program} does not stop talking and was killed", cure=cure)
        raise Fault(f"{program} did not load {module} within {timeout:g} seconds", cure=cure)
    if status:
        said = (err or out).decode("utf-8", "replace").strip().splitlines()
        reason = f": {clipped(said[-1])}" if said else f" (status {status})"
        raise Fault(f"{program} could not load {module}{reason}", cure=cure)


def _program(host: Host, module: str, cure: str) -> str:
    for path in PLACES:
        real = host.resolve(path)
        if real is None:
            continue
        place = host.path(real)
        for step in (real, os.path.dirname(real)):
            status = host.status(step, follow=False)
            if status is None or status.st_uid != 0 or status.st_mode & 0o022:
                what = "owned by another user than root or can be written by others"
                raise Fault(f"module {module} is not loaded, and {host.path(step)} is {what}", cure=cure)
        status = host.status(real, follow=False)
        if status is None or not stat.S_ISREG(status.st_mode) or not status.st_mode & 0o100:
            raise Fault(f"module {module} is not loaded, and {place} is no program", cure=cure)
        return place
    raise Fault(f"module {module} is not loaded, and the host has no nvidia-modprobe", cure=cure)


def _initial_namespace() -> bool:
    try:
        with open("/proc/self/uid_map", "rb") as file:
            return proc.identity_map(file.read(4096))
    except OSError:
        return False
