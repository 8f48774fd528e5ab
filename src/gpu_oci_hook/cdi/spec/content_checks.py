"""Check the content of a CDI file for everything that schema.json cannot express.

`validation` has the table of these checks.

Import budget: cold.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpu_oci_hook.cdi.resolved_edits import list_edits_by_path
from gpu_oci_hook.cdi.spec.schema_check import Violation, make_violation, quote_value
from gpu_oci_hook.container.hook_environment import ADD_ENV_HINT, NO_ENV_TEXT, STAGE, takes_image_environment
from gpu_oci_hook.formats.cdi_names import parse_cdi_kind
from gpu_oci_hook.formats.json_lines import join_json_path
from gpu_oci_hook.formats.oci import get_list, get_member

# Bytes of all keys and values of one object (pkg/cdi's copy of Kubernetes' rule).
_MAX_ANNOTATIONS_SIZE = 256 << 10

# Decimal numbers that look like octal modes: 0666 is 438.
_OCTAL_LOOKALIKES = (400, 440, 444, 600, 640, 644, 660, 664, 666, 700, 750, 755, 770, 775, 777)


def check_annotations(data: object) -> Iterator[Violation]:
    """Check the size of annotations, and keys that differ only by case."""
    yield from _check_annotations_of(data, "")
    for index, device in enumerate(get_list(data, "devices")):
        yield from _check_annotations_of(device, f"devices[{index}]")


def _check_annotations_of(owner: object, where: str) -> Iterator[Violation]:
    annotations = get_member(owner, "annotations")
    if not isinstance(annotations, dict):
        return
    json_path = join_json_path(where, "annotations")
    texts = [text for pair in annotations.items() for text in pair if isinstance(text, str)]
    size = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
    if size > _MAX_ANNOTATIONS_SIZE:
        text = f"{size} bytes of keys and values are more than {_MAX_ANNOTATIONS_SIZE}: engines refuse the whole file"
        yield make_violation("error", json_path, text)
    keys_by_lower_case: dict[str, str] = {}
    for key in annotations:
        first_key = keys_by_lower_case.setdefault(key.lower(), key)
        if first_key != key:
            text = f"differs from {quote_value(first_key)} only by case"
            yield make_violation("warning", join_json_path(json_path, key), text)


def check_device_names(data: object) -> Iterator[Violation]:
    """Check that no two devices have the same name."""
    json_paths: dict[str, str] = {}
    for index, device in enumerate(get_list(data, "devices")):
        name = get_member(device, "name")
        if isinstance(name, str):
            json_path = f"devices[{index}]"
            if name in json_paths:
                text = f"{quote_value(name)} is the name of {json_paths[name]} already: engines refuse the whole file"
                yield make_violation("error", f"{json_path}.name", text, "Give each device its own name")
            json_paths.setdefault(name, json_path)


def check_kind_length(data: object) -> Iterator[Violation]:
    """Check for vendors and classes of one letter.

    ValidateVendorName and ValidateClassName of container-device-interface 0.5.2 panic, and podman 4.3 with them.
    """
    kind = get_member(data, "kind")
    parts = parse_cdi_kind(kind) if isinstance(kind, str) else None
    if parts and min(map(len, parts)) == 1:
        name = quote_value("/".join(parts))
        text = f"{name} has a part of one letter, and engines with CDI 0.5 crash on it (podman 4.3)"
        yield make_violation("warning", "kind", text, "Use a longer one")


def check_net_devices(data: object) -> Iterator[Violation]:
    """Check that no host interface and no name occurs twice among the network devices of one object."""
    for where, edits in list_edits_by_path(data):
        for key, label in (("hostInterfaceName", "host interface"), ("name", "name")):
            json_paths: dict[str, str] = {}
            for index, device in enumerate(get_list(edits, "netDevices")):
                value = get_member(device, key)
                if not isinstance(value, str) or not value:
                    continue
                json_path = f"{where}.netDevices[{index}]"
                if value in json_paths:
                    owner = json_paths[value]
                    text = f"{quote_value(value)} is the {label} of {owner} already: engines refuse the whole file"
                    yield make_violation("error", f"{json_path}.{key}", text)
                json_paths.setdefault(value, json_path)


def check_file_modes(data: object) -> Iterator[Violation]:
    """Check for decimal modes that look octal."""
    for where, edits in list_edits_by_path(data):
        for index, node in enumerate(get_list(edits, "deviceNodes")):
            mode = get_member(node, "fileMode")
            if isinstance(mode, int) and mode in _OCTAL_LOOKALIKES:
                text = f"{mode} is a decimal number, the mode {mode:04o}"
                hint = f"For 0{mode} write {int(str(mode), 8)}"
                yield make_violation("warning", f"{where}.deviceNodes[{index}].fileMode", text, hint)


def check_mount_sources(data: object) -> Iterator[Violation]:
    """Check for relative sources of mounts without a file system type."""
    for where, edits in list_edits_by_path(data):
        for index, mount in enumerate(get_list(edits, "mounts")):
            source = get_member(mount, "hostPath")
            if get_member(mount, "type") or not isinstance(source, str) or not source or source.startswith("/"):
                continue
            text = f"{quote_value(source)} is not an absolute path"
            yield make_violation("warning", f"{where}.mounts[{index}].hostPath", text)


def check_hook_environments(data: object) -> Iterator[Violation]:
    """Check for createContainer hooks without an environment, which an image can fill."""
    for where, edits in list_edits_by_path(data):
        for index, hook in enumerate(get_list(edits, "hooks")):
            if get_member(hook, "hookName") == STAGE and takes_image_environment(hook):
                yield make_violation("warning", f"{where}.hooks[{index}]", NO_ENV_TEXT, ADD_ENV_HINT)
