"""What a CDI file of ours tells about itself: that it is ours, the command that writes it anew, and what it lacks.

A file is made once and the machine goes on, so a later `cdi refresh` has to know by which options it was made. YAML
says it in comments at its head, and the hook's arguments say it in either form: engines of every age read both. A file
in JSON without a hook can say nothing, and is not known as ours. Cost rule: cold, but `is_own_spec_file` is also asked on the
way of a container whose CDI file does not fit: nothing but `os` and `stat` before it is needed.
"""

from __future__ import annotations

import json
import os

from gpu_oci_hook.errors import Fault, make_printable
from gpu_oci_hook.files import state_dir
from gpu_oci_hook.files.read_regular import UnusableFileError, open_regular_file, read_fd
from gpu_oci_hook.formats.oci import get_list, get_member
from gpu_oci_hook.formats.program_names import CREATE_CONTAINER, HOOK_PROGRAM, is_own_cdi_hook

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpu_oci_hook.model.machine import DriverFile, Gpu

PROVENANCE_MARK = "# Written by gpu-oci-hook"
"""How the second line of a YAML file of ours begins; a JSON file is known by our hook alone."""
REWRITE_COMMENT = "This writes it anew: "
INCOMPLETE_COMMENT = "incomplete: "
"""How comments begin; after the first comes the command, after the second what the machine did not have."""
INCOMPLETE_ANNOTATION = "gpu-oci-hook/incomplete"
"""The annotation of a file that lacks nodes which the machine did not have."""

_MAX_FILE_SIZE = 64 << 20


def is_own_spec_data(data: bytes) -> bool:
    """Whether these are a file's bytes that we have written."""
    return PROVENANCE_MARK.encode() in data[:200] or (
        HOOK_PROGRAM.encode() in data and CREATE_CONTAINER.encode() in data
    )


def is_own_spec_file(path: str) -> bool:
    """Whether we have written a file; False for what cannot be read."""
    return is_own_spec_data(_read_with_trust(path)[0])


def format_cdi_command(arguments: Iterable[str]) -> str:
    """The line that people copy: `gpu-oci-hook cdi` and these words, quoted for a shell, on one line."""
    import shlex

    return make_printable(shlex.join((HOOK_PROGRAM, "cdi", *arguments)))


def read_recorded_options(path: str) -> tuple[list[str], bool]:
    """With which options a file of ours was made, and whether this user may believe that.

    A file that others may write is not believed: what it names as the configuration decides what runs as root.

    Returns:
        The words of the command after `gpu-oci-hook cdi refresh`, none where the file says nothing.

    Raises:
        Fault: what the file says is no command of ours.
    """
    data, trusted = _read_with_trust(path)
    if not is_own_spec_data(data):
        return [], trusted
    told = next(_iterate_head_comments(data, REWRITE_COMMENT), "") or next(
        _iterate_hook_flag_values(_parse_spec_data(data, path), "--made-by"), ""
    )
    if not told:
        return [], trusted
    import shlex

    try:
        found = shlex.split(told)
    except ValueError:
        found = []
    if found[:2] != [HOOK_PROGRAM, "cdi"] or found[2:3] not in (["refresh"], ["generate"]):
        raise Fault("the command that it names as its own is none", where=path, hint=build_lost_options_hint(path))
    return found[3:], trusted


def read_incomplete_reason(data: object, path: str) -> str:
    """What a file that was written with --allow-incomplete lacks, in a sentence; "" for nothing, and for others' files.

    Arguments:
        data: the file as parsed.
    """
    said = get_member(data, "annotations", INCOMPLETE_ANNOTATION)
    if isinstance(said, str):
        return said
    return next(_iterate_hook_flag_values(data, "--incomplete"), "") or "; ".join(
        _iterate_head_comments(_read_with_trust(path)[0], INCOMPLETE_COMMENT)
    )


def build_lost_options_hint(path: str) -> str:
    """The cure for a file of ours whose command cannot be used."""
    return f"Write it with its options: gpu-oci-hook cdi generate --output {path}"


def _iterate_head_comments(data: bytes, prefix: str) -> Iterator[str]:
    """What follows the beginning in the comments at the head of a file of ours."""
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
    """The value of a flag of our hook in a file."""
    for hook in get_list(data, "containerEdits", "hooks"):
        args = get_list(hook, "args")
        if is_own_cdi_hook(hook) and flag in args[:-1]:
            value = args[args.index(flag) + 1]
            if isinstance(value, str):
                yield value


def _parse_spec_data(data: bytes, path: str) -> object:
    from gpu_oci_hook.cdi.spec.reading import parse_spec

    return parse_spec(data, path).data


def _read_with_trust(path: str) -> tuple[bytes, bool]:
    """The bytes of a regular file, and whether nobody but this user may write it; none when it cannot be read."""
    try:
        fd = open_regular_file(path, stat_first=True)
        try:
            return read_fd(fd, _MAX_FILE_SIZE), state_dir.is_trusted_fd(fd)
        finally:
            os.close(fd)
    except (OSError, UnusableFileError):
        return b"", False


def compute_fingerprint(
    driver_version: str, gpus: Iterable[Gpu], mig_ids: Iterable[tuple[int, int, int]], files: Iterable[DriverFile]
) -> str:
    """The hash of a machine.

    Arguments:
        driver_version: version of the running kernel module; "" where none is loaded.
        gpus: all of the machine. mig_ids: (GPU's index, gi, ci) of all its MIG devices.
        files: of the driver's inventory.
    """
    known = [
        driver_version,
        sorted((gpu.index, gpu.uuid, gpu.pci, gpu.minor) for gpu in gpus),
        sorted(mig_ids),
        sorted({(file.source, file.container_path) for file in files if file.kind not in ("socket", "directory")}),
    ]
    return state_dir.compute_digest(json.dumps(known).encode())
