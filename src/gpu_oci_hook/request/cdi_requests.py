"""Read CDI names in requests: separate ours from other vendors', and decide whose annotations count.

Names of our own kinds (`[cdi] default-kind`, and the kind of plans that NVIDIA's runtime makes in memory) select GPUs
like any other selector and need no CDI file. Every other name has to be resolved by a CDI file.

Some engines have resolved the annotations in a config.json, others have not. Not every engine lets only its client
write them (facts: engine-annotations):

- CRI-O resolves `cdi.k8s.io/` annotations of the container itself. It keeps all of them in the config.json, together
  with those of the pod, which everybody who may create a pod can write. For that prefix nothing is left to do. Under
  another prefix an annotation counts if kubelet gave it to the container (`io.kubernetes.cri-o.Annotations`), as device
  plugins do.
- containerd copies only annotations that the administrator lists (`container_annotations`), so they are meant for the
  runtime. From 1.7 on it may have resolved them as well: `inject.cdi_devices` checks whether the edits of the CDI file
  are already in the config.json.
- podman adds the annotations of an image's manifest and resolves none. They may request what the environment may
  request, see `[request] env` and `env-kinds`. Up to 4.3 an image's annotations override podman's own, so podman is
  recognised by other annotations and by the name of the cgroup as well.
- docker, ctr and others: only their client writes annotations, and they resolve none.

Import budget: CDI.
"""

from __future__ import annotations

from gpu_oci_hook.errors import Fault, clip_text
from gpu_oci_hook.formats.cdi_names import is_device_name, parse_cdi_kind, parse_qualified_name
from gpu_oci_hook.formats.oci import get_member
from gpu_oci_hook.model.request import DeviceRequest
from gpu_oci_hook.request.environment import split_list

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.config.keys import Config

# The kind of the devices that NVIDIA's runtime plans in memory ("jit-cdi"). It is in no file.
RUNTIME_KIND = "runtime.nvidia.com/gpu"
CDI_MOUNT_PREFIX = "cdi/"
_NVIDIA_VENDOR = "nvidia.com"
# The origin of a device requested by an annotation begins with this.
ANNOTATION_ORIGIN = "annotation "

# Limit for all annotations that request devices. Kubernetes allows no more for all annotations of a pod.
_ANNOTATIONS_SIZE_LIMIT = 256 << 10
_CDI_NAME_HINT = "Use vendor/class=device: letters, digits and _-. in the first two, and : in the device's name too"
_CRIO_RESOLVED_PREFIX = "cdi.k8s.io/"
_KUBELET_ANNOTATIONS = "io.kubernetes.cri-o.Annotations"


def get_own_kinds(config: Config) -> tuple[str, ...]:
    """Return the kinds whose devices need no CDI file."""
    return config.default_kind, RUNTIME_KIND


def read_device_annotations(
    spec: object, config: Config, refusal: str, withheld: list[tuple[str, str]], warnings: list[str]
) -> list[DeviceRequest]:
    """Return the devices requested by the annotations that count, in the order of their keys.

    Arguments:
        refusal: why this container may not request devices by its environment; "" when it may.
        withheld: gets the devices requested by annotations that do not count.
        warnings: gets a warning for each annotation of podman that does not count.

    Raises:
        Fault: the annotations are longer than any engine's, or those of an image name another vendor's device.
    """
    annotations = get_member(spec, "annotations")
    if not isinstance(annotations, dict):
        return []
    device_requests: list[DeviceRequest] = []
    policy = _AnnotationPolicy(spec, annotations, refusal)
    size = 0
    for key in sorted(annotations):
        value = annotations[key]
        if not key.startswith(config.annotation_prefixes) or not isinstance(value, str):
            continue
        size += len(value)
        selectors = split_list(value) if size <= _ANNOTATIONS_SIZE_LIMIT else [value]
        origin = f"{ANNOTATION_ORIGIN}{clip_text(key)}"
        reason = policy.explain_refusal(key)
        if reason:
            if policy.is_podman:
                warnings.append(f"{origin} is ignored: {reason}")
            withheld += [(clip_text(selector), f"{origin}: {reason}") for selector in selectors]
            continue
        if size > _ANNOTATIONS_SIZE_LIMIT:
            problem = f"the annotations that request devices are longer than {_ANNOTATIONS_SIZE_LIMIT >> 10} KiB"
            raise Fault(problem, where=origin, hint="Name fewer devices")
        if policy.is_podman:
            refuse_untrusted_kinds(selectors, origin, config)
        device_requests += [DeviceRequest(selector, origin) for selector in selectors]
    return device_requests


class _AnnotationPolicy:
    """The rule which annotations of this container count, by the engine that made the config.json.

    Attributes:
        is_podman: podman has made the config.json.
    """

    __slots__ = ("_annotations", "_is_crio", "_kubelet_annotations", "_refusal", "is_podman")

    def __init__(self, spec: object, annotations: dict[str, object], refusal: str) -> None:
        self._annotations = annotations
        self._refusal = refusal
        self.is_podman = _is_made_by_podman(spec, annotations)
        self._is_crio = _KUBELET_ANNOTATIONS in annotations and not self.is_podman
        self._kubelet_annotations: dict[str, object] | None = None

    def explain_refusal(self, key: str) -> str:
        """Return why the annotation does not count; "" when it does."""
        if self.is_podman:
            return f"podman passes on an image's annotations, and {self._refusal}" if self._refusal else ""
        if not self._is_crio:
            return ""
        if key.startswith(_CRIO_RESOLVED_PREFIX):
            return "CRI-O resolves these annotations itself, and the remaining ones were not set by kubelet"
        if self._kubelet_annotations is None:
            self._kubelet_annotations = _parse_kubelet_annotations(self._annotations[_KUBELET_ANNOTATIONS])
        if key not in self._kubelet_annotations:
            return "the annotation was set by the pod, not by kubelet for this container"
        return ""


def _is_made_by_podman(spec: object, annotations: dict[str, object]) -> bool:
    """Tell whether podman has made this config.json, whatever annotations the image has."""
    cgroup = get_member(spec, "linux", "cgroupsPath")
    return (
        annotations.get("io.container.manager") == "libpod"
        or any(key.startswith("io.podman.annotations.") for key in annotations)
        or (isinstance(cgroup, str) and "libpod" in cgroup)
    )


def _parse_kubelet_annotations(text: object) -> dict[str, object]:
    # Imported here: only CRI-O needs it.
    from gpu_oci_hook.formats.fastjson import parse_json

    try:
        parsed = parse_json(text.encode()) if isinstance(text, str) else None
    except Fault:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def refuse_untrusted_kinds(selectors: list[str], origin: str, config: Config) -> None:
    """Check that no other vendor's device is requested that the administrator has not allowed.

    For requests that an image can make: by the variable, and with podman by annotations. What a CDI file of any vendor
    adds (nodes, mounts of host paths, hooks) is meant for those to whom the engine's client gives the device.

    Raises:
        Fault: a kind is not in `[request] env-kinds`.
    """
    for selector in selectors:
        name_parts = parse_qualified_name(selector)
        if name_parts is None:
            continue
        vendor, category, _ = name_parts
        kind = f"{vendor}/{category}"
        is_nvidia = vendor == _NVIDIA_VENDOR or vendor.endswith(f".{_NVIDIA_VENDOR}")
        if not is_nvidia and kind not in (*get_own_kinds(config), *config.env_kinds):
            raise Fault(
                f"{clip_text(selector)} is a device of another vendor, and an image could have requested it here",
                where=origin,
                hint=f"Request it with the engine (docker or podman run --device {clip_text(selector)}), or add "
                f'"{clip_text(kind)}" to [request] env-kinds',
            )


def require_cdi_names(device_requests: list[DeviceRequest], config: Config) -> None:
    """Check that annotations have qualified names only, as the reference library does (pkg/cdi/annotations.go).

    A plain selector is not a shorter spelling there. An engine that resolves annotations refuses it, so a pod would
    start on one node and not on another.

    Raises:
        Fault: a selector is not a qualified name; names the likely one.
    """
    for device_request in device_requests:
        selector = device_request.selector
        if parse_qualified_name(selector) is None:
            is_kind = parse_cdi_kind(selector) is not None
            kind, device = (selector, "0") if is_kind else (config.default_kind, selector)
            hint = f"Use {kind}={device}" if is_kind or is_device_name(selector) else _CDI_NAME_HINT
            raise Fault(f'"{clip_text(selector)}" is not a CDI name', where=device_request.origin, hint=hint)


def separate_own_devices(
    device_requests: list[DeviceRequest], config: Config
) -> tuple[list[DeviceRequest], list[DeviceRequest]]:
    """Separate requests into (ours with plain selectors, other vendors' with qualified names), each once.

    Raises:
        Fault: a selector looks like a CDI name and is invalid.
    """
    own: dict[tuple[str, str], DeviceRequest] = {}  # a name that is repeated a thousand times counts once
    foreign: dict[str, DeviceRequest] = {}
    for device_request in device_requests:
        selector = device_request.selector
        if selector.startswith(CDI_MOUNT_PREFIX):
            selector = _parse_mounted_name(selector)
        elif "=" not in selector:
            own.setdefault((selector, ""), device_request)
            continue
        name_parts = parse_qualified_name(selector)
        if name_parts is None:
            raise Fault(
                f'"{clip_text(device_request.selector)}" is not a CDI name',
                where=device_request.origin,
                hint=_CDI_NAME_HINT,
            )
        vendor, category, device = name_parts
        if f"{vendor}/{category}" in get_own_kinds(config):
            plain = DeviceRequest(strip_type_prefix(device), device_request.origin, selector)
            own.setdefault((device, selector), plain)
        else:
            foreign.setdefault(selector, DeviceRequest(selector, device_request.origin, selector))
    return list(own.values()), list(foreign.values())


def _parse_mounted_name(selector: str) -> str:
    """Return the CDI name in a mount's path: cdi/vendor/class/device, or cdi/vendor/class=device."""
    path = selector[len(CDI_MOUNT_PREFIX) :]
    parts = path.split("/", 2)
    return path if "=" in path or len(parts) < 3 else f"{parts[0]}/{parts[1]}={parts[2]}"


def strip_type_prefix(device_name: str) -> str:
    """Return the plain selector for a device name: generators with the strategy type-index write gpu0 and mig0:1."""
    for kind in ("gpu", "mig"):
        rest = device_name.removeprefix(kind)
        if rest != device_name and rest.replace(":", "", 1).isdigit() and (":" in rest) == (kind == "mig"):
            return rest
    return device_name
