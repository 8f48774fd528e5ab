"""Every way to a GPU gives the same for one request: shim, explain, apply, the hooks of engines, and a CDI file."""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from gpu_oci_hook import cli
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.hook.precreate_hook import run_precreate_hook
from gpu_oci_hook.hook.prestart_hook import run_prestart_hook
from gpu_oci_hook.simulate import host_tree
from support.bundles import (
    DEV,
    PROC,
    Spec,
    container_spec,
    host_config,
    inject_in_process,
    list_allowed_numbers,
    list_device_numbers,
    make_bundle,
    read_spec,
)
from support.fixtures import isolate_state
from support.generated_specs import DRIVER_LIBRARY_DIR, needs_device_nodes

pytestmark = needs_device_nodes

# What each host can be asked for by CDI names as well: the words of the variable and the names of the devices.
HOSTS: dict[str, dict[str, Any]] = {
    "three GPUs": {"gpus": 3},
    "MIG": {"gpus": 2, "mig": ("3g,2g", "1g")},
    "a node is missing": {"gpus": 3},
    "Fedora with IMEX channels": {"gpus": 2, "layout": "fedora", "imex": 2},
    "NixOS": {"gpus": 2, "layout": "nixos"},
}
WORDS = ("0", "1", "2", "0-1", "all", "none", "void", "GPU-44b97862", "GPU-", "0000:07:00.0", "0:0", "0:1", "1:0", "7",
         "nvidia.com/gpu=0", "nvidia.com/gpu=all", "runtime.nvidia.com/gpu=1", " 1 ", "", "x")  # fmt: skip
CAPABILITIES = ("", "all", "utility", "compute", "graphics", "video,utility", "display", "ngx,compute", "compute,vidoe")
CDI_CAPABILITIES = {"": "utility,compute"}
MOUNT_ROOT = "/var/run/nvidia-container-devices"


class Request(NamedTuple):
    """One container.

    Attributes:
        as_mounts: the words are device mounts, and not values of the variable.
    """

    host: str
    words: list[str]
    capabilities: str
    more: list[str]
    as_mounts: bool
    user_namespace: bool

    def build_spec(self, bundle: Path) -> Spec:
        env = [f"NVIDIA_DRIVER_CAPABILITIES={self.capabilities}"] if self.capabilities else []
        mounts = [PROC, DEV]
        if self.as_mounts:
            mounts += [
                {"destination": f"{MOUNT_ROOT}/{word}", "source": "/dev/null", "type": "bind"}
                for word in self.words
                if word.strip()
            ]
        else:
            env.append(f"NVIDIA_VISIBLE_DEVICES={','.join(self.words)}")
        spec = container_spec(*env, *self.more, mounts=mounts, root={"path": str(bundle / "rootfs")})
        if self.user_namespace:
            spec["linux"]["namespaces"].append({"type": "user"})
            spec["linux"]["uidMappings"] = [{"containerID": 0, "hostID": 100000, "size": 65536}]
        return spec


REQUESTS = st.builds(
    Request,
    st.sampled_from(sorted(HOSTS)),
    st.lists(st.sampled_from(WORDS), min_size=1, max_size=3),
    st.sampled_from(CAPABILITIES),
    st.lists(
        st.sampled_from(
            ["NVIDIA_REQUIRE_CUDA=cuda>=99", "NVIDIA_IMEX_CHANNELS=0", "NVIDIA_GDS=enabled", "CUDA_VERSION=11.8"]
        ),
        max_size=1,
    ),
    st.booleans(),
    st.booleans(),
)


class Ways:
    """One bundle directory in which a request is made by each way in turn."""

    def __init__(self, directory: Path) -> None:
        self.bundle = directory / "bundle"
        self.hosts: dict[str, Path] = {}
        self.configs: dict[str, Path] = {}
        self.spec_dirs: dict[tuple[str, str], Path] = {}
        self.directory = directory
        for number, (name, options) in enumerate(HOSTS.items()):
            host = self.hosts[name] = directory / f"host{number}"
            host_tree.build_host(host, **options)
            config = self.configs[name] = directory / f"config{number}.toml"
            config.write_text(f'[host]\nroot = "{host}"\nload-modules = false\n')
        (self.hosts["a node is missing"] / "dev/nvidia0").unlink()

    def start_over(self, request: Request) -> None:
        shutil.rmtree(self.bundle, ignore_errors=True)
        self.bundle.mkdir()
        make_bundle(self.bundle, request.build_spec(self.bundle))

    def call(self, *words: str) -> tuple[int, str, str]:
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            status = cli.run_command_line(list(words), "gpu-oci-hook")
        return status, out.getvalue(), err.getvalue()

    def inject(self, request: Request) -> Spec | str:
        self.start_over(request)
        try:
            return inject_in_process(self.bundle, host_config(self.hosts[request.host], env_kinds=()))
        except Fault as fault:
            return str(fault)

    def apply(self, request: Request) -> Spec | str:
        self.start_over(request)
        status, _, err = self.call("apply", "-q", "-b", str(self.bundle), "--config", str(self.configs[request.host]))
        return err.removeprefix("gpu-oci-hook: ").rstrip("\n") if status else read_spec(self.bundle)

    def explain(self, request: Request) -> dict[str, Any] | str:
        self.start_over(request)
        config = str(self.configs[request.host])
        _, out, _ = self.call("explain", "-q", "-o", "json", "-b", str(self.bundle), "--config", config)
        found: dict[str, Any] = json.loads(out)
        return str(found["reason"]) if found["state"] == "refused" else found

    def precreate(self, request: Request) -> Spec | str:
        self.start_over(request)
        data = (self.bundle / "config.json").read_bytes()
        answer = self.directory / "answer.json"
        with answer.open("wb") as file:
            try:
                run_precreate_hook(0, file.fileno(), data)
            except Fault as fault:
                return str(fault)
        made: Spec = json.loads(answer.read_text())
        return made

    def prestart(self) -> str:
        """Call the hook for a container without a process: the fault says whether it would change anything."""
        state = json.dumps({"bundle": str(self.bundle), "pid": 0}).encode()
        try:
            run_prestart_hook(["prestart"], state)
        except Fault as fault:
            return str(fault)
        return ""

    def resolve(self, request: Request, names: list[str]) -> tuple[dict[str, str], set[str]]:
        """Return mount sources and paths of nodes of CDI devices, from a file with the request's capabilities."""
        capabilities = CDI_CAPABILITIES.get(request.capabilities, request.capabilities)
        root = str(self.hosts[request.host])
        directory = self.spec_dirs.setdefault(
            (request.host, capabilities), self.directory / f"cdi{len(self.spec_dirs)}"
        )
        if not directory.exists():
            words = ["--output", str(directory / "gpu.json"), "--format", "json", "--hook", "/bin/true"]
            status, _, err = self.call("cdi", "generate", "-q", "--root", root, "--capabilities", capabilities, *words)
            assert status == 0, err
        qualified = [f"nvidia.com/gpu={name}" for name in names]
        status, out, err = self.call(
            "cdi", "resolve", "-o", "json", "--root", root, "--spec-dir", str(directory), *qualified
        )
        edits = [entry["containerEdits"] for name in json.loads(out)["names"] for entry in name["edits"]]
        assert len(edits) >= len(names), (out, err)
        mounts = {mount["containerPath"]: mount["hostPath"] for edit in edits for mount in edit.get("mounts", [])}
        return mounts, {node["path"] for edit in edits for node in edit.get("deviceNodes", [])}


@pytest.fixture(scope="module")
def ways(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ways]:
    directory = tmp_path_factory.mktemp("ways")
    with pytest.MonkeyPatch.context() as patch:
        isolate_state(patch, directory)
        yield Ways(directory)


def list_cdi_names(request: Request, given: list[dict[str, Any]]) -> list[str]:
    """Return the CDI devices of a request that has been granted; none if a CDI name cannot say it."""
    words = [word.strip().removeprefix("runtime.").removeprefix("nvidia.com/gpu=") for word in request.words]
    words = [word for word in words if word]
    if request.more:
        return []
    if words in (["none"], ["all"]):
        return words
    if "void" in words or "none" in words or "all" in words:
        return []
    mig_devices = [mig["index"] for gpu in given for mig in gpu["mig"] if mig["given"]]
    if mig_devices:  # a word may name the whole GPU as well, which explain does not show
        return mig_devices if all(":" in word for word in words) else []
    return [str(gpu["index"]) for gpu in given if gpu["given"]]


@given(request=REQUESTS)
@examples(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_way_gives_the_same_or_refuses_with_the_same_reason(ways: Ways, request: Request) -> None:
    os.environ["GPU_OCI_HOOK_CONFIG"] = str(ways.configs[request.host])  # the fixture puts it back
    shim = ways.inject(request)
    prestart = ways.prestart()
    if isinstance(shim, str):
        assert ways.apply(request) == ways.explain(request) == ways.precreate(request) == prestart == shim
        return
    assert prestart == "", "nothing is left to do for the hook in a container of the runtime"
    assert ways.apply(request) == ways.precreate(request) == shim

    plan = ways.explain(request)
    assert isinstance(plan, dict), plan
    asked = request.build_spec(ways.bundle)
    if shim == asked:
        assert plan["edits"] == []
        return
    start = ways.prestart()
    assert start == "the container's state names no process. Let a runtime call this hook", "the hook has work to do"
    nodes, numbers = list_device_numbers(shim), list_allowed_numbers(shim)
    edits, host = plan["edits"], str(ways.hosts[request.host])
    assert {e["path"]: (e["major"], e["minor"]) for e in edits if e["kind"] == "device"} == nodes
    assert {(e["major"], e["minor"]) for e in edits if e["kind"] == "rule"} == set(numbers)
    added = {m["destination"]: m["source"] for m in shim["mounts"] if m not in asked["mounts"]}
    planned = {e["destination"]: e["source"] for e in edits if e["kind"] == "mount"}
    assert planned.items() <= added.items()
    assert {place for place, source in added.items() if source.startswith(f"{host}/")} <= planned.keys()

    names = list_cdi_names(request, plan["gpus"])
    if names:
        sources, paths = ways.resolve(request, names)
        bound = {place for place, source in added.items() if source.startswith(f"{host}/dev/")}
        assert paths == (set(nodes) or bound)
        assert select_libraries(added) == select_libraries(sources)


def select_libraries(mounts: dict[str, str]) -> dict[str, str]:
    """Return the mounts of 64-bit driver libraries: path in the container to path on the host."""
    return {place: source for place, source in mounts.items() if place.startswith(f"{DRIVER_LIBRARY_DIR}/")}
