"""What the host does not have now, so that a file for later must not promise it."""

from __future__ import annotations

import pytest

from gpu_oci_hook.generate import missing_nodes
from gpu_oci_hook.model.plan_input import PlanInput
from gpu_oci_hook.request.capabilities import add_implied_capabilities
from support.plan_input import CONTROL_NODES, make_node, make_plan_input

UVM = make_node("/dev/nvidia-uvm", 510, 0, exists=False)


def control(made: PlanInput) -> list[missing_nodes.MissingNode]:
    return missing_nodes.extract_missing_control_nodes(made, add_implied_capabilities(made.request.capabilities))


def test_where_all_nodes_are_there_nothing_is_missing() -> None:
    made = make_plan_input(capabilities="all")
    assert control(made) == [] and missing_nodes.extract_missing_device_nodes(made, "GPU 0") == []
    assert made.control_nodes == list(CONTROL_NODES)


@pytest.mark.parametrize("capabilities, required", [("compute", [UVM.path]), ("video", [UVM.path]), ("utility", [])])
def test_a_node_is_missing_only_for_what_is_wanted(capabilities: str, required: list[str]) -> None:
    made = make_plan_input(capabilities=capabilities)
    made.control_nodes = [("", CONTROL_NODES[0][1]), ("compute", UVM)]
    found = control(made)
    assert [one.path for one in found if one.required] == required
    # What is missing is taken out, and what nobody wants stays to be withheld as ever.
    assert (UVM in [one for _, one in made.control_nodes]) == (not required)


def test_a_module_that_is_not_loaded_makes_its_node_missing_and_not_an_error() -> None:
    made = make_plan_input(capabilities="compute")
    display = ("display", "/dev/nvidia-modeset", "nvidia-modeset", "")
    made.absent_control_nodes = [("compute", "/dev/nvidia-uvm", "nvidia-uvm", ""), display]
    (one,) = control(made)
    assert str(one) == (
        "/dev/nvidia-uvm is required for compute, and the host has no such node (module nvidia_uvm loaded: no, from "
        "/proc/devices)"
    )
    assert made.absent_control_nodes == [display]


def test_a_display_is_not_required() -> None:
    made = make_plan_input(capabilities="display")
    made.control_nodes = [("display", make_node("/dev/nvidia-modeset", 195, 254, exists=False))]
    (one,) = control(made)
    assert not one.required and str(one) == (
        "/dev/nvidia-modeset is left out: it is for display, and the host has no node 195:254 there (module "
        "nvidia_modeset loaded: yes, from /proc/devices major 195)"
    )


def test_what_a_device_cannot_do_without_is_told_from_what_it_can() -> None:
    made = make_plan_input("0")
    made.gpu_nodes = {1: make_node("/dev/nvidia1", 195, 1, exists=False)}
    made.optional_items.nodes = [(make_node("/dev/nvidia-caps/nvidia-cap12", 235, 12, exists=False), "why")]
    made.optional_items.best_effort_nodes = [
        (make_node("/dev/dri/card1", 226, 1, exists=False), "why"), (make_node("/dev/dri/card2", 226, 2), "why"),
    ]  # fmt: skip
    found = missing_nodes.extract_missing_device_nodes(made, "GPU 0")
    assert [(one.path, one.required) for one in found] == [
        ("/dev/nvidia1", True), ("/dev/nvidia-caps/nvidia-cap12", True), ("/dev/dri/card1", False),
    ]  # fmt: skip
    assert [one.path for one, _ in made.optional_items.best_effort_nodes] == ["/dev/dri/card2"]
