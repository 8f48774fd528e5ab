"""The hook: called by a runtime in a container that a CDI file's edits are in, it does what mounts and nodes cannot.

`hook create-container` is the one hook of our own files; every other name is one of NVIDIA's, for files that others
have generated (`cdi.incumbent`). What stops a start is one sentence and status 1; what is optional and cannot be done
is a line each and status 0. Nothing is ever said on stdout. Cost rule: a process on the way of every such start: no
click, no yaml, nothing of the standard library that the interpreter has not loaded; what few containers need is
imported where it is needed.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` brings enum
import gc
import os

from gpu_oci_hook.cdi import errand as errands

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.cdi.errand import Errand
    from gpu_oci_hook.container.called import Container

NAME = "gpu-oci-hook"
OWN = "create-container"


def main(words: list[str]) -> None:
    """Runs one hook and ends the process.

    Arguments:
        words: what follows `hook`: the hook's name and its flags.
    """
    gc.disable()  # a process of 20 ms has nothing to collect
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    os._exit(run(words))  # nothing is buffered, and taking the interpreter down costs a millisecond


def run(words: list[str]) -> int:
    """Runs one hook; its exit status."""
    log, bundle = _log(words), ""
    try:
        if words[:1] == [OWN]:
            errand = errands.parse(words[1:])
            from gpu_oci_hook.container import called

            here = called.read(0)
            bundle = here.bundle
            perform(errand, here)
            notes = here.notes
        else:
            from gpu_oci_hook.cdi import incumbent

            notes = incumbent.run(words)
    except Exception as error:
        from gpu_oci_hook import failure

        if not failure.report(error, log, "text", NAME):
            failure.keep(error, NAME, bundle)
        return 1
    if notes:
        from gpu_oci_hook import failure

        for note in notes:
            failure.warn(note, log, "text", NAME)
    return 0


def perform(errand: Errand, here: Container) -> None:
    """Does all of an errand; doing it again changes nothing.

    What can refuse the container comes first, so that nothing was touched then.

    Raises:
        Fault: a required step failed.
    """
    from gpu_oci_hook.cdi import steps

    _stale(errand, here)
    if errand.requirements:
        asks = _asks(here)
        if asks:
            from gpu_oci_hook.cdi import devices

            devices.requirements(here, errand.root, errand.driver_version)
    steps.errand(here, errand, _machine(errand.root))
    if errand.drm_links or errand.egl_profile or errand.hide_device_files:
        from gpu_oci_hook.cdi import devices

        if errand.drm_links:
            devices.drm_links(here, errand.root)
        if errand.egl_profile:
            devices.profile(here, errand.root)
        if errand.hide_device_files:
            devices.hide(here, errand.root)


def _log(words: list[str]) -> str:
    """The log that the words name: also what is wrong with the other words is told there."""
    for at, word in enumerate(words):
        if word.startswith("--log="):
            return word[6:]
        if word == "--log" and at + 1 < len(words):
            return words[at + 1]
    return ""


def _asks(here: Container) -> bool:
    """Whether the container's environment may demand anything of the host, told by a look."""
    from gpu_oci_hook.formats.oci import items

    entries = items(here.spec, "process", "env")
    return any(isinstance(entry, str) and entry.startswith(("NVIDIA_REQUIRE_", "CUDA_VERSION=")) for entry in entries)


def _machine(root: str) -> str:
    """`uname -m`, or what the driver below another root says that it is for."""
    if root == "/":
        return os.uname().machine
    from gpu_oci_hook.host.root import Host

    return Host(root).machine


def _stale(errand: Errand, here: Container) -> None:
    """Notes that the driver is another one than when the CDI file was made: its files may be gone or not fit."""
    if not errand.driver_version:
        return
    try:
        path = f"{errand.root.rstrip('/')}/proc/driver/nvidia/version"
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            data = os.read(fd, 4096)
        finally:
            os.close(fd)
    except (OSError, ValueError):
        return
    if errand.driver_version.encode("utf-8", "replace") not in data.split():
        from gpu_oci_hook.formats import proc

        running = proc.driver_version(data) or "another one"
        here.notes.append(
            f"the CDI file was made for driver {errand.driver_version}, and this machine runs {running}. "
            f"Run: {errand.made_by or 'gpu-oci-hook cdi refresh'}"
        )
