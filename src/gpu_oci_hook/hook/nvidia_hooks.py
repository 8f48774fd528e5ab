"""NVIDIA's hooks in NVIDIA's spelling, for CDI files that their generator has written.

One process for each, as there: `nvidia-cdi-hook NAME ...`, `nvidia-ctk hook NAME ...`, `gpu-oci-hook hook NAME ...`.
Names, flags and exit statuses are theirs (container toolkit facts 4); what is done is ours: nothing is executed, all of
it goes through the held root, and doing it again changes nothing.

`enable-cuda-compat` runs before `update-ldcache`, which has to know its verdict. It leaves no file in the
image for that (an image could bring such a file itself): both are called for the same config.json, which lists the
hooks with their flags, so the second reads the first's flags there and comes to the same verdict by the same
function. The image's libraries are judged by their names, as the shim does; a note within the ELF file, which NVIDIA's
hook reads, does not count.
"""

from __future__ import annotations

import os

from gpu_oci_hook import VERSION
from gpu_oci_hook.errors import Fault, clip_text, describe_os_error
from gpu_oci_hook.files.directory import PROC_SELF_FD
from gpu_oci_hook.formats.architectures import ARCHITECTURES
from gpu_oci_hook.formats.oci import get_list, get_member
from gpu_oci_hook.formats.program_names import find_nvidia_hook_arguments
from gpu_oci_hook.hook.arguments import parse_flags, parse_link_flag
from gpu_oci_hook.hook.called_container import drain_state, read_container
from gpu_oci_hook.hook.link_steps import create_links, list_mount_destinations
from gpu_oci_hook.hook.loader_steps import choose_compat_directory, start_library_search, write_loader_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.hook.called_container import Container

    Flags = dict[str, list[str]]

ROOT = "/"  # their flags name no other
DEFAULT_COMPAT_ROOT = "/usr/local/cuda/compat"
# Every hook's own flags; "container-spec" is a file with the OCI state in the place of stdin.
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
A runtime calls a hook, with the container's state on standard input:

  gpu-oci-hook hook create-container [FLAG VALUE]...   as files by gpu-oci-hook cdi generate say
  nvidia-cdi-hook HOOK [FLAG VALUE]...                 as files by NVIDIA's generator say; also gpu-oci-hook hook HOOK

Hooks: {", ".join(HOOK_FLAGS)}
"""
_HELP_FLAGS, _VERSION_FLAGS, _QUIET_FLAGS = ("help", "h"), ("version", "v"), ("quiet", "q")
_SWITCH_FLAGS = ("debug", "d", *_HELP_FLAGS, *_VERSION_FLAGS, *_QUIET_FLAGS)


def run_nvidia_hook(arguments: list[str]) -> list[str]:
    """Runs the hook that the arguments name; what is to be said of it.

    A name or a flag before it that nobody knows is said and otherwise passed over, as NVIDIA's hook does: a newer
    generator's file must not keep containers from starting.

    Raises:
        Fault: an unknown flag of a known hook, or a step that failed.
    """
    at = next((place for place, word in enumerate(arguments) if not word.startswith("-")), len(arguments))
    name, before, after = "".join(arguments[at : at + 1]), arguments[:at], arguments[at + 1 :]
    switches = [word.lstrip("-").partition("=")[0] for word in before]
    strange = [word for word, switch in zip(before, switches, strict=True) if switch not in _SWITCH_FLAGS]
    if name not in HOOK_FLAGS:
        if any(switch in (*_HELP_FLAGS, *_VERSION_FLAGS) for switch in switches) and not name:
            _print_help(f"gpu-oci-hook, version {VERSION}\n" if switches[0] in _VERSION_FLAGS else _USAGE)
            return []
        what = f'"{clip_text(name)}" is no hook that is known here' if name else "no hook is named"
        drain_state(0)
        return [f"{what}: nothing is done. Known are {', '.join(HOOK_FLAGS)}"]
    if strange:
        raise Fault("this flag is unknown", where=clip_text(strange[0]))
    flags = _parse_hook_flags(name, after)
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
    """For a person who asks; a runtime never does."""
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
    here = _open_container(flags)
    if name == "create-symlinks":
        create_links(here, links)
    elif name == "update-ldcache":
        _update_loader_cache(here, flags.get("folder", []))
    elif name == "enable-cuda-compat":
        _choose_compat_from_flags(here, flags)
    elif name == "chmod":
        _change_modes(here, mode, flags.get("path", []))
    else:
        from gpu_oci_hook.hook.device_steps import hide_device_files, write_egl_profile

        if name == "update-application-profile":
            write_egl_profile(here, ROOT)
        else:
            hide_device_files(here, ROOT)
    return here.notes


def _get_last_value(flags: Flags, name: str) -> str:
    return flags.get(name, [""])[-1]


def _open_container(flags: Flags) -> Container:
    path = _get_last_value(flags, "container-spec")
    if path in ("", "-"):
        return read_container(0)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        reason = describe_os_error(error) if isinstance(error, OSError) else "no file can have this name"
        raise Fault(f"the container's state cannot be opened: {reason}", where=path) from None
    try:
        return read_container(fd)
    finally:
        os.close(fd)


def _parse_link(value: str) -> tuple[str, str]:
    target, path = parse_link_flag("link", value)
    return target, "/" + path.lstrip("/")  # theirs may be relative to the root


def _update_loader_cache(container: Container, folders: list[str]) -> None:
    """What `ldconfig` would find in these folders of the files that are mounted there: SONAMEs, links, cache.

    A SONAME is read from the mount's source, a file of the host's. Of the folder's own links only the one that
    `ldconfig` keeps too is looked at: the name without a version, by the text of the link. Two files can bring this
    hook twice; each does the work of both, so that the last one leaves everything.
    """
    listed = [folder for flags in _find_hook_flags(container, "update-ldcache") for folder in flags.get("folder", [])]
    folders = [*listed, *folders]  # in one order for all of them
    arch = os.uname().machine
    known = [arch, ARCHITECTURES[arch].arch32] if arch in ARCHITECTURES else [arch]
    folders = list(dict.fromkeys("/" + folder.strip("/") for folder in folders))
    if not folders:
        return
    mounted = frozenset(list_mount_destinations(container))
    entries: list[tuple[str, str, str]] = []
    wanted: dict[str, str] = {}
    for mount in get_list(container.spec, "mounts"):
        path, source = get_member(mount, "destination"), get_member(mount, "source")
        if not isinstance(path, str) or not isinstance(source, str):
            continue
        folder, _, name = path.rpartition("/")
        if folder not in folders or ".so" not in name or not name.startswith("lib"):
            continue
        soname, kind = _read_soname(source)
        if kind not in known:
            continue
        soname = soname or name
        entries.append((soname, f"{folder}/{soname}", kind))
        if (folder, soname) not in mounted:
            wanted.setdefault(f"{folder}/{soname}", name)
        bare = name[: name.find(".so") + 3]
        text = container.rootfs.readlink(f"{folder}/{bare}") if bare != soname else None
        if text in (name, soname):
            entries.append((bare, f"{folder}/{bare}", kind))
    create_links(container, [(text, path) for path, text in wanted.items()])
    said = len(container.notes)
    compat_directory = ""
    for flags in _find_hook_flags(container, "enable-cuda-compat"):
        compat_directory = _choose_compat_from_flags(container, flags)
    del container.notes[said:]  # that hook has said it
    search = start_library_search(container, arch)
    search.compat_directory = compat_directory
    for folder in folders:
        search.add_directory(folder)
    for name, path, kind in entries:
        search.add_library(name, path, kind)
    write_loader_files(container, search)


def _read_soname(source: str) -> tuple[str, str]:
    """(SONAME, architecture) of a library of the host's; ("", "") when it is none."""
    from gpu_oci_hook.formats.elf import read_shared_object

    try:
        # Opening a device can have effects, and who may write to a volume can exchange a file after a look at it.
        held = os.open(source, os.O_PATH | os.O_CLOEXEC)
        try:
            if os.fstat(held).st_mode & 0o170000 != 0o100000:  # S_ISREG, without the import
                return "", ""
            fd = os.open(f"{PROC_SELF_FD}/{held}", os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        finally:
            os.close(held)
    except (OSError, ValueError):
        return "", ""
    try:
        library = read_shared_object(fd)
    except Fault:
        return "", ""
    finally:
        os.close(fd)
    usable = "/" not in library.soname and library.soname not in (".", "..")
    return (library.soname if usable else ""), library.arch


def _find_hook_flags(container: Container, name: str) -> list[Flags]:
    """The flags of each hook of this name that the config.json lists."""
    found = []
    for hook in get_list(container.spec, "hooks", "createContainer"):
        arguments = find_nvidia_hook_arguments(hook, name)
        if arguments is not None:
            found.append(_parse_hook_flags(name, arguments))
    return found


def _choose_compat_from_flags(container: Container, flags: Flags) -> str:
    """The directory of the image's compat libraries, if those come first; see `loader_steps.choose_compat_directory`.

    Only the driver's version counts: what CUDA version a library of an image is for, its name does not tell.
    """
    version, place = _get_last_value(flags, "host-driver-version"), _get_last_value(flags, "cuda-compat-container-root")
    if not version:
        return ""
    return choose_compat_directory(container, os.uname().machine, version, "auto", ROOT, place or DEFAULT_COMPAT_ROOT)


def _parse_mode(flags: Flags) -> int:
    text = _get_last_value(flags, "mode")
    try:
        mode = int(text, 8)
    except ValueError:
        mode = -1
    if not 0 <= mode <= 0o7777 or not text.isdigit():
        raise Fault(f'"{clip_text(text)}" is no mode', where="--mode", hint="Give it in octal, such as 755")
    return mode


def _change_modes(container: Container, mode: int, paths: list[str]) -> None:
    """Changes the mode of what lies in the image or in a tmpfs of the container's; never of the host's files."""
    places = container.get_layout()
    for path in paths:
        path = "/" + path.strip("/")
        if container.rootfs.stat_path(path, follow=True) is None:
            continue
        if places.classify_path(path) == "foreign":
            container.notes.append(f"the mode of {path} stays as it is: it lies in another mount")
            continue
        try:
            (container.rootfs if places.classify_path(path) == "fresh" else container.writable_rootfs).chmod(path, mode)
        except Fault as fault:
            container.notes.append(str(fault))
