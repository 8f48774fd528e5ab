"""What goes in beside GPUs, the whole way: channels, features, MPS, management, the administrator's own files."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path
from typing import Any

import pytest

from gpu_oci_hook.config.keys import Config
from gpu_oci_hook.config.load import parse_config
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.files import state_dir
from gpu_oci_hook.formats import elf_builder
from gpu_oci_hook.inject import gather, pipeline
from gpu_oci_hook.model.outcome import Outcome
from gpu_oci_hook.request.environment import MANAGEMENT_DEVICE
from gpu_oci_hook.simulate import host_tree
from support.bundles import (
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
    user_namespace_param,
)
from support.fixtures import SharedHost

GPU0 = "NVIDIA_VISIBLE_DEVICES=0"
CHANNELS = "/dev/nvidia-caps-imex-channels/channel"
ALL_FEATURES = ("gds", "mofed", "gdrcopy", "nvswitch")
ROOT = os.geteuid() == 0

pytestmark = [
    pytest.mark.usefixtures("isolated_state"),
    pytest.mark.skipif(not ROOT, reason="NOT TESTED: only root can make device nodes"),
]


@pytest.fixture(scope="module")
def host(shared_host: SharedHost) -> Path:
    """Two GPUs and everything else; tests that change a host make their own."""
    return shared_host(gpus=2, imex=4, features=ALL_FEATURES)


@pytest.fixture(scope="module")
def bare(shared_host: SharedHost) -> Path:
    """Two GPUs and nothing else."""
    return shared_host(gpus=2)


def given(tmp_path: Path, config: Config, *env: str, **more: Any) -> Spec:
    """The config.json of a container after the shim; done twice, which must change nothing."""
    made = make_bundle(tmp_path / "b", container_spec(*env, **more))
    first = inject_in_process(made, config)
    assert inject_in_process(made, config) == first
    return first


def planned(tmp_path: Path, config: Config, *env: str, **more: Any) -> Outcome:
    made = make_bundle(tmp_path / "b", container_spec(*env, **more))
    return pipeline.prepare_injection(container_spec(*env, **more), config, str(made), state_dir.StateCache())


def withheld(outcome: Outcome) -> dict[str, str]:
    return {one.name: one.reason for one in outcome.plan.withheld}


def why(outcome: Outcome, text: str) -> str:
    """The reason of the edit whose description has this text."""
    found = [edit.reason for edit in outcome.plan.edits if text in edit.describe()]
    assert found, f"nothing about {text} in the plan"
    return found[0]


# --- IMEX channels ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "numbers"), [("0", [0]), ("1,3", [1, 3]), ("1-2,1", [1, 2]), ("all", [0, 1, 2, 3]), ("none", []), ("", [])]
)
def test_a_container_gets_exactly_the_channels_it_asks_for(
    said: str, numbers: list[int], host: Path, tmp_path: Path
) -> None:
    after = given(tmp_path, host_config(host), GPU0, f"NVIDIA_IMEX_CHANNELS={said}")
    assert {path: numbers for path, numbers in list_device_numbers(after).items() if "imex" in path} == {
        f"{CHANNELS}{number}": (234, number) for number in numbers
    }
    assert [rule for rule in list_allowed_numbers(after) if rule[0] == 234] == [(234, number) for number in numbers]


def test_a_mount_asks_for_a_channel(host: Path, tmp_path: Path) -> None:
    mounts = [
        {"source": "/dev/null", "destination": f"/var/run/nvidia-container-devices/{name}"} for name in ("0", "imex/2")
    ]
    after = given(tmp_path, host_config(host), mounts=mounts)
    assert f"{CHANNELS}2" in list_device_numbers(after) and "/dev/nvidia1" in list_device_numbers(after)


def test_channels_go_with_the_driver_alone_too(host: Path, tmp_path: Path) -> None:
    after = given(tmp_path, host_config(host), "NVIDIA_VISIBLE_DEVICES=none", "NVIDIA_IMEX_CHANNELS=0")
    assert f"{CHANNELS}0" in list_device_numbers(after) and "/dev/nvidia0" not in list_device_numbers(after)


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ("9", "this host has no IMEX channel 9. Channels that exist: 0 to 3. Create another channel as root"),
        ("2-5", "this host lacks 2 of the IMEX channels 2 to 5. Channels that exist: 0 to 3"),
        ("0-1048575", "this host lacks 1048572 of the IMEX channels 0 to 1048575"),
    ],
)
def test_a_channel_that_is_not_there_is_an_error_that_lists_those_that_are(
    said: str, sentence: str, host: Path, tmp_path: Path
) -> None:
    with pytest.raises(Fault) as caught:
        given(tmp_path, host_config(host), GPU0, f"NVIDIA_IMEX_CHANNELS={said}")
    assert sentence in str(caught.value)
    assert str(caught.value).startswith(f"NVIDIA_IMEX_CHANNELS={said} (process.env[2]): ")


def test_all_channels_of_a_host_without_any_is_none_and_said_to_who_asks(bare: Path, tmp_path: Path) -> None:
    outcome = planned(tmp_path, host_config(bare), GPU0, "NVIDIA_IMEX_CHANNELS=all")
    reason = "NVIDIA_IMEX_CHANNELS=all (process.env[2]), but this host has none"
    assert withheld(outcome)["IMEX channels"] == reason
    assert f"IMEX channels are not injected: {reason}" in outcome.plan.warnings
    outcome = planned(tmp_path, host_config(bare, imex_channels="always"), GPU0)
    assert withheld(outcome)["IMEX channels"] == '[inject] imex-channels = "always", but this host has none'


def test_a_driver_without_imex_is_named_as_the_reason(tmp_path: Path) -> None:
    host_tree.build_host(tmp_path / "h")
    table = tmp_path / "h/proc/devices"
    table.chmod(0o644)
    table.write_text(table.read_text().replace("234 nvidia-caps-imex-channels\n", ""))
    with pytest.raises(Fault, match="no nvidia-caps-imex-channels in /proc/devices: this driver has no IMEX"):
        given(tmp_path, host_config(tmp_path / "h"), GPU0, "NVIDIA_IMEX_CHANNELS=0")


def test_a_stale_channel_is_none(tmp_path: Path) -> None:
    """Its number may be another device's by now."""
    host_tree.build_host(tmp_path / "h", imex=1)
    for name, number in (("channel1", os.makedev(230, 1)), ("channel2", os.makedev(234, 9))):
        os.mknod(tmp_path / "h/dev/nvidia-caps-imex-channels" / name, stat.S_IFCHR | 0o666, number)
    (tmp_path / "h/dev/nvidia-caps-imex-channels/channel3").write_text("")
    after = given(tmp_path, host_config(tmp_path / "h"), GPU0, "NVIDIA_IMEX_CHANNELS=all")
    assert [path for path in list_device_numbers(after) if "imex" in path] == [f"{CHANNELS}0"]
    for number, reason in ((1, "belongs to no module"), (2, "it is another channel"), (3, "not a character device")):
        with pytest.raises(Fault, match=reason):
            given(tmp_path, host_config(tmp_path / "h"), GPU0, f"NVIDIA_IMEX_CHANNELS={number}")


@pytest.mark.parametrize("kind", [user_namespace_param("user namespace")])
def test_in_a_user_namespace_channels_are_bound(kind: str, host: Path, tmp_path: Path) -> None:
    linux = {"namespaces": [{"type": "user"}, {"type": "mount"}]}
    after = given(tmp_path, host_config(host), GPU0, "NVIDIA_IMEX_CHANNELS=2", linux=linux)
    bound = {mount["destination"]: mount["source"] for mount in after["mounts"]}
    assert bound[f"{CHANNELS}2"] == f"{host}{CHANNELS}2"


# --- features --------------------------------------------------------------------------------------

NODES = {
    "gds": {f"/dev/nvidia-fs{number}": (509, number) for number in range(3)},
    "mofed": {
        "/dev/infiniband/uverbs0": (231, 192),
        "/dev/infiniband/uverbs1": (231, 193),
        "/dev/infiniband/rdma_cm": (10, 122),
    },
    "gdrcopy": {"/dev/gdrdrv": (508, 0)},
    "nvswitch": {
        "/dev/nvidia-nvswitchctl": (507, 255),
        "/dev/nvidia-nvswitch0": (507, 0),
        "/dev/nvidia-nvswitch1": (507, 1),
    },
}


@pytest.mark.parametrize("feature", NODES)
@pytest.mark.parametrize("by", ["env", "config"])
def test_a_feature_brings_its_nodes_and_no_other(feature: str, by: str, host: Path, tmp_path: Path) -> None:
    env = [f"NVIDIA_{feature.upper()}=enabled"] if by == "env" else []
    config = host_config(host, **({feature: "always"} if by == "config" else {}))
    after = given(tmp_path, config, GPU0, *env)
    others = {path: numbers for path, numbers in list_device_numbers(after).items() if numbers[0] not in (195, 510)}
    assert others == NODES[feature]
    assert set(NODES[feature].values()) <= set(list_allowed_numbers(after))


def test_gpudirect_storage_brings_its_configuration_and_udevs_data_to_be_read_only(host: Path, tmp_path: Path) -> None:
    after = given(tmp_path, host_config(host), GPU0, "NVIDIA_GDS=enabled")
    mounts = {mount["destination"]: mount for mount in after["mounts"]}
    for path in ("/etc/cufile.json", "/run/udev"):
        assert mounts[path]["source"] == f"{host}{path}" and "ro" in mounts[path]["options"]
    assert not {"/etc/cufile.json", "/run/udev"} & set(
        list_mount_destinations(given(tmp_path / "c", host_config(host), GPU0))
    )


def test_files_of_a_feature_are_optional_and_its_nodes_are_not(host: Path, tmp_path: Path) -> None:
    host_tree.build_host(tmp_path / "h", features=("gds",))
    (tmp_path / "h/etc/cufile.json").unlink()
    outcome = planned(tmp_path, host_config(tmp_path / "h"), GPU0, "NVIDIA_GDS=enabled")
    assert withheld(outcome)["/etc/cufile.json"] == "the host has none (GPUDirect Storage)"
    assert why(outcome, "/dev/nvidia-fs0") == "GPUDirect Storage: NVIDIA_GDS=enabled (process.env[2])"


@pytest.mark.parametrize(
    ("feature", "missing"),
    [
        ("gds", "/dev/nvidia-fs*: no nvidia-fs in /proc/devices, so its kernel module is not loaded"),
        ("mofed", "/dev/infiniband/uverbs*: no infiniband_verbs in /proc/devices"),
        ("gdrcopy", "/dev/gdrdrv: no gdrdrv in /proc/devices"),
        ("nvswitch", "/dev/nvidia-nvswitch*: no nvidia-nvswitch in /proc/devices"),
    ],
)
def test_a_feature_that_the_host_lacks_is_an_error_that_says_what_is_missing_and_what_exists(
    feature: str, missing: str, bare: Path, tmp_path: Path
) -> None:
    with pytest.raises(Fault) as caught:
        given(tmp_path, host_config(bare), GPU0, f"NVIDIA_{feature.upper()}=enabled")
    assert missing in str(caught.value) and "This host has none of the optional devices gds, mofed" in str(caught.value)
    other = "gdrcopy" if feature != "gdrcopy" else "gds"
    host_tree.build_host(tmp_path / "h", features=(other,))
    with pytest.raises(Fault, match=f"This host has {other} \\({next(iter(NODES[other]))}"):
        given(tmp_path, host_config(tmp_path / "h"), GPU0, f"NVIDIA_{feature.upper()}=enabled")


def test_a_feature_that_the_administrator_gives_stops_no_start_where_it_is_missing(bare: Path, tmp_path: Path) -> None:
    outcome = planned(tmp_path, host_config(bare, gds="always"), GPU0)
    assert withheld(outcome)["GPUDirect Storage"].startswith(
        '[inject] gds = "always", but /dev/nvidia-fs*: no nvidia-fs'
    )
    assert any(warning.startswith("GPUDirect Storage is not injected") for warning in outcome.plan.warnings)


def test_a_stale_node_of_a_feature_is_not_given(tmp_path: Path) -> None:
    host_tree.build_host(tmp_path / "h", features=("gdrcopy",))
    node = tmp_path / "h/dev/gdrdrv"
    node.unlink()
    os.mknod(node, stat.S_IFCHR | 0o666, os.makedev(510, 0))
    with pytest.raises(Fault, match=r"/dev/gdrdrv: its number 510:0 belongs to nvidia-uvm"):
        given(tmp_path, host_config(tmp_path / "h"), GPU0, "NVIDIA_GDRCOPY=enabled")


def test_a_node_whose_number_is_another_misc_devices_by_now_does_not_count(tmp_path: Path) -> None:
    """They all have one major number, and get their minors in the order in which they are loaded."""
    host_tree.build_host(tmp_path / "h", features=("mofed",))
    table = tmp_path / "h/proc/misc"
    table.unlink()
    table.write_text("121 rdma_cm\n122 vhost-net\n")
    after = given(tmp_path, host_config(tmp_path / "h"), GPU0, "NVIDIA_MOFED=enabled")
    assert "/dev/infiniband/uverbs0" in list_device_numbers(
        after
    ) and "/dev/infiniband/rdma_cm" not in list_device_numbers(after)
    assert (10, 122) not in list_allowed_numbers(after)
    outcome = planned(tmp_path / "c", host_config(tmp_path / "h"), GPU0, "NVIDIA_MOFED=enabled")
    assert "its number 10:122 belongs to vhost-net" in withheld(outcome)["/dev/infiniband/rdma_cm"]


def test_switches_that_control_nothing_do_not_match_their_neighbours(tmp_path: Path) -> None:
    """A machine may have the control node and no switch; "nvswitchctl" is no switch by number."""
    host_tree.build_host(tmp_path / "h", features=("nvswitch",))
    for number in (0, 1):
        (tmp_path / f"h/dev/nvidia-nvswitch{number}").unlink()
    after = given(tmp_path, host_config(tmp_path / "h"), GPU0, "NVIDIA_NVSWITCH=enabled")
    assert [path for path in list_device_numbers(after) if "nvswitch" in path] == ["/dev/nvidia-nvswitchctl"]


@pytest.mark.parametrize("target", ["/", "..", "/etc", "/dev", "/proc", "/usr/lib"])
def test_an_image_does_not_choose_where_a_directory_of_the_hosts_goes(target: str, host: Path, tmp_path: Path) -> None:
    """As the root of the container it would take everything that the runtime makes there, on the host."""
    made = make_bundle(tmp_path / "b", container_spec(GPU0, "NVIDIA_GDS=enabled"))
    (made / "rootfs/run/udev").symlink_to(target)
    outcome = pipeline.prepare_injection(read_spec(made), host_config(host), str(made), state_dir.StateCache())
    assert "a link of the image leads from /run/udev to /" in withheld(outcome)["/run/udev"]
    after = inject_in_process(made, host_config(host))
    assert not [mount for mount in after["mounts"] if mount["source"].endswith("/run/udev")]
    assert inject_in_process(made, host_config(host)) == after


def test_a_directory_of_the_hosts_may_go_where_a_link_leads_to_an_empty_one(host: Path, tmp_path: Path) -> None:
    made = make_bundle(tmp_path / "b", container_spec(GPU0, "NVIDIA_GDS=enabled"))
    (made / "rootfs/run/udev").symlink_to("/srv/udev")
    (made / "rootfs/srv/udev").mkdir(parents=True)
    assert "/srv/udev" in list_mount_destinations(inject_in_process(made, host_config(host)))


def test_the_fabric_managers_socket_goes_in_with_utility(host: Path, tmp_path: Path) -> None:
    place = "/run/nvidia-fabricmanager/socket"
    after = given(tmp_path, host_config(host), GPU0)
    mount = next(mount for mount in after["mounts"] if mount["destination"] == place)
    assert mount["source"] == f"{host}{place}" and "ro" not in mount["options"] and "noexec" in mount["options"]
    compute = given(tmp_path / "c", host_config(host), GPU0, "NVIDIA_DRIVER_CAPABILITIES=compute")
    assert place not in list_mount_destinations(compute)


# --- MPS -------------------------------------------------------------------------------------------

PIPE, LOG = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"


@pytest.fixture
def mps(tmp_path: Path) -> Path:
    """A host with an MPS daemon's directories away from their usual places."""
    host_tree.build_host(tmp_path / "h")
    for name in ("srv/mps/pipe", "srv/mps/log", "srv/mps/shm", "srv/other"):
        (tmp_path / "h" / name).mkdir(parents=True)
    return tmp_path / "h"


def mounted(after: Spec) -> dict[str, str]:
    return {mount["destination"]: mount["source"] for mount in after["mounts"]}


def test_the_configured_pipes_are_where_clients_look_or_where_the_container_says_that_it_looks(
    mps: Path, tmp_path: Path
) -> None:
    config = host_config(mps, mps_pipe_directory="/srv/mps/pipe")
    assert mounted(given(tmp_path / "1", config, GPU0))["/tmp/nvidia-mps"] == f"{mps}/srv/mps/pipe"
    after = mounted(given(tmp_path / "2", config, GPU0, f"{PIPE}=/srv/mps/pipe"))
    assert after["/srv/mps/pipe"] == f"{mps}/srv/mps/pipe" and "/tmp/nvidia-mps" not in after
    slash = host_config(mps, mps_pipe_directory="/srv/mps/pipe/")
    assert mounted(given(tmp_path / "5", slash, GPU0, f"{PIPE}=/srv/mps/pipe")) == after
    assert "/tmp/nvidia-mps" not in mounted(given(tmp_path / "3", config, GPU0, f"{PIPE}=")), "the container wants none"
    assert "/tmp/nvidia-mps" not in mounted(given(tmp_path / "4", config, GPU0, "NVIDIA_DRIVER_CAPABILITIES=utility"))


def test_a_container_never_names_a_directory_of_the_host(mps: Path, tmp_path: Path) -> None:
    (mps / "tmp/nvidia-mps").mkdir()
    for config in (
        host_config(mps),
        host_config(mps, mps_pipe_directory="/srv/mps/pipe", mps_log_directory="/srv/mps/log"),
    ):
        words = (f"{PIPE}=/srv/other", f"{LOG}=/srv/other")
        outcome = planned(tmp_path, config, GPU0, *words)
        assert "a container cannot choose the directory that is mounted" in withheld(outcome)["MPS pipes"]
        after = mounted(given(tmp_path, config, GPU0, *words))
        assert not [source for source in after.values() if "/srv/" in source or "nvidia-mps" in source]


def test_logs_and_shared_memory_go_in_where_they_are_configured(mps: Path, tmp_path: Path) -> None:
    config = host_config(
        mps, mps_pipe_directory="/srv/mps/pipe", mps_log_directory="/srv/mps/log", mps_shm="/srv/mps/shm"
    )
    shm = {"destination": "/dev/shm", "type": "tmpfs", "source": "shm"}
    after = given(tmp_path / "1", config, GPU0, f"{LOG}=/var/log/nvidia-mps", mounts=[shm])
    assert mounted(after)["/var/log/nvidia-mps"] == f"{mps}/srv/mps/log"
    over = [mount["source"] for mount in after["mounts"] if mount["destination"] == "/dev/shm"]
    assert over == [f"{mps}/srv/mps/shm"], "the engine's own gives way"
    assert "/var/log/nvidia-mps" not in mounted(given(tmp_path / "2", config, GPU0)), "nobody has asked for logs"
    outcome = planned(tmp_path, host_config(mps, mps_pipe_directory="/srv/mps/pipe"), GPU0, f"{LOG}=/x")
    assert withheld(outcome)["MPS logs"] == f"{LOG} is set, but [inject] mps-log-directory is not"


def test_a_configured_directory_that_is_missing_or_a_strangers_is_withheld_with_a_warning(
    mps: Path, tmp_path: Path
) -> None:
    os.chown(mps / "srv/other", 12345, 12345)
    (mps / "srv/link").symlink_to("/srv/mps/pipe")
    for path, reason in (
        ("/srv/none", "is missing"), ("/srv/other", "belongs to user 12345"), ("/srv/link", "is not a directory"),
    ):  # fmt: skip
        outcome = planned(tmp_path, host_config(mps, mps_pipe_directory=path), GPU0)
        assert reason in withheld(outcome)["/tmp/nvidia-mps"]
        assert any("[inject] mps-pipe-directory is not used" in warning for warning in outcome.plan.warnings)


def test_no_sockets_means_no_mps(mps: Path, tmp_path: Path) -> None:
    config = host_config(mps, mps_pipe_directory="/srv/mps/pipe", sockets=False)
    assert "/tmp/nvidia-mps" not in mounted(given(tmp_path, config, GPU0))


# --- management ------------------------------------------------------------------------------------

PRIVILEGED = {"capabilities": {"bounding": ["CAP_SYS_ADMIN"]}}


def managing(tmp_path: Path, config: Config, monkeypatch: pytest.MonkeyPatch) -> Spec:
    made = container_spec(f"NVIDIA_VISIBLE_DEVICES={MANAGEMENT_DEVICE}", mounts=[PROC])
    made["process"].update(PRIVILEGED)
    monkeypatch.setattr(gather, "_read_visible_params", lambda _: b"ModifyDeviceFiles: 1\n")
    return inject_in_process(make_bundle(tmp_path / "m", made), config)


def test_a_management_container_gets_every_node_and_every_file(
    host: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    after = managing(tmp_path, host_config(host), monkeypatch)
    there = {
        "/" + str(path.relative_to(host))
        for path in (host / "dev").rglob("*")
        if path.is_char_device() and "nvidia" in str(path.relative_to(host))
    }
    assert len(there) > 12
    assert there <= set(list_device_numbers(after))
    assert set(list_device_numbers(after).values()) <= set(list_allowed_numbers(after))
    assert "/dev/gdrdrv" not in list_device_numbers(after), "no device of the driver's"
    for name in ("nvidia-smi", "nvidia-persistenced", "nvidia-cuda-mps-control"):
        assert f"/usr/bin/{name}" in list_mount_destinations(after)
    assert "/lib/firmware/nvidia/550.163.01/gsp_ga10x.bin" in "".join(list_mount_destinations(after))
    assert not after.get("hooks"), "ModifyDeviceFiles is left alone"


def test_a_management_container_gets_the_nodes_of_a_stale_module_withheld(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host_tree.build_host(tmp_path / "h")
    os.mknod(tmp_path / "h/dev/nvidia-vgpu0", stat.S_IFCHR | 0o666, os.makedev(8, 0))
    after = managing(tmp_path, host_config(tmp_path / "h"), monkeypatch)
    assert "/dev/nvidia-vgpu0" not in list_device_numbers(after)


# --- the administrator's own files -----------------------------------------------------------------


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A host with files of its owner's."""
    root = tmp_path / "h"
    host_tree.build_host(root)
    (root / "opt/site").mkdir(parents=True)
    (root / "opt/site/tool").write_text("#!/bin/sh\n")
    (root / "opt/site/data").mkdir()
    (root / "opt/site/libsite.so.1.2").write_bytes(
        elf_builder.build_shared_object(soname="libsite.so.1", needed=["libcuda.so.1"])
    )
    (root / "opt/site/libsite.so").symlink_to("libsite.so.1.2")
    (root / "opt/site/bad.so").write_text("no library")
    os.mknod(root / "dev/special", stat.S_IFCHR | 0o660, os.makedev(300, 7))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"/proc/self/fd/{os.open(root / 'opt/site', os.O_PATH)}/socket")
    return root


def with_file(host: Path, text: str) -> Config:
    """The configuration that a config.toml with these lines makes."""
    return parse_config(f'[host]\nroot = "{host}"\nload-modules = false\n{text}'.encode(), "/etc/x.toml")


def test_files_of_every_kind_can_be_added(site: Path, tmp_path: Path) -> None:
    config = with_file(
        site,
        """
        [[inject.extra]]
        path = "/opt/site/tool"
        container = "/usr/local/bin/tool"
        [[inject.extra]]
        path = "/opt/site/data"
        kind = "directory"
        [[inject.extra]]
        path = "/opt/site/libsite.so"
        kind = "library"
        capability = "compute"
        [[inject.extra]]
        path = "/opt/site/socket"
        kind = "socket"
        [[inject.extra]]
        path = "/dev/special"
        kind = "device"
        """,
    )
    after = given(tmp_path, config, GPU0)
    mounts = {mount["destination"]: mount for mount in after["mounts"]}
    assert mounts["/usr/local/bin/tool"]["source"] == f"{site}/opt/site/tool"
    assert "ro" in mounts["/usr/local/bin/tool"]["options"] and "noexec" not in mounts["/usr/local/bin/tool"]["options"]
    assert "ro" in mounts["/opt/site/data"]["options"]
    assert "ro" not in mounts["/opt/site/socket"]["options"]
    assert mounts["/usr/local/nvidia/lib64/libsite.so.1.2"]["source"] == f"{site}/opt/site/libsite.so.1.2"
    assert list_device_numbers(after)["/dev/special"] == (300, 7) and (300, 7) in list_allowed_numbers(after)
    cache = (tmp_path / "b/rootfs/etc/ld.so.cache").read_bytes()
    assert b"/usr/local/nvidia/lib64/libsite.so.1\0" in cache and b"/usr/local/nvidia/lib64/libsite.so\0" in cache
    outcome = planned(tmp_path, config, GPU0)
    assert why(outcome, "/usr/local/bin/tool") == "[[inject.extra]] 1 of /etc/x.toml: every GPU container"
    assert why(outcome, "libsite.so.1.2 <-") == "[[inject.extra]] 3 of /etc/x.toml: capability compute"


def test_an_addition_goes_with_its_capability_only(site: Path, tmp_path: Path) -> None:
    config = with_file(site, '[[inject.extra]]\npath = "/opt/site/tool"\ncapability = "graphics"\n')
    outcome = planned(tmp_path, config, GPU0)
    assert withheld(outcome)["/opt/site/tool"] == "needs capability graphics ([[inject.extra]] 1 of /etc/x.toml)"
    brought = planned(tmp_path, config, GPU0, "NVIDIA_DRIVER_CAPABILITIES=display")
    assert why(brought, "/opt/site/tool"), "display brings graphics"


@pytest.mark.parametrize(
    ("path", "kind", "reason"),
    [
        ("/opt/none", "file", "it is missing"),
        ("/opt/site", "file", "it is not a regular file"),
        ("/opt/site/tool", "directory", "it is not a directory"),
        ("/opt/site/tool", "socket", "it is not a socket"),
        ("/opt/site/tool", "device", "it is not a character device"),
        ("/opt/site/bad.so", "library", "not a usable shared object"),
    ],
)
def test_an_addition_that_is_not_there_is_withheld_or_an_error_as_configured(
    path: str, kind: str, reason: str, site: Path, tmp_path: Path
) -> None:
    text = f'[[inject.extra]]\npath = "{path}"\nkind = "{kind}"\n'
    outcome = planned(tmp_path, with_file(site, text), GPU0)
    said = withheld(outcome)[path]
    assert said.startswith(f"[[inject.extra]] 1 of /etc/x.toml: {site}{path}: ") and reason in said
    assert any(path in warning for warning in outcome.plan.warnings)
    with pytest.raises(Fault, match=r"is required, but .*Create the file") as caught:
        planned(tmp_path, with_file(site, text + "required = true\n"), GPU0)
    assert reason in str(caught.value) and caught.value.where == "[[inject.extra]] 1 of /etc/x.toml"


def test_a_library_for_another_machine_is_not_added(site: Path, tmp_path: Path) -> None:
    (site / "opt/site/arm.so").write_bytes(elf_builder.build_shared_object(soname="arm.so", arch="armhf"))
    (site / "opt/site/small.so").write_bytes(elf_builder.build_shared_object(soname="small.so", arch="i386"))
    text = "".join(f'[[inject.extra]]\npath = "/opt/site/{n}.so"\nkind = "library"\n' for n in ("arm", "small"))
    outcome = planned(tmp_path, with_file(site, text), GPU0)
    assert "it is for armhf" in withheld(outcome)["/opt/site/arm.so"]
    assert "needs capability compat32" in withheld(outcome)["/opt/site/small.so"]
    more = given(tmp_path, with_file(site, text), GPU0, "NVIDIA_DRIVER_CAPABILITIES=compute,compat32")
    assert "/usr/local/nvidia/lib/small.so" in list_mount_destinations(more)


def test_a_link_in_an_addition_does_not_leave_the_hosts_root(site: Path, tmp_path: Path) -> None:
    (site / "opt/site/out").symlink_to("/etc/hostname")
    outcome = planned(tmp_path, with_file(site, '[[inject.extra]]\npath = "/opt/site/out"\n'), GPU0)
    assert "it is missing" in withheld(outcome)["/opt/site/out"]


@pytest.mark.parametrize(
    ("pattern", "gone"),
    [
        ("nvidia-debugdump", "/usr/bin/nvidia-debugdump"),
        ("/usr/bin/nvidia-debugdump", "/usr/bin/nvidia-debugdump"),
        ("compute:nvidia-cuda-mps-*", "/usr/bin/nvidia-cuda-mps-control"),
        ("libnvidia-nvvm.so*", "libnvidia-nvvm.so.4"),
        ("*/gsp_ga10x.bin", "/lib/firmware/nvidia/550.163.01/gsp_ga10x.bin"),
        ("utility:*persistenced*", "/usr/bin/nvidia-persistenced"),
    ],
)
def test_what_the_administrator_removes_is_withheld_with_the_reason(
    pattern: str, gone: str, bare: Path, tmp_path: Path
) -> None:
    config = host_config(bare, remove=(pattern,))
    outcome = planned(tmp_path, config, GPU0)
    assert withheld(outcome)[gone] == f'[inject] remove = "{pattern}" of the configuration'
    assert not [path for path in list_mount_destinations(given(tmp_path, config, GPU0)) if path.endswith(gone)]


def test_a_removed_library_does_not_come_back_because_another_needs_it(bare: Path, tmp_path: Path) -> None:
    config = host_config(bare, remove=("libnvidia-glcore.so*",))
    after = given(tmp_path, config, GPU0, "NVIDIA_DRIVER_CAPABILITIES=graphics")
    assert not [path for path in list_mount_destinations(after) if "libnvidia-glcore" in path]
    assert [path for path in list_mount_destinations(after) if "libGLX_nvidia" in path]


def test_a_removal_that_hurts_or_hits_nothing_is_a_warning(bare: Path, tmp_path: Path) -> None:
    outcome = planned(
        tmp_path, host_config(bare, remove=("libcuda.so.1", "libmistyped.so", "video:libcuda.so.1")), GPU0
    )
    text = "\n".join(outcome.plan.warnings)
    assert "libcuda.so.1 is removed, and compute cannot work without it" in text
    assert '[inject] remove = "libmistyped.so" of the configuration matches no file of this driver' in text
    assert '"video:libcuda.so.1" of the configuration matches no file' in text
