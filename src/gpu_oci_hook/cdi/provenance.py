"""Recognise CDI files that gpu-oci-hook wrote, and build the command that regenerates a CDI file.

A CDI file is written once, and the host changes afterwards. `cdi refresh` therefore needs the options that the file
was written with. A YAML file records them in comments at its head. The arguments of our hook record them in YAML and
in JSON, and engines of every age accept both. A JSON file without our hook records them in an annotation if it is for a
client that accepts annotations, else nothing: then it does not count as written by us.

Every hint that names such a command comes from this module: see REGENERATE_HINT_PREFIX.

Import budget: cold.
"""

from __future__ import annotations

import os

from gpu_oci_hook.errors import Fault, make_printable
from gpu_oci_hook.files import state_dir
from gpu_oci_hook.files.read_regular import UnusableFileError, open_regular_file, read_fd
from gpu_oci_hook.files.trust import describe_foreign_access
from gpu_oci_hook.formats.oci import get_list, get_member
from gpu_oci_hook.formats.program_names import CREATE_CONTAINER, HOOK_PROGRAM, NVIDIA_CDI_HOOK, has_own_hook_arguments

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpu_oci_hook.model.machine import DriverFile, Gpu

PROVENANCE_MARK = "# Written by gpu-oci-hook"
"""Start of the second line of a YAML file that we wrote. A JSON file is recognised by our hook alone."""
REGENERATE_COMMENT = "Regenerate with: "
"""Start of the comment that records the command."""
EARLIER_REGENERATE_COMMENT = "This writes it anew: "
"""The same in files that versions up to 0.1.0 wrote; they keep their options."""
INCOMPLETE_COMMENT = "incomplete: "
"""Start of a comment that names a device node missing at the time of writing."""
INCOMPLETE_ANNOTATION = "gpu-oci-hook/incomplete"
"""Annotation of a file that lacks device nodes which the host did not have."""

COMMAND_ANNOTATION = "gpu-oci-hook/command"
"""Annotation that records the command in a JSON file without our hook, for clients that accept annotations."""

REGENERATE_HINT_PREFIX = "Regenerate it"
"""Start of every hint with a command that regenerates a whole file."""

_MAX_FILE_SIZE = 64 << 20

# Options of `cdi generate` for the kinds that it writes.
_GENERATE_OPTIONS_BY_KIND = {
    "nvidia.com/gpu": (),
    "runtime.nvidia.com/gpu": ("--vendor", "runtime.nvidia.com"),
    "management.nvidia.com/gpu": ("--mode", "management"),
}


def is_own_spec_data(data: bytes) -> bool:
    """Tell whether these bytes are a CDI file that we wrote."""
    return (
        PROVENANCE_MARK.encode() in data[:200]
        or (HOOK_PROGRAM.encode() in data and CREATE_CONTAINER.encode() in data)
        or f'"{COMMAND_ANNOTATION}"'.encode() in data
    )


def is_own_spec_file(path: str) -> bool:
    """Tell whether we wrote this file; False for a file that cannot be read."""
    return is_own_spec_data(_read_with_trust(path)[0])


def format_cdi_command(arguments: Iterable[str]) -> str:
    """Format `gpu-oci-hook cdi` with these arguments as one line, quoted for a shell."""
    import shlex

    return make_printable(shlex.join((HOOK_PROGRAM, "cdi", *arguments)))


def build_refresh_command(path: str, *options: str) -> str:
    """Build the command that regenerates a file from its recorded options and these."""
    return " ".join((HOOK_PROGRAM, "cdi", "refresh", *options, "--output", path))


def build_generate_command(path: str, *options: str) -> str:
    """Build the command that writes a file with these options."""
    return " ".join((HOOK_PROGRAM, "cdi", "generate", *options, "--output", path))


def build_stale_hint(kind: str, path: str, own_kinds: tuple[str, ...] = (), *, missing_program: str = "") -> str:
    """Build the hint for a file that does not match this host.

    A file that we wrote records its options. A file of the same kind from another tool does not.

    Arguments:
        kind: kind of the file.
        path: path of the file.
        own_kinds: further kinds that `cdi generate` writes on this host.
        missing_program: the program of a hook, if nothing else is wrong with the file; "" otherwise.
    """
    if missing_program:
        return _build_program_hint(missing_program)
    if is_own_spec_file(path):
        return build_refresh_hint(path)
    if kind in _GENERATE_OPTIONS_BY_KIND or kind in own_kinds:
        return build_generate_hint(kind, path)
    return "Regenerate the CDI file with the tool that wrote it, or remove the file"


def _build_program_hint(program: str) -> str:
    """Build the hint for a file that is right but for a hook's program that is not installed."""
    directory, _, name = program.rpartition("/")
    options = {HOOK_PROGRAM: "", NVIDIA_CDI_HOOK: " --aliases"}.get(name)
    if options is None or not directory.endswith("/bin"):
        return "Install the program, or remove the CDI file"
    prefix = directory.removesuffix("/bin") or "/"
    return (
        f"Install the program: {HOOK_PROGRAM} install{options}{'' if prefix == '/usr/local' else f' --prefix {prefix}'}"
    )


def build_refresh_hint(path: str, *options: str) -> str:
    """Build the hint for a file that we wrote: `cdi refresh` with these options."""
    return f"{REGENERATE_HINT_PREFIX}: {build_refresh_command(path, *options)}"


def build_generate_hint(kind: str, path: str, *options: str) -> str:
    """Build the hint for a file of a kind that we write: `cdi generate` with the kind's options and these."""
    command = build_generate_command(path, *_GENERATE_OPTIONS_BY_KIND.get(kind, ()), *options)
    return f"{REGENERATE_HINT_PREFIX}: {command}"


def build_lost_options_hint(path: str) -> str:
    """Build the hint for a file whose recorded command cannot be used."""
    return f"{REGENERATE_HINT_PREFIX} with its options: {build_generate_command(path)}"


def read_recorded_options(path: str) -> tuple[list[str], bool]:
    """Read the options that a file of gpu-oci-hook records, and whether this user may trust them.

    A file that other users can write is not trusted: the configuration file that it names decides what runs as root.

    Returns:
        The arguments after `gpu-oci-hook cdi refresh`, empty if the file records nothing.

    Raises:
        Fault: the file records something else than a `gpu-oci-hook cdi` command.
    """
    data, trusted = _read_with_trust(path)
    if not is_own_spec_data(data):
        return [], trusted
    command = (
        next(_iterate_head_comments(data, REGENERATE_COMMENT), "")
        or next(_iterate_head_comments(data, EARLIER_REGENERATE_COMMENT), "")
        or next(_iterate_hook_flag_values(_parse_spec_data(data, path), "--made-by"), "")
        or get_member(_parse_spec_data(data, path), "annotations", COMMAND_ANNOTATION)
    )
    command = command if isinstance(command, str) else ""
    if not command:
        return [], trusted
    import shlex

    try:
        words = shlex.split(command)
    except ValueError:
        words = []
    if words[:2] != [HOOK_PROGRAM, "cdi"] or words[2:3] not in (["refresh"], ["generate"]):
        what = "the command recorded in it is not a gpu-oci-hook cdi command"
        raise Fault(what, where=path, hint=build_lost_options_hint(path))
    return words[3:], trusted


def read_incomplete_reason(data: object, path: str) -> str:
    """Return what a file written with --allow-incomplete lacks, as a sentence; "" for nothing and for foreign files.

    Arguments:
        data: the parsed file.
    """
    annotation = get_member(data, "annotations", INCOMPLETE_ANNOTATION)
    if isinstance(annotation, str):
        return annotation
    return next(_iterate_hook_flag_values(data, "--incomplete"), "") or "; ".join(
        _iterate_head_comments(_read_with_trust(path)[0], INCOMPLETE_COMMENT)
    )


def _iterate_head_comments(data: bytes, prefix: str) -> Iterator[str]:
    """Iterate over the head comments that start with a prefix, without the prefix."""
    lines = iter(data[: 1 << 20].split(b"\n"))
    if next(lines, b"") != b"---" or not next(lines, b"").startswith(PROVENANCE_MARK.encode()):
        return
    for line in lines:
        text = line.decode("utf-8", "replace")
        if not text.startswith("#"):
            return
        if text.startswith(f"# {prefix}"):
            yield text[len(f"# {prefix}") :]


def _iterate_hook_flag_values(data: object, flag: str) -> Iterator[str]:
    """Iterate over the values of one flag of our hook."""
    for hook in get_list(data, "containerEdits", "hooks"):
        args = get_list(hook, "args")
        if has_own_hook_arguments(hook) and flag in args[:-1]:
            value = args[args.index(flag) + 1]
            if isinstance(value, str):
                yield value


def _parse_spec_data(data: bytes, path: str) -> object:
    from gpu_oci_hook.cdi.spec.reading import parse_spec

    return parse_spec(data, path).data


def _read_with_trust(path: str) -> tuple[bytes, bool]:
    """Read a regular file, and tell whether only this user can write it; empty if it cannot be read."""
    try:
        fd = open_regular_file(path, stat_first=True)
        try:
            return read_fd(fd, _MAX_FILE_SIZE), not describe_foreign_access(os.fstat(fd), every_user=True)
        finally:
            os.close(fd)
    except (OSError, UnusableFileError):
        return b"", False


def compute_fingerprint(
    driver_version: str, gpus: Iterable[Gpu], mig_ids: Iterable[tuple[int, int, int]], files: Iterable[DriverFile]
) -> str:
    """Compute the hash of everything on a host that a CDI file depends on.

    Arguments:
        driver_version: version of the loaded kernel module; "" if none is loaded.
        gpus: all GPUs of the host.
        mig_ids: (GPU index, GPU instance, compute instance) of all MIG devices.
        files: driver files of the inventory.
    """
    # Not at the top: a start that fails because of a CDI file imports this module for its hint only.
    import json

    inputs = [
        driver_version,
        sorted((gpu.index, gpu.uuid, gpu.pci, gpu.minor) for gpu in gpus),
        sorted(mig_ids),
        sorted({(file.source, file.container_path) for file in files if file.kind not in ("socket", "directory")}),
    ]
    return state_dir.compute_digest(json.dumps(inputs).encode())
