"""Everything that is wrong with a CDI file: what the schema says, and what it cannot say.

As strict as the reference library (container-device-interface 1.1.0, pkg/cdi): an error is what makes that library
refuse the file, so that none of its devices resolve. What only the specification's prose forbids is a warning.

Cost rule: cold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpu_oci_hook.cdi.spec.finding import Finding, Level, find_line_number
from gpu_oci_hook.cdi.spec.mount_options import ADD_RBIND_HINT, MISSING_BIND_TEXT, is_missing_bind_option
from gpu_oci_hook.cdi.spec.schema_check import (
    Schema,
    Violation,
    find_schema_violations,
    is_in_version,
    load_full_schema,
    parse_cdi_version,
    quote_value,
    resolve_schema_ref,
)
from gpu_oci_hook.cdi.spec.versions import (
    KNOWN_VERSIONS,
    NEWEST_VERSION,
    OLDEST_VERSION,
    UNSUPPORTED_VERSIONS,
    VersionedFeature,
    find_minimum_version,
    find_versioned_features,
    is_field_used,
    is_newer_version,
    list_reading_engines,
)
from gpu_oci_hook.formats.cdi_names import parse_cdi_kind
from gpu_oci_hook.formats.json_lines import join_json_path
from gpu_oci_hook.formats.oci import get_list, get_member

# Of one file, as bytes of keys and values (pkg/cdi's copy of Kubernetes' rule).
_MAX_ANNOTATIONS_SIZE = 256 << 10

# Decimal numbers that are no modes but look like one: 0666 is 438.
_OCTAL_LOOKALIKES = (400, 440, 444, 600, 640, 644, 660, 664, 666, 700, 750, 755, 770, 775, 777)


def validate_spec(
    data: object,
    path: str,
    *,
    maximum: str = "",
    reader: str = "",
    rewrite_hint: str = "",
    line_numbers: Mapping[str, int] | None = None,
) -> list[Finding]:
    """Everything that is to be said about a CDI file, in the order of the file as far as its lines are known.

    Arguments:
        data: the file as `reading.read_spec_file` gives it; not None.
        path: the file, for the findings.
        maximum: the greatest CDI version that the engine in question reads; what needs more is an error. "" for any.
        reader: the engine's name for the sentences; by default "an engine that reads CDI up to" the maximum.
        rewrite_hint: how the file is written for that engine, where that is known: the cure of what it cannot read.
        line_numbers: of JSON paths (`SpecDocument.line_numbers`).
    """
    found = [
        *find_schema_violations(data, load_full_schema()),
        *_check_beyond_schema(data),
        *_check_declared_version(data),
    ]
    found = [_improve_message(breach, data) for breach in found]
    if maximum:
        beyond = _check_max_version(data, maximum, reader or f"an engine that reads CDI up to {maximum}")
        found += [one._replace(hint=rewrite_hint) if rewrite_hint else one for one in beyond]
    known = line_numbers or {}
    made = [
        Finding(one.level, path, one.where, one.text, one.hint, find_line_number(known, one.where)) for one in found
    ]
    return sorted(dict.fromkeys(made), key=lambda one: one.line)


def find_unmountable_mounts(data: object, path: str, *, line_numbers: Mapping[str, int] | None = None) -> list[Finding]:
    """Errors of a file that engines read and with which containers do not start: mounts that no runtime makes.

    Apart from `validate_spec`, since the file counts all the same and so do its devices that have no such mount.
    """
    places = [
        "containerEdits",
        *(f"devices[{index}].containerEdits" for index, _ in enumerate(get_list(data, "devices"))),
    ]
    edits = [
        get_member(data, "containerEdits"),
        *(get_member(one, "containerEdits") for one in get_list(data, "devices")),
    ]
    found = []
    for place, owner in zip(places, edits, strict=True):
        for index, mount in enumerate(get_list(owner, "mounts")):
            if isinstance(mount, dict) and is_missing_bind_option(mount):
                where = f"{place}.mounts[{index}]"
                line = find_line_number(line_numbers or {}, where)
                found.append(Finding("error", path, where, MISSING_BIND_TEXT, ADD_RBIND_HINT, line))
    return found


def _make_violation(level: Level, where: str, text: str, cure: str = "") -> Violation:
    return Violation(level, where, text, cure, "")


def _improve_message(breach: Violation, data: object) -> Violation:
    """A breach of the schema in better words, where the case is known."""
    if breach.where == "cdiVersion" and breach.keyword == "enum":
        version = str(data["cdiVersion"]) if isinstance(data, dict) else ""
        cure = f"Declare {find_minimum_version(data)[0]}, which is what the content needs"
        if version.removeprefix("v") in UNSUPPORTED_VERSIONS:
            text = f"{quote_value(version)} is less than {OLDEST_VERSION}, the least that engines accept"
            return breach._replace(text=text, hint=cure)
        known = f"{OLDEST_VERSION} to {NEWEST_VERSION}"
        return breach._replace(text=f"{quote_value(version)} is no version of CDI that is known ({known})", hint=cure)
    if breach.where.endswith(".permissions") and '"none"' in breach.text:
        return breach._replace(text='"none" is understood by no engine that reads CDI up to 1.1.0')
    if breach.where.endswith(".closID"):
        return breach._replace(hint="It names a directory of the resctrl file system")
    return breach


def _check_beyond_schema(data: object) -> Iterator[Violation]:
    """What a schema cannot say of the file."""
    if not isinstance(data, dict):
        return
    yield from _check_annotations(data, "")
    yield from _check_container_edits(data.get("containerEdits"), "containerEdits")
    seen: dict[str, str] = {}
    for index, device in enumerate(_get_list(data, "devices")):
        here = join_json_path("devices", index)
        if not isinstance(device, dict):
            continue
        name = device.get("name")
        if isinstance(name, str):
            if name in seen:
                text = f"{quote_value(name)} is the name of {seen[name]} already: engines refuse the whole file"
                yield _make_violation("error", join_json_path(here, "name"), text, "Give each device a name of its own")
            seen.setdefault(name, here)
        yield from _check_annotations(device, here)
        yield from _check_container_edits(device.get("containerEdits"), join_json_path(here, "containerEdits"))
    kind = data.get("kind")
    # container-device-interface 0.5.2: ValidateVendorName and ValidateClassName panic, and podman 4.3 with them.
    parts = parse_cdi_kind(kind) if isinstance(kind, str) else None
    if parts and min(map(len, parts)) == 1:
        text = f"{quote_value('/'.join(parts))} has a part of one letter, which engines with CDI 0.5 crash over (podman 4.3)"
        yield _make_violation("warning", "kind", text, "Use a longer one")


def _check_annotations(owner: dict[str, object], where: str) -> Iterator[Violation]:
    annotations = owner.get("annotations")
    if isinstance(annotations, dict):
        words = [word for pair in annotations.items() for word in pair if isinstance(word, str)]
        size = sum(len(word.encode("utf-8", "surrogatepass")) for word in words)
        if size > _MAX_ANNOTATIONS_SIZE:
            text = (
                f"{size} bytes of keys and values are more than {_MAX_ANNOTATIONS_SIZE}: engines refuse the whole file"
            )
            yield _make_violation("error", join_json_path(where, "annotations"), text)
        lowered: dict[str, str] = {}
        for key in annotations:
            if lowered.setdefault(key.lower(), key) != key:
                text = f"differs from {quote_value(lowered[key.lower()])} only by case"
                yield _make_violation("warning", join_json_path(join_json_path(where, "annotations"), key), text)


def _check_container_edits(edits: object, where: str) -> Iterator[Violation]:
    if not isinstance(edits, dict):
        return
    for key, wording in (("hostInterfaceName", "host interface"), ("name", "name")):
        seen: dict[str, str] = {}
        for index, device in enumerate(_get_list(edits, "netDevices")):
            here = join_json_path(join_json_path(where, "netDevices"), index)
            value = device.get(key) if isinstance(device, dict) else None
            if isinstance(value, str) and value:
                if value in seen:
                    text = (
                        f"{quote_value(value)} is the {wording} of {seen[value]} already: engines refuse the whole file"
                    )
                    yield _make_violation("error", join_json_path(here, key), text)
                seen.setdefault(value, here)
    for index, node in enumerate(_get_list(edits, "deviceNodes")):
        mode = node.get("fileMode") if isinstance(node, dict) else None
        if isinstance(mode, int) and mode in _OCTAL_LOOKALIKES:
            text = f"{mode} is a decimal number, the mode {mode:04o}"
            cure = f"For 0{mode} write {int(str(mode), 8)}"
            yield _make_violation(
                "warning",
                join_json_path(join_json_path(join_json_path(where, "deviceNodes"), index), "fileMode"),
                text,
                cure,
            )
    for index, mount in enumerate(_get_list(edits, "mounts")):
        if isinstance(mount, dict) and not mount.get("type"):
            source = mount.get("hostPath")
            if isinstance(source, str) and source and not source.startswith("/"):
                here = join_json_path(join_json_path(join_json_path(where, "mounts"), index), "hostPath")
                yield _make_violation("warning", here, f"{quote_value(source)} is not an absolute path")


def _check_declared_version(data: object) -> Iterator[Violation]:
    """What the declared version does not have."""
    declared = data.get("cdiVersion") if isinstance(data, dict) else None
    if not isinstance(declared, str) or declared.removeprefix("v") not in KNOWN_VERSIONS:
        return
    needed = find_minimum_version(data)[0]
    for feature in find_versioned_features(data):
        if is_newer_version(feature.version, declared):
            text = f"{_describe_feature(feature)} needs >= {feature.version}, and the file declares {declared}"
            cure = f"Declare {needed}, which {_describe_engines(needed)} read"
            yield _make_violation("error", feature.where, text, cure)
    version = parse_cdi_version(declared)
    for where, key, rule, value in _walk_versioned_fields(data, load_full_schema(), ""):
        if "x-until" in rule and not is_in_version(rule, version):
            text = f"{key} is gone since CDI {rule['x-until']}, and the file declares {declared}"
            yield _make_violation("error", where, text, "Remove it")
        elif "x-until" in rule:
            text = f"{key} was in CDI up to {rule['x-until']}: engines that read later versions refuse the file"
            yield _make_violation("warning", where, text, "Remove it")
        elif not is_in_version(rule, version) and not is_field_used(value, rule):
            text = f"{key} came with CDI {rule['x-since']}: engines that read up to {declared} refuse it, even empty"
            yield _make_violation("warning", where, text, "Remove it")


def _check_max_version(data: object, maximum: str, reader: str) -> Iterator[Violation]:
    """What an engine that reads no later version than this refuses."""
    declared = data.get("cdiVersion") if isinstance(data, dict) else None
    if isinstance(declared, str) and declared.removeprefix("v") in KNOWN_VERSIONS:
        if is_newer_version(declared, maximum):
            needed = find_minimum_version(data)[0]
            cure = "" if is_newer_version(needed, maximum) else f"Declare {needed}: the content needs no more"
            yield _make_violation("error", "cdiVersion", f"{declared} is more than {reader} reads", cure)
        # Seen with podman 4.3; libraries from 0.6.0 on take the letter.
        if declared.startswith("v") and is_newer_version("0.6.0", maximum):
            yield _make_violation("error", "cdiVersion", f'{reader} does not know the letter "v"', "Leave it out")
    for feature in find_versioned_features(data):
        if is_newer_version(feature.version, maximum):
            text = f"{_describe_feature(feature)} needs >= {feature.version}: {reader} refuses the whole file"
            yield _make_violation(
                "error", feature.where, text, f"It can be read by {_describe_engines(feature.version)}"
            )
    version = parse_cdi_version(maximum)
    for where, key, rule, value in _walk_versioned_fields(data, load_full_schema(), ""):
        gone = "x-until" in rule and not is_in_version(rule, version)
        if gone or not (is_in_version(rule, version) or is_field_used(value, rule)):
            text = f"{key} is no field that {reader} knows: it refuses the whole file"
            yield _make_violation("error", where, text, "Remove it")


def _describe_feature(feature: VersionedFeature) -> str:
    """What needs a version, at the beginning of a sentence that follows its path."""
    return "field" if feature.where.endswith(feature.description) else feature.description


def _describe_engines(version: str) -> str:
    """The engines that read a version, in words."""
    return f"{', '.join(list_reading_engines(version))} or later"


def _walk_versioned_fields(value: object, rule: Schema, where: str) -> Iterator[tuple[str, str, Schema, object]]:
    """Each field that came or went with a version: path, name, rule, value."""
    rule = resolve_schema_ref(rule)
    if isinstance(value, list):
        for index, one in enumerate(value):
            yield from _walk_versioned_fields(one, rule.get("items", {}), join_json_path(where, index))
    elif isinstance(value, dict):
        for key, one in value.items():
            below = rule.get("properties", {}).get(key)
            if below is not None:
                here = join_json_path(where, key)
                if "x-since" in below or "x-until" in below:
                    yield here, key, below, one
                yield from _walk_versioned_fields(one, below, here)


def _get_list(owner: dict[str, object], key: str) -> list[object]:
    value = owner.get(key)
    return value if isinstance(value, list) else []
