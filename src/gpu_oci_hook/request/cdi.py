"""CDI names in what a container asks for: which are ours, which are of other vendors, and whose annotations count.

Names of our own kinds (`[cdi] default-kind`, and the kind that NVIDIA's runtime keeps for plans in memory) are GPUs
like any other word; no file is needed for them. Every other name is for a file to resolve.

Annotations in a config.json have been resolved by some engines and not by others, and not every engine lets only its
client write them (ecosystem facts 1.3, 2.1, 2.2):

- CRI-O resolves `cdi.k8s.io/` annotations of the container itself and keeps all of them in the config.json, with those
  of the pod, which whoever may make a pod can write. Here nothing is left to do for that prefix; under another one
  an annotation counts if kubelet gave it to the container (`io.kubernetes.cri-o.Annotations`), as device plugins do.
- containerd copies only those that the administrator lists (`container_annotations`), so one that is there is
  meant for the runtime. From 1.7 on it may have resolved it as well: `cdi.resolution` looks whether the file's edits
  are in the config.json already.
- podman puts the annotations of an image's manifest among them and resolves none: they may ask where the
  environment may, `[request] env`. Up to 4.3 an image's even take the place of podman's own, so that podman is told
  by what it adds besides: other annotations, and the name of the cgroup.
- docker, ctr and others: only their client writes them, and nobody has resolved them.

Cost rule: loaded where a CDI name is used, `fastjson` only for CRI-O.
"""

from __future__ import annotations

from gpu_oci_hook.cdi import names
from gpu_oci_hook.errors import Fault, clipped
from gpu_oci_hook.formats.oci import member
from gpu_oci_hook.request import Ask

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.config import Config

# The kind of devices that NVIDIA's runtime plans in memory ("jit-cdi"); no file has it.
AUTOMATIC = "runtime.nvidia.com/gpu"
MOUNTED = "cdi/"
# How the origin of what an annotation asks for begins.
ANNOTATION = "annotation "

# Of all annotations that may ask together. Kubernetes allows no more for all that a pod has.
_LONGEST = 256 << 10
_FORM = "Say vendor/class=device: letters, digits and _-. in the first two, and : in the device's name too"
_RESOLVED_BY_CRIO = "cdi.k8s.io/"
_OF_KUBELET = "io.kubernetes.cri-o.Annotations"


def own_kinds(config: Config) -> tuple[str, ...]:
    """The kinds whose devices need no file."""
    return config.default_kind, AUTOMATIC


def annotated(
    spec: object, config: Config, refusal: str, withheld: list[tuple[str, str]], warnings: list[str]
) -> list[Ask]:
    """What the annotations that count ask for, by their keys in order.

    Arguments:
        refusal: why this container may not ask by its environment; "" when it may.
        withheld, warnings: take what is asked by annotations that do not count.

    Raises:
        Fault: they are longer than any engine's.
    """
    found = member(spec, "annotations")
    if not isinstance(found, dict):
        return []
    asks: list[Ask] = []
    of_image = _of_podman(spec, found)
    crio = _OF_KUBELET in found and not of_image
    kubelets: dict[str, object] | None = None
    size = 0
    for key in sorted(found):
        value = found[key]
        if not key.startswith(config.annotation_prefixes) or not isinstance(value, str):
            continue
        size += len(value)
        parts = value.split(",") if size <= _LONGEST else [value]
        words = [word for word in (part.strip() for part in parts) if word]
        reason = ""
        if crio and key.startswith(_RESOLVED_BY_CRIO):
            reason = "CRI-O resolves these annotations itself, and what it leaves over is not kubelet's word"
        elif crio and key not in (kubelets := kubelets if kubelets is not None else _of_kubelet(found[_OF_KUBELET])):
            reason = "the annotation is the pod's, not one that kubelet gave to this container"
        elif of_image and refusal:
            reason = f"podman hands on an image's annotations, and {refusal}"
            warnings.append(f"{ANNOTATION}{clipped(key)} does not count: {reason}")
        if reason:
            withheld += [(clipped(word), f"{ANNOTATION}{clipped(key)}: {reason}") for word in words]
            continue
        if size > _LONGEST:
            what = f"the annotations that ask for devices are longer than {_LONGEST >> 10} KiB"
            raise Fault(what, where=f"{ANNOTATION}{clipped(key)}", cure="Name fewer devices")
        asks += [Ask(word, f"{ANNOTATION}{clipped(key)}") for word in words]
    return asks


def _of_podman(spec: object, annotations: dict[str, object]) -> bool:
    """Whether podman has made this config.json, whatever an image says."""
    cgroup = member(spec, "linux", "cgroupsPath")
    return (
        annotations.get("io.container.manager") == "libpod"
        or any(key.startswith("io.podman.annotations.") for key in annotations)
        or (isinstance(cgroup, str) and "libpod" in cgroup)
    )


def _of_kubelet(text: object) -> dict[str, object]:
    from gpu_oci_hook.formats import fastjson

    try:
        found = fastjson.loads(text.encode()) if isinstance(text, str) else None
    except Fault:
        return {}
    return found if isinstance(found, dict) else {}


def require_names(asks: list[Ask], config: Config) -> None:
    """Sees that annotations have qualified names alone, as the reference library does (pkg/cdi/annotations.go).

    A plain word is no shorter spelling there: an engine that resolves annotations fails with it, and so a pod would
    start on one node and not on another.

    Raises:
        Fault: a word that is no qualified name; says which one it may be meant for.
    """
    for ask in asks:
        if names.parse(ask.word) is None:
            meant = ask.word if names.is_device(ask.word) else names.kind(ask.word) and "0"
            kind = config.default_kind if names.kind(ask.word) is None else ask.word
            cure = f"Say {kind}={meant}" if meant else _FORM
            raise Fault(f'"{clipped(ask.word)}" is no CDI name', where=ask.origin, cure=cure)


def sort(asks: list[Ask], config: Config) -> tuple[list[Ask], list[Ask]]:
    """What is asked of us, and of other vendors: (plain words, qualified names), each once.

    Raises:
        Fault: a word that looks like a CDI name and is none.
    """
    own: dict[tuple[str, str], Ask] = {}  # a thousand times one name is one name
    foreign: dict[str, Ask] = {}
    for ask in asks:
        word = ask.word
        if word.startswith(MOUNTED):
            word = _from_mount(word)
        elif "=" not in word:
            own.setdefault((word, ""), ask)
            continue
        found = names.parse(word)
        if found is None:
            raise Fault(f'"{clipped(ask.word)}" is no CDI name', where=ask.origin, cure=_FORM)
        vendor, category, name = found
        if f"{vendor}/{category}" in own_kinds(config):
            own.setdefault((name, word), Ask(plain(name), ask.origin, word))
        else:
            foreign.setdefault(word, Ask(word, ask.origin, word))
    return list(own.values()), list(foreign.values())


def _from_mount(word: str) -> str:
    """The name in a mount's path: cdi/vendor/class/device, or cdi/vendor/class=device."""
    rest = word[len(MOUNTED) :]
    parts = rest.split("/", 2)
    return rest if "=" in rest or len(parts) < 3 else f"{parts[0]}/{parts[1]}={parts[2]}"


def plain(name: str) -> str:
    """The word for a GPU by its device name: generators of the strategy type-index write gpu0 and mig0:1."""
    for kind in ("gpu", "mig"):
        rest = name.removeprefix(kind)
        if rest != name and rest.replace(":", "", 1).isdigit() and (":" in rest) == (kind == "mig"):
            return rest
    return name
