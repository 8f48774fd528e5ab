"""The hook: called by a runtime in a container that a CDI file's edits are in, it does what mounts and nodes cannot.

`hook create-container` is the one hook of our own files; every other name is one of NVIDIA's, for files that others
have generated (`hook.nvidia_hooks`). What stops a start is one sentence and status 1; what is optional and cannot be done
is a line each and status 0. Nothing is ever said on stdout. Cost rule: a process on the way of every such start: no
click, no yaml, nothing of the standard library that the interpreter has not loaded; what few containers need is
imported where it is needed.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` brings enum
import gc
import os

from gpu_oci_hook.formats.program_names import CREATE_CONTAINER, HOOK_PROGRAM
from gpu_oci_hook.hook.arguments import parse_hook_arguments

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.hook.arguments import HookArguments
    from gpu_oci_hook.hook.called_container import Container


def run_hook_and_exit(arguments: list[str]) -> None:
    """Runs one hook and ends the process.

    Arguments:
        arguments: what follows `hook.cdi_hook`: the hook's name and its flags.
    """
    gc.disable()  # a process of 20 ms has nothing to collect
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    os._exit(run_hook(arguments))  # nothing is buffered, and taking the interpreter down costs a millisecond


def run_hook(arguments: list[str]) -> int:
    """Runs one hook; its exit status."""
    log, bundle = _find_log_option(arguments), ""
    try:
        if arguments[:1] == [CREATE_CONTAINER]:
            errand = parse_hook_arguments(arguments[1:])
            from gpu_oci_hook.hook.called_container import read_container

            here = read_container(0)
            bundle = here.bundle
            run_create_container(errand, here)
            notes = here.notes
        else:
            from gpu_oci_hook.hook.nvidia_hooks import run_nvidia_hook

            notes = run_nvidia_hook(arguments)
    except Exception as error:
        from gpu_oci_hook.reporting.failure import report_failure, save_hook_failure

        if not report_failure(error, log, "text", HOOK_PROGRAM):
            save_hook_failure(error, HOOK_PROGRAM, bundle)
        return 1
    if notes:
        from gpu_oci_hook.reporting.failure import report_warning

        for note in notes:
            report_warning(note, log, "text", HOOK_PROGRAM)
    return 0


def run_create_container(arguments: HookArguments, container: Container) -> None:
    """Does all of an errand; doing it again changes nothing.

    What can refuse the container comes first, so that nothing was touched then.

    Raises:
        Fault: a required step failed.
    """
    from gpu_oci_hook.hook.loader_steps import run_library_steps

    _note_stale_cdi_file(arguments, container)
    if arguments.requirements:
        asks = _has_requirements(container)
        if asks:
            from gpu_oci_hook.hook.device_steps import enforce_requirements

            enforce_requirements(container, arguments.root, arguments.driver_version)
    run_library_steps(container, arguments, _detect_architecture(arguments.root))
    if arguments.drm_links or arguments.egl_profile or arguments.hide_device_files:
        from gpu_oci_hook.hook.device_steps import create_drm_links, hide_device_files, write_egl_profile

        if arguments.drm_links:
            create_drm_links(container, arguments.root)
        if arguments.egl_profile:
            write_egl_profile(container, arguments.root)
        if arguments.hide_device_files:
            hide_device_files(container, arguments.root)


def _find_log_option(arguments: list[str]) -> str:
    """The log that the words name: also what is wrong with the other words is told there."""
    for at, word in enumerate(arguments):
        if word.startswith("--log="):
            return word[6:]
        if word == "--log" and at + 1 < len(arguments):
            return arguments[at + 1]
    return ""


def _has_requirements(container: Container) -> bool:
    """Whether the container's environment may demand anything of the host, told by a look."""
    from gpu_oci_hook.formats.oci import get_list

    entries = get_list(container.spec, "process", "env")
    return any(isinstance(entry, str) and entry.startswith(("NVIDIA_REQUIRE_", "CUDA_VERSION=")) for entry in entries)


def _detect_architecture(root: str) -> str:
    """`uname -m`, or what the driver below another root says that it is for."""
    if root == "/":
        return os.uname().machine
    from gpu_oci_hook.host.root import Host

    return Host(root).machine


def _note_stale_cdi_file(arguments: HookArguments, container: Container) -> None:
    """Notes that the driver is another one than when the CDI file was made: its files may be gone or not fit."""
    if not arguments.driver_version:
        return
    try:
        path = f"{arguments.root.rstrip('/')}/proc/driver/nvidia/version"
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            data = os.read(fd, 4096)
        finally:
            os.close(fd)
    except (OSError, ValueError):
        return
    if arguments.driver_version.encode("utf-8", "replace") not in data.split():
        from gpu_oci_hook.formats.proc import parse_driver_version

        running = parse_driver_version(data) or "another one"
        container.notes.append(
            f"the CDI file was made for driver {arguments.driver_version}, and this machine runs {running}. "
            f"Run: {arguments.made_by or 'gpu-oci-hook cdi refresh'}"
        )
