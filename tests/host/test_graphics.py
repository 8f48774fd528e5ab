"""DRM nodes out of sysfs: exactly a GPU's own, whatever else lies there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpu_oci_hook.host.optional import graphics
from gpu_oci_hook.host.root import Host
from gpu_oci_hook.model.machine import Gpu
from gpu_oci_hook.model.optional_devices import OptionalItems

GPU = Gpu(index=0, uuid="GPU-0", pci="0000:01:00.0", minor=3, model="x")
OTHER = Gpu(index=1, uuid="GPU-1", pci="0000:02:00.0", minor=0, model="x")


@pytest.fixture
def drm(tmp_path: Path) -> Path:
    directory = tmp_path / "sys/bus/pci/devices/0000:01:00.0/drm"
    for name, numbers in (("card5", "226:5\n"), ("renderD133", "226:133\n")):
        (directory / name).mkdir(parents=True)
        (directory / name / "dev").write_text(numbers)
    return directory


def filled(root: Path, chosen: list[Gpu], problems: list[str] | None = None) -> OptionalItems:
    extra = OptionalItems()
    graphics.add_graphics_items(extra, Host(str(root)), chosen, [GPU, OTHER], [] if problems is None else problems)
    return extra


def test_numbers_come_from_the_kernel_and_names_by_path_from_the_address(drm: Path, tmp_path: Path) -> None:
    extra = filled(tmp_path, [GPU])
    assert [(node.path, node.major, node.minor) for node, _ in extra.best_effort_nodes] == [
        ("/dev/dri/card5", 226, 5),
        ("/dev/dri/renderD133", 226, 133),
    ]
    assert [(path, target) for path, target, _ in extra.links] == [
        ("/dev/dri/by-path/pci-0000:01:00.0-card", "../card5"),
        ("/dev/dri/by-path/pci-0000:01:00.0-render", "../renderD133"),
    ]


def test_a_number_that_differs_from_the_name_counts(drm: Path, tmp_path: Path) -> None:
    (drm / "card5/dev").write_text("226:200\n")
    assert filled(tmp_path, [GPU]).best_effort_nodes[0][0].minor == 200


@pytest.mark.parametrize("name", ["controlD64", "card", "card-1", "cardx", "card5-DP-1", "renderD", "version", "card٣"])
def test_what_is_no_card_and_no_render_node_is_passed_over(drm: Path, tmp_path: Path, name: str) -> None:
    (drm / name).mkdir()
    (drm / name / "dev").write_text("226:9\n")
    assert len(filled(tmp_path, [GPU]).best_effort_nodes) == 2


@pytest.mark.parametrize(
    "text", ["", "5\n", "195:0\n", "226:x\n", "226:-1\n", "226:99999999\n", "x" * 100, "\xff:\xff"]
)
def test_numbers_that_make_no_sense_are_withheld_with_the_file(drm: Path, tmp_path: Path, text: str) -> None:
    (drm / "card5/dev").write_text(text, encoding="latin-1")
    extra = filled(tmp_path, [GPU])
    assert [node.path for node, _ in extra.best_effort_nodes] == ["/dev/dri/renderD133"]
    assert "card5/dev" in extra.withheld[0][2]


def test_a_fifo_in_the_place_of_the_numbers_blocks_nothing(drm: Path, tmp_path: Path) -> None:
    (drm / "card5/dev").unlink()
    os.mkfifo(drm / "card5/dev")
    assert len(filled(tmp_path, [GPU]).best_effort_nodes) == 1


def test_a_gpu_without_drm_says_which_module_is_missing(drm: Path, tmp_path: Path) -> None:
    extra = filled(tmp_path, [OTHER])
    assert extra.best_effort_nodes == [] and "nvidia_drm" in extra.withheld[0][2]


def test_a_stale_node_is_a_problem_with_a_hint(drm: Path, tmp_path: Path) -> None:
    (tmp_path / "dev/dri").mkdir(parents=True)
    (tmp_path / "dev/dri/card5").write_text("")
    problems: list[str] = []
    (node, _), _ = filled(tmp_path, [GPU], problems).best_effort_nodes
    assert (node.exists, node.mode) == (False, 0o660)
    assert "not a character device" in problems[0]


def test_the_profile_has_a_bit_for_each_minor(drm: Path, tmp_path: Path) -> None:
    ((path, content, _, always),) = filled(tmp_path, [GPU]).generated_files
    assert (path, always) == (graphics.EGL_PROFILE_PATH, True)
    assert b'"EGLVisibleDGPUDevices", 0x8]' in content
    ((_, content, _, always),) = filled(tmp_path, [GPU, OTHER]).generated_files
    assert b"0x9]" in content and not always
    assert filled(tmp_path, []).generated_files == []


def test_a_gpu_without_a_minor_is_in_no_profile(tmp_path: Path) -> None:
    board = Gpu(index=0, uuid="", pci="", minor=-1, model="an integrated one")
    assert filled(tmp_path, [board]).generated_files == []
