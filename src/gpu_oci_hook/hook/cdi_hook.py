"""Run one OCI hook in a container that CDI edits were applied to, and report the result to the runtime.

`hook create-container` is the hook of our own CDI files, and `prestart` is NVIDIA's hook of docker (`prestart_hook`).
Every other name is one of NVIDIA's CDI hooks, for files of other generators (`hook.nvidia_hooks`). A failed required
step is one line on stderr and exit status 1. A skipped optional step is one line each and exit status 0. Only
`precreate` (`precreate_hook`) prints on stdout.

Import budget: hook.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` loads enum
import gc
import os

from gpu_oci_hook.files.read_regular import UnusableFileError, read_regular_head
from gpu_oci_hook.formats.program_names import CREATE_CONTAINER, HOOK_PROGRAM, PRECREATE, PRESTART

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.hook.arguments import HookArguments
    from gpu_oci_hook.hook.called_container import Container


def run_hook_and_exit(arguments: list[str], stdin: bytes | None = None) -> None:
    """Run one hook and end the process.

    Arguments:
        arguments: the hook's name and its flags.
        stdin: what was read from standard input; None if nothing was.
    """
    gc.disable()  # a process of 20 ms has nothing to collect
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    os._exit(run_hook(arguments, stdin))  # nothing is buffered, and finalising the interpreter costs a millisecond


def run_hook(arguments: list[str], stdin: bytes | None = None) -> int:
    """Run one hook and return its exit status; arguments as for `run_hook_and_exit`."""
    log, bundle = _find_log_option(arguments), ""
    try:
        if arguments[:1] == [CREATE_CONTAINER]:
            # Imported here and below: a hook that fails early, or does little, loads little.
            from gpu_oci_hook.hook.arguments import parse_hook_arguments

            hook_arguments = parse_hook_arguments(arguments[1:])
            from gpu_oci_hook.hook.called_container import read_container

            container = read_container(0)
            bundle = container.bundle
            run_create_container(hook_arguments, container)
            notes = container.notes
        elif arguments[:1] == [PRESTART]:
            from gpu_oci_hook.hook.prestart_hook import run_prestart_hook

            notes = run_prestart_hook(arguments[1:], stdin)
        elif arguments == [PRECREATE]:
            from gpu_oci_hook.hook.precreate_hook import run_precreate_hook

            notes = run_precreate_hook(0, 1, stdin)
        else:
            from gpu_oci_hook.hook.nvidia_hooks import run_nvidia_hook

            notes = run_nvidia_hook(arguments)
    except Exception as error:
        report_hook_failure(error, log, bundle)
        return 1
    if notes:
        from gpu_oci_hook.reporting.failure import report_warning

        for note in notes:
            report_warning(note, log, "text", HOOK_PROGRAM)
    return 0


def report_hook_failure(error: Exception, log: str = "", bundle: str = "") -> None:
    """Write the reason of a failure to stderr, and to a log."""
    from gpu_oci_hook.reporting.failure import report_failure, save_hook_failure

    if not report_failure(error, log, "text", HOOK_PROGRAM):
        save_hook_failure(error, HOOK_PROGRAM, bundle)


def run_create_container(arguments: HookArguments, container: Container) -> None:
    """Run all steps that the arguments request. A second run changes nothing.

    The steps that can refuse the container come first, before any change is made.

    Raises:
        Fault: a required step failed.
    """
    from gpu_oci_hook.hook.loader_steps import run_library_steps

    _note_stale_cdi_file(arguments, container)
    if arguments.requirements and not container.has_whole_spec:
        container.notes.append(
            f"NVIDIA_REQUIRE_* was not checked: {container.bundle}/config.json cannot be read in the container's user "
            "namespace"
        )
    if arguments.requirements and _may_have_requirements(container):
        from gpu_oci_hook.hook.device_steps import enforce_requirements

        enforce_requirements(container, arguments.root, arguments.driver_version)
    run_library_steps(container, arguments, _detect_architecture(arguments.root))
    if arguments.sockets:
        from gpu_oci_hook.hook.daemon_sockets import mount_daemon_sockets

        mount_daemon_sockets(container, arguments.sockets)
    if arguments.drm_links or arguments.egl_profile or arguments.hide_device_files:
        from gpu_oci_hook.hook.device_steps import create_drm_links, hide_device_files, write_egl_profile

        if arguments.drm_links:
            create_drm_links(container, arguments.root)
        if arguments.egl_profile:
            write_egl_profile(container, arguments.root)
        if arguments.hide_device_files:
            hide_device_files(container, arguments.root)


def _find_log_option(arguments: list[str]) -> str:
    """Return the value of --log without parsing the rest, so that errors in the rest are logged too."""
    for at, argument in enumerate(arguments):
        if argument.startswith("--log="):
            return argument[6:]
        if argument == "--log" and at + 1 < len(arguments):
            return arguments[at + 1]
    return ""


def _may_have_requirements(container: Container) -> bool:
    """Tell whether the container's environment may have requirements, by the names of its variables."""
    from gpu_oci_hook.formats.oci import get_list

    entries = get_list(container.spec, "process", "env")
    return any(isinstance(entry, str) and entry.startswith(("NVIDIA_REQUIRE_", "CUDA_VERSION=")) for entry in entries)


def _detect_architecture(root: str) -> str:
    """Return the machine's architecture as `uname -m` prints it; below another root that of its driver."""
    if root == "/":
        return os.uname().machine
    from gpu_oci_hook.host.root import Host

    return Host(root).machine


def _note_stale_cdi_file(arguments: HookArguments, container: Container) -> None:
    """Note that the driver has changed since the CDI file was generated: its files may be gone or not fit."""
    if not arguments.driver_version:
        return
    try:
        path = f"{arguments.root.rstrip('/')}/proc/driver/nvidia/version"
        data = read_regular_head(path, 4096)
    except (OSError, UnusableFileError):
        return
    if arguments.driver_version.encode("utf-8", "replace") not in data.split():
        from gpu_oci_hook.formats.proc import parse_driver_version

        running = parse_driver_version(data) or "an unknown version"
        container.notes.append(
            f"the CDI file was generated for driver {arguments.driver_version}, and this host runs {running}. "
            f"Run: {arguments.made_by or 'gpu-oci-hook cdi refresh'}"
        )
