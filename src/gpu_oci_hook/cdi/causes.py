"""Why a CDI name cannot be resolved: a table of small checks, of which the first that has an answer speaks.

Engines say "unresolvable CDI devices" for all of it (field reports A3-06 to A3-15). Who asked for one device is never
told to take all of them, unless nothing else is there. Cold: loaded when a name is not resolved, and by `cdi resolve`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from typing import NamedTuple

from gpu_oci_hook import state
from gpu_oci_hook.cdi import names, reading, registry
from gpu_oci_hook.cdi.options import GPU
from gpu_oci_hook.cdi.ours import Asked, Here, looked, modes
from gpu_oci_hook.cdi.scan import File, Scan
from gpu_oci_hook.config import Config
from gpu_oci_hook.errors import Fault, clipped, nearest
from gpu_oci_hook.formats.oci import items, member
from gpu_oci_hook.host.root import Host
from gpu_oci_hook.request import MANAGEMENT
from gpu_oci_hook.request.cdi import AUTOMATIC, own_kinds, plain

# Where files lie that nobody reads, beside the directories that are read: one that is not configured, or is another
# one than /var/run/cdi where /var/run is no link to /run.
_ELSEWHERE = ("/etc/cdi", "/var/run/cdi", "/run/cdi", "/usr/local/etc/cdi", "/usr/share/cdi")

# Devices and files that an answer names; files with another suffix that are looked into.
_SHOWN = 8
_LOOKED = 64


class Cause(NamedTuple):
    """Why a name is not resolved. code: a word for programs. files: which ones. text, cure: for people."""

    code: str
    files: tuple[str, ...]
    text: str
    cure: str


def find(name: str, scan: Scan, config: Config, here: Here) -> Cause:
    """The cause why no file resolves a name; never without an answer."""
    asked = Asked(name, scan, config, here)
    for check in CHECKS:
        cause = check(asked)
        if cause is not None:
            return cause
    if asked.own and not here.gpus:
        cure = "This machine has no GPU: gpu-oci-hook list says what it looked at"
    elif asked.mode:
        cure = f"For engines that resolve it themselves write one: {asked.command()}"
    else:
        cure = "Have its vendor's tool write one, or set [cdi] spec-dirs to where it lies"
    return Cause("undefined", (), f"no CDI file defines it; looked in {looked(scan)}", cure)


def fault(name: str, origin: str, more: int, host: Host, config: Config) -> Fault:
    """What to tell a container's engine about a name that is not resolved.

    Arguments:
        origin: whose word it is. more: how many other names are not resolved either.
    """
    cause = find(name, Scan(host, config.spec_dirs), config, Here(host, config, state.Memory()))
    others = f" ({more} more {'is' if more == 1 else 'are'} not resolved either)" if more else ""
    return Fault(f"CDI device {clipped(name)} is unresolvable{others}: {cause.text}", where=origin, cure=cause.cure)


def kind_of(name: str) -> str:
    """The kind in a qualified name."""
    return name.partition("=")[0]


def _no_name(asked: Asked) -> Cause | None:
    if names.parse(asked.name) is not None:
        return None
    found = names.kind(asked.name)
    kind = asked.name if found else asked.config.default_kind
    if found and kind not in own_kinds(asked.config):
        cure = f"Say {kind}=DEVICE"
    else:
        device = asked.name if names.is_device(asked.name) else "0"
        cure = f"Say {'' if found else 'vendor/class=device, such as '}{kind}={device}"
    return Cause("name", (), "it is no qualified CDI name", cure)


def _conflict(asked: Asked) -> Cause | None:
    name, scan = asked.name, asked.scan
    files = scan.conflicts.get(name)
    if files is None:
        return None
    paths = tuple(file.path for file in files)
    text = f"{' and '.join(paths)} both define it: conflict: none used"
    higher = [file.path for file in scan.files if name in file.qualified() and file.path not in paths and file.data]
    if higher:
        text += f", nor {higher[-1]} in a later directory"
    return Cause("conflict", paths, text, f"Remove all of them but one: rm {paths[0]}")


def _without_edits(asked: Asked) -> Cause | None:
    for file in _broken(asked):
        for place, device in enumerate(items(file.raw, "devices")):
            if isinstance(device, dict) and not device.get("containerEdits"):
                where = f"devices[{place}].containerEdits"
                called = clipped(str(device.get("name", place)))
                text = f"{file.path}: {where}: device {called} has no containerEdits: invalid, and with it the file"
                return Cause("no-edits", (file.path,), text, "Give the device an edit of its own, or take it out")
    return None


def _invalid(asked: Asked) -> Cause | None:
    for file in _broken(asked):
        first = file.errors[0]
        more = f" and {len(file.errors) - 1} more errors" if len(file.errors) > 1 else ""
        where = f"{first.where}: " if first.where else ""
        text = f"{file.path}, which would define it, is invalid: {where}{first.text}{more}"
        return Cause("invalid", (file.path,), text, first.cure or f"See: gpu-oci-hook cdi validate {file.path}")
    return None


def _unreadable(asked: Asked) -> Cause | None:
    for problem in asked.scan.problems:
        if problem.cure.startswith("Run: chmod"):
            return Cause("unreadable", (problem.file,), f"{problem.file}: {problem.text}", problem.cure)
    for file in _best_first(asked, [file for file in asked.scan.files if not os.access(file.real, os.R_OK)]):
        if file.status is None:
            continue  # a link to nowhere
        mode, owner = stat.S_IMODE(file.status.st_mode), file.status.st_uid
        who = f"mode {mode:04o}, of user {owner}; you are user {os.geteuid()}"
        text = f"{file.path} exists, not readable by you ({who})"
        return Cause("unreadable", (file.path,), text, f"Run: chmod 0644 {file.path}")
    return None


def _other_suffix(asked: Asked) -> Cause | None:
    scan = asked.scan
    for directory in scan.directories:
        place = registry.location(scan.host, directory)
        if not place:
            continue
        for entry in scan.host.names(directory)[: registry.MOST]:
            stem = next((word for word in (".yml", ".yaml", ".json") if word in entry), "")
            if not stem or entry.endswith(registry.SUFFIXES) or not _defines(f"{place}/{entry}", asked.name):
                continue
            path = scan.host.path(f"{directory}/{entry}")
            suffix = ".json" if stem == ".json" else ".yaml"
            right = f"{path[: path.rindex(stem)]}{suffix}"
            text = f"{path} defines it and is ignored: only .json and .yaml are read"
            return Cause("suffix", (path,), text, f"Run: mv {path} {right}")
    return None


def _elsewhere(asked: Asked) -> Cause | None:
    name, scan, host = asked.name, asked.scan, asked.scan.host
    read = {host.resolve(one) or one for one in scan.directories if registry.location(host, one)}
    places = [*scan.directories, *_ELSEWHERE]
    for directory in scan.directories:  # what lies below one is not read either
        place = registry.location(host, directory)
        if place:
            places += [
                f"{directory}/{entry}"
                for entry in host.names(directory)[:_LOOKED]
                if os.path.isdir(f"{place}/{entry}")
            ]
    for directory in places:
        real = host.resolve(directory)
        if real is None or real in read:
            continue
        read.add(real)
        for file in Scan(host, (real,)).files:
            if name not in file.qualified():
                continue
            shown = host.path(directory)
            why = "it is a link, and engines read directories only" if directory in scan.directories else ""
            if directory == "/run/cdi" and "/var/run/cdi" in scan.directories:
                why = "/var/run is no link to /run here"
            text = f"{file.path} defines it: directory not scanned{f' ({why})' if why else ''}"
            configured = ", ".join(f'"{one}"' for one in (*scan.directories, directory))
            cure = f"Move it to {host.path(scan.directories[-1])}, or set [cdi] spec-dirs = [{configured}]"
            if directory in scan.directories:
                cure = f"Put a directory in the place of the link {shown}"
            return Cause("directory", (file.path,), text, cure)
    return None


def _maybe(asked: Asked) -> Cause | None:
    """A file that cannot be taken apart may be the one, if its name says so."""
    for file in _best_first(asked, [file for file in asked.scan.files if file.errors and not file.kind]):
        vendor = asked.kind.partition("/")[0]
        if vendor not in file.path and vendor.partition(".")[0] not in file.path.rpartition("/")[2]:
            continue
        first = file.errors[0]
        text = f"{file.path}, which may define it, cannot be used: {first.text}"
        return Cause("invalid", (file.path,), text, first.cure or f"See: gpu-oci-hook cdi validate {file.path}")
    return None


def _other_device(asked: Asked) -> Cause | None:
    scan, kind, device = asked.scan, asked.kind, asked.device
    there = [known for known in scan.winners if kind_of(known) == kind]
    if not there:
        return None
    files = tuple(dict.fromkeys(scan.winners[known][0].path for known in there))
    have = f"{', '.join(files[:_SHOWN])} {'has' if len(files) == 1 else 'have'}"
    text = f"{have} no device {clipped(device)} of {kind}"
    lacking = asked.here.lacks(asked.word) if asked.own else None
    if lacking is not None:
        return Cause("device", files, f"{text}, and {lacking.what}", lacking.cure)
    shown = ", ".join(clipped(known) for known in there[:_SHOWN])
    text += f", only {shown}{f' and {len(there) - _SHOWN} more' if len(there) > _SHOWN else ''}"
    others = [known.partition("=")[2] for known in there]
    if asked.own:
        same = next((other for other in others if asked.here.same(asked.word, plain(other))), "")
        if same:
            return Cause("device", files, text, f"Ask for {kind}={same}")
    given = asked.gives()
    if others == ["all"]:
        anew = asked.anew(files[0])
        more = f", if it may be everything. For {device} alone {anew[:1].lower()}{anew[1:]}" if given else ""
        return Cause("device", files, text, f"Ask for {there[0]}{more}")
    if given:
        return Cause("device", files, text, asked.anew(files[0]))
    # A number is never a mistyped other one.
    near = "" if device.isdigit() else nearest(device[:100], others)
    best = f"{kind}={near}" if near else there[0] if len(there) == 1 else "one of them"
    return Cause("device", files, text, f"Ask for {best}")


def _unquoted(asked: Asked) -> Cause | None:
    """YAML reads some words without quotes as something else: the device has another name than is written there."""
    begins = f"{asked.device} without quotes is read as "
    for file in asked.scan.files:
        for one in file.findings:
            if file.kind == asked.kind and one.where.endswith("].name") and one.text.startswith(begins):
                text = f"{file.path}:{one.line}: {one.where}: {one.text}, so the device is called that"
                return Cause("device", (file.path,), text, one.cure)
    return None


def _absent(asked: Asked) -> Cause | None:
    """No file of ours could define it either."""
    lacking = asked.here.lacks(asked.word) if asked.own else None
    if lacking is None:
        return None
    return Cause("absent", (), f"no CDI file defines it, and {lacking.what}", lacking.cure)


def _mistyped_kind(asked: Asked) -> Cause | None:
    kinds = [asked.config.default_kind, *modes(asked.config), AUTOMATIC, *map(kind_of, asked.scan.winners)]
    if asked.kind in kinds:
        return None
    for kind in dict.fromkeys(kinds):
        if _alike(asked.kind, kind):
            text = f"no file has devices of the kind {asked.kind}; looked in {looked(asked.scan)}"
            return Cause("kind", (), text, f"Did you mean {kind}={asked.device}?")
    return None


def _alike(one: str, other: str) -> bool:
    """Whether one kind is another one mistyped: half of it is the same. Vendors' names look alike by their endings."""
    vendor, _, category = one.partition("/")
    known, _, their = other.partition("/")
    if vendor == known:
        return bool(nearest(category, [their]))
    return category == their and bool(nearest(vendor, [known], cutoff=0.85))


def _automatic(asked: Asked) -> Cause | None:
    if asked.kind != AUTOMATIC or asked.config.default_kind == AUTOMATIC:
        return None
    named = f"{asked.config.default_kind}={asked.device}"
    text = f"no CDI file defines it: gpu-oci-runtime plans such names in memory, and engines need {named}"
    found = asked.scan.winners.get(named)
    if found is not None:
        return Cause("kind", (found[0].path,), text, f"Ask for {named}, which {found[0].path} has")
    command = Asked(named, asked.scan, asked.config, asked.here).command()
    return Cause("kind", (), text, f"For engines ask for {named}, and write its file: {command}")


def _of_a_mode(asked: Asked) -> Cause | None:
    """Another kind than that of GPUs that our generator writes: what other kinds there are is no answer."""
    if asked.mode in ("", GPU):
        return None
    if asked.name != MANAGEMENT and f"{asked.kind}=all" == MANAGEMENT:
        text = f"no CDI file defines it; looked in {looked(asked.scan)}, and the kind has the device all alone"
        return Cause("undefined", (), text, f"Ask for {MANAGEMENT}")
    cure = f"For engines that resolve it themselves write one: {asked.command()}"
    if asked.name == MANAGEMENT:
        cure += "; gpu-oci-runtime needs no file for it"
    return Cause("undefined", (), f"no CDI file defines it; looked in {looked(asked.scan)}", cure)


def _other_kind(asked: Asked) -> Cause | None:
    scan, kind, device = asked.scan, asked.kind, asked.device
    vendor, _, category = kind.partition("/")

    def like(known: str) -> bool:
        other, _, theirs = kind_of(known).partition("/")
        return known.partition("=")[2] == device or vendor == other or category == theirs

    alike = [known for known in scan.winners if like(known)]
    if not alike:
        return None
    # The nearest first: the same device name and class under another vendor.
    alike.sort(key=lambda known: (known.partition("=")[2] != device, not kind_of(known).endswith(f"/{category}")))
    best = kind_of(alike[0])
    devices = [known for known in alike if kind_of(known) == best]
    file = scan.winners[alike[0]][0].path
    text = f"no file has devices of the kind {kind}; {file} has {', '.join(devices[:_SHOWN])} of the kind {best}"
    cure = f"Ask for {devices[0]}, or see which setting names the kind {kind}"
    if asked.gives():
        cure = f"For engines that resolve it themselves write one of this kind: {asked.command()}"
    return Cause("kind", (file,), text, cure)


Check = Callable[[Asked], Cause | None]

# In the order of how sure they are.
CHECKS: tuple[Check, ...] = (
    _no_name,
    _conflict,
    _without_edits,
    _invalid,
    _other_suffix,
    _elsewhere,
    _unreadable,
    _maybe,
    _unquoted,
    _other_device,
    _absent,
    _mistyped_kind,
    _automatic,
    _of_a_mode,
    _other_kind,
)


def _broken(asked: Asked) -> list[File]:
    return [file for file in asked.scan.files if file.errors and asked.name in file.qualified()]


def _best_first(asked: Asked, files: list[File]) -> list[File]:
    """Files in the order of how well their names fit: generators call them vendor-class, or after the vendor."""
    vendor, _, category = asked.kind.partition("/")
    wanted = (f"{vendor}-{category}", vendor, vendor.partition(".")[0])
    return sorted(files, key=lambda file: [word not in file.path.rpartition("/")[2] for word in wanted])


def _defines(path: str, name: str) -> bool:
    """Whether a file that is not read defines a name, right or wrong."""
    document = reading.read(path)
    kind = member(document.data, "kind")
    return any(f"{kind}={member(device, 'name')}" == name for device in items(document.data, "devices"))
