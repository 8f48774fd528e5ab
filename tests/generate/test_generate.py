"""A machine as a CDI file: which devices, under which names, with what in them, and what is refused."""

from __future__ import annotations

import os
import re
import shutil
import stat
import time
from pathlib import Path

import pytest

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.generate import host_facts
from gpu_oci_hook.plan.mounting import SOCKET_MOUNT_OPTIONS
from gpu_oci_hook.simulate import feature_files, host_tree
from support.bundles import DEV, PROC, container_spec, host_config, inject_in_process, make_bundle, skip_or_fail
from support.bundles import list_allowed_numbers as rules
from support.bundles import list_device_numbers as oci_devices
from support.fixtures import SharedHost
from support.generated_specs import (
    DRIVER_LIBRARY_DIR,
    DRIVER_VERSION,
    VOID_VARIABLE,
    build_host_spec,
    index_devices,
    index_mount_sources,
    list_node_paths,
    needs_device_nodes,
    plan_host_spec,
    read_hook_arguments,
)
from support.nvml_double import NvmlDouble, find_compiler

pytestmark = [needs_device_nodes, pytest.mark.usefixtures("isolated_state")]


@pytest.fixture(scope="module")
def host(shared_host: SharedHost) -> Path:
    """Two GPUs; tests that change a host make their own."""
    return shared_host(gpus=2, driver=DRIVER_VERSION)


@pytest.fixture
def own(tmp_path: Path) -> Path:
    host_tree.build_host(tmp_path / "own", gpus=2, driver=DRIVER_VERSION)
    return tmp_path / "own"


def refused(host: Path, **options: object) -> str:
    with pytest.raises(Fault) as caught:
        plan_host_spec(host, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- devices and names -------------------------------------------------------------------------------------------


def test_there_is_a_device_for_each_gpu_by_index_and_uuid_one_for_all_and_one_for_none(host: Path) -> None:
    found = index_devices(build_host_spec(host).spec)
    uuids = [name for name in found if name.startswith("GPU-")]
    assert list(found) == ["0", uuids[0], "1", uuids[1], "all", "none"]
    assert found["0"] == found[uuids[0]] and found["1"] == found[uuids[1]]
    # The first GPU has minor 1 and the second 0, as on real hosts.
    assert list_node_paths(found["0"])[0] == "/dev/nvidia1" and list_node_paths(found["1"])[0] == "/dev/nvidia0"
    assert list_node_paths(found["all"]) == list_node_paths(found["0"]) + list_node_paths(found["1"])
    assert found["none"] == {"env": [VOID_VARIABLE]}


def test_what_every_device_needs_stands_once_for_all(host: Path) -> None:
    made_spec = build_host_spec(host).spec
    common = made_spec["containerEdits"]
    assert common["env"] == [VOID_VARIABLE]
    assert list_node_paths(common) == [
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia-uvm-tools",
        "/dev/nvidia-modeset",
    ]
    assert f"{DRIVER_LIBRARY_DIR}/libcuda.so.{DRIVER_VERSION}" in index_mount_sources(
        made_spec
    ) and "/usr/bin/nvidia-smi" in index_mount_sources(made_spec)
    for name, edits in index_devices(made_spec).items():
        assert "mounts" not in edits and "hooks" not in edits
        assert not set(list_node_paths(edits)) & set(list_node_paths(common)), name


@pytest.mark.parametrize(
    "ways, names",
    [
        (("index",), ["0", "1"]),
        (("type-index",), ["gpu0", "gpu1"]),
        (("type-index", "index", "index"), ["gpu0", "0", "gpu1", "1"]),
    ],
)
def test_devices_are_called_as_the_options_say(host: Path, ways: tuple[str, ...], names: list[str]) -> None:
    assert list(index_devices(build_host_spec(host, name_strategies=ways).spec)) == [*names, "all", "none"]


def test_only_the_devices_that_are_named_are_written(host: Path) -> None:
    assert list(index_devices(build_host_spec(host, name_strategies=("index",), selectors=("1",)).spec)) == ["1"]
    assert list(index_devices(build_host_spec(host, name_strategies=("index",), selectors=("0-1", "none")).spec)) == [
        "0",
        "1",
        "none",
    ]
    assert list(index_devices(build_host_spec(host, selectors=("none",)).spec)) == ["none"]


def test_a_device_that_is_not_there_is_refused_with_those_that_are(host: Path) -> None:
    text = refused(host, selectors=("7",))
    assert text.startswith("--device: there is no GPU 7. This host has GPUs 0 to 1; ")


def test_a_gpu_whose_uuid_the_driver_does_not_know_yet_has_no_name_by_it(own: Path) -> None:
    for path in (own / "proc/driver/nvidia/gpus").glob("*/information"):
        path.write_text(re.sub(r"GPU-\S+", "GPU-????????", path.read_text()))
    found = build_host_spec(own)
    assert list(index_devices(found.spec)) == ["0", "1", "all", "none"]
    assert any(text.startswith("GPU 0 has no name by UUID: the driver does not know it yet") for text in found.warnings)
    found = build_host_spec(own, name_strategies=("uuid",))
    assert list(index_devices(found.spec)) == ["all", "none"]
    assert "gpu1 is left out: it has no name by uuid" in found.warnings


def test_two_gpus_with_one_uuid_have_no_name_by_it_since_engines_would_refuse_the_whole_file(own: Path) -> None:
    uuids = ["GPU-AAAAAAAA-2222-3333-4444-555555555555", "GPU-aaaaaaaa-2222-3333-4444-555555555555"]
    for path, uuid in zip(sorted((own / "proc/driver/nvidia/gpus").glob("*/information")), uuids, strict=True):
        path.write_text(re.sub(r"GPU-\S+", uuid, path.read_text()))
    found = build_host_spec(own)
    assert list(index_devices(found.spec)) == ["0", "1", "all", "none"]
    reason = f"another GPU has the same one ({uuids[1]})"
    assert f"GPU 1 has no name by UUID: {reason}" in found.warnings


@pytest.mark.parametrize("vendor, category", [("example.com", "accelerator"), ("acme", "")])
def test_the_kind_is_the_options_or_the_configurations(host: Path, vendor: str, category: str) -> None:
    assert plan_host_spec(host, vendor=vendor, category=category).spec["kind"] == f"{vendor}/{category or 'gpu'}"
    assert plan_host_spec(host, host_config(host, default_kind="own.org/card")).spec["kind"] == "own.org/card"
    assert refused(host, vendor="a b").startswith('"a b/gpu" is not a valid CDI kind')


# --- the same plan as the shim's ---------------------------------------------------------------------------------


def applied(made_spec: dict[str, object], name: str) -> tuple[list[str], dict[str, str]]:
    """Paths of nodes, and mounts, that a container gets for a device."""
    found = index_devices(made_spec)[name]
    common = made_spec["containerEdits"]
    assert isinstance(common, dict)
    return list_node_paths(common) + list_node_paths(found), index_mount_sources(made_spec)


@pytest.mark.parametrize("word", ["0", "1", "all", "none"])
@pytest.mark.parametrize("capabilities", ["utility", "compute,utility", "graphics", "all"])
def test_a_device_brings_what_the_shim_gives_for_the_same_word(
    host: Path, tmp_path: Path, word: str, capabilities: str
) -> None:
    """Nodes, their owners and modes, files, their places and options, and groups; the directories that the shim
    prepares for libraries apart, for which the hook's links stand.
    """
    asked = (f"NVIDIA_VISIBLE_DEVICES={word}", f"NVIDIA_DRIVER_CAPABILITIES={capabilities}")
    after = inject_in_process(
        make_bundle(tmp_path / "b", container_spec(*asked, mounts=[PROC, DEV])), host_config(host)
    )
    ours = build_host_spec(host, capabilities=tuple(capabilities.split(","))).spec
    edits = [ours["containerEdits"], index_devices(ours)[word]]

    theirs = {node["path"]: (node["fileMode"], node["uid"], node["gid"]) for node in after["linux"].get("devices", [])}
    mine = {
        node["path"]: (node["fileMode"], node["uid"], node["gid"])
        for part in edits
        for node in part.get("deviceNodes", [])
    }
    assert mine == theirs
    assert len(rules(after)) == len(mine)

    wanted = {
        (mount["source"], mount["destination"], tuple(mount["options"]))
        for mount in after["mounts"]
        if mount["source"].startswith(f"{host}/")
    }
    # The image's own links, which the shim has followed and the engine will.
    links = {"/lib/": "/usr/lib/", "/var/run/": "/run/"}

    def followed(path: str) -> str:
        return next((path.replace(link, target, 1) for link, target in links.items() if path.startswith(link)), path)

    mounts = ours["containerEdits"]["mounts"]
    found = {(m["hostPath"], followed(m["containerPath"]), tuple(m["options"])) for m in mounts}
    # Those of daemons are the hook's, since a daemon can end.
    sockets = {(source, followed(path)) for source, path in read_hook_arguments(ours).sockets}
    assert found | {(*pair, SOCKET_MOUNT_OPTIONS) for pair in sockets} == wanted
    assert not [path for source, path, _ in found if "socket" in path]
    assert bool(sockets) == ("utility" in capabilities or capabilities == "all")
    groups = after["process"]["user"].get("additionalGids", [])
    assert [gid for part in edits for gid in part.get("additionalGids", [])] == groups


def test_the_hook_makes_the_links_that_the_shim_prepares(host: Path, tmp_path: Path) -> None:
    made_bundle = make_bundle(
        tmp_path / "b", container_spec("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all", mounts=[PROC])
    )
    after = inject_in_process(made_bundle, host_config(host))
    prepared = {
        (os.readlink(path), f"{mount['destination']}/{path.name}")
        for mount in after["mounts"]
        if "/libraries-" in mount["source"]
        for path in Path(mount["source"]).iterdir()
        if path.is_symlink()
    }
    arguments = read_hook_arguments(build_host_spec(host).spec)
    assert set(arguments.links) == prepared and len(arguments.links) == len(prepared)
    rootfs = made_bundle / "rootfs"
    own = "usr/lib/x86_64-linux-gnu"
    for target, name in arguments.plugins:
        assert os.readlink(rootfs / own / name) == target
    assert {name for _, name in arguments.plugins} == {"gbm/nvidia-drm_gbm.so", "vdpau/libvdpau_nvidia.so.1"}
    assert arguments.folders == [DRIVER_LIBRARY_DIR] and arguments.folders32 == ["/usr/local/nvidia/lib"]


def test_the_hook_is_told_what_the_configuration_decides(host: Path) -> None:
    arguments = read_hook_arguments(build_host_spec(host).spec)
    assert (arguments.driver_version, arguments.root, arguments.cuda_compat) == (DRIVER_VERSION, str(host), "auto")
    assert arguments.hide_device_files and arguments.egl_profile and arguments.drm_links and arguments.requirements
    other = host_config(host, cuda_compat="never", hide_device_files=False, disable_require=True, log_file="/var/log/x")
    arguments = read_hook_arguments(build_host_spec(host, other, capabilities=("compute",)).spec)
    assert (arguments.cuda_compat, arguments.log) == ("never", "/var/log/x")
    assert not (arguments.hide_device_files or arguments.egl_profile or arguments.drm_links or arguments.requirements)


def test_administrators_files_and_removals_count_as_for_the_shim(host: Path, tmp_path: Path) -> None:
    config = host_config(
        host, extra=(("/etc/ld.so.cache", "/site/cache", "", "file", True),), remove=("nvidia-debugdump",)
    )
    found = index_mount_sources(build_host_spec(host, config).spec)
    assert found["/site/cache"] == f"{host}/etc/ld.so.cache" and "/usr/bin/nvidia-debugdump" not in found


def test_capabilities_bring_their_files_and_no_others(host: Path) -> None:
    found = build_host_spec(host, capabilities=("utility",)).spec
    assert f"{DRIVER_LIBRARY_DIR}/libnvidia-ml.so.{DRIVER_VERSION}" in index_mount_sources(found)
    assert f"{DRIVER_LIBRARY_DIR}/libcuda.so.{DRIVER_VERSION}" not in index_mount_sources(found)
    assert list_node_paths(found["containerEdits"]) == ["/dev/nvidiactl"] and list_node_paths(
        index_devices(found)["0"]
    ) == ["/dev/nvidia1"]


def test_a_capability_that_the_administrator_does_not_allow_is_refused(host: Path) -> None:
    config = host_config(host, supported_capabilities=("utility", "compute"))
    assert "/usr/bin/nvidia-xconfig" not in index_mount_sources(build_host_spec(host, config).spec)
    with pytest.raises(Fault, match="is not allowed on this host"):
        plan_host_spec(host, config, capabilities=("graphics",))


# --- every kind of machine -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", host_tree.LAYOUTS)
def test_every_kind_of_machine_has_a_valid_file_with_cuda_and_its_gpu(layout: str, tmp_path: Path) -> None:
    report = host_tree.build_host(tmp_path / "h", gpus=2, driver=DRIVER_VERSION, layout=layout)
    config = host_config(tmp_path / "h", driver_root=report.driver_root)
    found = build_host_spec(tmp_path / "h", config).spec
    assert {"all", "none"} <= set(index_devices(found))
    assert any("libcuda.so" in path or path.endswith("/nvidia") for path in index_mount_sources(found))
    gpu = list_node_paths(index_devices(found)["all"])
    assert gpu and all(stat.S_ISCHR(os.stat(f"{tmp_path}/h{path}").st_mode) for path in gpu)
    arguments = read_hook_arguments(found)
    assert arguments.folders
    if layout in host_tree.DESKTOP_LAYOUTS:
        assert "libcuda.so.1" in {path.rpartition("/")[2] for _, path in arguments.links}


def test_a_linux_on_windows_has_one_device_for_all_gpus(tmp_path: Path) -> None:
    host_tree.build_host(tmp_path / "h", layout="wsl")
    found = build_host_spec(tmp_path / "h").spec
    assert {name: list_node_paths(edits) for name, edits in index_devices(found).items()} == {
        "0": ["/dev/dxg"], "all": ["/dev/dxg"], "none": [],
    }  # fmt: skip
    assert "major" not in index_devices(found)["0"]["deviceNodes"][0], "its number changes with the kernel"
    assert not read_hook_arguments(found).hide_device_files


def test_a_jetson_with_a_discrete_gpu_keeps_the_nodes_of_the_two_apart(tmp_path: Path) -> None:
    host_tree.build_host(tmp_path / "h", gpus=2, layout="jetson")
    found = index_devices(build_host_spec(tmp_path / "h", name_strategies=("index",)).spec)
    assert "/dev/nvhost-gpu" in list_node_paths(found["0"]) or "/dev/nvmap" in list_node_paths(found["0"])
    assert "/dev/nvidia1" in list_node_paths(found["1"]) and "/dev/nvidia1" not in list_node_paths(found["0"])
    assert set(list_node_paths(found["all"])) == set(list_node_paths(found["0"])) | set(list_node_paths(found["1"]))


# --- MIG ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def divided(tmp_path_factory: pytest.TempPathFactory) -> host_tree.SimulatedHost:
    if not find_compiler():
        skip_or_fail("MIG devices by UUID; there is no C compiler for NVML's double")
    report = host_tree.build_host(
        tmp_path_factory.mktemp("mig"), gpus=2, driver=DRIVER_VERSION, mig=("3g.20gb,1g", "0")
    )
    NvmlDouble(report, reverse=True)
    return report


def test_a_mig_device_has_its_gpu_and_its_two_capability_nodes_and_no_others(divided: host_tree.SimulatedHost) -> None:
    found = index_devices(build_host_spec(Path(divided.directory)).spec)
    by_uuid = {one.uuid: one for one in divided.gpus[0].mig}
    table = Path(divided.directory, "proc/driver/nvidia-caps/mig-minors").read_text().split("\n")
    minors = dict(line.split(" ") for line in table if line)
    assert len(by_uuid) == 2
    for uuid, one in by_uuid.items():
        instance = f"gpu{divided.gpus[0].minor}/gi{one.gi}"
        steps = [f"{instance}/access", f"{instance}/ci{one.ci}/access"]
        wanted = [f"/dev/nvidia-caps/nvidia-cap{minors[step]}" for step in steps]
        assert list_node_paths(found[uuid]) == [f"/dev/nvidia{divided.gpus[0].minor}", *wanted]
        assert all("major" not in node for node in found[uuid]["deviceNodes"][1:]), "the caps' major is not for good"
    # NVML has them in the opposite order, and by that they are numbered.
    assert [found["0:0"], found["0:1"]] == [found[uuid] for uuid in reversed(by_uuid)]
    assert "/dev/nvidia-caps/nvidia-cap1" not in list_node_paths(found["all"]), (
        "nobody has asked for the right to configure"
    )


def test_all_means_the_parts_of_divided_gpus_and_the_others_whole(divided: host_tree.SimulatedHost) -> None:
    found = index_devices(build_host_spec(Path(divided.directory), name_strategies=("type-index",)).spec)
    assert list(found) == ["gpu0", "mig0:0", "mig0:1", "gpu1", "all", "none"]
    parts = [path for path in list_node_paths(found["all"]) if "caps" in path]
    assert len(parts) == 4
    assert not [
        path
        for path in list_node_paths(found["all"])
        if path.startswith("/dev/dri/") and path in list_node_paths(found["gpu0"])
    ]
    assert set(list_node_paths(found["gpu1"])) <= set(list_node_paths(found["all"]))


def test_a_part_can_be_named_alone(divided: host_tree.SimulatedHost) -> None:
    found = build_host_spec(Path(divided.directory), name_strategies=("index",), selectors=("0:1",)).spec
    assert list(index_devices(found)) == ["0:1"]


def test_without_nvml_parts_are_numbered_by_their_ids_and_that_is_said(tmp_path: Path) -> None:
    host_tree.build_host(tmp_path / "h", gpus=1, driver=DRIVER_VERSION, mig=("2g,1g",))
    found = build_host_spec(tmp_path / "h")
    assert [name for name in index_devices(found.spec) if ":" in name] == ["0:0", "0:1"]
    assert not [name for name in index_devices(found.spec) if name.startswith("MIG-")]
    assert any(text.startswith("MIG devices are written without their UUIDs") for text in found.warnings)
    with pytest.raises(Fault, match="NVML"):
        plan_host_spec(tmp_path / "h", name_strategies=("uuid",))


# --- beside GPUs ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rich(shared_host: SharedHost) -> Path:
    return shared_host(gpus=2, driver=DRIVER_VERSION, imex=3, features=feature_files.FEATURES)


@pytest.mark.parametrize(
    "mode, node", [("gds", "/dev/nvidia-fs0"), ("mofed", "/dev/infiniband/rdma_cm"), ("gdrcopy", "/dev/gdrdrv")]
)
def test_what_comes_with_gpus_is_a_class_of_its_own_and_nothing_else(rich: Path, mode: str, node: str) -> None:
    found = build_host_spec(rich, mode=mode).spec
    assert found["kind"] == f"nvidia.com/{mode}" and list(index_devices(found)) == ["all"]
    assert node in list_node_paths(index_devices(found)["all"]) and "/dev/nvidiactl" not in list_node_paths(
        index_devices(found)["all"]
    )
    assert "containerEdits" not in found, "it would stop the shim from giving the GPUs that are asked for besides"
    if mode == "gds":
        mounts = index_devices(found)["all"]["mounts"]
        assert [mount["containerPath"] for mount in mounts] == ["/etc/cufile.json", "/run/udev"]


def test_what_comes_with_gpus_does_not_wait_for_cuda(tmp_path: Path) -> None:
    host_tree.build_host(tmp_path / "h", gpus=1, driver=DRIVER_VERSION, features=("gdrcopy",))
    (tmp_path / "h/dev/nvidia-uvm").unlink()
    found = build_host_spec(tmp_path / "h", mode="gdrcopy")
    assert list_node_paths(index_devices(found.spec)["all"]) == ["/dev/gdrdrv"] and found.warnings == ()


def test_each_channel_is_a_device_by_its_number(rich: Path) -> None:
    found = build_host_spec(rich, mode="imex-channel").spec
    assert list(index_devices(found)) == ["0", "1", "2", "all"]
    assert list_node_paths(index_devices(found)["2"]) == ["/dev/nvidia-caps-imex-channels/channel2"]


def test_managing_containers_have_every_node(rich: Path) -> None:
    found = build_host_spec(rich, mode="management").spec
    assert found["kind"] == "management.nvidia.com/gpu" and list(index_devices(found)) == ["all"]
    given = set(list_node_paths(index_devices(found)["all"]))
    assert {"/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-nvswitchctl"} <= given
    assert {"/dev/nvidia-caps/nvidia-cap1", "/dev/nvidia-caps-imex-channels/channel0"} <= given
    assert not read_hook_arguments(found).hide_device_files and found["containerEdits"]["env"] == [VOID_VARIABLE]


def test_what_the_machine_does_not_have_is_refused_with_what_it_has(host: Path) -> None:
    text = refused(host, mode="gds")
    assert "GPUDirect Storage is requested, but this host does not have it" in text and "modprobe nvidia-fs" in text


# --- device numbers -----------------------------------------------------------------------------------------------


def test_numbers_that_change_with_a_boot_are_not_written(host: Path) -> None:
    """510 was nvidia-uvm and is nvidia-caps after a boot: engines must look at the host's node."""
    common = {node["path"]: node for node in build_host_spec(host).spec["containerEdits"]["deviceNodes"]}
    for path in ("/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"):
        assert "major" not in common[path] and common[path]["type"] == "c"
    assert (common["/dev/nvidiactl"]["major"], common["/dev/nvidiactl"]["minor"]) == (195, 255)


def test_after_a_boot_with_other_numbers_the_same_file_is_right(own: Path) -> None:
    before = build_host_spec(own).data
    text = (own / "proc/devices").read_text()
    text = text.replace("510 nvidia-uvm", "509 nvidia-uvm").replace("235 nvidia-caps", "510 nvidia-caps")
    (own / "proc/devices").write_text(text)
    for name, minor in (("nvidia-uvm", 0), ("nvidia-uvm-tools", 1)):
        (own / "dev" / name).unlink()
        os.mknod(own / "dev" / name, 0o666 | stat.S_IFCHR, os.makedev(509, minor))
        (own / "dev" / name).chmod(0o666)
    assert build_host_spec(own).data == before


def test_a_node_left_from_an_earlier_boot_counts_as_missing(own: Path) -> None:
    text = (own / "proc/devices").read_text()
    (own / "proc/devices").write_text(text.replace("510 nvidia-uvm", "509 nvidia-uvm"))
    said = refused(own)
    assert "/dev/nvidia-uvm is required for compute, and the host has no node 509:0 there" in said


# --- what is missing --------------------------------------------------------------------------------------------


def test_a_required_node_that_is_missing_is_refused_by_name_with_its_module(own: Path) -> None:
    for name in ("nvidia-uvm", "nvidia-uvm-tools"):
        (own / "dev" / name).unlink()
    text = refused(own)
    assert "/dev/nvidia-uvm is required for compute" in text
    assert "module nvidia_uvm loaded: yes, from /proc/devices major 510" in text
    assert "--allow-incomplete" in text and "nvidia-modprobe -u" in text


def test_a_module_that_is_not_loaded_is_told_apart_from_a_node_that_is_missing(own: Path) -> None:
    lines = (own / "proc/devices").read_text().splitlines(keepends=True)
    (own / "proc/devices").write_text("".join(line for line in lines if "nvidia-uvm" not in line))
    text = refused(own)
    assert "/dev/nvidia-uvm is required for compute" in text
    assert "module nvidia_uvm loaded: no, from /proc/devices" in text


def test_an_incomplete_file_that_is_wanted_is_marked(own: Path) -> None:
    (own / "dev/nvidia-uvm").unlink()
    found = build_host_spec(own, allow_incomplete=True)
    assert "/dev/nvidia-uvm" not in list_node_paths(found.spec["containerEdits"])
    assert found.spec["annotations"] == {
        "gpu-oci-hook/incomplete": "/dev/nvidia-uvm is required for compute, and the host has no node 510:0 there "
        "(module nvidia_uvm loaded: yes, from /proc/devices major 510)"
    }
    assert read_hook_arguments(found.spec).incomplete == found.spec["annotations"]["gpu-oci-hook/incomplete"]
    assert b"# incomplete: /dev/nvidia-uvm is required" in found.data
    assert any("/dev/nvidia-uvm is required for compute" in text for text in found.warnings)


def test_an_incomplete_file_for_an_old_engine_is_marked_without_an_annotation(own: Path) -> None:
    (own / "dev/nvidia-uvm").unlink()
    found = build_host_spec(own, recipe={"max_version": "0.5.0"}, allow_incomplete=True)
    assert "annotations" not in found.spec and found.spec["cdiVersion"] == "0.5.0"
    assert read_hook_arguments(found.spec).incomplete.startswith("/dev/nvidia-uvm is required for compute")
    assert any("the annotation that the file is incomplete is left out" in text for text in found.warnings)


def test_a_display_alone_is_no_reason_to_refuse(own: Path) -> None:
    (own / "dev/nvidia-modeset").unlink()
    found = build_host_spec(own)
    assert "/dev/nvidia-modeset" not in list_node_paths(found.spec["containerEdits"])
    assert "annotations" not in found.spec
    assert any(text.startswith("/dev/nvidia-modeset is left out: it is for display") for text in found.warnings)


def test_a_drm_node_that_is_missing_is_left_out_and_said(own: Path) -> None:
    (own / "dev/dri/renderD128").unlink()
    found = build_host_spec(own)
    assert "/dev/dri/renderD128" not in list_node_paths(index_devices(found.spec)["all"])
    assert any("/dev/dri/renderD128 is left out: it is for drawing on GPU" in text for text in found.warnings)


def test_a_gpu_without_its_node_is_no_device_where_others_have_one(own: Path) -> None:
    """The file has the GPUs that the runtime gives, under the indices that it uses."""
    (own / "dev/nvidia1").unlink()  # that of the first GPU
    built = build_host_spec(own, name_strategies=("index",))
    found = index_devices(built.spec)
    assert list(found) == ["0", "all", "none"]
    assert list_node_paths(found["0"])[0] == "/dev/nvidia0"
    assert "/dev/nvidia1" not in list_node_paths(found["all"])
    assert any("cannot be given to containers here" in text and "nvidia1 is missing" in text for text in built.warnings)


def test_nodes_of_capabilities_that_are_not_wanted_may_be_missing(own: Path) -> None:
    (own / "dev/nvidia-uvm").unlink()
    build_host_spec(own, capabilities=("utility",))


def test_a_library_that_a_capability_cannot_do_without_is_refused_by_name(own: Path) -> None:
    for path in (own / "usr/lib/x86_64-linux-gnu").glob("libcuda.so*"):
        path.unlink()
    assert "libcuda.so.1 is required for capability compute" in refused(own)
    build_host_spec(own, capabilities=("utility",))


def test_without_a_driver_there_is_nothing_to_write(own: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(host_facts.NoDriverError, match="the kernel module nvidia is not loaded"):
        plan_host_spec(tmp_path / "empty")
    version = own / "proc/driver/nvidia/version"
    text = version.read_text()
    version.write_text(text.replace(DRIVER_VERSION, "next"))
    (own / "sys/module/nvidia/version").unlink()
    with pytest.raises(host_facts.NoDriverError, match="is unknown, since /proc/driver/nvidia/version names none"):
        plan_host_spec(own)
    version.write_text(text)
    shutil.rmtree(own / "proc/driver/nvidia/gpus")
    with pytest.raises(host_facts.NoDriverError, match="has no GPU in /proc/driver/nvidia/gpus"):
        plan_host_spec(own)
    assert list(index_devices(build_host_spec(own, selectors=("none",)).spec)) == ["none"]


def test_a_half_upgraded_driver_is_refused(own: Path) -> None:
    for name in ("version",):
        path = own / "proc/driver/nvidia" / name
        path.write_text(path.read_text().replace(DRIVER_VERSION, "550.54.14"))
    assert "550.54.14" in refused(own)


# --- versions and targets ---------------------------------------------------------------------------------------


def test_the_version_is_the_least_that_the_content_needs(host: Path) -> None:
    def version(**options: object) -> str:
        return str(build_host_spec(host, **options).spec["cdiVersion"])

    assert version() == "0.7.0", "graphics brings nodes for groups"
    assert version(capabilities=("compute",)) == "0.5.0", "0 is a name that begins with a digit"
    assert version(capabilities=("compute",), category="gpu.test") == "0.6.0"


def test_on_the_machines_own_root_a_file_without_digits_needs_nothing_new(
    host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host's path of a node is the container's there."""
    from gpu_oci_hook.generate import content

    plain = content.build_node_entry

    def unmoved(edit: object, source: str, access: str) -> dict[str, object]:
        return plain(edit, source.removeprefix(str(host)), access)  # type: ignore[arg-type]

    monkeypatch.setattr(content, "build_node_entry", unmoved)
    found = build_host_spec(host, name_strategies=("uuid",), capabilities=("compute",)).spec
    assert found["cdiVersion"] == "0.3.0"
    assert all("hostPath" not in node for node in found["containerEdits"]["deviceNodes"])


@pytest.mark.parametrize("maximum", ["0.5.0", "0.6.0"])
def test_an_engine_that_cannot_read_groups_gets_none_and_that_is_said(host: Path, maximum: str) -> None:
    found = build_host_spec(host, recipe={"max_version": maximum, "target_engine": "some-engine"})
    assert b"additionalGids" not in found.data and found.spec["cdiVersion"] == "0.5.0"
    (text,) = [text for text in found.warnings if "additionalGids" in text]
    assert "44, 104" in text and "needs CDI 0.7.0" in text and f"some-engine reads CDI {maximum} at most" in text
    assert "/dev/dri/card1" in text
    # The owners are still said: a group that the container's user is in otherwise may open the node.
    assert {node["gid"] for node in index_devices(found.spec)["0"]["deviceNodes"]} == {0, 44, 104}


def test_an_engine_that_cannot_read_names_with_digits_first_gets_the_others(
    host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = {"max_version": "0.4.0"}
    from gpu_oci_hook.generate import content

    plain = content.build_node_entry
    monkeypatch.setattr(content, "build_node_entry", lambda edit, source, access: plain(edit, edit.path, access))
    found = build_host_spec(host, recipe=recipe)
    assert [name for name in index_devices(found.spec) if name[0].isdigit()] == []
    assert any("names that begin with a digit (0, 1) are left out" in text for text in found.warnings)
    assert "gpu0" in index_devices(build_host_spec(host, name_strategies=("type-index",), recipe=recipe).spec)
    with pytest.raises(Fault, match="--name type-index") as caught:
        build_host_spec(host, name_strategies=("index",), selectors=("0",), recipe=recipe)
    assert "need CDI 0.5.0, and --max-version is 0.4.0" in str(caught.value)


def test_a_file_that_an_engine_cannot_do_without_a_newer_field_is_refused(host: Path) -> None:
    """The simulated host's nodes lie elsewhere, which CDI before 0.5.0 cannot say."""
    with pytest.raises(Fault, match=r"the file needs CDI 0\.5\.0 \(.*hostPath"):
        build_host_spec(host, name_strategies=("uuid",), recipe={"max_version": "0.4.0"})


# --- without a hook ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("driver_dir", ["/usr/lib/x86_64-linux-gnu", "/usr/lib64"])
def test_without_a_hook_libraries_and_their_links_are_mounts_where_the_hosts_loader_looks(
    host: Path, tmp_path: Path, driver_dir: str
) -> None:
    layout = {"/usr/lib64": "fedora"}.get(driver_dir, "debian")
    own = tmp_path / "h"
    host_tree.build_host(own, gpus=1, driver=DRIVER_VERSION, layout=layout)
    found = build_host_spec(own, hook_path="")
    assert "hooks" not in found.spec["containerEdits"]
    there = index_mount_sources(found.spec)
    real = f"{own}{driver_dir}/libcuda.so.{DRIVER_VERSION}"
    names = (f"libcuda.so.{DRIVER_VERSION}", "libcuda.so.1", "libcuda.so")
    assert [there[f"{driver_dir}/{name}"] for name in names] == [real] * 3
    assert there[f"{driver_dir}/gbm/nvidia-drm_gbm.so"].endswith(f"libnvidia-allocator.so.{DRIVER_VERSION}")
    assert not [path for path in there if path.startswith(DRIVER_LIBRARY_DIR) or "socket" in path]
    assert any(text.endswith(f"need LD_LIBRARY_PATH={driver_dir}") for text in found.warnings)


# --- the same every time ----------------------------------------------------------------------------------------------


def test_twice_the_same_machine_is_twice_the_same_bytes(host: Path) -> None:
    assert build_host_spec(host).data == build_host_spec(host).data
    assert (
        build_host_spec(host, recipe={"output_format": "json"}).data
        == build_host_spec(host, recipe={"output_format": "json"}).data
    )


def test_an_upgraded_driver_gives_another_file_and_another_fingerprint(own: Path) -> None:
    """What was right before names files that are gone."""
    before = build_host_spec(own)
    host_tree.build_host(own, gpus=2, driver="555.42.02")
    after = build_host_spec(own)
    assert b"550.163.01" in before.data and b"550.163.01" not in after.data
    assert read_hook_arguments(after.spec).driver_version == "555.42.02"
    assert read_hook_arguments(before.spec).made_from != read_hook_arguments(after.spec).made_from


def test_what_it_was_made_from_changes_with_gpus_and_parts_and_not_with_options(host: Path, tmp_path: Path) -> None:
    known = {
        plan_host_spec(host).fingerprint,
        plan_host_spec(host, name_strategies=("index",), capabilities=("compute",)).fingerprint,
    }
    assert len(known) == 1
    for number, (gpus, mig) in enumerate([(1, ()), (2, ("1g", "0")), (2, ("1g,1g", "0"))]):
        host_tree.build_host(tmp_path / str(number), gpus=gpus, driver=DRIVER_VERSION, mig=mig)
        (tmp_path / "h").unlink(missing_ok=True)
        (tmp_path / "h").symlink_to(str(number))
        known.add(plan_host_spec(tmp_path / str(number)).fingerprint)
    assert len(known) == 4


def test_sixteen_gpus_in_seven_parts_take_no_three_times_as_long_as_one_gpu(tmp_path: Path) -> None:
    """Without the process's own start, so the bound here is by the number of devices; scripts/bench has the other."""
    host_tree.build_host(tmp_path / "one", gpus=1, driver=DRIVER_VERSION)
    host_tree.build_host(tmp_path / "many", gpus=16, driver=DRIVER_VERSION, mig=("7",))

    def best(host: Path) -> float:
        times = []
        for _ in range(3):
            began = time.perf_counter()
            product_only = plan_host_spec(host)
            times.append(time.perf_counter() - began)
        assert product_only.spec["devices"]
        return min(times)

    # 129 times the devices; by device it must cost much less than a file's own fixed part.
    assert best(tmp_path / "many") < 20 * best(tmp_path / "one")


def test_oci_and_cdi_nodes_have_the_same_numbers_where_both_say_them(host: Path, tmp_path: Path) -> None:
    asked = container_spec("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all")
    theirs = oci_devices(inject_in_process(make_bundle(tmp_path / "b", asked), host_config(host)))
    found = build_host_spec(host).spec
    written = [*found["containerEdits"]["deviceNodes"], *index_devices(found)["all"]["deviceNodes"]]
    assert {node["path"] for node in written} == set(theirs)
    for node in written:
        if "major" in node:
            assert (node["major"], node["minor"]) == theirs[node["path"]]
