"""CDI names in what a container asks for: which are ours, which are of other vendors, and whose annotations count.

Names of our own kinds (`[cdi] default-kind`, and the kind that NVIDIA's runtime keeps for plans in memory) are GPUs
like any other word; no file is needed for them. Every other name is for a file to resolve.

Annotations in a config.json have been resolved by some engines and not by others, and not every engine lets only its
client write them (ecosystem facts 1.3, 2.1, 2.2):

- CRI-O resolves `cdi.k8s.io/` annotations of the container itself and keeps all of them in the config.json, with those
  of the pod, which whoever may make a pod can write. Here nothing is left to do for that prefix; under another one
  an annotation counts if kubelet gave it to the container (`io.kubernetes.cri-o.Annotations`), as device plugins do.
- containerd copies only those that the administrator lists (`container_annotations`), so one that is there is
  meant for the runtime. From 1.7 on it may have resolved it as well: `inject.cdi_devices` looks whether the file's edits
  are in the config.json already.
- podman puts the annotations of an image's manifest among them and resolves none: they may ask where the
  environment may, `[request] env`. Up to 4.3 an image's even take the place of podman's own, so that podman is told
  by what it adds besides: other annotations, and the name of the cgroup.
- docker, ctr and others: only their client writes them, and nobody has resolved them.

Cost rule: loaded where a CDI name is used, `fastjson` only for CRI-O.
"""

from __future__ import annotations

from gpu_oci_hook.errors import Fault, clip_text
from gpu_oci_hook.formats.cdi_names import is_device_name, parse_cdi_kind, parse_qualified_name
from gpu_oci_hook.formats.oci import get_member
from gpu_oci_hook.model.request import DeviceRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.config.keys import Config

# The kind of devices that NVIDIA's runtime plans in memory ("jit-cdi"); no file has it.
RUNTIME_KIND = "runtime.nvidia.com/gpu"
CDI_MOUNT_PREFIX = "cdi/"
# How the origin of what an annotation asks for begins.
ANNOTATION_ORIGIN = "annotation "

# Of all annotations that may ask together. Kubernetes allows no more for all that a pod has.
_ANNOTATIONS_SIZE_LIMIT = 256 << 10
_CDI_NAME_HINT = "Say vendor/class=device: letters, digits and _-. in the first two, and : in the device's name too"
_CRIO_RESOLVED_PREFIX = "cdi.k8s.io/"
_KUBELET_ANNOTATIONS = "io.kubernetes.cri-o.Annotations"


def get_own_kinds(config: Config) -> tuple[str, ...]:
    """The kinds whose devices need no file."""
    return config.default_kind, RUNTIME_KIND


def read_device_annotations(
    spec: object, config: Config, refusal: str, withheld: list[tuple[str, str]], warnings: list[str]
) -> list[DeviceRequest]:
    """What the annotations that count ask for, by their keys in order.

    Arguments:
        refusal: why this container may not ask by its environment; "" when it may.
        withheld, warnings: take what is asked by annotations that do not count.

    Raises:
        Fault: they are longer than any engine's.
    """
    found = get_member(spec, "annotations")
    if not isinstance(found, dict):
        return []
    asks: list[DeviceRequest] = []
    of_image = _is_made_by_podman(spec, found)
    crio = _KUBELET_ANNOTATIONS in found and not of_image
    kubelets: dict[str, object] | None = None
    size = 0
    for key in sorted(found):
        value = found[key]
        if not key.startswith(config.annotation_prefixes) or not isinstance(value, str):
            continue
        size += len(value)
        parts = value.split(",") if size <= _ANNOTATIONS_SIZE_LIMIT else [value]
        words = [word for word in (part.strip() for part in parts) if word]
        reason = ""
        if crio and key.startswith(_CRIO_RESOLVED_PREFIX):
            reason = "CRI-O resolves these annotations itself, and what it leaves over is not kubelet's word"
        elif crio and key not in (
            kubelets := kubelets if kubelets is not None else _parse_kubelet_annotations(found[_KUBELET_ANNOTATIONS])
        ):
            reason = "the annotation is the pod's, not one that kubelet gave to this container"
        elif of_image and refusal:
            reason = f"podman hands on an image's annotations, and {refusal}"
            warnings.append(f"{ANNOTATION_ORIGIN}{clip_text(key)} does not count: {reason}")
        if reason:
            withheld += [(clip_text(word), f"{ANNOTATION_ORIGIN}{clip_text(key)}: {reason}") for word in words]
            continue
        if size > _ANNOTATIONS_SIZE_LIMIT:
            what = f"the annotations that ask for devices are longer than {_ANNOTATIONS_SIZE_LIMIT >> 10} KiB"
            raise Fault(what, where=f"{ANNOTATION_ORIGIN}{clip_text(key)}", hint="Name fewer devices")
        asks += [DeviceRequest(word, f"{ANNOTATION_ORIGIN}{clip_text(key)}") for word in words]
    return asks


def _is_made_by_podman(spec: object, annotations: dict[str, object]) -> bool:
    """Whether podman has made this config.json, whatever an image says."""
    cgroup = get_member(spec, "linux", "cgroupsPath")
    return (
        annotations.get("io.container.manager") == "libpod"
        or any(key.startswith("io.podman.annotations.") for key in annotations)
        or (isinstance(cgroup, str) and "libpod" in cgroup)
    )


def _parse_kubelet_annotations(text: object) -> dict[str, object]:
    from gpu_oci_hook.formats.fastjson import parse_json

    try:
        found = parse_json(text.encode()) if isinstance(text, str) else None
    except Fault:
        return {}
    return found if isinstance(found, dict) else {}


def require_cdi_names(device_requests: list[DeviceRequest], config: Config) -> None:
    """Sees that annotations have qualified names alone, as the reference library does (pkg/cdi/annotations.go).

    A plain word is no shorter spelling there: an engine that resolves annotations fails with it, and so a pod would
    start on one node and not on another.

    Raises:
        Fault: a word that is no qualified name; says which one it may be meant for.
    """
    for ask in device_requests:
        if parse_qualified_name(ask.selector) is None:
            meant = ask.selector if is_device_name(ask.selector) else parse_cdi_kind(ask.selector) and "0"
            kind = config.default_kind if parse_cdi_kind(ask.selector) is None else ask.selector
            cure = f"Say {kind}={meant}" if meant else _CDI_NAME_HINT
            raise Fault(f'"{clip_text(ask.selector)}" is no CDI name', where=ask.origin, hint=cure)


def separate_own_devices(
    device_requests: list[DeviceRequest], config: Config
) -> tuple[list[DeviceRequest], list[DeviceRequest]]:
    """What is asked of us, and of other vendors: (plain words, qualified names), each once.

    Raises:
        Fault: a word that looks like a CDI name and is none.
    """
    own: dict[tuple[str, str], DeviceRequest] = {}  # a thousand times one name is one name
    foreign: dict[str, DeviceRequest] = {}
    for ask in device_requests:
        word = ask.selector
        if word.startswith(CDI_MOUNT_PREFIX):
            word = _parse_mounted_name(word)
        elif "=" not in word:
            own.setdefault((word, ""), ask)
            continue
        found = parse_qualified_name(word)
        if found is None:
            raise Fault(f'"{clip_text(ask.selector)}" is no CDI name', where=ask.origin, hint=_CDI_NAME_HINT)
        vendor, category, name = found
        if f"{vendor}/{category}" in get_own_kinds(config):
            own.setdefault((name, word), DeviceRequest(strip_type_prefix(name), ask.origin, word))
        else:
            foreign.setdefault(word, DeviceRequest(word, ask.origin, word))
    return list(own.values()), list(foreign.values())


def _parse_mounted_name(selector: str) -> str:
    """The name in a mount's path: cdi/vendor/class/device, or cdi/vendor/class=device."""
    rest = selector[len(CDI_MOUNT_PREFIX) :]
    parts = rest.split("/", 2)
    return rest if "=" in rest or len(parts) < 3 else f"{parts[0]}/{parts[1]}={parts[2]}"


def strip_type_prefix(device_name: str) -> str:
    """The word for a GPU by its device name: generators of the strategy type-index write gpu0 and mig0:1."""
    for kind in ("gpu", "mig"):
        rest = device_name.removeprefix(kind)
        if rest != device_name and rest.replace(":", "", 1).isdigit() and (":" in rest) == (kind == "mig"):
            return rest
    return device_name
