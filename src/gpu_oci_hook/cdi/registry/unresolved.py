"""Why a CDI name cannot be resolved: a table of small checks, of which the first that has an answer speaks.

Engines say "unresolvable CDI devices" for all of it (field reports A3-06 to A3-15). Who asked for one device is never
told to take all of them, unless nothing else is there. Cold: loaded when a name is not resolved, and by `cdi resolve`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from typing import NamedTuple

from gpu_oci_hook.cdi.own_kinds import GPU_MODE, MODES, ContentOptions
from gpu_oci_hook.cdi.provenance import is_own_spec_file
from gpu_oci_hook.cdi.registry.own_devices import _DEFAULT_SPEC_DIR, OwnDevices
from gpu_oci_hook.cdi.registry.scan import SpecFile, SpecScan
from gpu_oci_hook.cdi.registry.spec_dirs import MAX_SPEC_FILES, SPEC_SUFFIXES, locate_spec_dir
from gpu_oci_hook.cdi.registry.staleness import REWRITE_HINT_PREFIX, build_stale_hint
from gpu_oci_hook.cdi.spec.reading import read_spec_file
from gpu_oci_hook.config.keys import Config
from gpu_oci_hook.errors import Fault, clip_text, find_close_match
from gpu_oci_hook.files import state_dir
from gpu_oci_hook.formats.cdi_names import is_device_name, parse_cdi_kind, parse_qualified_name
from gpu_oci_hook.formats.oci import get_list, get_member
from gpu_oci_hook.host.root import Host
from gpu_oci_hook.request.cdi_requests import RUNTIME_KIND, get_own_kinds, strip_type_prefix
from gpu_oci_hook.request.environment import MANAGEMENT_DEVICE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.cdi.registry.own_devices import OwnDevices
    from gpu_oci_hook.cdi.registry.scan import SpecScan
    from gpu_oci_hook.config.keys import Config


# Where files lie that nobody reads, beside the directories that are read: one that is not configured, or is another
# one than /var/run/cdi where /var/run is no link to /run.
_UNSCANNED_SPEC_DIRS = ("/etc/cdi", "/var/run/cdi", "/run/cdi", "/usr/local/etc/cdi", "/usr/share/cdi")

# Devices and files that an answer names; files with another suffix that are looked into.
_MAX_SHOWN = 8
_MAX_SUBDIRECTORIES = 64


class UnresolvedCause(NamedTuple):
    """Why a name is not resolved. code: a word for programs. files: which ones. text, cure: for people."""

    code: str
    files: tuple[str, ...]
    text: str
    cure: str


class CdiNameQuery:
    """A name that is not resolved, and what there is to know about it.

    Attributes:
        name: as it was said. kind, device: what it has before and after its first "=".
        scan: every spec file. config: ours. own_devices: this machine.
    """

    __slots__ = ("config", "device", "kind", "name", "own_devices", "scan")

    def __init__(self, name: str, scan: SpecScan, config: Config, own_devices: OwnDevices) -> None:
        self.name = name
        self.kind, _, self.device = name.partition("=")
        self.scan = scan
        self.config = config
        self.own_devices = own_devices

    @property
    def is_own_kind(self) -> bool:
        """Whether our runtime plans such devices in memory."""
        return self.kind in get_own_kinds(self.config)

    @property
    def selector(self) -> str:
        """The word for a GPU that a name of ours means."""
        return strip_type_prefix(self.device)

    @property
    def generate_mode(self) -> str:
        """What `cdi generate --mode` has to be to write the name's kind; "" when it writes no such kind."""
        return next((mode for kind, mode in map_kinds_to_modes(self.config).items() if kind == self.kind), "")

    def describe_without_file(self) -> str:
        """What our runtime gives for the name without any file; "" when it needs one."""
        return self.own_devices.describe_devices(self.selector) if self.is_own_kind else ""

    def build_generate_command(self) -> str:
        """The command that writes a file of the name's kind where engines of this machine look."""
        mode = self.generate_mode or GPU_MODE
        words = "" if mode == GPU_MODE else f" --mode {mode}"
        file = "nvidia.yaml" if mode == GPU_MODE else f"nvidia-{mode}.yaml"
        if any(one.path.rpartition("/")[2] == file for one in self.scan.files):  # it would be replaced
            file = f"{self.kind.replace('/', '-')}.yaml"
        directory = self.scan.directories[0] if self.scan.directories else _DEFAULT_SPEC_DIR
        return f"gpu-oci-hook cdi generate{words} --output {directory}/{file}"

    def build_missing_device_hint(self, path: str) -> str:
        """What to do about a file of the name's kind that lacks a device which this machine has.

        A file of ours is made anew by its own options, which may have left the device out.
        """
        if is_own_spec_file(path):
            return f"{REWRITE_HINT_PREFIX}: gpu-oci-hook cdi refresh --device all,none --output {path}"
        return build_stale_hint(self.kind, path, get_own_kinds(self.config))


def map_kinds_to_modes(config: Config) -> dict[str, str]:
    """The kinds that our generator writes, each with the mode that does."""
    return {ContentOptions(mode=mode).build_cdi_kind(config): mode for mode in MODES}


def describe_searched_dirs(scan: SpecScan) -> str:
    """Where files were looked for, and where engines look if that is somewhere else."""
    there = ", ".join(scan.host.full_path(directory) for directory in scan.directories) or "no directory"
    if not scan.host.prefix:
        return there
    return f"{there} ([host] root is {scan.host.root}: engines of this machine read {', '.join(scan.directories)})"


def find_unresolved_cause(name: str, scan: SpecScan, config: Config, own_devices: OwnDevices) -> UnresolvedCause:
    """The cause why no file resolves a name; never without an answer."""
    asked = CdiNameQuery(name, scan, config, own_devices)
    for check in CAUSE_CHECKS:
        cause = check(asked)
        if cause is not None:
            return cause
    if asked.is_own_kind and not own_devices.gpus:
        cure = "This machine has no GPU: gpu-oci-hook list says what it looked at"
    elif asked.generate_mode:
        cure = f"For engines that resolve it themselves write one: {asked.build_generate_command()}"
    else:
        cure = "Have its vendor's tool write one, or set [cdi] spec-dirs to where it lies"
    return UnresolvedCause("undefined", (), f"no CDI file defines it; looked in {describe_searched_dirs(scan)}", cure)


def make_unresolved_fault(name: str, origin: str, other_count: int, host: Host, config: Config) -> Fault:
    """What to tell a container's engine about a name that is not resolved.

    Arguments:
        origin: whose word it is. other_count: how many other names are not resolved either.
    """
    cause = find_unresolved_cause(
        name, SpecScan(host, config.spec_dirs), config, OwnDevices(host, config, state_dir.StateCache())
    )
    others = f" ({other_count} more {'is' if other_count == 1 else 'are'} not resolved either)" if other_count else ""
    return Fault(f"CDI device {clip_text(name)} is unresolvable{others}: {cause.text}", where=origin, hint=cause.cure)


def get_name_kind(name: str) -> str:
    """The kind in a qualified name."""
    return name.partition("=")[0]


def _check_name_syntax(query: CdiNameQuery) -> UnresolvedCause | None:
    if parse_qualified_name(query.name) is not None:
        return None
    found = parse_cdi_kind(query.name)
    kind = query.name if found else query.config.default_kind
    if found and kind not in get_own_kinds(query.config):
        cure = f"Say {kind}=DEVICE"
    else:
        device = query.name if is_device_name(query.name) else "0"
        cure = f"Say {'' if found else 'vendor/class=device, such as '}{kind}={device}"
    return UnresolvedCause("name", (), "it is no qualified CDI name", cure)


def _check_conflict(query: CdiNameQuery) -> UnresolvedCause | None:
    name, scan = query.name, query.scan
    files = scan.conflicts.get(name)
    if files is None:
        return None
    paths = tuple(file.path for file in files)
    text = f"{' and '.join(paths)} both define it: conflict: none used"
    higher = [
        file.path for file in scan.files if name in file.list_qualified_names() and file.path not in paths and file.data
    ]
    if higher:
        text += f", nor {higher[-1]} in a later directory"
    return UnresolvedCause("conflict", paths, text, f"Remove all of them but one: rm {paths[0]}")


def _check_empty_device(query: CdiNameQuery) -> UnresolvedCause | None:
    for file in _find_invalid_definitions(query):
        for place, device in enumerate(get_list(file.unchecked_data, "devices")):
            if isinstance(device, dict) and not device.get("containerEdits"):
                where = f"devices[{place}].containerEdits"
                called = clip_text(str(device.get("name", place)))
                text = f"{file.path}: {where}: device {called} has no containerEdits: invalid, and with it the file"
                return UnresolvedCause(
                    "no-edits", (file.path,), text, "Give the device an edit of its own, or take it out"
                )
    return None


def _check_invalid_file(query: CdiNameQuery) -> UnresolvedCause | None:
    for file in _find_invalid_definitions(query):
        first = file.errors[0]
        more = f" and {len(file.errors) - 1} more errors" if len(file.errors) > 1 else ""
        where = f"{first.where}: " if first.where else ""
        text = f"{file.path}, which would define it, is invalid: {where}{first.text}{more}"
        return UnresolvedCause(
            "invalid", (file.path,), text, first.hint or f"See: gpu-oci-hook cdi validate {file.path}"
        )
    return None


def _check_unreadable_file(query: CdiNameQuery) -> UnresolvedCause | None:
    for problem in query.scan.problems:
        if problem.hint.startswith("Run: chmod"):
            return UnresolvedCause("unreadable", (problem.file,), f"{problem.file}: {problem.text}", problem.hint)
    for file in _sort_by_file_name(
        query, [file for file in query.scan.files if not os.access(file.real_path, os.R_OK)]
    ):
        if file.status is None:
            continue  # a link to nowhere
        mode, owner = stat.S_IMODE(file.status.st_mode), file.status.st_uid
        who = f"mode {mode:04o}, of user {owner}; you are user {os.geteuid()}"
        text = f"{file.path} exists, not readable by you ({who})"
        return UnresolvedCause("unreadable", (file.path,), text, f"Run: chmod 0644 {file.path}")
    return None


def _check_ignored_suffix(query: CdiNameQuery) -> UnresolvedCause | None:
    scan = query.scan
    for directory in scan.directories:
        place = locate_spec_dir(scan.host, directory)
        if not place:
            continue
        for entry in scan.host.list_names(directory)[:MAX_SPEC_FILES]:
            stem = next((word for word in (".yml", ".yaml", ".json") if word in entry), "")
            if not stem or entry.endswith(SPEC_SUFFIXES) or not _is_defined_in_file(f"{place}/{entry}", query.name):
                continue
            path = scan.host.full_path(f"{directory}/{entry}")
            suffix = ".json" if stem == ".json" else ".yaml"
            right = f"{path[: path.rindex(stem)]}{suffix}"
            text = f"{path} defines it and is ignored: only .json and .yaml are read"
            return UnresolvedCause("suffix", (path,), text, f"Run: mv {path} {right}")
    return None


def _check_unscanned_directory(query: CdiNameQuery) -> UnresolvedCause | None:
    name, scan, host = query.name, query.scan, query.scan.host
    read = {host.resolve_path(one) or one for one in scan.directories if locate_spec_dir(host, one)}
    places = [*scan.directories, *_UNSCANNED_SPEC_DIRS]
    for directory in scan.directories:  # what lies below one is not read either
        place = locate_spec_dir(host, directory)
        if place:
            places += [
                f"{directory}/{entry}"
                for entry in host.list_names(directory)[:_MAX_SUBDIRECTORIES]
                if os.path.isdir(f"{place}/{entry}")
            ]
    for directory in places:
        real = host.resolve_path(directory)
        if real is None or real in read:
            continue
        read.add(real)
        for file in SpecScan(host, (real,)).files:
            if name not in file.list_qualified_names():
                continue
            shown = host.full_path(directory)
            why = "it is a link, and engines read directories only" if directory in scan.directories else ""
            if directory == "/run/cdi" and "/var/run/cdi" in scan.directories:
                why = "/var/run is no link to /run here"
            text = f"{file.path} defines it: directory not scanned{f' ({why})' if why else ''}"
            configured = ", ".join(f'"{one}"' for one in (*scan.directories, directory))
            cure = f"Move it to {host.full_path(scan.directories[-1])}, or set [cdi] spec-dirs = [{configured}]"
            if directory in scan.directories:
                cure = f"Put a directory in the place of the link {shown}"
            return UnresolvedCause("directory", (file.path,), text, cure)
    return None


def _check_unparsable_file(query: CdiNameQuery) -> UnresolvedCause | None:
    """A file that cannot be taken apart may be the one, if its name says so."""
    for file in _sort_by_file_name(query, [file for file in query.scan.files if file.errors and not file.kind]):
        vendor = query.kind.partition("/")[0]
        if vendor not in file.path and vendor.partition(".")[0] not in file.path.rpartition("/")[2]:
            continue
        first = file.errors[0]
        text = f"{file.path}, which may define it, cannot be used: {first.text}"
        return UnresolvedCause(
            "invalid", (file.path,), text, first.hint or f"See: gpu-oci-hook cdi validate {file.path}"
        )
    return None


def _check_missing_device(query: CdiNameQuery) -> UnresolvedCause | None:
    scan, kind, device = query.scan, query.kind, query.device
    there = [known for known in scan.winners if get_name_kind(known) == kind]
    if not there:
        return None
    files = tuple(dict.fromkeys(scan.winners[known][0].path for known in there))
    have = f"{', '.join(files[:_MAX_SHOWN])} {'has' if len(files) == 1 else 'have'}"
    text = f"{have} no device {clip_text(device)} of {kind}"
    lacking = query.own_devices.find_missing_fault(query.selector) if query.is_own_kind else None
    if lacking is not None:
        return UnresolvedCause("device", files, f"{text}, and {lacking.what}", lacking.hint)
    shown = ", ".join(clip_text(known) for known in there[:_MAX_SHOWN])
    text += f", only {shown}{f' and {len(there) - _MAX_SHOWN} more' if len(there) > _MAX_SHOWN else ''}"
    others = [known.partition("=")[2] for known in there]
    if query.is_own_kind:
        same = next(
            (other for other in others if query.own_devices.is_same_device(query.selector, strip_type_prefix(other))),
            "",
        )
        if same:
            return UnresolvedCause("device", files, text, f"Ask for {kind}={same}")
    given = query.describe_without_file()
    if others == ["all"]:
        anew = query.build_missing_device_hint(files[0])
        more = f", if it may be everything. For {device} alone {anew[:1].lower()}{anew[1:]}" if given else ""
        return UnresolvedCause("device", files, text, f"Ask for {there[0]}{more}")
    if given:
        return UnresolvedCause("device", files, text, query.build_missing_device_hint(files[0]))
    # A number is never a mistyped other one.
    near = "" if device.isdigit() else find_close_match(device[:100], others)
    best = f"{kind}={near}" if near else there[0] if len(there) == 1 else "one of them"
    return UnresolvedCause("device", files, text, f"Ask for {best}")


def _check_unquoted_name(query: CdiNameQuery) -> UnresolvedCause | None:
    """YAML reads some words without quotes as something else: the device has another name than is written there."""
    begins = f"{query.device} without quotes is read as "
    for file in query.scan.files:
        for one in file.findings:
            if file.kind == query.kind and one.where.endswith("].name") and one.text.startswith(begins):
                text = f"{file.path}:{one.line}: {one.where}: {one.text}, so the device is called that"
                return UnresolvedCause("device", (file.path,), text, one.hint)
    return None


def _check_absent_hardware(query: CdiNameQuery) -> UnresolvedCause | None:
    """No file of ours could define it either."""
    lacking = query.own_devices.find_missing_fault(query.selector) if query.is_own_kind else None
    if lacking is None:
        return None
    return UnresolvedCause("absent", (), f"no CDI file defines it, and {lacking.what}", lacking.hint)


def _check_mistyped_kind(query: CdiNameQuery) -> UnresolvedCause | None:
    kinds = [
        query.config.default_kind,
        *map_kinds_to_modes(query.config),
        RUNTIME_KIND,
        *map(get_name_kind, query.scan.winners),
    ]
    if query.kind in kinds:
        return None
    for kind in dict.fromkeys(kinds):
        if _is_similar_kind(query.kind, kind):
            text = f"no file has devices of the kind {query.kind}; looked in {describe_searched_dirs(query.scan)}"
            return UnresolvedCause("kind", (), text, f"Did you mean {kind}={query.device}?")
    return None


def _is_similar_kind(kind: str, other: str) -> bool:
    """Whether one kind is another one mistyped: half of it is the same. Vendors' names look alike by their endings."""
    vendor, _, category = kind.partition("/")
    known, _, their = other.partition("/")
    if vendor == known:
        return bool(find_close_match(category, [their]))
    return category == their and bool(find_close_match(vendor, [known], cutoff=0.85))


def _check_runtime_kind(query: CdiNameQuery) -> UnresolvedCause | None:
    if query.kind != RUNTIME_KIND or query.config.default_kind == RUNTIME_KIND:
        return None
    named = f"{query.config.default_kind}={query.device}"
    text = f"no CDI file defines it: gpu-oci-runtime plans such names in memory, and engines need {named}"
    found = query.scan.winners.get(named)
    if found is not None:
        return UnresolvedCause("kind", (found[0].path,), text, f"Ask for {named}, which {found[0].path} has")
    command = CdiNameQuery(named, query.scan, query.config, query.own_devices).build_generate_command()
    return UnresolvedCause("kind", (), text, f"For engines ask for {named}, and write its file: {command}")


def _check_generated_kind(query: CdiNameQuery) -> UnresolvedCause | None:
    """Another kind than that of GPUs that our generator writes: what other kinds there are is no answer."""
    if query.generate_mode in ("", GPU_MODE):
        return None
    if query.name != MANAGEMENT_DEVICE and f"{query.kind}=all" == MANAGEMENT_DEVICE:
        text = f"no CDI file defines it; looked in {describe_searched_dirs(query.scan)}, and the kind has the device all alone"
        return UnresolvedCause("undefined", (), text, f"Ask for {MANAGEMENT_DEVICE}")
    cure = f"For engines that resolve it themselves write one: {query.build_generate_command()}"
    if query.name == MANAGEMENT_DEVICE:
        cure += "; gpu-oci-runtime needs no file for it"
    return UnresolvedCause(
        "undefined", (), f"no CDI file defines it; looked in {describe_searched_dirs(query.scan)}", cure
    )


def _check_other_kind(query: CdiNameQuery) -> UnresolvedCause | None:
    scan, kind, device = query.scan, query.kind, query.device
    vendor, _, category = kind.partition("/")

    def like(known: str) -> bool:
        other, _, theirs = get_name_kind(known).partition("/")
        return known.partition("=")[2] == device or vendor == other or category == theirs

    alike = [known for known in scan.winners if like(known)]
    if not alike:
        return None
    # The nearest first: the same device name and class under another vendor.
    alike.sort(key=lambda known: (known.partition("=")[2] != device, not get_name_kind(known).endswith(f"/{category}")))
    best = get_name_kind(alike[0])
    devices = [known for known in alike if get_name_kind(known) == best]
    file = scan.winners[alike[0]][0].path
    text = f"no file has devices of the kind {kind}; {file} has {', '.join(devices[:_MAX_SHOWN])} of the kind {best}"
    cure = f"Ask for {devices[0]}, or see which setting names the kind {kind}"
    if query.describe_without_file():
        cure = f"For engines that resolve it themselves write one of this kind: {query.build_generate_command()}"
    return UnresolvedCause("kind", (file,), text, cure)


CauseCheck = Callable[[CdiNameQuery], UnresolvedCause | None]

# In the order of how sure they are.
CAUSE_CHECKS: tuple[CauseCheck, ...] = (
    _check_name_syntax,
    _check_conflict,
    _check_empty_device,
    _check_invalid_file,
    _check_ignored_suffix,
    _check_unscanned_directory,
    _check_unreadable_file,
    _check_unparsable_file,
    _check_unquoted_name,
    _check_missing_device,
    _check_absent_hardware,
    _check_mistyped_kind,
    _check_runtime_kind,
    _check_generated_kind,
    _check_other_kind,
)


def _find_invalid_definitions(query: CdiNameQuery) -> list[SpecFile]:
    return [file for file in query.scan.files if file.errors and query.name in file.list_qualified_names()]


def _sort_by_file_name(query: CdiNameQuery, files: list[SpecFile]) -> list[SpecFile]:
    """Files in the order of how well their names fit: generators call them vendor-class, or after the vendor."""
    vendor, _, category = query.kind.partition("/")
    wanted = (f"{vendor}-{category}", vendor, vendor.partition(".")[0])
    return sorted(files, key=lambda file: [word not in file.path.rpartition("/")[2] for word in wanted])


def _is_defined_in_file(path: str, name: str) -> bool:
    """Whether a file that is not read defines a name, right or wrong."""
    document = read_spec_file(path)
    kind = get_member(document.data, "kind")
    return any(f"{kind}={get_member(device, 'name')}" == name for device in get_list(document.data, "devices"))
