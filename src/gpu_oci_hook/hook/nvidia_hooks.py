"""Run NVIDIA's OCI hooks under their own names and flags, for CDI files of NVIDIA's generator.

Each hook is one process: `nvidia-cdi-hook NAME ...`, `nvidia-ctk hook NAME ...` or `gpu-oci-hook hook NAME ...`. Names,
flags and exit statuses are those of NVIDIA's hooks (facts: nvidia-cdi-hooks). The implementation is ours: nothing is
executed, every change goes through the held root, and a second run changes nothing.

`enable-cuda-compat` runs before `update-ldcache`, which needs its decision. The decision is not left in the container
as a file, because an image could bring such a file itself. Instead, `update-ldcache` finds the flags of
`enable-cuda-compat` in the same config.json and decides again by the same function. The image's libraries are judged
by their names, as in the shim. NVIDIA's hook also reads a note in the ELF file, which does not count here.

Import budget: hook.
"""

from __future__ import annotations

import os

from gpu_oci_hook import VERSION
from gpu_oci_hook.errors import Fault, clip_text, describe_os_error
from gpu_oci_hook.files.read_regular import reopen_regular_fd
from gpu_oci_hook.formats.architectures import ARCHITECTURES
from gpu_oci_hook.formats.oci import get_list, get_member
from gpu_oci_hook.formats.program_names import find_nvidia_hook_arguments
from gpu_oci_hook.hook.arguments import parse_flags, parse_link_flag
from gpu_oci_hook.hook.called_container import read_container
from gpu_oci_hook.hook.link_steps import create_links, list_mount_destinations
from gpu_oci_hook.hook.loader_steps import (
    choose_board_compat,
    choose_compat_library,
    report_libcuda,
    start_library_search,
    write_loader_files,
)
from gpu_oci_hook.hook.standard_streams import drain_state

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.hook.called_container import Container
    from gpu_oci_hook.plan.compat import CompatDecision

    Flags = dict[str, list[str]]

HOST_ROOT = "/"  # NVIDIA's hooks have no flag for another root
DEFAULT_COMPAT_ROOT = "/usr/local/cuda/compat"
# The flags of each hook. The common flag "container-spec" names a file to read the OCI state from, in place of stdin.
HOOK_FLAGS: dict[str, tuple[str, ...]] = {
    "chmod": ("mode", "path"),
    "create-symlinks": ("link",),
    "disable-device-node-modification": (),
    "enable-cuda-compat": ("host-driver-version", "host-cuda-version", "cuda-compat-container-root"),
    "noop": (),
    "update-application-profile": (),
    "update-ldcache": ("folder", "ldconfig-path"),
}
_COMMON_FLAGS = ("container-spec",)
_USAGE = f"""\
OCI hooks, called by a runtime with the container's state on standard input:

  gpu-oci-hook hook create-container [FLAG VALUE]...   in files of gpu-oci-hook cdi generate
  nvidia-cdi-hook HOOK [FLAG VALUE]...                 in files of NVIDIA's generator; also gpu-oci-hook hook HOOK

Hooks: {", ".join(HOOK_FLAGS)}
"""
_HELP_FLAGS, _VERSION_FLAGS, _QUIET_FLAGS = ("help", "h"), ("version", "v"), ("quiet", "q")
_SWITCH_FLAGS = ("debug", "d", *_HELP_FLAGS, *_VERSION_FLAGS, *_QUIET_FLAGS)


def run_nvidia_hook(arguments: list[str]) -> list[str]:
    """Run the hook that the arguments name and return notes for the log.

    An unknown hook, also one after unknown flags, is skipped with a note, as NVIDIA's program does: a file of a newer
    generator must not keep containers from starting.

    Raises:
        Fault: an unknown flag of a known hook, or a step that failed.
    """
    at = next((index for index, argument in enumerate(arguments) if not argument.startswith("-")), len(arguments))
    name, program_flags, hook_arguments = "".join(arguments[at : at + 1]), arguments[:at], arguments[at + 1 :]
    switches = [flag.lstrip("-").partition("=")[0] for flag in program_flags]
    if name not in HOOK_FLAGS:
        if any(switch in (*_HELP_FLAGS, *_VERSION_FLAGS) for switch in switches) and not name:
            _print_help(f"gpu-oci-hook version {VERSION}\n" if switches[0] in _VERSION_FLAGS else _USAGE)
            return []
        problem = f'unknown hook "{clip_text(name)}": skipped' if name else "no hook name was given; nothing was done"
        drain_state(0)
        return [f"{problem}. Known hooks: {', '.join(HOOK_FLAGS)}"]
    for flag, switch in zip(program_flags, switches, strict=True):
        if switch not in _SWITCH_FLAGS:
            raise Fault("unknown flag", where=clip_text(flag))
    flags = _parse_hook_flags(name, hook_arguments)
    if any(flag in flags for flag in _HELP_FLAGS):
        _print_help(f"{name}: --{' --'.join((*HOOK_FLAGS[name], *_COMMON_FLAGS))}\n")
        return []
    notes = _run_known_hook(name, flags)
    return [] if any(flag in flags or flag in switches for flag in _QUIET_FLAGS) else notes


def _parse_hook_flags(name: str, arguments: list[str]) -> Flags:
    flags: Flags = {}
    for flag, value in parse_flags(arguments, (*HOOK_FLAGS[name], *_COMMON_FLAGS), _SWITCH_FLAGS):
        flags.setdefault(flag, []).append(value)
    return flags


def _print_help(text: str) -> None:
    """Print help for a person. Runtimes do not request help."""
    try:
        os.write(1, text.encode())
    except OSError:
        pass


def _run_known_hook(name: str, flags: Flags) -> list[str]:
    versions = _get_last_value(flags, "host-driver-version") or _get_last_value(flags, "host-cuda-version")
    if name == "noop" or (name == "enable-cuda-compat" and not versions):
        drain_state(0)
        return []
    if name == "chmod":
        mode = _parse_mode(flags)
    links = [_parse_link(value) for value in dict.fromkeys(flags.get("link", ()))]
    container = _open_container(flags)
    if name == "create-symlinks":
        create_links(container, links)
    elif name == "update-ldcache":
        _update_loader_cache(container, flags.get("folder", []))
    elif name == "enable-cuda-compat":
        compat = _choose_compat_from_flags(container, flags)
        if compat is not None and compat.warning:
            container.notes.append(compat.warning)
    elif name == "chmod":
        _change_modes(container, mode, flags.get("path", []))
    else:
        # Imported here: few hooks concern device nodes.
        from gpu_oci_hook.hook.device_steps import hide_device_files, write_egl_profile

        if name == "update-application-profile":
            write_egl_profile(container, HOST_ROOT)
        else:
            hide_device_files(container, HOST_ROOT)
    return container.notes


def _get_last_value(flags: Flags, name: str) -> str:
    return flags.get(name, [""])[-1]


def _open_container(flags: Flags) -> Container:
    path = _get_last_value(flags, "container-spec")
    if path in ("", "-"):
        return read_container(0)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        reason = describe_os_error(error) if isinstance(error, OSError) else "invalid file name"
        raise Fault(f"cannot open the container's state: {reason}", where=path) from None
    try:
        return read_container(fd)
    finally:
        os.close(fd)


def _parse_link(value: str) -> tuple[str, str]:
    target, path = parse_link_flag("link", value)
    return target, "/" + path.lstrip("/")  # paths of NVIDIA's hooks may be relative to the root


def _update_loader_cache(container: Container, folders: list[str]) -> None:
    """Register the libraries mounted in folders with the container's loader, as `ldconfig` would: links and cache.

    A file can have this hook several times. Each run does the work of all of them, so the last one completes it.
    """
    listed = [folder for flags in _find_hook_flags(container, "update-ldcache") for folder in flags.get("folder", [])]
    all_folders = list(dict.fromkeys("/" + folder.strip("/") for folder in [*listed, *folders]))
    if not all_folders:
        return
    arch = os.uname().machine
    architectures = [arch, ARCHITECTURES[arch].arch32] if arch in ARCHITECTURES else [arch]
    libraries = _find_mounted_libraries(container, all_folders, architectures)
    compat, driver_version = None, ""
    # Before the search starts: the flags say where the image's compat libraries are.
    for flags in _find_hook_flags(container, "enable-cuda-compat"):
        compat = _choose_compat_from_flags(container, flags)
        driver_version = _get_last_value(flags, "host-driver-version")
    search = start_library_search(container, arch)
    search.compat_directory = compat.directory if compat else ""
    for folder in all_folders:
        search.add_directory(folder)
    for name, path, library_arch in libraries:
        search.add_library(name, path, library_arch)
    write_loader_files(container, search)
    report_libcuda(container, search, compat, driver_version)
    if compat is not None and compat.warning in container.notes:
        container.notes.remove(compat.warning)  # the other hook reports it


def _find_mounted_libraries(
    container: Container, folders: list[str], architectures: list[str]
) -> list[tuple[str, str, str]]:
    """Return (name, path, architecture) of the libraries mounted in folders, and make the missing links of SONAMEs.

    A SONAME is read from the mount's source, which is a file of the host. Of the links that a folder has already, only
    the one without a version counts, as for `ldconfig`, and only by the text of the link.
    """
    destinations = frozenset(list_mount_destinations(container))
    libraries: list[tuple[str, str, str]] = []
    missing_links: dict[str, str] = {}
    for mount in get_list(container.spec, "mounts"):
        path, source = get_member(mount, "destination"), get_member(mount, "source")
        if not isinstance(path, str) or not isinstance(source, str):
            continue
        folder, _, name = path.rpartition("/")
        if folder not in folders or ".so" not in name or not name.startswith("lib"):
            continue
        soname, arch = _read_soname(source)
        if arch not in architectures:
            continue
        soname = soname or name
        libraries.append((soname, f"{folder}/{soname}", arch))
        if (folder, soname) not in destinations:
            missing_links.setdefault(f"{folder}/{soname}", name)
        bare_name = name[: name.find(".so") + 3]
        target = container.rootfs.readlink(f"{folder}/{bare_name}") if bare_name != soname else None
        if target in (name, soname):
            libraries.append((bare_name, f"{folder}/{bare_name}", arch))
    create_links(container, [(target, path) for path, target in missing_links.items()])
    return libraries


def _read_soname(source: str) -> tuple[str, str]:
    """Return (SONAME, architecture) of a library on the host; ("", "") when the file is not a library."""
    from gpu_oci_hook.formats.elf import read_shared_object

    try:
        # By descriptor: a user who may write to a volume can replace the file by a device after it was checked.
        path_fd = os.open(source, os.O_PATH | os.O_CLOEXEC)
        try:
            fd = reopen_regular_fd(path_fd)
        finally:
            os.close(path_fd)
    except (OSError, ValueError):
        return "", ""
    try:
        library = read_shared_object(fd)
    except Fault:
        return "", ""
    finally:
        os.close(fd)
    is_file_name = "/" not in library.soname and library.soname not in (".", "..")
    return (library.soname if is_file_name else ""), library.arch


def _find_hook_flags(container: Container, name: str) -> list[Flags]:
    """Return the flags of each hook with this name in the config.json."""
    hook_arguments = [
        find_nvidia_hook_arguments(hook, name) for hook in get_list(container.spec, "hooks", "createContainer")
    ]
    return [_parse_hook_flags(name, arguments) for arguments in hook_arguments if arguments is not None]


def _choose_compat_from_flags(container: Container, flags: Flags) -> CompatDecision | None:
    """Decide whether the image's compat libraries win; see `loader_steps.choose_compat_library`.

    The host's CUDA version alone is that of a Tegra board.
    """
    version = _get_last_value(flags, "host-driver-version")
    compat_root = _get_last_value(flags, "cuda-compat-container-root") or DEFAULT_COMPAT_ROOT
    if not version:
        board_cuda = _get_last_value(flags, "host-cuda-version")
        return (
            choose_board_compat(container, os.uname().machine, board_cuda, "auto", [compat_root])
            if board_cuda
            else None
        )
    return choose_compat_library(container, os.uname().machine, version, "auto", HOST_ROOT, compat_root)


def _parse_mode(flags: Flags) -> int:
    value = _get_last_value(flags, "mode")
    try:
        mode = int(value, 8)
    except ValueError:
        mode = -1
    if not 0 <= mode <= 0o7777 or not value.isdigit():
        raise Fault(f'invalid mode "{clip_text(value)}"', where="--mode", hint="Use an octal number, such as 755")
    return mode


def _change_modes(container: Container, mode: int, paths: list[str]) -> None:
    """Change the mode of files in the image or in a tmpfs of the container; never of the host's files."""
    layout = container.get_layout()
    for path in paths:
        path = "/" + path.strip("/")
        if container.rootfs.stat_path(path, follow=True) is None:
            continue
        kind = layout.classify_path(path)
        if kind == "foreign":
            container.notes.append(f"left the mode of {path} unchanged: it is in another mount")
            continue
        try:
            (container.rootfs if kind == "fresh" else container.writable_rootfs).chmod(path, mode)
        except Fault as fault:
            container.notes.append(str(fault))
