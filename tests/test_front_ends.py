"""docs/front-ends.md, row by row: the bundle that a front end writes, and what the container gets."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gpu_oci_hook.config.keys import Config
from gpu_oci_hook.files.state_dir import StateCache
from gpu_oci_hook.inject import pipeline
from support import cdi_edits
from support.bundles import (
    Spec,
    container_spec,
    host_config,
    inject_in_process,
    list_device_numbers,
    list_mount_destinations,
    make_bundle,
    read_spec,
)
from support.e2e.host import SimulatedHost, read_host
from support.fixtures import SharedHost

PAGE = Path(__file__).parents[1] / "docs/front-ends.md"
VERSION = "550.163.01"
PRESTART = {
    "path": "/usr/local/bin/nvidia-container-runtime-hook",
    "args": ["nvidia-container-runtime-hook", "prestart"],
    "env": ["PATH=/usr/bin:/bin", "LANG=C"],
}
BASE_DEVICES = "/var/run/nvidia-container-devices"

Build = Callable[[SimulatedHost], Spec]


@dataclass
class FrontEnd:
    """A row: the bundle, our configuration, and what is right.

    Arguments:
        build: makes the config.json. gpus: indices of the GPUs that are injected by us.
        by_engine: the engine has injected GPU 1; config.json stays as it is. warning: part of a warning.
        libraries: a library that a capability brings. config: keys of our configuration.
    """

    build: Build
    gpus: tuple[int, ...] = ()
    by_engine: bool = False
    warning: str = ""
    library: str = ""
    config: dict[str, Any] = field(default_factory=dict)


def with_env(*env: str, **more: Any) -> Build:
    """Build a container with variables; {1} is the UUID of GPU 1."""
    return lambda host: container_spec(*(entry.format(*(card.uuid for card in host.cards)) for entry in env), **more)


def with_hook(*env: str, hooks: int = 1) -> Build:
    """Build a container as docker's `--gpus` does."""
    return with_env(*env, hooks={"prestart": [PRESTART] * hooks})


def with_null_mount(device: str, *env: str) -> Build:
    """Build a container with a device mount."""

    def build(host: SimulatedHost) -> Spec:
        destination = f"{BASE_DEVICES}/{device.format(*(card.uuid for card in host.cards))}"
        mount = {"destination": destination, "source": "/dev/null", "type": "bind", "options": ["bind", "ro"]}
        return container_spec(*env, mounts=[mount])

    return build


def injected_by_engine(host: SimulatedHost) -> Spec:
    """Build a container with the edits of a CDI file of ours, as an engine applies them."""
    spec = container_spec("NVIDIA_VISIBLE_DEVICES=void")
    card = host.cards[1]
    major, minor = map(int, card.numbers.split(":"))
    cdi_edits.add_devices(spec, {card.node: (major, minor), "/dev/nvidiactl": (195, 255)})
    cdi_edits.add_our_edits(
        spec, host.root, Path("/usr/local/bin/gpu-oci-hook"), cdi_edits.build_hook_arguments(host.root, VERSION)
    )
    return spec


def with_device_specs(host: SimulatedHost) -> Spec:
    """Build a container as the device plugin does with pass-device-specs."""
    spec = container_spec(f"NVIDIA_VISIBLE_DEVICES={host.cards[1].uuid}")
    major, minor = map(int, host.cards[1].numbers.split(":"))
    cdi_edits.add_devices(spec, {host.cards[1].node: (major, minor), "/dev/nvidiactl": (195, 255)})
    return spec


VARIABLE = FrontEnd(with_env("NVIDIA_VISIBLE_DEVICES=1"), (1,))
GPUS = FrontEnd(with_hook("NVIDIA_VISIBLE_DEVICES=1"), (1,))
ENGINE = FrontEnd(injected_by_engine, by_engine=True)
BY_UUID = FrontEnd(with_env("NVIDIA_VISIBLE_DEVICES={1}"), (1,))
SWARM = ("NVIDIA_VISIBLE_DEVICES=all", "DOCKER_RESOURCE_GPU={1}")

# By the first cell of the page's rows.
ROWS: dict[str, FrontEnd] = {
    "docker `-e NVIDIA_VISIBLE_DEVICES=1`": VARIABLE,
    "docker `--gpus device=1`, up to 29.1": GPUS,
    "docker `--gpus 1`": FrontEnd(with_hook("NVIDIA_VISIBLE_DEVICES=0"), (0,)),
    "docker `--gpus 0`": FrontEnd(with_hook()),
    "docker `--gpus` with capabilities": FrontEnd(
        with_hook("NVIDIA_VISIBLE_DEVICES=1", "NVIDIA_DRIVER_CAPABILITIES=compute,video"), (1,), library="libnvcuvid.so"
    ),
    "docker `--device nvidia.com/gpu=1`, and `--gpus` from 29.2 on": ENGINE,
    "compose `deploy.resources.reservations.devices`": GPUS,
    "compose, two device requests in one service": FrontEnd(
        with_hook("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_VISIBLE_DEVICES=1", hooks=2),
        (1,),
        warning="NVIDIA_VISIBLE_DEVICES",
    ),
    "compose `runtime: nvidia`": VARIABLE,
    "devcontainer `hostRequirements.gpu`": FrontEnd(with_hook("NVIDIA_VISIBLE_DEVICES=all"), (0, 1)),
    "docker SDK, testcontainers `device_requests`": GPUS,
    "Swarm generic resource": FrontEnd(with_env(*SWARM), (0, 1), warning="device-variables"),
    'Swarm with `[request] device-variables = ["DOCKER_RESOURCE_GPU"]`': FrontEnd(
        with_env(*SWARM), (1,), config={"device_variables": ("DOCKER_RESOURCE_GPU",)}
    ),
    "ECS agent": BY_UUID,
    "Nomad docker driver with the nvidia device plugin": BY_UUID,
    "device plugin, strategy `envvar`": BY_UUID,
    "device plugin, strategy `volume-mounts`": FrontEnd(
        with_null_mount("{1}", f"NVIDIA_VISIBLE_DEVICES={BASE_DEVICES}"), (1,)
    ),
    "device plugin, strategy `cdi-annotations`, resolved by containerd": ENGINE,
    "device plugin, strategy `cdi-annotations` with a prefix of its own": FrontEnd(
        with_env(annotations={"nvidia.cdi.k8s.io/nvidia-device-plugin_1": "nvidia.com/gpu=1"}),
        (1,),
        config={"annotation_prefixes": ("nvidia.cdi.k8s.io/",)},
    ),
    "device plugin, strategy `cdi-cri`": ENGINE,
    "device plugin, `pass-device-specs`": FrontEnd(with_device_specs, (1,)),
    "pod that requests no GPU, image with `NVIDIA_VISIBLE_DEVICES=all`": FrontEnd(
        with_env("NVIDIA_VISIBLE_DEVICES=all"), (0, 1)
    ),
    "pod's sandbox": FrontEnd(with_env(annotations={"io.kubernetes.cri.container-type": "sandbox"})),
    "kind, `extraMounts` of the node": FrontEnd(with_null_mount("all"), (0, 1)),
    "podman `--device nvidia.com/gpu=1`, podman-compose `devices`": ENGINE,
    "podman-compose `environment`": VARIABLE,
    "Slurm `oci.conf` with our runtime": VARIABLE,
    "Slurm, job with only `CUDA_VISIBLE_DEVICES=1`": FrontEnd(with_env("CUDA_VISIBLE_DEVICES=1")),
}


def read_page_rows() -> list[str]:
    """Return the first cells of the tables about bundles."""
    rows, inside = [], False
    for line in PAGE.read_text().splitlines():
        if line.startswith("| front end |"):
            inside = True
        elif not line.startswith("|"):
            inside = False
        elif inside and not line.startswith("|---"):
            rows.append(re.split(r"(?<!\\) \| ", line.removeprefix("| "))[0])
    return rows


def test_the_page_and_the_cases_have_the_same_rows() -> None:
    assert read_page_rows() == list(ROWS)


@pytest.fixture
def host(shared_host: SharedHost) -> SimulatedHost:
    return read_host(shared_host(gpus=2, driver=VERSION), VERSION)


@pytest.mark.usefixtures("isolated_state")
@pytest.mark.parametrize("name", ROWS)
def test_a_front_ends_bundle_gets_what_the_page_says(name: str, host: SimulatedHost, tmp_path: Path) -> None:
    row = ROWS[name]
    config = host_config(host.root, **row.config)
    made = make_bundle(tmp_path / "bundle", row.build(host))
    before = read_spec(made)
    warnings = list_warnings(before, config, made)
    after = inject_in_process(made, config)
    nodes = list_device_numbers(after)
    if row.by_engine:
        assert nodes == list_device_numbers(before)
        assert after["mounts"] == before["mounts"]
        assert after["hooks"]["createContainer"] == before["hooks"]["createContainer"]
    else:
        assert {card.index for card in host.cards if card.node in nodes} == set(row.gpus)
        assert [path for path in nodes if path == "/dev/nvidiactl"] == ["/dev/nvidiactl"] * bool(row.gpus)
        assert len(nodes) == len(after["linux"].get("devices", []))
        libraries = [path for path in list_mount_destinations(after) if "libcuda.so." in path]
        assert bool(libraries) == bool(row.gpus)
    assert not after.get("hooks", {}).get("prestart")
    assert any(row.library in path for path in list_mount_destinations(after)) or not row.library
    assert any(row.warning in warning for warning in warnings) if row.warning else not warnings, warnings


def list_warnings(spec: Spec, config: Config, made: Path) -> list[str]:
    """Return the warnings of a start."""
    return list(pipeline.prepare_injection(spec, config, str(made), StateCache()).plan.warnings)


@pytest.mark.usefixtures("isolated_state")
@pytest.mark.parametrize("mounted", [True, False])
def test_privileged_variables_and_device_mounts_keep_an_images_variable_out(
    mounted: bool, host: SimulatedHost, tmp_path: Path
) -> None:
    """What the page advises against images that set the variable."""
    build = with_null_mount("{1}", "NVIDIA_VISIBLE_DEVICES=all") if mounted else with_env("NVIDIA_VISIBLE_DEVICES=all")
    made = make_bundle(tmp_path / "bundle", build(host))
    nodes = list_device_numbers(inject_in_process(made, host_config(host.root, env="privileged")))
    assert {card.index for card in host.cards if card.node in nodes} == ({1} if mounted else set())
