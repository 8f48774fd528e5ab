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
from gpu_oci_hook.cdi import errand as errands
from gpu_oci_hook.cdi import steps
from gpu_oci_hook.container import called
from gpu_oci_hook.container.directory import DESCRIPTORS
from gpu_oci_hook.errors import Fault, clipped, words
from gpu_oci_hook.formats import ARCHITECTURES
from gpu_oci_hook.formats.oci import items, member

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.container.called import Container

    Flags = dict[str, list[str]]

ROOT = "/"  # their flags name no other
COMPAT_ROOT = "/usr/local/cuda/compat"
# Every hook's own flags; "container-spec" is a file with the OCI state in the place of stdin.
HOOKS: dict[str, tuple[str, ...]] = {
    "chmod": ("mode", "path"),
    "create-symlinks": ("link",),
    "disable-device-node-modification": (),
    "enable-cuda-compat": ("host-driver-version", "host-cuda-version", "cuda-compat-container-root"),
    "noop": (),
    "update-application-profile": (),
    "update-ldcache": ("folder", "ldconfig-path"),
}
_EVERYWHERE = ("container-spec",)
_USAGE = f"""\
A runtime calls a hook, with the container's state on standard input:

  gpu-oci-hook hook create-container [FLAG VALUE]...   as files by gpu-oci-hook cdi generate say
  nvidia-cdi-hook HOOK [FLAG VALUE]...                 as files by NVIDIA's generator say; also gpu-oci-hook hook HOOK

Hooks: {', '.join(HOOKS)}
"""
_HELP, _VERSION, _QUIET = ("help", "h"), ("version", "v"), ("quiet", "q")
_SWITCHES = ("debug", "d", *_HELP, *_VERSION, *_QUIET)
_PROGRAMS = ("nvidia-cdi-hook", "nvidia-ctk", "gpu-oci-hook")


def run(arguments: list[str]) -> list[str]:
    """Runs the hook that the arguments name; what is to be said of it.

    A name or a flag before it that nobody knows is said and otherwise passed over, as NVIDIA's hook does: a newer
    generator's file must not keep containers from starting.

    Raises:
        Fault: an unknown flag of a known hook, or a step that failed.
    """
    at = next((place for place, word in enumerate(arguments) if not word.startswith("-")), len(arguments))
    name, before, after = "".join(arguments[at : at + 1]), arguments[:at], arguments[at + 1 :]
    switches = [word.lstrip("-").partition("=")[0] for word in before]
    strange = [word for word, switch in zip(before, switches, strict=True) if switch not in _SWITCHES]
    if name not in HOOKS:
        if any(switch in (*_HELP, *_VERSION) for switch in switches) and not name:
            _print(f"gpu-oci-hook, version {VERSION}\n" if switches[0] in _VERSION else _USAGE)
            return []
        what = f'"{clipped(name)}" is no hook that is known here' if name else "no hook is named"
        called.drain(0)
        return [f"{what}: nothing is done. Known are {', '.join(HOOKS)}"]
    if strange:
        raise Fault("this flag is unknown", where=clipped(strange[0]))
    flags = _flags(name, after)
    if any(flag in flags for flag in _HELP):
        _print(f"{name}: --{' --'.join((*HOOKS[name], *_EVERYWHERE))}\n")
        return []
    notes = _known(name, flags)
    return [] if any(flag in flags or flag in switches for flag in _QUIET) else notes


def _flags(name: str, arguments: list[str]) -> Flags:
    flags: Flags = {}
    for flag, value in errands.flags(arguments, (*HOOKS[name], *_EVERYWHERE), _SWITCHES):
        flags.setdefault(flag, []).append(value)
    return flags


def _print(text: str) -> None:
    """For a person who asks; a runtime never does."""
    try:
        os.write(1, text.encode())
    except OSError:
        pass


def _known(name: str, flags: Flags) -> list[str]:
    versions = _last(flags, "host-driver-version") or _last(flags, "host-cuda-version")
    if name == "noop" or (name == "enable-cuda-compat" and not versions):
        called.drain(0)
        return []
    if name == "chmod":
        mode = _mode(flags)
    links = [_link(value) for value in dict.fromkeys(flags.get("link", ()))]
    here = _container(flags)
    if name == "create-symlinks":
        steps.links(here, links)
    elif name == "update-ldcache":
        _update(here, flags.get("folder", []))
    elif name == "enable-cuda-compat":
        _preferred(here, flags)
    elif name == "chmod":
        _chmod(here, mode, flags.get("path", []))
    else:
        from gpu_oci_hook.cdi import devices

        if name == "update-application-profile":
            devices.profile(here, ROOT)
        else:
            devices.hide(here, ROOT)
    return here.notes


def _last(flags: Flags, name: str) -> str:
    return flags.get(name, [""])[-1]


def _container(flags: Flags) -> Container:
    path = _last(flags, "container-spec")
    if path in ("", "-"):
        return called.read(0)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        reason = words(error) if isinstance(error, OSError) else "no file can have this name"
        raise Fault(f"the container's state cannot be opened: {reason}", where=path) from None
    try:
        return called.read(fd)
    finally:
        os.close(fd)


def _link(value: str) -> tuple[str, str]:
    target, path = errands.pair("link", value)
    return target, "/" + path.lstrip("/")  # theirs may be relative to the root


def _update(here: Container, folders: list[str]) -> None:
    """What `ldconfig` would find in these folders of the files that are mounted there: SONAMEs, links, cache.

    A SONAME is read from the mount's source, a file of the host's. Of the folder's own links only the one that
    `ldconfig` keeps too is looked at: the name without a version, by the text of the link. Two files can bring this
    hook twice; each does the work of both, so that the last one leaves everything.
    """
    listed = [folder for flags in _hooks(here, "update-ldcache") for folder in flags.get("folder", [])]
    folders = [*listed, *folders]  # in one order for all of them
    arch = os.uname().machine
    known = [arch, ARCHITECTURES[arch].small] if arch in ARCHITECTURES else [arch]
    folders = list(dict.fromkeys("/" + folder.strip("/") for folder in folders))
    if not folders:
        return
    mounted = frozenset(steps.destinations(here))
    found: list[tuple[str, str, str]] = []
    wanted: dict[str, str] = {}
    for mount in items(here.spec, "mounts"):
        path, source = member(mount, "destination"), member(mount, "source")
        if not isinstance(path, str) or not isinstance(source, str):
            continue
        folder, _, name = path.rpartition("/")
        if folder not in folders or ".so" not in name or not name.startswith("lib"):
            continue
        soname, kind = _soname(source)
        if kind not in known:
            continue
        soname = soname or name
        found.append((soname, f"{folder}/{soname}", kind))
        if (folder, soname) not in mounted:
            wanted.setdefault(f"{folder}/{soname}", name)
        bare = name[: name.find(".so") + 3]
        text = here.rootfs.readlink(f"{folder}/{bare}") if bare != soname else None
        if text in (name, soname):
            found.append((bare, f"{folder}/{bare}", kind))
    steps.links(here, [(text, path) for path, text in wanted.items()])
    said = len(here.notes)
    preferred = ""
    for flags in _hooks(here, "enable-cuda-compat"):
        preferred = _preferred(here, flags)
    del here.notes[said:]  # that hook has said it
    steps.libraries(here, arch, found, folders, preferred)


def _soname(source: str) -> tuple[str, str]:
    """(SONAME, architecture) of a library of the host's; ("", "") when it is none."""
    from gpu_oci_hook.formats import elf

    try:
        # Opening a device can have effects, and who may write to a volume can exchange a file after a look at it.
        held = os.open(source, os.O_PATH | os.O_CLOEXEC)
        try:
            if os.fstat(held).st_mode & 0o170000 != 0o100000:  # S_ISREG, without the import
                return "", ""
            fd = os.open(f"{DESCRIPTORS}/{held}", os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        finally:
            os.close(held)
    except (OSError, ValueError):
        return "", ""
    try:
        library = elf.read(fd)
    except Fault:
        return "", ""
    finally:
        os.close(fd)
    usable = "/" not in library.soname and library.soname not in (".", "..")
    return (library.soname if usable else ""), library.arch


def _hooks(here: Container, name: str) -> list[Flags]:
    """The flags of each hook of this name that the config.json lists."""
    found = []
    for hook in items(here.spec, "hooks", "createContainer"):
        path, said = member(hook, "path"), [word for word in items(hook, "args") if isinstance(word, str)]
        if isinstance(path, str) and path.rpartition("/")[2] in _PROGRAMS and name in said:
            found.append(_flags(name, said[said.index(name) + 1 :]))
    return found


def _preferred(here: Container, flags: Flags) -> str:
    """The directory of the image's compat libraries, if those come first; see `steps.compat`.

    Only the driver's version counts: what CUDA version a library of an image is for, its name does not tell.
    """
    version, place = _last(flags, "host-driver-version"), _last(flags, "cuda-compat-container-root")
    if not version:
        return ""
    return steps.compat(here, os.uname().machine, version, "auto", ROOT, place or COMPAT_ROOT)


def _mode(flags: Flags) -> int:
    text = _last(flags, "mode")
    try:
        mode = int(text, 8)
    except ValueError:
        mode = -1
    if not 0 <= mode <= 0o7777 or not text.isdigit():
        raise Fault(f'"{clipped(text)}" is no mode', where="--mode", cure="Give it in octal, such as 755")
    return mode


def _chmod(here: Container, mode: int, paths: list[str]) -> None:
    """Changes the mode of what lies in the image or in a tmpfs of the container's; never of the host's files."""
    places = here.places()
    for path in paths:
        path = "/" + path.strip("/")
        if here.rootfs.status(path, follow=True) is None:
            continue
        if places.cover(path) == "foreign":
            here.notes.append(f"the mode of {path} stays as it is: it lies in another mount")
            continue
        try:
            (here.rootfs if places.cover(path) == "fresh" else here.layer).chmod(path, mode)
        except Fault as fault:
            here.notes.append(str(fault))
