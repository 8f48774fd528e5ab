"""Variables that request devices in place of NVIDIA_VISIBLE_DEVICES, as Docker Swarm sets them."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_oci_hook.config.keys import Config
from gpu_oci_hook.config.load import load_config
from gpu_oci_hook.request.read import read_request
from gpu_oci_hook.shim import low_level_runtime

SWARM = "DOCKER_RESOURCE_GPU"
OTHER = "DOCKER_RESOURCE_NVIDIA-GPU"


def ask(*env: str, variables: tuple[str, ...] = (SWARM, OTHER), **config: str) -> tuple[list[str] | str, str]:
    """Return what a container with this environment requests, and where the request comes from."""
    request = read_request({"process": {"env": list(env)}}, Config(device_variables=variables, **config))
    selectors = [item.selector for item in request.device_requests]
    return (selectors or "none") if request.needs_driver else "nothing", request.origin


@pytest.mark.parametrize(
    ("env", "asked"),
    [
        (("NVIDIA_VISIBLE_DEVICES=all", f"{SWARM}=GPU-1234"), ["GPU-1234"]),
        ((f"{SWARM}=GPU-1234",), ["GPU-1234"]),
        (("NVIDIA_VISIBLE_DEVICES=all",), ["all"]),
        # Several are joined, in the order of the configuration.
        ((f"{OTHER}=1", f"{SWARM}=GPU-1234,0"), ["GPU-1234", "0", "1"]),
        ((f"{OTHER}=1", "NVIDIA_VISIBLE_DEVICES=all"), ["1"]),
        # A variable that is set and empty requests nothing: there is no way back to the other one.
        (("NVIDIA_VISIBLE_DEVICES=all", f"{SWARM}="), "nothing"),
        ((f"{SWARM}=0", f"{OTHER}=void"), "nothing"),
        ((f"{SWARM}=none", "NVIDIA_VISIBLE_DEVICES=all"), "none"),
        (("NVIDIA_VISIBLE_DEVICES=void", f"{SWARM}=0"), ["0"]),
        (("CUDA_VERSION=11.8", f"{SWARM}=0"), ["0"]),
        (("CUDA_VERSION=11.8",), ["all"]),
        ((), "nothing"),
    ],
)
def test_a_configured_variable_stands_in_the_place_of_the_documented_one(
    env: tuple[str, ...], asked: list[str] | str
) -> None:
    assert ask(*env)[0] == asked


def test_the_origin_names_every_variable_that_counts() -> None:
    _, origin = ask(f"{SWARM}=0", f"{OTHER}=1", "NVIDIA_VISIBLE_DEVICES=all")
    assert origin == f"{SWARM}=0 (process.env[0]) and {OTHER}=1 (process.env[1])"


def test_the_policy_for_the_environment_holds_for_them_too() -> None:
    assert ask(f"{SWARM}=0", env="privileged")[0] == "nothing"
    assert ask(f"{SWARM}=0", env="never")[0] == "nothing"


def test_without_the_key_a_variable_of_swarm_is_a_warning() -> None:
    env = ["NVIDIA_VISIBLE_DEVICES=all", f"{SWARM}=GPU-1234", "DOCKER_RESOURCE_SSD=fast"]
    request = read_request({"process": {"env": env}}, Config())
    assert [item.selector for item in request.device_requests] == ["all"]
    (warning,) = request.warnings
    assert warning.startswith(f"{SWARM}=GPU-1234 (process.env[1]), with which Docker Swarm assigns GPUs, is ignored")
    assert warning.endswith(f'add "{SWARM}" to [request] device-variables')
    assert not read_request({"process": {"env": env}}, Config(device_variables=(SWARM,))).warnings


def test_the_runtime_looks_at_containers_with_such_a_variable_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    config = tmp_path / "config.toml"
    config.write_text(f'[runtime]\nlow-level = ["/bin/true"]\n[request]\ndevice-variables = ["{SWARM}"]\n')
    entry = low_level_runtime.resolve_runtime(str(config), {}, (b"NVIDIA_VISIBLE_DEVICES",))
    assert f"{SWARM}=".encode() in entry[4]


def test_the_key_of_nvidias_configuration_is_answered_with_ours(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f'swarm-resource = "{SWARM}"\n')
    (warning,) = load_config(str(config)).warnings
    assert "use [request] device-variables" in warning


def test_very_many_ignored_variables_are_few_warnings() -> None:
    env = [f"DOCKER_RESOURCE_GPU{number}=GPU-1" for number in range(50_000)]
    warnings = read_request({"process": {"env": env}}, Config()).warnings
    assert len(warnings) == 9 and warnings[-1] == "49992 more variables like these are ignored"
