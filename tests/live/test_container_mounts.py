"""What is mounted in a container that has no config.json, read from the kernel's mount table."""

from __future__ import annotations

from gpu_oci_hook.live.container_mounts import (
    describe_container_mounts,
    find_mounts_from,
    locate_mounted_files,
    parse_mount_table,
)

TABLE = b"""\
20 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
21 20 0:6 / /dev rw,nosuid shared:2 - devtmpfs udev rw
22 20 0:24 / /run rw,nosuid - tmpfs tmpfs rw,mode=755
30 20 8:1 /images/a\\040b /c rw - ext4 /dev/sda1 rw
31 30 0:50 / /c/proc rw - proc proc rw
32 30 0:51 / /c/dev rw - tmpfs tmpfs rw
33 32 0:6 /null /c/dev/null rw - devtmpfs udev rw
34 30 0:24 /user /c/run rw - tmpfs tmpfs rw
35 30 8:1 /home /c/home rw - ext4 /dev/sda1 rw
36 30 9:9 /data /c/data rw - xfs /dev/gone rw
37 30 0:52 / /c/tmp\\134x rw - tmpfs gpu-oci-hook rw
38 20 0:60 / /cc rw - tmpfs tmpfs rw
a line of another shape
"""


def test_each_kind_of_mount_is_described_as_config_json_would() -> None:
    mounts = describe_container_mounts(parse_mount_table(TABLE), "/c")
    bind = {"type": "bind", "options": ["bind"]}
    assert mounts == [
        {"destination": "/data", "source": "/dev/gone", **bind},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": []},
        {"destination": "/dev/null", "source": "/dev/null", **bind},
        {"destination": "/home", "source": "/home", **bind},
        {"destination": "/proc", "type": "proc", "source": "proc", "options": []},
        {"destination": "/run", "source": "/run/user", **bind},
        {"destination": "/tmp\\x", "type": "tmpfs", "source": "gpu-oci-hook", "options": []},
    ]


def test_the_whole_of_a_file_system_that_is_mounted_elsewhere_too_is_not_the_containers_own() -> None:
    table = TABLE + b"39 30 0:6 / /c/dev rw - devtmpfs udev rw\n40 30 0:24 / /c/run rw - tmpfs tmpfs rw\n"
    mounts = describe_container_mounts(parse_mount_table(table), "/c")
    assert {"destination": "/dev", "type": "bind", "source": "/dev", "options": ["bind"]} in mounts
    assert {"destination": "/run", "type": "bind", "source": "/run", "options": ["bind"]} in mounts


def test_mounts_of_one_source_are_found_below_the_root_only() -> None:
    entries = parse_mount_table(TABLE)
    assert find_mounts_from(entries, "/c", "gpu-oci-hook") == ["/tmp\\x"]
    assert find_mounts_from(entries, "/cc", "gpu-oci-hook") == []
    assert find_mounts_from(entries, "/c", "udev") == ["/dev/null"]


def test_a_mounted_file_is_named_by_its_path_on_the_host_though_the_host_is_a_subvolume() -> None:
    own = parse_mount_table(
        b"20 1 0:30 /@ / rw shared:1 - btrfs /dev/sda1 rw\n21 20 0:30 /@usr /usr rw - btrfs /dev/sda1 rw\n"
    )
    table = parse_mount_table(
        b"1 0 0:30 /@/var/lib/x /x rw - btrfs /dev/sda1 rw\n"
        b"2 0 0:30 /@usr/lib/libcuda.so.1//deleted /usr/lib/libcuda.so.1 ro - btrfs /dev/sda1 rw\n"
        b"3 0 0:31 /data /data rw - xfs /dev/sdb rw\n"
        b"4 0 0:30 /@ /host rw - btrfs /dev/sda1 rw\n"
    )
    assert [entry.root for entry in locate_mounted_files(table, own)] == [
        "/var/lib/x", "/usr/lib/libcuda.so.1//deleted", "/data", "/",
    ]  # fmt: skip
    assert [entry.mount_point for entry in locate_mounted_files(table, own)] == [
        "/x", "/usr/lib/libcuda.so.1", "/data", "/host",
    ]  # fmt: skip
