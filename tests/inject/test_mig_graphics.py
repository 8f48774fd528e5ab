"""MIG devices of a profile with graphics get their GPU's DRM nodes; NVML is asked only where that can be."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_oci_hook.files import state_dir
from gpu_oci_hook.inject import pipeline
from gpu_oci_hook.model.edits import AddDeviceNode
from gpu_oci_hook.model.outcome import Outcome
from gpu_oci_hook.simulate import host_tree
from support.bundles import container_spec, host_config, make_bundle, skip_or_fail
from support.nvml_double import NvmlDouble, find_compiler

pytestmark = pytest.mark.usefixtures("isolated_state")

RTX = "NVIDIA RTX PRO 6000 Blackwell Server Edition"


def build(root: Path, model: str = RTX, mode: str = "gfx") -> NvmlDouble:
    """Build a host with a GPU in seven parts, of which NVML gives the first one, of GPU instance 7, graphics."""
    if not find_compiler():
        skip_or_fail("NVML's answers; there is no C compiler for its double")
    double = NvmlDouble(host_tree.build_host(root, gpus=1, model=model, mig=["7"]))
    double.set_mode(mode)
    return double


def plan(double: NvmlDouble, bundle: Path, asked: str, capabilities: str = "graphics") -> Outcome:
    """Plan a container that requests these MIG devices."""
    spec = container_spec(f"NVIDIA_VISIBLE_DEVICES={asked}", f"NVIDIA_DRIVER_CAPABILITIES={capabilities}")
    config = host_config(double.report.directory)
    return pipeline.prepare_injection(spec, config, str(make_bundle(bundle, spec)), state_dir.StateCache())


def drm_nodes(outcome: Outcome) -> set[str]:
    """The DRM nodes that a plan injects."""
    return {edit.path for edit in outcome.plan.edits if isinstance(edit, AddDeviceNode) and "/dri/" in edit.path}


def test_a_device_with_graphics_gets_the_drm_nodes_of_its_gpu(tmp_path: Path) -> None:
    double = build(tmp_path / "host")
    assert drm_nodes(plan(double, tmp_path / "a", "0:0")) == {"/dev/dri/card1", "/dev/dri/renderD128"}
    assert drm_nodes(plan(double, tmp_path / "b", "0:1")) == set()
    assert drm_nodes(plan(double, tmp_path / "c", "all")) == {"/dev/dri/card1", "/dev/dri/renderD128"}
    assert double.call_count == 1, "the answer is kept"


@pytest.mark.parametrize(
    ("model", "capabilities"),
    [(RTX, "compute,utility"), ("NVIDIA A100-SXM4-40GB", "graphics")],
    ids=["compute", "A100"],
)
def test_nvml_is_not_asked_where_no_device_can_draw(tmp_path: Path, model: str, capabilities: str) -> None:
    double = build(tmp_path / "host", model)
    assert drm_nodes(plan(double, tmp_path / "a", "0:0", capabilities)) == set()
    assert double.call_count == 0


def test_an_nvml_that_fails_withholds_the_nodes_and_says_so(tmp_path: Path) -> None:
    outcome = plan(build(tmp_path / "host", mode="crash"), tmp_path / "a", "0:0")
    assert drm_nodes(outcome) == set()
    (reason,) = [item.reason for item in outcome.plan.withheld if item.name == "DRM nodes of MIG device 0:0"]
    assert "only NVML knows whether MIG device 0:0 can draw" in reason and "crashed" in reason
    assert any(reason in text for text in outcome.plan.warnings)
