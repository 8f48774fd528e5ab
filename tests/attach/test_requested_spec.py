"""The operator's request in a container's config.json: the container's own and the policies about it give way."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_oci_hook.attach.requested_spec import add_user_namespace, build_operator_config, build_requested_spec
from gpu_oci_hook.config.keys import Config
from gpu_oci_hook.request.read import read_request
from support.bundles import container_spec


def request_of(spec: dict[str, Any], config: Config, *selectors: str, capabilities: tuple[str, ...] = ()) -> Any:
    built = build_requested_spec(spec, list(selectors), capabilities, config, in_user_namespace=False)
    return read_request(built, build_operator_config(config))


@pytest.mark.parametrize("policy", ["always", "privileged", "never"])
@pytest.mark.parametrize("own", ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES=void", "SWARM=GPU-x", "A=b"])
def test_only_the_operators_gpus_are_requested(own: str, policy: str) -> None:
    config = Config(env=policy, device_variables=("SWARM",), missing_gpu="warn")
    request = request_of(container_spec(own), config, "GPU-1", "MIG-2")
    assert [device.selector for device in request.device_requests] == ["GPU-1", "MIG-2"]
    assert request.warnings == []
    assert (config.env, config.missing_gpu) == (policy, "warn")


def test_requests_by_annotation_and_by_mount_give_way() -> None:
    spec = container_spec(annotations={"cdi.k8s.io/x": "nvidia.com/gpu=3"})
    spec["mounts"].append({"source": "/dev/null", "destination": "/var/run/nvidia-container-devices/GPU-9"})
    request = request_of(spec, Config(), "0")
    assert [device.selector for device in request.device_requests] == ["0"]
    assert request.cdi_devices == ()
    assert spec["annotations"]


def test_capabilities_are_the_operators_or_else_the_containers() -> None:
    spec = container_spec("NVIDIA_DRIVER_CAPABILITIES=video")
    assert request_of(spec, Config(), "0").capabilities == ("video",)
    assert request_of(spec, Config(), "0", capabilities=("utility",)).capabilities == ("utility",)


@pytest.mark.parametrize(("policy", "granted"), [("always", True), ("never", False)])
def test_other_requests_of_the_environment_count_as_they_would_at_a_start(policy: str, granted: bool) -> None:
    spec = container_spec("NVIDIA_GDS=enabled")
    request = request_of(spec, Config(env=policy), "0")
    assert bool(request.features) is granted


@pytest.mark.parametrize("in_user_namespace", [False, True])
def test_a_container_in_a_user_namespace_is_not_privileged_whatever_its_config_json_says(
    in_user_namespace: bool,
) -> None:
    """A rootless engine writes no user namespace into it, and a user writes what he likes."""
    spec = container_spec("NVIDIA_GDS=enabled", "NVIDIA_IMEX_CHANNELS=0", "NVIDIA_MIG_CONFIG_DEVICES=all")
    spec["process"]["capabilities"] = {"bounding": ["CAP_SYS_ADMIN"]}
    config = Config(env="privileged")
    built = build_requested_spec(spec, ["0"], (), config, in_user_namespace=in_user_namespace)
    request = read_request(built, build_operator_config(config))
    assert [bool(request.features), bool(request.imex_channels)] == [not in_user_namespace] * 2


def test_a_container_in_a_user_namespace_of_its_engine_says_so() -> None:
    spec = container_spec()
    changed = add_user_namespace(spec)
    assert {"type": "user"} in changed["linux"]["namespaces"]  # type: ignore[index]
    assert {"type": "user"} not in spec["linux"].get("namespaces", [])
    assert add_user_namespace(changed) is changed
