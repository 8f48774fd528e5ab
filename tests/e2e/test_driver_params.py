"""The one hook that is left, run by real runtimes: a file of ours over one below the container's /proc.

No machine of the tests has NVIDIA's module, so /proc/version stands in for its parameters.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_oci_hook.container import rootfs_edits, spec_edits
from gpu_oci_hook.files.rootfs import Rootfs
from gpu_oci_hook.model.edits import Plan
from gpu_oci_hook.plan import build
from support.e2e import machine
from support.e2e.engines import BareRuntime, ContainerRequest, EngineHome
from support.e2e.requirements import require_programs
from support.plan_input import make_plan_input

SHOW = "cat /proc/version; echo x >> /proc/version || echo closed; grep -c ' /proc/version ' /proc/self/mountinfo"


@pytest.fixture(scope="module", params=["runc", "crun"])
def bare_runtime(request: pytest.FixtureRequest, workspace: Path, image: Path) -> Iterator[BareRuntime]:
    require_programs(request.param)
    engine = BareRuntime(request.param, "v1", "run")
    directory = workspace / f"params-test-{request.param}"
    directory.mkdir()
    engine.start(EngineHome(directory, image, lambda name: Path(machine.find_program(name))))
    yield engine
    engine.stop()


@pytest.mark.parametrize("remapped", [False, True], ids=["plain", "user namespace"])
def test_the_container_sees_our_parameters_and_cannot_change_them(
    bare_runtime: BareRuntime, remapped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "DRIVER_PARAMS", "/proc/version")
    bundle = bare_runtime.bundle(ContainerRequest(["/bin/sh", "-c", SHOW]))
    spec = json.loads((bundle / "config.json").read_text())
    if remapped:
        spec["linux"]["namespaces"].append({"type": "user"})
        whole = [{"containerID": 0, "hostID": 0, "size": 65536}]
        spec["linux"] |= {"uidMappings": whole, "gidMappings": whole}
    made = make_plan_input("none", spec=spec)
    container = made.container
    container.spec = spec
    container.driver_params = b"A: 1\nModifyDeviceFiles: 1\n"
    container.rootfs_path, container.generated_dir = f"{bundle}/rootfs", f"{bundle}/params-test"
    plan = Plan()
    build._mask_driver_params(made, plan)
    assert [edit.kind for edit in plan.edits] == ["file", "hook"]
    with Rootfs(container.rootfs_path) as rootfs:
        rootfs_edits.apply_to_rootfs(rootfs, plan.edits, container.generated_dir)
    spec_edits.apply_to_spec(spec, plan.edits)
    (bundle / "config.json").write_text(json.dumps(spec))
    done = bare_runtime.start_bundle(bundle).check()
    lines = done.stdout.splitlines()
    assert lines[:2] == ["A: 1", "ModifyDeviceFiles: 0"]
    assert lines[-1] == "1"
    if not remapped:
        assert "closed" in lines
        assert (bundle / "params-test/proc-version").read_bytes() == b"A: 1\nModifyDeviceFiles: 0\n"
