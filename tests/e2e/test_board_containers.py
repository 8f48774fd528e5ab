"""WSL2 and Jetson boards with a real runtime: the probe opens their nodes, and the real loader loads their libcuda.

The simulated numbers belong to no driver of this machine: an allowed node answers ENXIO, or ENODEV where it is one of
the kernel's "misc" devices, as /dev/dxg is; a denied one EPERM.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_oci_hook.simulate import host_tree
from support.e2e.engines import BareRuntime, ContainerRequest, EngineHome
from support.e2e.host import InstalledRuntime
from support.e2e.requirements import require_programs

ALL = ["NVIDIA_VISIBLE_DEVICES=all"]
ORIN = {
    **{f"/dev/{name}": f"501:{minor}" for minor, name in enumerate(("nvhost-ctrl-gpu", "nvhost-gpu", "nvhost-as-gpu"))},
    "/dev/nvgpu/igpu0/ctrl": "502:2",
    "/dev/nvmap": "503:0",
}


class Board:
    """One simulated machine and the runtime by hand above it."""

    def __init__(self, layout: str, count: int, root: Path, image: Path, runtime: InstalledRuntime) -> None:
        host_tree.build_host(root / f"{layout}-{count}", layout=layout, gpus=count, driver="580.95.05")
        place = root / f"hand-{layout}-{count}"
        place.mkdir()
        self.hand = BareRuntime("runc", "v1", "create")
        self.hand.start(
            EngineHome(place, image, lambda low_level: runtime.wrapper(low_level, root / f"{layout}-{count}"))
        )

    def probe(
        self,
        env: list[str],
        *,
        nodes: list[str],
        make: tuple[str, ...] = (),
        libraries: tuple[str, ...] = (),
        user: int = 0,
    ) -> dict[str, dict[str, str]]:
        """What the probe answers in a container with this environment."""
        words = ["/probe"]
        for flag, values in (("--node", nodes), ("--make", make), ("--library", libraries)):
            for value in values:
                words += [flag, value]
        found: dict[str, dict[str, str]] = json.loads(
            self.hand.run(ContainerRequest(words, env, user=user)).check().stdout
        )
        return found


@pytest.fixture(scope="module")
def boards(workspace: Path, image: Path, runtime: InstalledRuntime) -> Iterator[dict[tuple[str, int], Board]]:
    require_programs("runc")
    root = workspace / "boards"
    root.mkdir()
    made = {key: Board(*key, root, image, runtime) for key in (("wsl", 1), ("jetson", 1), ("jetson", 2))}
    yield made
    for board in made.values():
        board.hand.stop()


def test_a_container_on_windows_opens_its_node_and_loads_the_stores_libcuda(
    boards: dict[tuple[str, int], Board],
) -> None:
    libraries = ("libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1", "libdxcore.so", "libnvdxgdmal.so.1")
    seen = boards["wsl", 1].probe(ALL, nodes=["/dev/dxg"], make=("195:0",), libraries=libraries)
    assert seen["nodes"]["/dev/dxg"] in ("ENODEV", "ENXIO")
    assert seen["made"] == {"195:0": "EPERM"}
    assert seen["libraries"] == dict.fromkeys(libraries, "ok")


def test_a_container_on_windows_without_a_gpu_may_not_open_the_node(boards: dict[tuple[str, int], Board]) -> None:
    seen = boards["wsl", 1].probe(
        ["NVIDIA_VISIBLE_DEVICES=none"], nodes=["/dev/dxg"], make=("10:125",), libraries=("libcuda.so.1",)
    )
    assert seen["nodes"] == {"/dev/dxg": "ENOENT"}
    assert seen["made"] == {"10:125": "EPERM"}
    assert seen["libraries"] == {"libcuda.so.1": "ok"}


def test_nvidia_smi_of_the_store_runs_by_its_name(boards: dict[tuple[str, int], Board]) -> None:
    done = boards["wsl", 1].hand.run(ContainerRequest(["/bin/sh", "-c", "nvidia-smi"], ALL)).check()
    assert done.stdout == "nvidia-smi (simulated)\n"


def test_a_later_ldconfig_keeps_the_store_known(boards: dict[tuple[str, int], Board]) -> None:
    script = "ldconfig && /probe --library libcuda.so.1 --library libdxcore.so"
    done = boards["wsl", 1].hand.run(ContainerRequest(["/bin/sh", "-c", script], ALL)).check()
    assert json.loads(done.stdout)["libraries"] == {"libcuda.so.1": "ok", "libdxcore.so": "ok"}


def test_a_container_on_an_orin_opens_the_lists_nodes_and_loads_libcuda(boards: dict[tuple[str, int], Board]) -> None:
    libraries = ("libcuda.so.1", "libcuda.so", "libnvrm_gpu.so", "libnvidia-ml.so.1")
    seen = boards["jetson", 1].probe(ALL, nodes=[*ORIN, "/dev/nvidiactl"], make=("501:9",), libraries=libraries)
    assert seen["nodes"] == {**dict.fromkeys(ORIN, "ENXIO"), "/dev/nvidiactl": "ENOENT"}
    assert seen["made"] == {"501:9": "EPERM"}
    assert seen["libraries"] == dict.fromkeys(libraries, "ok")


def test_another_user_opens_the_nodes_by_their_group(boards: dict[tuple[str, int], Board]) -> None:
    """/dev/nvhost-gpu is for root and the group video alone: the container's user is put into it."""
    seen = boards["jetson", 1].probe(ALL, nodes=["/dev/nvhost-gpu"], user=1000)
    assert seen["nodes"] == {"/dev/nvhost-gpu": "ENXIO"}
    assert 44 in [int(group) for group in seen["groups"]]


def test_an_orins_container_without_a_gpu_opens_none_of_the_nodes(boards: dict[tuple[str, int], Board]) -> None:
    seen = boards["jetson", 1].probe(
        ["NVIDIA_VISIBLE_DEVICES=none"], nodes=list(ORIN), make=tuple(ORIN.values()), libraries=("libcuda.so.1",)
    )
    assert seen["nodes"] == dict.fromkeys(ORIN, "ENOENT")
    assert seen["made"] == dict.fromkeys(ORIN.values(), "EPERM")
    assert seen["libraries"] == {"libcuda.so.1": "ok"}


@pytest.mark.parametrize(
    ("word", "given", "denied"),
    [
        ("0", ["/dev/nvidia0", "/dev/nvidia2", "/dev/nvidiactl", "/dev/nvmap"], ["195:1"]),
        ("1", ["/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvmap"], ["195:0", "195:2"]),
    ],
)
def test_beside_a_discrete_gpu_each_container_opens_its_own(
    boards: dict[tuple[str, int], Board], word: str, given: list[str], denied: list[str]
) -> None:
    seen = boards["jetson", 2].probe(
        [f"NVIDIA_VISIBLE_DEVICES={word}"], nodes=given, make=tuple(denied), libraries=("libcuda.so.1",)
    )
    assert seen["nodes"] == dict.fromkeys(given, "ENXIO")
    assert seen["made"] == dict.fromkeys(denied, "EPERM")
    assert seen["libraries"] == {"libcuda.so.1": "ok"}


def test_an_unknown_gpu_fails_with_the_valid_ones(boards: dict[tuple[str, int], Board]) -> None:
    for key, known in ((("wsl", 1), "all GPUs that Windows shows"), (("jetson", 1), "Jetson AGX Orin")):
        done = boards[key].hand.run(ContainerRequest(["/bin/true"], ["NVIDIA_VISIBLE_DEVICES=3"]))
        assert done.status != 0
        assert "there is no GPU 3" in done.text and known in done.text and "Traceback" not in done.text
