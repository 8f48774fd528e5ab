"""Everything that is wrong with a CDI file: what the schema says, and what it cannot say.

As strict as the reference library (container-device-interface 1.1.0, pkg/cdi): an error is what makes that library
refuse the file, so that none of its devices resolve. What only the specification's prose forbids is a warning.

Cost rule: cold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpu_oci_hook.cdi import apply, names, rules, schema, versions
from gpu_oci_hook.cdi.finding import Finding, Level, join, line_of
from gpu_oci_hook.cdi.rules import Breach, shown
from gpu_oci_hook.formats.oci import items, member

# Of one file, as bytes of keys and values (pkg/cdi's copy of Kubernetes' rule).
_ANNOTATIONS = 256 << 10

# Decimal numbers that are no modes but look like one: 0666 is 438.
_OCTAL_LOOKS = (400, 440, 444, 600, 640, 644, 660, 664, 666, 700, 750, 755, 770, 775, 777)


def findings(
    data: object,
    path: str,
    *,
    maximum: str = "",
    reader: str = "",
    anew: str = "",
    lines: Mapping[str, int] | None = None,
) -> list[Finding]:
    """Everything that is to be said about a CDI file, in the order of the file as far as its lines are known.

    Arguments:
        data: the file as `reading.read` gives it; not None.
        path: the file, for the findings.
        maximum: the greatest CDI version that the engine in question reads; what needs more is an error. "" for any.
        reader: the engine's name for the sentences; by default "an engine that reads CDI up to" the maximum.
        anew: how the file is written for that engine, where that is known: the cure of what it cannot read.
        lines: of JSON paths (`Document.lines`).
    """
    found = [*rules.breaches(data, schema.whole()), *_beyond(data), *_versions(data)]
    found = [_better(breach, data) for breach in found]
    if maximum:
        beyond = _maximum(data, maximum, reader or f"an engine that reads CDI up to {maximum}")
        found += [one._replace(cure=anew) if anew else one for one in beyond]
    known = lines or {}
    made = [Finding(one.level, path, one.where, one.text, one.cure, line_of(known, one.where)) for one in found]
    return sorted(dict.fromkeys(made), key=lambda one: one.line)


def unmade(data: object, path: str, *, lines: Mapping[str, int] | None = None) -> list[Finding]:
    """Errors of a file that engines read and with which containers do not start: mounts that no runtime makes.

    Apart from `findings`, since the file counts all the same and so do its devices that have no such mount.
    """
    places = ["containerEdits", *(f"devices[{index}].containerEdits" for index, _ in enumerate(items(data, "devices")))]
    edits = [member(data, "containerEdits"), *(member(one, "containerEdits") for one in items(data, "devices"))]
    found = []
    for place, owner in zip(places, edits, strict=True):
        for index, mount in enumerate(items(owner, "mounts")):
            if isinstance(mount, dict) and apply.is_unmade(mount):
                where = f"{place}.mounts[{index}]"
                line = line_of(lines or {}, where)
                found.append(Finding("error", path, where, apply.UNMADE, apply.ADD_RBIND, line))
    return found


def _breach(level: Level, where: str, text: str, cure: str = "") -> Breach:
    return Breach(level, where, text, cure, "")


def _better(breach: Breach, data: object) -> Breach:
    """A breach of the schema in better words, where the case is known."""
    if breach.where == "cdiVersion" and breach.keyword == "enum":
        version = str(data["cdiVersion"]) if isinstance(data, dict) else ""
        cure = f"Declare {versions.needed(data)[0]}, which is what the content needs"
        if version.removeprefix("v") in versions.BYGONE:
            text = f"{shown(version)} is less than {versions.OLDEST}, the least that engines accept"
            return breach._replace(text=text, cure=cure)
        known = f"{versions.OLDEST} to {versions.NEWEST}"
        return breach._replace(text=f"{shown(version)} is no version of CDI that is known ({known})", cure=cure)
    if breach.where.endswith(".permissions") and '"none"' in breach.text:
        return breach._replace(text='"none" is understood by no engine that reads CDI up to 1.1.0')
    if breach.where.endswith(".closID"):
        return breach._replace(cure="It names a directory of the resctrl file system")
    return breach


def _beyond(data: object) -> Iterator[Breach]:
    """What a schema cannot say of the file."""
    if not isinstance(data, dict):
        return
    yield from _sizes(data, "")
    yield from _edits(data.get("containerEdits"), "containerEdits")
    seen: dict[str, str] = {}
    for index, device in enumerate(_list(data, "devices")):
        here = join("devices", index)
        if not isinstance(device, dict):
            continue
        name = device.get("name")
        if isinstance(name, str):
            if name in seen:
                text = f"{shown(name)} is the name of {seen[name]} already: engines refuse the whole file"
                yield _breach("error", join(here, "name"), text, "Give each device a name of its own")
            seen.setdefault(name, here)
        yield from _sizes(device, here)
        yield from _edits(device.get("containerEdits"), join(here, "containerEdits"))
    kind = data.get("kind")
    # container-device-interface 0.5.2: ValidateVendorName and ValidateClassName panic, and podman 4.3 with them.
    parts = names.kind(kind) if isinstance(kind, str) else None
    if parts and min(map(len, parts)) == 1:
        text = f"{shown('/'.join(parts))} has a part of one letter, which engines with CDI 0.5 crash over (podman 4.3)"
        yield _breach("warning", "kind", text, "Use a longer one")


def _sizes(owner: dict[str, object], where: str) -> Iterator[Breach]:
    annotations = owner.get("annotations")
    if isinstance(annotations, dict):
        words = [word for pair in annotations.items() for word in pair if isinstance(word, str)]
        size = sum(len(word.encode("utf-8", "surrogatepass")) for word in words)
        if size > _ANNOTATIONS:
            text = f"{size} bytes of keys and values are more than {_ANNOTATIONS}: engines refuse the whole file"
            yield _breach("error", join(where, "annotations"), text)
        lowered: dict[str, str] = {}
        for key in annotations:
            if lowered.setdefault(key.lower(), key) != key:
                text = f"differs from {shown(lowered[key.lower()])} only by case"
                yield _breach("warning", join(join(where, "annotations"), key), text)


def _edits(edits: object, where: str) -> Iterator[Breach]:
    if not isinstance(edits, dict):
        return
    for key, wording in (("hostInterfaceName", "host interface"), ("name", "name")):
        seen: dict[str, str] = {}
        for index, device in enumerate(_list(edits, "netDevices")):
            here = join(join(where, "netDevices"), index)
            value = device.get(key) if isinstance(device, dict) else None
            if isinstance(value, str) and value:
                if value in seen:
                    text = f"{shown(value)} is the {wording} of {seen[value]} already: engines refuse the whole file"
                    yield _breach("error", join(here, key), text)
                seen.setdefault(value, here)
    for index, node in enumerate(_list(edits, "deviceNodes")):
        mode = node.get("fileMode") if isinstance(node, dict) else None
        if isinstance(mode, int) and mode in _OCTAL_LOOKS:
            text = f"{mode} is a decimal number, the mode {mode:04o}"
            cure = f"For 0{mode} write {int(str(mode), 8)}"
            yield _breach("warning", join(join(join(where, "deviceNodes"), index), "fileMode"), text, cure)
    for index, mount in enumerate(_list(edits, "mounts")):
        if isinstance(mount, dict) and not mount.get("type"):
            source = mount.get("hostPath")
            if isinstance(source, str) and source and not source.startswith("/"):
                here = join(join(join(where, "mounts"), index), "hostPath")
                yield _breach("warning", here, f"{shown(source)} is not an absolute path")


def _versions(data: object) -> Iterator[Breach]:
    """What the declared version does not have."""
    declared = data.get("cdiVersion") if isinstance(data, dict) else None
    if not isinstance(declared, str) or declared.removeprefix("v") not in versions.KNOWN:
        return
    needed = versions.needed(data)[0]
    for feature in versions.features(data):
        if versions.greater(feature.version, declared):
            text = f"{_subject(feature)} needs >= {feature.version}, and the file declares {declared}"
            cure = f"Declare {needed}, which {_engines(needed)} read"
            yield _breach("error", feature.where, text, cure)
    version = schema.number(declared)
    for where, key, rule, value in _fields(data, schema.whole(), ""):
        if "x-until" in rule and not schema.knows(rule, version):
            text = f"{key} is gone since CDI {rule['x-until']}, and the file declares {declared}"
            yield _breach("error", where, text, "Remove it")
        elif "x-until" in rule:
            text = f"{key} was in CDI up to {rule['x-until']}: engines that read later versions refuse the file"
            yield _breach("warning", where, text, "Remove it")
        elif not schema.knows(rule, version) and not versions.counts(value, rule):
            text = f"{key} came with CDI {rule['x-since']}: engines that read up to {declared} refuse it, even empty"
            yield _breach("warning", where, text, "Remove it")


def _maximum(data: object, maximum: str, reader: str) -> Iterator[Breach]:
    """What an engine that reads no later version than this refuses."""
    declared = data.get("cdiVersion") if isinstance(data, dict) else None
    if isinstance(declared, str) and declared.removeprefix("v") in versions.KNOWN:
        if versions.greater(declared, maximum):
            needed = versions.needed(data)[0]
            cure = "" if versions.greater(needed, maximum) else f"Declare {needed}: the content needs no more"
            yield _breach("error", "cdiVersion", f"{declared} is more than {reader} reads", cure)
        # Seen with podman 4.3; libraries from 0.6.0 on take the letter.
        if declared.startswith("v") and versions.greater("0.6.0", maximum):
            yield _breach("error", "cdiVersion", f'{reader} does not know the letter "v"', "Leave it out")
    for feature in versions.features(data):
        if versions.greater(feature.version, maximum):
            text = f"{_subject(feature)} needs >= {feature.version}: {reader} refuses the whole file"
            yield _breach("error", feature.where, text, f"It can be read by {_engines(feature.version)}")
    version = schema.number(maximum)
    for where, key, rule, value in _fields(data, schema.whole(), ""):
        gone = "x-until" in rule and not schema.knows(rule, version)
        if gone or not (schema.knows(rule, version) or versions.counts(value, rule)):
            text = f"{key} is no field that {reader} knows: it refuses the whole file"
            yield _breach("error", where, text, "Remove it")


def _subject(feature: versions.Feature) -> str:
    """What needs a version, at the beginning of a sentence that follows its path."""
    return "field" if feature.where.endswith(feature.words) else feature.words


def _engines(version: str) -> str:
    """The engines that read a version, in words."""
    return f"{', '.join(versions.readers(version))} or later"


def _fields(value: object, rule: schema.Schema, where: str) -> Iterator[tuple[str, str, schema.Schema, object]]:
    """Each field that came or went with a version: path, name, rule, value."""
    rule = schema.resolved(rule)
    if isinstance(value, list):
        for index, one in enumerate(value):
            yield from _fields(one, rule.get("items", {}), join(where, index))
    elif isinstance(value, dict):
        for key, one in value.items():
            below = rule.get("properties", {}).get(key)
            if below is not None:
                here = join(where, key)
                if "x-since" in below or "x-until" in below:
                    yield here, key, below, one
                yield from _fields(one, below, here)


def _list(owner: dict[str, object], key: str) -> list[object]:
    value = owner.get(key)
    return value if isinstance(value, list) else []
