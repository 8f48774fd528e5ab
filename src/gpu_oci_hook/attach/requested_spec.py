"""Write the operator's request into a copy of a container's config.json, in the place of the container's own.

The operator decides which GPUs are attached, so `[request]` policies about what an image may ask for do not apply. What
else the container requests by its environment, such as IMEX channels, counts only where it would have at a start.

No I/O.

Import budget: cold.
"""

from __future__ import annotations

import copy

from gpu_oci_hook.config.keys import Config
from gpu_oci_hook.formats.oci import Object, explain_unprivileged, get_list, get_member, has_user_namespace
from gpu_oci_hook.formats.program_names import is_cdi_hook
from gpu_oci_hook.request.capabilities import CAPABILITIES_VARIABLE
from gpu_oci_hook.request.environment import FEATURE_VARIABLES, MIG_RIGHT_VARIABLES, VISIBLE_DEVICES
from gpu_oci_hook.request.read import ALL_CSV_LISTS, find_environment_refusal

_DEVICE_DIRECTORY = "nvidia-container-devices"
_POLICY_VARIABLES = (*FEATURE_VARIABLES, *[name for name, _ in MIG_RIGHT_VARIABLES], ALL_CSV_LISTS[0])


def build_requested_spec(
    spec: Object, selectors: list[str], capabilities: tuple[str, ...], config: Config, *, in_user_namespace: bool
) -> Object:
    """Return a config.json that requests these GPUs and nothing else of GPUs.

    Arguments:
        spec: the container's, without what an injection has added. It is not changed.
        selectors: as NVIDIA_VISIBLE_DEVICES takes them.
        capabilities: the driver capabilities; empty for those that the container requests, or the default.
        in_user_namespace: the container runs in another user namespace than this process.
    """
    if in_user_namespace:
        spec = add_user_namespace(spec)  # before it is asked whether the container is privileged
    requested = dict(spec)
    # A request by annotation or by mount would come first.
    requested.pop("annotations", None)
    requested["mounts"] = [
        mount for mount in get_list(spec, "mounts") if _DEVICE_DIRECTORY not in str(get_member(mount, "destination"))
    ]
    requested["process"] = {
        **_copy_object(spec, "process"),
        "env": _build_environment(spec, selectors, capabilities, config),
    }
    linux = _copy_object(spec, "linux")
    linux["devices"] = [
        node for node in get_list(linux, "devices") if _DEVICE_DIRECTORY not in str(get_member(node, "path"))
    ]
    requested["linux"] = linux
    requested["hooks"] = _drop_cdi_hooks(spec)
    return requested


def add_user_namespace(spec: Object) -> Object:
    """Return a config.json that says that the container is in a user namespace.

    The engine itself can run in one, and the container in the same: nothing there can make a device node.
    """
    if has_user_namespace(spec):
        return spec
    linux = _copy_object(spec, "linux")
    return {**spec, "linux": {**linux, "namespaces": [*get_list(linux, "namespaces"), {"type": "user"}]}}


def build_operator_config(config: Config) -> Config:
    """Return a configuration under which the request of `build_requested_spec` is granted or fails."""
    changed = copy.copy(config)
    changed.env, changed.missing_gpu, changed.device_variables = "always", "fail", ()
    return changed


def _copy_object(spec: Object, key: str) -> Object:
    value = spec.get(key)
    return dict(value) if isinstance(value, dict) else {}


def _build_environment(
    spec: Object, selectors: list[str], capabilities: tuple[str, ...], config: Config
) -> list[object]:
    dropped = {VISIBLE_DEVICES}
    if find_environment_refusal(explain_unprivileged(spec), config):
        dropped.update(_POLICY_VARIABLES)
    added: list[object] = [f"{VISIBLE_DEVICES}={','.join(selectors)}"]
    if capabilities:
        dropped.add(CAPABILITIES_VARIABLE)
        added.append(f"{CAPABILITIES_VARIABLE}={','.join(capabilities)}")
    entries = get_list(spec, "process", "env")
    return [entry for entry in entries if str(entry).partition("=")[0] not in dropped] + added


def _drop_cdi_hooks(spec: Object) -> Object:
    """Return the hooks without those of CDI files, by which a container counts as injected."""
    hooks = _copy_object(spec, "hooks")
    return {stage: [hook for hook in get_list(hooks, stage) if not is_cdi_hook(hook)] for stage in hooks}
