"""Which libcuda a container really loads, at the start and after ldconfig, is the one that `explain` names.

tests/e2e/loader-matrix has every layout of an image in every situation; here is every situation in one layout, and the
other layouts in a few.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_oci_hook.simulate import host_tree
from support.e2e import machine
from support.e2e.host import InstalledRuntime
from support.e2e.images import TRIPLE
from support.e2e.loader_cells import COMPAT, DRIVER, FAR, LAYOUTS, NEWER, OLDER, SITUATIONS, LoaderLab
from support.e2e.requirements import require_programs

HOST = f"/usr/local/nvidia/lib64/libcuda.so.{DRIVER}"
NEWER_COMPAT, OLDER_COMPAT = f"{COMPAT}/libcuda.so.{NEWER}", f"{COMPAT}/libcuda.so.{OLDER}"
# Situation, kind of GPU -> what is loaded at the start, and after ldconfig.
EXPECTED = {
    ("nothing", "desktop"): (HOST, HOST),
    ("cuda_image_compat", "data-centre"): (NEWER_COMPAT, NEWER_COMPAT),
    ("cuda_image_compat", "desktop"): (HOST, HOST),
    ("compat_drop_in", "data-centre"): (NEWER_COMPAT, NEWER_COMPAT),
    ("compat_drop_in", "desktop"): (HOST, HOST),
    ("older_compat_drop_in", "data-centre"): (HOST, HOST),
    ("compat_search_path", "desktop"): (NEWER_COMPAT, NEWER_COMPAT),
    ("older_compat_search_path", "data-centre"): (OLDER_COMPAT, OLDER_COMPAT),
    ("conda_search_path", "desktop"): (f"/opt/conda/lib/libcuda.so.{OLDER}",) * 2,
    ("conda_conf", "desktop"): (HOST, HOST),
    ("conda_include", "desktop"): (HOST, HOST),
    ("stub_search_path", "desktop"): (HOST, "/usr/local/cuda/lib64/stubs/libcuda.so"),
    ("stub_conf", "desktop"): (HOST, HOST),
    ("second_driver", "desktop"): (HOST, HOST),
    ("second_driver_search_path", "desktop"): (f"/opt/drivers/libcuda.so.{OLDER}",) * 2,
}
# The wanted library is loaded at any time, so nothing is said.
QUIET = {key for key, files in EXPECTED.items() if set(files) <= {HOST}} | {
    ("cuda_image_compat", "data-centre"),
    ("compat_drop_in", "data-centre"),
}


@pytest.fixture(scope="module")
def lab(workspace: Path, runtime: InstalledRuntime) -> Iterator[LoaderLab]:
    """Images, hosts and bundles."""
    require_programs("runc", "gcc", "busybox", "musl-gcc")
    directory = workspace / "loader"
    directory.mkdir()
    yield LoaderLab(directory, runtime)
    machine.remove_tree(directory)


@pytest.mark.parametrize(("situation", "gpu"), EXPECTED)
def test_explain_names_the_libcuda_that_dlopen_loads(lab: LoaderLab, situation: str, gpu: str) -> None:
    result = lab.run_cell("debian", situation, gpu)
    assert (result.loaded, result.loaded_later) == EXPECTED[situation, gpu]
    assert (result.named, result.named_later) == EXPECTED[situation, gpu]
    assert result.ldconfig_text == ""
    said = [text for text in result.warnings if "programs load" in text and "libcuda" in text and "and not" in text]
    assert bool(said) == ((situation, gpu) not in QUIET), result.warnings


def test_every_situation_is_here() -> None:
    assert {situation for situation, _ in EXPECTED} == set(SITUATIONS)


@pytest.mark.parametrize(
    ("situation", "gpu"),
    [
        ("nothing", "desktop"), ("cuda_image_compat", "desktop"), ("cuda_image_compat", "data-centre"),
        ("compat_drop_in", "data-centre"),
        ("older_compat_drop_in", "data-centre"), ("conda_include", "desktop"), ("stub_conf", "desktop"),
        ("second_driver", "desktop"), ("second_driver_search_path", "desktop"),
    ],
)  # fmt: skip
def test_the_hook_of_a_cdi_file_leaves_the_same_order(lab: LoaderLab, situation: str, gpu: str) -> None:
    assert lab.run_hook_cell("debian", situation, gpu) == EXPECTED[situation, gpu]


def test_32_bit_libraries_of_a_cdi_file_do_not_stop_musl(lab: LoaderLab) -> None:
    """LD_LIBRARY_PATH of CUDA images names the directory of 32-bit libraries first."""
    assert lab.run_hook_cell("alpine", "cuda_image_compat", "desktop") == (HOST, HOST)


@pytest.mark.parametrize("situation", ["older_compat_drop_in", "second_driver_search_path"])
@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "debian"])
def test_so_it_is_in_images_of_other_distributions(lab: LoaderLab, layout: str, situation: str) -> None:
    result = lab.run_cell(layout, situation, "data-centre")
    assert result.agrees, result
    if situation == "older_compat_drop_in":
        assert (result.loaded, result.loaded_later) == (HOST, HOST)
    else:
        version = FAR if layout == "alpine" else OLDER  # musl has no ldconfig that would change the link
        assert result.loaded_later == f"/opt/drivers/libcuda.so.{version}"


def test_the_other_libraries_of_a_compat_package_go_with_its_libcuda(lab: LoaderLab) -> None:
    """The CUDA image's LD_LIBRARY_PATH leads to our directory, in which the names lead to the compat libraries."""
    root = lab.build_root("debian", "cuda_image_compat")
    compat = root.path / COMPAT[1:]
    for name in ("libcudadebugger.so.1", "libnvidia-ptxjitcompiler.so.1"):
        shutil.copy2(root.library, compat / f"{name[:-2]}.{NEWER}")
        (compat / name).symlink_to(f"{name[:-2]}.{NEWER}")
    names = ("libcuda.so.1", "libcuda.so", "libnvidia-ptxjitcompiler.so.1", "libnvidia-ml.so.1")
    answers = [lab.load_names(root, lab.get_host("data-centre"), [name])[0] for name in names]
    compat_jit = f"{COMPAT}/libnvidia-ptxjitcompiler.so.{NEWER}"
    nvml = f"/usr/local/nvidia/lib64/libnvidia-ml.so.{DRIVER}"
    assert answers == [NEWER_COMPAT, NEWER_COMPAT, compat_jit, nvml]


@pytest.mark.parametrize("way", ["shim", "hook"])
def test_libraries_in_a_directory_that_a_board_mounts_as_a_whole_are_found(lab: LoaderLab, way: str) -> None:
    host = lab.directory / "board"
    if not host.exists():
        host_tree.build_host(host, layout="jetson", arch=os.uname().machine)
        directory = f"/usr/lib/{TRIPLE}/nvidia"
        lists = host / "etc/nvidia-container-runtime/host-files-for-container.d"
        (lists / "devices.csv").write_text((lists / "devices.csv").read_text() + f"dir, {directory}\n")
    root = lab.build_root("debian", "nothing")
    names = ["libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1"]
    if way == "shim":
        found = [lab.load_names(root, host, [name])[0] for name in names]
    else:
        found = [lab.run_with_hook(root, host, ["/loaded", name])[0] for name in names]
    assert [path.rpartition("/")[0] for path in found] == [f"/usr/lib/{TRIPLE}/nvidia"] * len(names), found
