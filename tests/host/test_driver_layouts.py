"""The same driver in every layout of real hosts gives the same inventory, with and without a loader cache.

WSL and Jetson boards have other files: see test_tegra_csv and tests/test_board_injection.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_oci_hook.host import device_nodes, gpus
from gpu_oci_hook.host.driver.inventory_cache import load_inventory
from gpu_oci_hook.host.root import Host
from gpu_oci_hook.model.machine import DriverFile, Inventory
from gpu_oci_hook.simulate.host_tree import DESKTOP_LAYOUTS, SimulatedHost, build_host
from support.fake_cache import FakeCache

VERSION = "550.163.01"


def look(directory: Path, report: SimulatedHost) -> Inventory:
    """The inventory of a simulated host."""
    host = Host(str(directory))
    return load_inventory(host, host.sub_host(report.driver_root), (), gpus.read_driver_version(host), FakeCache())


def facts(found: Inventory) -> set[tuple[str, str, str]]:
    """What must not depend on the layout: the 64-bit libraries, as some layouts have no 32-bit ones."""
    return {
        (file.soname, file.capability, file.arch)
        for file in found.files
        if file.kind == "library" and file.arch in ("x86_64", "aarch64")
    }


def count(found: Inventory, kind: str) -> int:
    """How many files of a kind."""
    return sum(1 for file in found.files if file.kind == kind)


@pytest.fixture(scope="module")
def inventories(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, bool], tuple[SimulatedHost, Inventory]]:
    """The inventory of each layout, with and without its cache."""
    made: dict[tuple[str, bool], tuple[SimulatedHost, Inventory]] = {}
    for layout in DESKTOP_LAYOUTS:
        for cache in (True, False):
            directory = tmp_path_factory.mktemp(f"{layout}-{'cache' if cache else 'bare'}")
            report = build_host(directory, driver=VERSION, layout=layout, loader_cache=cache, gpus=2)
            made[layout, cache] = (report, look(directory, report))
    return made


def test_every_layout_gives_the_same_libraries(
    inventories: dict[tuple[str, bool], tuple[SimulatedHost, Inventory]], capsys: pytest.CaptureFixture[str]
) -> None:
    expected = facts(inventories["debian", True][1])
    rows = [f"{'layout':<22} {'cache':<6} 64-bit 32-bit  progs config firmw.  same  libcuda found by"]
    wrong = []
    for (layout, cache), (report, found) in inventories.items():
        libraries = facts(found)
        same = libraries == expected
        if not same:
            wrong.append((layout, cache, sorted(libraries ^ expected)))
        used = {file.found_in for file in found.files if file.soname == "libcuda.so.1"}
        has = "-" if not report.loader_cache else "yes"
        rows.append(
            f"{layout:<22} {has:<6} {len(libraries):>6} {count(found, 'library') - len(libraries):>6} "
            f"{count(found, 'binary'):>6} {count(found, 'config'):>6} {count(found, 'firmware'):>6}  "
            f"{'yes' if same else 'NO':<5} {', '.join(sorted(used))}"
        )
    with capsys.disabled():
        print("\n" + "\n".join(rows))
    assert wrong == []
    assert len(expected) >= 30


def test_every_layout_is_whole(inventories: dict[tuple[str, bool], tuple[SimulatedHost, Inventory]]) -> None:
    for (layout, cache), (report, found) in inventories.items():
        said = (layout, cache)
        assert found.version == found.library_version == VERSION, said
        assert found.problems == (), said
        assert found.missing_libraries == (), said
        names = {file.name for file in found.files if file.kind == "binary"}
        assert "nvidia-smi" in names, said
        assert count(found, "firmware") >= 1, said
        assert all(Path(file.source).exists() for file in found.files), said
        capabilities = {file.capability for file in found.files}
        assert {"utility", "compute", "video", "graphics", "ngx"} <= capabilities, said
        there = {file.soname: file.path for file in found.files if file.kind == "library"}
        assert there["libcuda.so.1"] in report.libraries.values() or report.libraries32, said


def test_the_places_in_the_container_do_not_depend_on_the_layout(
    inventories: dict[tuple[str, bool], tuple[SimulatedHost, Inventory]],
) -> None:
    def containers(found: Inventory, kind: str) -> set[str]:
        return {file.container_path for file in found.files if file.kind == kind}

    expected = inventories["debian", True][1]
    for said, (_, found) in inventories.items():
        for kind in ("binary", "firmware"):
            assert containers(found, kind) == containers(expected, kind), (said, kind)
        # A few packagers name the Vulkan driver's file by its architecture.
        configs = {
            name.replace(".x86_64.json", ".json").replace(".aarch64.json", ".json")
            for name in containers(found, "config")
        }
        assert configs == containers(expected, "config"), said


def test_gpus_and_nodes_of_a_simulated_host_are_right(tmp_path: Path) -> None:
    report = build_host(tmp_path, gpus=4)
    host = Host(str(tmp_path))
    found, problems = gpus.read_gpus(host)
    assert problems == []
    assert [(g.index, g.uuid, g.pci, g.minor, g.model) for g in found] == [
        (g.index, g.uuid, g.pci, g.minor, g.model) for g in report.gpus
    ]
    numbers = device_nodes.read_device_majors(host)
    complaints: list[str] = []
    control, missing = device_nodes.resolve_control_nodes(
        host, numbers, device_nodes.read_module_parameters(host), complaints
    )
    assert [node.path for _, node in control] == [path for path, _, _, _ in device_nodes.CONTROL_NODES]
    assert missing == []
    assert complaints == []


def test_a_cached_layout_is_the_same_as_a_searched_one(tmp_path: Path) -> None:
    for layout in DESKTOP_LAYOUTS:
        report = build_host(tmp_path / layout, layout=layout)
        host = Host(str(tmp_path / layout))
        cache = FakeCache()
        first = load_inventory(host, host.sub_host(report.driver_root), (), VERSION, cache)
        second = load_inventory(host, host.sub_host(report.driver_root), (), VERSION, cache)
        assert cache.puts == 1, layout
        assert all(
            [getattr(a, name) for name in DriverFile.__slots__] == [getattr(b, name) for name in DriverFile.__slots__]
            for a, b in zip(first.files, second.files, strict=True)
        )
