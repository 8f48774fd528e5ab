"""Machines that are no desktop, the whole way: WSL2 and Jetson boards.

Their nodes have to be real ones, which only root can make.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gpu_oci_hook.config.keys import Config
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.files import state_dir
from gpu_oci_hook.formats import elf_builder, ldcache
from gpu_oci_hook.inject import pipeline
from gpu_oci_hook.model.outcome import Outcome
from gpu_oci_hook.simulate import boards, host_tree
from support.bundles import (
    DEV,
    IMAGE_LIBRARY_DIR,
    PROC,
    Spec,
    container_spec,
    host_config,
    inject_in_process,
    list_allowed_numbers,
    list_device_numbers,
    list_mount_destinations,
    make_bundle,
    read_spec,
    snapshot_tree,
)

pytestmark = [
    pytest.mark.usefixtures("isolated_state"),
    pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root can make device nodes"),
]

ALL, NONE = "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES=none"
STORE, OTHER = boards.NVIDIA_STORE, boards.INTEL_STORE
TEGRA = f"{IMAGE_LIBRARY_DIR}/nvidia"


@pytest.fixture
def wsl(tmp_path: Path) -> Path:
    host_tree.build_host(tmp_path / "wsl", layout="wsl", arch="x86_64")
    return tmp_path / "wsl"


@pytest.fixture
def orin(tmp_path: Path) -> Path:
    host_tree.build_host(tmp_path / "orin", layout="jetson", arch="x86_64")
    return tmp_path / "orin"


@pytest.fixture
def thor(tmp_path: Path) -> Path:
    """A Thor with a discrete GPU beside it."""
    host_tree.build_host(tmp_path / "thor", layout="jetson", gpus=2, driver="580.95.05", arch="x86_64")
    return tmp_path / "thor"


def prepared(made: Path, config: Config) -> Outcome:
    return pipeline.prepare_injection(
        json.loads((made / "config.json").read_text()), config, str(made), state_dir.StateCache()
    )


def withheld(outcome: Outcome) -> dict[str, str]:
    return {one.name: one.reason for one in outcome.plan.withheld}


def cached(made: Path) -> dict[str, str]:
    entries = ldcache.parse_ld_cache((made / "rootfs/etc/ld.so.cache").read_bytes()).entries
    return {entry.name: entry.path for entry in entries}


def refused(made: Path, config: Config) -> str:
    before = snapshot_tree(made)
    with pytest.raises(Fault) as caught:
        inject_in_process(made, config)
    assert snapshot_tree(made) == before, "a refused container was changed"
    return str(caught.value)


# --- WSL2 -------------------------------------------------------------------------------------------


def test_a_container_on_windows_gets_the_node_libdxcore_and_the_store_that_has_libcuda(
    wsl: Path, tmp_path: Path
) -> None:
    made = make_bundle(tmp_path / "b", container_spec(ALL, mounts=[PROC]))
    after = inject_in_process(made, host_config(wsl))
    assert list_device_numbers(after) == {"/dev/dxg": (10, 125)}
    assert list_allowed_numbers(after) == [(10, 125)]
    names = (
        "libcuda.so.1.1", "libcuda_loader.so", "libnvidia-ptxjitcompiler.so.1", "libnvidia-ml.so.1",
        "libnvidia-ml_loader.so", "libnvdxgdmal.so.1", "libnvidia-encode.so.1", "nvcubins.bin", "nvoptix.bin",
        "nvcuda64.dll", "nvidia-smi",
    )  # fmt: skip
    assert set(list_mount_destinations(after)) == {
        "/proc",
        "/usr/lib/wsl/lib/libdxcore.so",
        *(f"{STORE}/{n}" for n in names),
    }
    for mount in after["mounts"][1:]:
        assert mount["source"] == f"{wsl}{mount['destination']}"
        assert "ro" in mount["options"] and "noexec" not in mount["options"]
    assert "hooks" not in after
    assert os.readlink(made / "rootfs/usr/bin/nvidia-smi") == f"{STORE}/nvidia-smi"


def test_the_loader_finds_the_stores_libraries_by_their_sonames(wsl: Path, tmp_path: Path) -> None:
    made = make_bundle(tmp_path / "b", container_spec(ALL))
    inject_in_process(made, host_config(wsl))
    found = cached(made)
    assert found["libcuda.so.1"] == found["libcuda.so"] == f"{STORE}/libcuda.so.1.1"
    assert found["libdxcore.so"] == "/usr/lib/wsl/lib/libdxcore.so"
    drop_in = (made / "rootfs/etc/ld.so.conf.d/00-gpu-oci-hook.conf").read_text()
    assert STORE in drop_in and "/usr/lib/wsl/lib" in drop_in
    assert os.readlink(made / f"rootfs{STORE}/libcuda.so.1") == "libcuda.so.1.1"
    assert os.readlink(made / f"rootfs{IMAGE_LIBRARY_DIR}/libcuda.so.1") == f"{STORE}/libcuda.so.1.1"


def test_libcuda_comes_before_its_loader_of_the_same_soname(wsl: Path, tmp_path: Path) -> None:
    (wsl / STORE[1:] / "libcuda_loader.so").write_bytes(elf_builder.build_shared_object(soname="libcuda.so.1"))
    (wsl / STORE[1:] / "lib0.so").write_bytes(elf_builder.build_shared_object(soname="libcuda.so.1"))
    made = make_bundle(tmp_path / "b", container_spec(ALL))
    inject_in_process(made, host_config(wsl))
    assert cached(made)["libcuda.so.1"] == f"{STORE}/libcuda.so.1.1"


def test_a_store_without_libcuda_is_named_with_the_reason(wsl: Path, tmp_path: Path) -> None:
    outcome = prepared(make_bundle(tmp_path / "b", container_spec(ALL)), host_config(wsl))
    assert withheld(outcome)[OTHER] == "it has no libcuda.so.1.1"
    assert outcome.plan.warnings == []


def test_of_two_stores_with_libcuda_the_newer_counts_and_that_is_said(wsl: Path, tmp_path: Path) -> None:
    old = "/usr/lib/wsl/drivers/nv_old"
    (wsl / old[1:]).mkdir()
    (wsl / old[1:] / "libcuda.so.1.1").write_bytes(elf_builder.build_shared_object(soname="libcuda.so.1"))
    os.utime(wsl / old[1:] / "libcuda.so.1.1", (1, 1))
    made = make_bundle(tmp_path / "b", container_spec(ALL))
    outcome = prepared(made, host_config(wsl))
    assert withheld(outcome)[old] == f"it has a libcuda.so.1.1, but {STORE} has a newer one"
    assert [text for text in outcome.plan.warnings if old in text and "library-paths" in text]
    outcome = prepared(made, host_config(wsl, library_paths=(old,)))
    assert f"{old}/libcuda.so.1.1" in [edit.describe().split()[0] for edit in outcome.plan.edits]
    assert outcome.plan.warnings == []


def test_an_empty_libcuda_makes_no_store(wsl: Path, tmp_path: Path) -> None:
    (wsl / STORE[1:] / "libcuda.so.1.1").write_bytes(b"")
    text = refused(make_bundle(tmp_path / "b", container_spec(ALL)), host_config(wsl))
    assert f"{STORE}: its libcuda.so.1.1 is empty" in text and f"{OTHER}: it has no libcuda.so.1.1" in text
    assert "Install NVIDIA's driver in Windows" in text


def test_without_libdxcore_nothing_starts(wsl: Path, tmp_path: Path) -> None:
    (wsl / "usr/lib/wsl/lib/libdxcore.so").unlink()
    assert "libdxcore.so is missing" in refused(make_bundle(tmp_path / "b", container_spec(ALL)), host_config(wsl))


@pytest.mark.parametrize(
    ("directory", "env", "wins", "reason"),
    [
        ("cuda-13.2/compat_orin", "", True, "compat for CUDA 13.2 is newer than the board's CUDA 12.6"),
        ("cuda-12.8/compat", "", True, "compat for CUDA 12.8 is newer"),
        ("cuda-12.6/compat_orin", "", False, "compat for CUDA 12.6 is not newer than the board's CUDA 12.6"),
        ("cuda-12.10/compat", "", True, "CUDA 12.10"),
        ("cuda/compat_orin", "CUDA_VERSION=13.0.1", True, "CUDA 13.0"),
        ("cuda/compat_orin", "", False, "CUDA version of /usr/local/cuda/compat_orin is unknown"),
    ],
)
def test_compat_libraries_for_a_board_are_judged_by_their_directorys_cuda_version(
    orin: Path, tmp_path: Path, directory: str, env: str, wins: bool, reason: str
) -> None:
    words = [env, "NVIDIA_DISABLE_REQUIRE=1"] if env else []
    made = make_bundle(tmp_path / "bundle", container_spec(ALL, *words))
    place = made / f"rootfs/usr/local/{directory}"
    place.mkdir(parents=True)
    (place / "libcuda.so.1.1").write_bytes(elf_builder.build_shared_object(soname="libcuda.so.1"))
    (place / "libcuda.so.1").symlink_to("libcuda.so.1.1")
    if not directory.startswith("cuda/"):
        (made / "rootfs/usr/local/cuda").symlink_to(directory.partition("/")[0])
    outcome = prepared(made, host_config(orin))
    texts = [*withheld(outcome).values(), *[edit.reason for edit in outcome.plan.edits]]
    assert any(reason in text for text in texts), texts
    assert outcome.plan.find_libcuda is not None
    choice = outcome.plan.find_libcuda()
    assert choice.at_start is not None and choice.at_start.owner == ("image" if wins else "host")
    inject_in_process(made, host_config(orin))
    assert (cached(made)["libcuda.so.1"] == f"/usr/local/{directory}/libcuda.so.1") == wins


@pytest.mark.parametrize("word", ["0", "all", "0,all", "0-0"])
def test_windows_knows_no_choice_among_gpus(wsl: Path, tmp_path: Path, word: str) -> None:
    after = inject_in_process(
        make_bundle(tmp_path / "b", container_spec(f"NVIDIA_VISIBLE_DEVICES={word}")), host_config(wsl)
    )
    assert list_device_numbers(after) == {"/dev/dxg": (10, 125)}


@pytest.mark.parametrize("word", ["1", "GPU-44b97862", "0000:01:00.0"])
def test_an_unknown_gpu_on_windows_fails_with_the_valid_ones(wsl: Path, tmp_path: Path, word: str) -> None:
    text = refused(make_bundle(tmp_path / "b", container_spec(f"NVIDIA_VISIBLE_DEVICES={word}")), host_config(wsl))
    assert "there is no GPU" in text and word in text and "This host has GPU 0 (all GPUs that Windows shows)" in text


def test_none_gives_the_stores_files_and_no_node(wsl: Path, tmp_path: Path) -> None:
    after = inject_in_process(make_bundle(tmp_path / "b", container_spec(NONE)), host_config(wsl))
    assert list_device_numbers(after) == {} and list_allowed_numbers(after) == []
    assert f"{STORE}/libcuda.so.1.1" in list_mount_destinations(after)


def test_a_user_namespace_has_the_node_bound(wsl: Path, tmp_path: Path) -> None:
    linux = {"namespaces": [{"type": "user"}, {"type": "mount"}]}
    after = inject_in_process(make_bundle(tmp_path / "b", container_spec(ALL, linux=linux)), host_config(wsl))
    assert list_device_numbers(after) == {}
    assert "/dev/dxg" in list_mount_destinations(after)


def test_a_requirement_that_windows_cannot_decide_is_skipped_and_said(wsl: Path, tmp_path: Path) -> None:
    made = make_bundle(tmp_path / "b", container_spec(ALL, "NVIDIA_REQUIRE_CUDA=cuda>=12.4 brand=tesla,driver>=535"))
    outcome = prepared(made, host_config(wsl))
    assert outcome.plan.state == "inject"
    (text,) = (text for text in outcome.plan.warnings if "are not checked" in text)
    assert "cuda" in text and "platform wsl does not provide them" in text


def test_the_images_newer_libcuda_is_not_weighed_where_no_version_is_known(wsl: Path, tmp_path: Path) -> None:
    made = make_bundle(tmp_path / "b", container_spec(ALL))
    compat = made / "rootfs/usr/local/cuda/compat"
    compat.mkdir(parents=True)
    (compat / "libcuda.so.560.35.03").write_bytes(b"x")
    found = withheld(prepared(made, host_config(wsl)))
    reason = "the host's driver version is unknown, so its own libcuda is used"
    assert found["/usr/local/cuda/compat/libcuda.so.560.35.03"] == reason


def test_a_forced_desktop_finds_no_gpu_on_windows(wsl: Path, tmp_path: Path) -> None:
    text = refused(make_bundle(tmp_path / "b", container_spec(ALL)), host_config(wsl, platform="desktop"))
    assert "this machine has no NVIDIA GPU for containers" in text


def test_a_forced_windows_without_its_node_is_refused(tmp_path: Path) -> None:
    host_tree.build_host(tmp_path / "wsl", layout="wsl", gpus=0)
    made = make_bundle(tmp_path / "b", container_spec(ALL))
    assert "no NVIDIA GPU" in refused(made, host_config(tmp_path / "wsl"))
    assert "/dev/dxg is not a device node" in refused(made, host_config(tmp_path / "wsl", platform="wsl"))


# --- Jetson ---------------------------------------------------------------------------------------------


def test_a_container_on_an_orin_gets_what_the_lists_name(orin: Path, tmp_path: Path) -> None:
    made = make_bundle(tmp_path / "b", container_spec(ALL, mounts=[PROC]))
    after = inject_in_process(made, host_config(orin))
    assert list_device_numbers(after) == {
        "/dev/nvmap": (503, 0),
        "/dev/nvhost-ctrl-gpu": (501, 0),
        "/dev/nvhost-gpu": (501, 1),
        "/dev/nvhost-as-gpu": (501, 2),
        "/dev/nvhost-prof-gpu": (501, 3),
        "/dev/nvgpu/igpu0/as": (502, 0),
        "/dev/nvgpu/igpu0/channel": (502, 1),
        "/dev/nvgpu/igpu0/ctrl": (502, 2),
        "/dev/nvgpu/igpu0/power": (502, 3),
    }
    assert sorted(list_allowed_numbers(after)) == sorted(list_device_numbers(after).values())
    assert after["process"]["user"]["additionalGids"] == [44]
    assert set(list_mount_destinations(after)) == {
        "/proc",
        "/etc/nv_tegra_release",
        "/usr/lib/firmware/tegra23x",
        f"{TEGRA}/nvidia_icd.json",
        *(f"{TEGRA}/{name}" for name in boards._TEGRA_LIBRARIES),
    }
    root = made / "rootfs"
    assert os.readlink(root / f"{TEGRA[1:]}/libcuda.so") == "libcuda.so.1.1"
    assert os.readlink(root / f"{TEGRA[1:]}/libcuda.so.1") == "libcuda.so.1.1"
    assert os.readlink(root / f"{IMAGE_LIBRARY_DIR[1:]}/libcuda.so") == "nvidia/libcuda.so", "as on the host"
    assert os.readlink(root / "etc/vulkan/icd.d/nvidia_icd.json") == f"{TEGRA}/nvidia_icd.json"
    assert cached(made)["libcuda.so.1"] == f"{TEGRA}/libcuda.so.1.1"


def test_every_line_that_gave_nothing_is_withheld_with_its_place(orin: Path, tmp_path: Path) -> None:
    outcome = prepared(make_bundle(tmp_path / "b", container_spec(ALL)), host_config(orin))
    found = withheld(outcome)
    assert found["dev, /dev/nvidiactl"] == "devices.csv:8: missing"
    assert found["dir, /usr/local/cuda-10.2"] == "l4t.csv:2: missing"
    reasons = {edit.reason for edit in outcome.plan.edits}
    assert "listed in drivers.csv:1" in reasons
    assert f"GPU 0: {ALL} (process.env[1]); listed in devices.csv:1" in reasons


def test_all_lists_count_when_the_image_asks_for_them(orin: Path, tmp_path: Path) -> None:
    made = make_bundle(tmp_path / "b", container_spec(ALL, "NVIDIA_REQUIRE_JETPACK=csv-mounts=all"))
    assert "/usr/src/jetson_multimedia_api" in list_mount_destinations(inject_in_process(made, host_config(orin)))
    some = make_bundle(tmp_path / "c", container_spec(ALL, "NVIDIA_REQUIRE_JETPACK=csv-mounts=some"))
    assert "/usr/src/jetson_multimedia_api" not in list_mount_destinations(inject_in_process(some, host_config(orin)))


def test_an_image_that_may_not_ask_does_not_choose_the_lists_either(orin: Path, tmp_path: Path) -> None:
    mounts = [{"source": "/dev/null", "destination": "/var/run/nvidia-container-devices/0"}]
    made = make_bundle(tmp_path / "b", container_spec("NVIDIA_REQUIRE_JETPACK=csv-mounts=all", mounts=mounts))
    outcome = pipeline.prepare_injection(
        read_spec(made), host_config(orin, env="never"), str(made), state_dir.StateCache()
    )
    assert not any("jetson_multimedia_api" in edit.describe() for edit in outcome.plan.edits)
    assert ("every CSV list", 'NVIDIA_REQUIRE_JETPACK=csv-mounts=all, but [request] env is "never"') in [
        (one.name, one.reason) for one in outcome.plan.withheld
    ]


def test_links_that_are_there_already_are_left_alone(orin: Path, tmp_path: Path) -> None:
    made = make_bundle(tmp_path / "b", container_spec(ALL))
    own = made / f"rootfs{IMAGE_LIBRARY_DIR}/libcuda.so"
    own.symlink_to("nvidia/libcuda.so")
    before = own.lstat().st_ino
    inject_in_process(made, host_config(orin))
    assert own.lstat().st_ino == before
    seen = snapshot_tree(made)
    inject_in_process(made, host_config(orin))
    assert snapshot_tree(made) == seen, "a second time changed something"


@pytest.mark.parametrize("name", ["wsl", "thor"])
def test_a_second_time_changes_nothing(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    host: Path = request.getfixturevalue(name)
    made = make_bundle(tmp_path / "b", container_spec(ALL, "NVIDIA_DRIVER_CAPABILITIES=all", mounts=[PROC, DEV]))
    inject_in_process(made, host_config(host))
    seen = snapshot_tree(made)
    inject_in_process(made, host_config(host))
    assert snapshot_tree(made) == seen


def test_a_whole_directory_with_links_and_libraries_in_it_stays_the_same(orin: Path, tmp_path: Path) -> None:
    lists = orin / boards.CSV_DIRECTORY[1:] / "drivers.csv"
    lists.write_text(f"dir, {TEGRA}\nlib, {TEGRA}/libcuda.so.1.1\nsym, {TEGRA}/libcuda.so\n")
    made = make_bundle(tmp_path / "b", container_spec(ALL))
    after = inject_in_process(made, host_config(orin))
    assert TEGRA in list_mount_destinations(after) and f"{TEGRA}/libcuda.so.1.1" not in list_mount_destinations(after)
    assert cached(made)["libcuda.so.1"] == f"{TEGRA}/libcuda.so.1.1"
    assert not (made / f"rootfs{TEGRA}").exists()
    seen = snapshot_tree(made)
    inject_in_process(made, host_config(orin))
    assert snapshot_tree(made) == seen


def test_a_board_without_a_node_is_refused(tmp_path: Path) -> None:
    host_tree.build_host(tmp_path / "h", layout="jetson", gpus=0)
    made = make_bundle(tmp_path / "b", container_spec(ALL))
    text = refused(made, host_config(tmp_path / "h"))
    assert "name no device node that exists" in text and boards.CSV_DIRECTORY in text and "gpu-oci-hook list" in text


def test_none_gives_the_lists_files_and_no_node(orin: Path, tmp_path: Path) -> None:
    after = inject_in_process(make_bundle(tmp_path / "b", container_spec(NONE)), host_config(orin))
    assert list_device_numbers(after) == {} and list_allowed_numbers(after) == []
    assert f"{TEGRA}/libcuda.so.1.1" in list_mount_destinations(after)


def test_ignored_links_are_not_made(orin: Path, tmp_path: Path) -> None:
    made = make_bundle(tmp_path / "b", container_spec(ALL))
    outcome = prepared(made, host_config(orin, csv_ignore=("**/nvidia_icd.json",)))
    assert withheld(outcome)["sym, /etc/vulkan/icd.d/nvidia_icd.json"] == "l4t.csv:1: ignored: [host] csv-ignore"
    inject_in_process(made, host_config(orin, csv_ignore=("**/nvidia_icd.json",)))
    assert not (made / "rootfs/etc/vulkan").exists()


def test_lists_lie_where_the_configuration_says(orin: Path, tmp_path: Path) -> None:
    (orin / "opt").mkdir()
    (orin / boards.CSV_DIRECTORY[1:]).rename(orin / "opt/lists")
    made = make_bundle(tmp_path / "b", container_spec(ALL))
    assert boards.CSV_DIRECTORY in refused(made, host_config(orin))
    assert "/dev/nvmap" in list_device_numbers(inject_in_process(made, host_config(orin, csv_directory="/opt/lists")))


@pytest.mark.parametrize("word", ["1", "GPU-44b97862", "0-1"])
def test_an_unknown_gpu_on_a_board_fails_with_the_valid_ones(orin: Path, tmp_path: Path, word: str) -> None:
    text = refused(make_bundle(tmp_path / "b", container_spec(f"NVIDIA_VISIBLE_DEVICES={word}")), host_config(orin))
    assert "This host has GPU 0 (NVIDIA Jetson AGX Orin Developer Kit)" in text


REQUIREMENTS = {
    "cuda>=12.2": "",
    "cuda>=12.7": "cuda 12.6",
    # An integrated GPU is no Tesla: the alternatives for those do not let a container in that needs more.
    "cuda>=12.7 brand=tesla,driver>=470": "cuda 12.6",
    "arch>=8.0,arch<9": "",
    "arch>=9.0": "arch 8.7",
    "brand!=tesla": "",
}


@pytest.mark.parametrize("expression", REQUIREMENTS)
def test_requirements_are_held_against_the_boards_release(orin: Path, tmp_path: Path, expression: str) -> None:
    made = make_bundle(tmp_path / "b", container_spec(ALL, f"NVIDIA_REQUIRE_CUDA={expression}"))
    if REQUIREMENTS[expression]:
        assert REQUIREMENTS[expression] in refused(made, host_config(orin))
    else:
        assert prepared(made, host_config(orin)).plan.warnings == []


def test_a_requirement_that_a_board_cannot_decide_is_skipped_and_said(orin: Path, tmp_path: Path) -> None:
    outcome = prepared(
        make_bundle(tmp_path / "b", container_spec(ALL, "NVIDIA_REQUIRE_DRIVER=driver>=535")), host_config(orin)
    )
    assert [text for text in outcome.plan.warnings if "driver are not checked: platform tegra" in text]


# --- an integrated and a discrete GPU ------------------------------------------------------------------------

CONTROL = {"/dev/nvidiactl": (195, 255), "/dev/nvidia-uvm": (510, 0), "/dev/nvidia-uvm-tools": (510, 1)}
MIXED: dict[str, tuple[dict[str, tuple[int, int]], set[str]]] = {
    # The lists' nodes without the discrete GPU's, with the third.
    "0": (
        {
            **CONTROL,
            "/dev/nvidia0": (195, 0),
            "/dev/nvidia2": (195, 2),
            "/dev/nvidia-modeset": (195, 254),
            "/dev/nvmap": (503, 0),
        },
        {"/dev/nvidia1"},
    ),
    # The ordinary way, and the lists' nodes that are no GPU's.
    "1": ({**CONTROL, "/dev/nvidia1": (195, 1), "/dev/nvmap": (503, 0)}, {"/dev/nvidia0", "/dev/nvidia2"}),
    "all": (
        {
            **CONTROL,
            "/dev/nvidia0": (195, 0),
            "/dev/nvidia1": (195, 1),
            "/dev/nvidia2": (195, 2),
            "/dev/nvidia-modeset": (195, 254),
            "/dev/nvmap": (503, 0),
        },
        set(),
    ),
}


@pytest.mark.parametrize("word", MIXED)
def test_a_board_with_a_discrete_gpu_gives_each_its_own_nodes(thor: Path, tmp_path: Path, word: str) -> None:
    nodes, absent = MIXED[word]
    made = make_bundle(tmp_path / "b", container_spec(f"NVIDIA_VISIBLE_DEVICES={word}"))
    after = inject_in_process(made, host_config(thor))
    assert list_device_numbers(after) == nodes
    assert sorted(list_allowed_numbers(after)) == sorted(nodes.values()), "each node once, with one rule"
    assert f"{TEGRA}/libcuda.so.1.1" in list_mount_destinations(after)
    said = "\n".join(withheld(prepared(made, host_config(thor))))
    for path in absent:
        assert path in said


def test_the_integrated_gpu_is_index_0(thor: Path, tmp_path: Path) -> None:
    outcome = prepared(make_bundle(tmp_path / "b", container_spec(ALL)), host_config(thor))
    assert [(gpu.index, gpu.model, gpu.minor) for gpu in outcome.gpus] == [
        (0, "NVIDIA Thor", 0),
        (1, "NVIDIA A100-SXM4-40GB", 1),
    ]


def test_a_discrete_gpu_of_a_board_brings_its_drivers_other_files(thor: Path, tmp_path: Path) -> None:
    more = thor / TEGRA[1:] / "libnvidia-opencl.so.580.95.05"
    more.write_bytes(elf_builder.build_shared_object(soname="libnvidia-opencl.so.1"))
    made = make_bundle(tmp_path / "b", container_spec("NVIDIA_VISIBLE_DEVICES=1"))
    after = inject_in_process(made, host_config(thor))
    assert "/usr/local/nvidia/lib64/libnvidia-opencl.so.580.95.05" in list_mount_destinations(after)
    assert sum("libcuda.so" in path for path in list_mount_destinations(after)) == 1
    only = inject_in_process(make_bundle(tmp_path / "c", container_spec("NVIDIA_VISIBLE_DEVICES=0")), host_config(thor))
    assert not [path for path in list_mount_destinations(only) if "opencl" in path]


def test_an_orin_with_a_discrete_gpu_has_its_own_gpu_first(orin: Path, tmp_path: Path) -> None:
    """Its GPU is not the module's: /proc has the discrete one alone."""
    write = orin / "proc/driver/nvidia/gpus/0005:01:00.0/information"
    write.parent.mkdir(parents=True)
    write.write_text("Model: \t\t NVIDIA RTX A6000\nGPU UUID: \t GPU-1234abcd\nDevice Minor: \t 0\n")
    (orin / "proc/driver/nvidia/version").write_text("NVRM version: NVIDIA UNIX aarch64 Kernel Module  550.163.01  x\n")
    table = orin / "proc/devices"
    table.chmod(0o644)
    table.write_text(table.read_text().replace(" 10 misc\n", " 10 misc\n195 nvidia\n510 nvidia-uvm\n"))
    outcome = prepared(
        make_bundle(tmp_path / "b", container_spec("NVIDIA_VISIBLE_DEVICES=GPU-1234")), host_config(orin)
    )
    assert [(gpu.index, gpu.minor) for gpu in outcome.gpus] == [(0, -1), (1, 0)]
    assert [gpu.index for gpu, _ in outcome.chosen_gpus] == [1]
    nodes = {edit.describe().split()[0] for edit in outcome.plan.edits if edit.kind == "device"}
    assert {"/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm"} <= nodes
    assert "NVIDIA Jetson AGX Orin Developer Kit (GPU 0)" in withheld(outcome)


def test_mig_words_are_refused_on_boards(thor: Path, tmp_path: Path) -> None:
    for word in ("0:0", "MIG-7b1f5a3e-0000-5000-8000-000000000000"):
        made = make_bundle(tmp_path / word[:2], container_spec(f"NVIDIA_VISIBLE_DEVICES={word}"))
        assert word in refused(made, host_config(thor))


def test_a_container_that_asks_for_nothing_is_not_touched_on_any_board(orin: Path, tmp_path: Path) -> None:
    made = make_bundle(tmp_path / "b", container_spec())
    before: Spec = read_spec(made)
    assert inject_in_process(made, host_config(orin)) == before
