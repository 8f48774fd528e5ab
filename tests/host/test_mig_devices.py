"""MIG devices out of the driver's tree, and NVML's word held against it."""

from __future__ import annotations

import marshal
import os
import shutil
import time
from pathlib import Path

import pytest

import gpu_oci_hook
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.host import device_nodes
from gpu_oci_hook.host.driver import inventory_cache
from gpu_oci_hook.host.gpus import read_gpus
from gpu_oci_hook.host.mig import capability_files, mig_nodes
from gpu_oci_hook.host.mig.mig_devices import MigDevices
from gpu_oci_hook.host.nvml import query
from gpu_oci_hook.host.root import Host
from gpu_oci_hook.model.machine import Gpu
from gpu_oci_hook.model.optional_devices import OptionalItems
from gpu_oci_hook.simulate import host_tree, kernel
from support.bundles import skip_or_fail
from support.fake_cache import FakeCache
from support.nvml_double import NvmlDouble, find_compiler

VERSION = "550.163.01"


class Machine:
    """A simulated host whose first GPU has the minor 1 and the second 0."""

    def __init__(self, root: Path, *words: str, gpus: int = 3) -> None:
        self.root = root
        self.report = host_tree.build_host(root, gpus=gpus, mig=words, driver=VERSION)
        self.host = Host(str(root))
        self.gpus: list[Gpu] = read_gpus(self.host)[0]
        self.cache = FakeCache()
        self.library = str(root) + self.report.libraries["libnvidia-ml.so.1"]

    def instances(self, *, limit: float = 10.0, version: str = VERSION) -> MigDevices:
        return MigDevices(self.host, self.gpus, version, self.cache, lambda: self.library, timeout=limit)

    def tree(self, gpu: int) -> Path:
        return self.root / f"proc/driver/nvidia/capabilities/gpu{self.gpus[gpu].minor}/mig"

    def double(self, *, reverse: bool = False) -> NvmlDouble:
        if not find_compiler():
            skip_or_fail("NVML's answers; there is no C compiler for its double")
        return NvmlDouble(self.report, reverse=reverse)

    def extra(self, *names: str, rights: tuple[tuple[str, str], ...] = ()) -> OptionalItems:
        made = OptionalItems()
        instances = self.instances()
        there = {one.name: one for gpu in self.gpus for one in instances.list_for_gpu(gpu)}
        chosen = [(there[name], "said") for name in names]
        numbers = device_nodes.read_device_majors(self.host)
        mig_nodes.add_mig_nodes(
            made, instances, chosen, rights, self.gpus, (numbers, device_nodes.read_module_parameters(self.host), [])
        )
        return made


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """GPU 0 with seven parts, GPU 1 whole, GPU 2 with a part that is divided again."""
    return Machine(tmp_path / "host", "7", "0", "3g.20gb,1c.2g,1g")


def names(instances: MigDevices, machine: Machine) -> list[str]:
    return [f"{one.name}={one.gi}/{one.ci}" for gpu in machine.gpus for one in instances.list_for_gpu(gpu)]


def test_the_devices_are_the_trees_in_the_order_of_their_numbers(machine: Machine) -> None:
    """10 comes after 9, not after 1; the directory is that of the device minor."""
    found = names(machine.instances(), machine)
    assert found[:7] == ["0:0=7/0", "0:1=8/0", "0:2=9/0", "0:3=10/0", "0:4=11/0", "0:5=12/0", "0:6=13/0"]
    assert found[7:] == ["2:0=1/0", "2:1=3/0", "2:2=3/1", "2:3=7/0"]
    assert capability_files.read_mig_enabled_gpus(machine.host, machine.gpus) == {0, 2}


def test_a_gpu_instance_without_a_compute_instance_is_no_device_but_divides_the_gpu(machine: Machine) -> None:
    shutil.rmtree(machine.tree(2))
    (machine.tree(2) / "gi4").mkdir(parents=True)
    (machine.tree(2) / "gi4/access").write_text("DeviceFileMinor: 9\nDeviceFileMode: 292\n")
    assert machine.instances().list_for_gpu(machine.gpus[2]) == []
    assert capability_files.read_mig_enabled_gpus(machine.host, machine.gpus) == {0, 2}


@pytest.mark.parametrize("name", ["gix", "gi", "gi-1", "gi99999999999", "gi1x", "g1"])
def test_what_is_no_instance_in_the_tree_is_left_alone(machine: Machine, name: str) -> None:
    before = names(machine.instances(), machine)
    (machine.tree(0) / name / "ci0").mkdir(parents=True)
    assert names(machine.instances(), machine) == before


def test_a_driver_that_hides_its_tree_is_understood_by_its_table_and_nodes(machine: Machine) -> None:
    if os.geteuid() != 0:
        skip_or_fail("the nodes of a hidden tree; only root can make device nodes")
    before = names(machine.instances(), machine)
    shutil.rmtree(machine.root / "proc/driver/nvidia/capabilities")
    assert names(machine.instances(), machine) == before
    assert capability_files.read_mig_enabled_gpus(machine.host, machine.gpus) == {0, 2}
    assert [node.minor for node, _ in machine.extra("2:2").nodes] == [300, 302]


def test_a_device_brings_its_two_nodes_and_not_its_neighbours(machine: Machine) -> None:
    nodes_of = machine.extra("0:1").nodes
    number = 3 + (1 * 15 + 8) * 9  # of GPU minor 1, GPU instance 8
    assert [(node.path, node.major, node.minor, node.mode) for node, _ in nodes_of] == [
        (f"/dev/nvidia-caps/nvidia-cap{number}", 235, number, 0o444),
        (f"/dev/nvidia-caps/nvidia-cap{number + 1}", 235, number + 1, 0o444),
    ]
    assert [why for _, why in nodes_of] == [
        "GPU instance 8 of MIG device 0:1: said",
        "compute instance 0 of MIG device 0:1: said",
    ]


def test_two_devices_of_one_gpu_instance_share_its_node(machine: Machine) -> None:
    assert len(machine.extra("2:1", "2:2").nodes) == 3


@pytest.mark.parametrize("text", [None, "", "DeviceFileMinor: x\n", "DeviceFileMinor: 99999999999999\n"])
def test_an_access_file_that_says_nothing_leaves_it_to_the_drivers_table(machine: Machine, text: str | None) -> None:
    before = [node.minor for node, _ in machine.extra("0:0").nodes]
    path = machine.tree(0) / "gi7/access"
    path.unlink()
    if text is not None:
        path.write_text(text)
    assert [node.minor for node, _ in machine.extra("0:0").nodes] == before


def test_without_tree_and_table_the_missing_number_is_named(machine: Machine) -> None:
    (machine.tree(0) / "gi7/access").unlink()
    (machine.root / "proc/driver/nvidia-caps/mig-minors").unlink()
    with pytest.raises(Fault, match="capability gi7 is unknown") as caught:
        machine.extra("0:0")
    assert "mig-minors" in str(caught.value)


def test_a_number_that_breaks_off_is_none(machine: Machine) -> None:
    """210 would be 21, and 12 the right to configure everything."""
    before = [node.minor for node, _ in machine.extra("0:1").nodes]
    access, table = machine.tree(0) / "gi8/access", machine.root / "proc/driver/nvidia-caps/mig-minors"
    whole = table.read_bytes()
    access.unlink()
    access.write_text(f"DeviceFileMinor: {before[0] // 10}")
    assert [node.minor for node, _ in machine.extra("0:1").nodes] == before
    table.unlink()
    table.write_bytes(whole[: whole.index(b"gpu1/gi8/access ") + len("gpu1/gi8/access 2")])
    with pytest.raises(Fault, match="capability gi8 is unknown"):
        machine.extra("0:1")


def test_the_trees_number_counts_and_not_the_tables(machine: Machine) -> None:
    (machine.tree(0) / "gi7/access").unlink()
    (machine.tree(0) / "gi7/access").write_text("DeviceFileMinor: 12\nDeviceFileMode: 256\nDeviceFileModify: 1\n")
    node = machine.extra("0:0").nodes[0][0]
    assert (node.path, node.mode) == ("/dev/nvidia-caps/nvidia-cap12", 0o400)


def test_a_driver_that_gives_rights_by_proc_alone_needs_no_nodes(machine: Machine) -> None:
    table = machine.root / "proc/devices"
    text = table.read_text().replace("235 nvidia-caps\n", "")
    table.unlink()
    table.write_text(text)
    extra = machine.extra("0:0")
    assert extra.nodes == []
    assert "through /proc alone" in extra.warnings[0]


def test_a_right_over_all_brings_its_own_node_and_every_instance(machine: Machine) -> None:
    extra = machine.extra(rights=(("config", "said"), ("monitor", "said")))
    found = {node.path.rpartition("cap")[2]: node.mode for node, _ in extra.nodes}
    assert (found["1"], found["2"]) == (0o400, 0o444)
    assert len(found) == 2 + 7 * 2 + 3 + 4


# --- NVML --------------------------------------------------------------------------------------------


def test_nvml_gives_the_uuids_once_and_they_are_cached(machine: Machine) -> None:
    double = machine.double()
    expected = {one.uuid for gpu in machine.report.gpus for one in gpu.mig}
    assert {one.uuid for one in machine.instances().list_with_uuids()} == expected
    assert double.call_count == 1
    double.set_mode("crash")
    again = machine.instances()
    assert {one.uuid for one in again.list_with_uuids()} == expected
    last = machine.report.gpus[2].mig[2]
    found = machine.instances().find_cached_device(last.uuid.upper().replace("MIG", "mig"))
    assert found is not None
    assert (found.name, found.gi, found.ci) == ("2:2", last.gi, last.ci)
    assert double.call_count == 1


def test_the_order_is_nvmls_where_nvml_was_asked(machine: Machine) -> None:
    machine.double(reverse=True)
    machine.instances().list_with_uuids()
    found = names(machine.instances(), machine)
    assert found[0] == "0:0=13/0"
    assert found[7:] == ["2:0=7/0", "2:1=3/1", "2:2=3/0", "2:3=1/0"]


@pytest.mark.parametrize("change", ["gone", "new", "rebuilt"])
def test_a_change_of_one_gpus_tree_asks_again_about_that_gpu(machine: Machine, change: str) -> None:
    double = machine.double()
    machine.instances().list_with_uuids()
    cards = list(machine.report.gpus)
    parts = cards[0].mig
    if change == "gone":
        shutil.rmtree(machine.tree(0) / "gi7")
        parts = parts[1:]
    elif change == "new":
        (machine.tree(0) / "gi14/ci0").mkdir(parents=True)
        parts = (*parts, type(parts[0])(14, 0, "MIG-abc00000-0000-0000-0000-000000000000"))
    else:
        shutil.rmtree(machine.tree(0) / "gi7/ci0")
        time.sleep(0.01)
        (machine.tree(0) / "gi7/ci0").mkdir()
        parts = (type(parts[0])(7, 0, "MIG-abcd0000-0000-0000-0000-000000000000"), *parts[1:])
    cards[0] = kernel.SimulatedGpu(**{**vars(cards[0]), "mig": parts})
    double.set_mode("normal", gpus=tuple(cards))
    fresh = machine.instances()
    assert all(not one.uuid for one in fresh.list_for_gpu(machine.gpus[0]))
    assert all(one.uuid for one in fresh.list_for_gpu(machine.gpus[2]))
    assert [one.uuid for one in fresh.list_with_uuids()][: len(parts)] == [one.uuid for one in parts]
    assert double.call_count == 2


def test_what_is_forgotten_is_asked_again_though_it_is_still_cached(machine: Machine) -> None:
    """Devices made anew under the same numbers, whose directories look the same."""
    double = machine.double()
    machine.instances().list_with_uuids()
    cards = list(machine.report.gpus)
    new = "MIG-abcd0000-0000-0000-0000-000000000000"
    cards[0] = kernel.SimulatedGpu(**{**vars(cards[0]), "mig": (type(cards[0].mig[0])(7, 0, new), *cards[0].mig[1:])})
    double.set_mode("normal", gpus=tuple(cards))
    both = machine.instances(), machine.instances()
    for one in both:
        assert new not in [part.uuid for part in one.list_with_uuids()]
    for one in both:
        one.discard_cached_uuids()
        assert new in [part.uuid for part in one.list_with_uuids()]
    assert double.call_count == 2, "the second one takes what the first one has learnt"


def test_another_driver_or_a_damaged_cache_only_costs_a_question(machine: Machine) -> None:
    double = machine.double()
    machine.instances().list_with_uuids()
    machine.instances(version="580.65.06").list_with_uuids()
    assert double.call_count == 2
    for count, blob in enumerate(
        (b"", b"x", marshal.dumps(1), marshal.dumps((gpu_oci_hook.VERSION, VERSION, {"a": 1})))
    ):
        machine.cache.blobs["mig"] = blob
        assert machine.instances().list_with_uuids()
        assert double.call_count == 3 + count


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("sleep", "did not answer within 1 seconds"),
        ("crash", "NVML crashed (SIGSEGV)"),
        ("chatter", "NVML wrote more than 1048576 bytes"),
        ("lie-count", "NVML answers wrongly: it reports the MIG devices"),
        ("lie-uuid", "which is not a UUID"),
        ("lie-gpu", "the kernel module GPU-"),
        ("lie-twice", "for two MIG devices"),
        ("lie-ids", "answers wrongly: it reports the MIG devices"),
        ("endless", "answers wrongly: it reports the MIG devices"),
        ("latin-uuid", "NVML does not answer: a value is not valid UTF-8"),
        ("orphan", "did not answer within 1 seconds"),
    ],
)
def test_whatever_nvml_does_is_one_sentence_within_the_limit_and_not_cached(
    machine: Machine, mode: str, words: str
) -> None:
    double = machine.double()
    double.set_mode(mode)
    began = time.monotonic()
    with pytest.raises(Fault) as caught:
        machine.instances(limit=1.0).list_with_uuids()
    assert time.monotonic() - began < 5
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "mig" not in machine.cache.blobs


def test_a_name_that_is_no_utf8_is_left_out_and_nothing_else_with_it(machine: Machine) -> None:
    machine.double().set_mode("latin-name")
    cards = query.query_nvml_gpus([gpu.pci for gpu in machine.gpus], library=machine.library)
    assert [(card.name, card.uuid) for card in cards] == [("", gpu.uuid) for gpu in machine.gpus]
    assert all(one.uuid for one in machine.instances().list_with_uuids())


def test_a_gpu_that_is_lost_takes_no_other_gpus_answer_with_it(machine: Machine) -> None:
    machine.double().set_mode("lost")
    cards = query.query_nvml_gpus([gpu.pci for gpu in machine.gpus], library=machine.library)
    assert [card.error for card in cards] == ["", "GPU is lost", ""]
    assert all(one.uuid for one in machine.instances().list_with_uuids())
    instances = machine.instances()
    with pytest.raises(Fault, match=r"NVML does not know GPU 1 \(0000:0f:00.0\): GPU is lost"):
        instances.store_nvml_answer(machine.gpus, cards)


def test_the_limit_is_told_without_the_microseconds_that_are_gone_already(machine: Machine) -> None:
    machine.double().set_mode("sleep")
    with pytest.raises(Fault, match=r"within 0\.3 seconds"):
        query.query_nvml_gpus([machine.gpus[0].pci], library=machine.library, timeout=0.29977)


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root can give a file away")
@pytest.mark.parametrize("what", ["owner", "mode", "directory"])
def test_root_runs_no_library_that_another_user_could_change(machine: Machine, what: str) -> None:
    double = machine.double()
    if what == "owner":
        os.chown(double.path, 12345, 12345)
    else:
        (double.path if what == "mode" else double.path.parent).chmod(0o777)
    found = inventory_cache.load_inventory(machine.host, machine.host, (), VERSION, machine.cache)
    with pytest.raises(Fault, match=r"NVML is not queried: /.* (belongs to user 12345|can be written by every user)"):
        query.find_nvml_library(machine.host, found)


def test_a_library_without_nvmls_functions_is_one_sentence(machine: Machine) -> None:
    with pytest.raises(Fault, match="NVML does not answer: Function Not Found"):
        machine.instances().list_with_uuids()


def test_the_survey_tells_names_memory_and_compute_capability(machine: Machine) -> None:
    machine.double()
    cards = query.query_nvml_gpus([gpu.pci for gpu in machine.gpus], library=machine.library)
    assert [card.uuid for card in cards] == [gpu.uuid for gpu in machine.gpus]
    assert {card.name for card in cards} == {"NVIDIA A100-SXM4-40GB"}
    assert {card.compute_capability for card in cards} == {"8.0"}
    # The parent of MIG devices does not tell its memory; the answer about the rest is not lost with it.
    assert [card.memory for card in cards] == [None, 40 << 30, None]


def test_a_gpu_that_nvml_does_not_know_is_one_sentence(machine: Machine) -> None:
    machine.double()
    with pytest.raises(Fault, match="NVML does not answer: Not Found"):
        query.query_nvml_gpus(["0000:ff:1f.7"], library=machine.library)
    assert query.query_nvml_gpus([], library=machine.library) == []


def test_the_single_questions_are_answered_by_the_double_too(machine: Machine) -> None:
    machine.double()
    pci = machine.gpus[0].pci
    assert query.query_nvml("cuda", library=machine.library) == "12.4"
    assert query.query_nvml("arch", pci, library=machine.library) == "8.0"
    assert query.query_nvml("brand", pci, library=machine.library) == "tesla"
