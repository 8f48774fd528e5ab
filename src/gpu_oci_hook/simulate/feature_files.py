"""Add optional devices to a simulated host: IMEX channels, GPUDirect Storage, RDMA, GDRCopy, NVSwitches.

Import budget: cold.
"""

from __future__ import annotations

from gpu_oci_hook.simulate.special_files import SpecialFiles

FEATURES = ("gds", "mofed", "gdrcopy", "nvswitch")
IMEX_MAJOR = 234
_VERBS_MAJOR, _MISC_MAJOR, _FS_MAJOR, _GDR_MAJOR, _SWITCH_MAJOR = 231, 10, 509, 508, 507

# Feature to its line of /proc/devices: major, name.
_MODULE_MAJORS = {
    "gds": (_FS_MAJOR, "nvidia-fs"),
    "mofed": (_VERBS_MAJOR, "infiniband_verbs"),
    "gdrcopy": (_GDR_MAJOR, "gdrdrv"),
    "nvswitch": (_SWITCH_MAJOR, "nvidia-nvswitch"),
}
# Feature to its nodes: path, major, minor.
_NODES = {
    "gds": [(f"/dev/nvidia-fs{number}", _FS_MAJOR, number) for number in range(3)],
    "mofed": [
        ("/dev/infiniband/uverbs0", _VERBS_MAJOR, 192),
        ("/dev/infiniband/uverbs1", _VERBS_MAJOR, 193),
        ("/dev/infiniband/rdma_cm", _MISC_MAJOR, 122),
    ],
    "gdrcopy": [("/dev/gdrdrv", _GDR_MAJOR, 0)],
    "nvswitch": [
        ("/dev/nvidia-nvswitchctl", _SWITCH_MAJOR, 255),
        ("/dev/nvidia-nvswitch0", _SWITCH_MAJOR, 0),
        ("/dev/nvidia-nvswitch1", _SWITCH_MAJOR, 1),
    ],
}
# Feature to its files: path, text.
_FILES = {
    "gds": [
        ("/etc/cufile.json", '{ "properties": { "use_compat_mode": false } }\n'),
        ("/run/udev/data/b259:0", "E:ID_MODEL=simulated NVMe disk\n"),
    ],
    "mofed": [("/proc/misc", "122 rdma_cm\n227 mcelog\n 61 network_latency\n")],
}


def add_simulated_features(special_files: SpecialFiles, features: tuple[str, ...], imex_channels: int) -> None:
    """Create the nodes and files of these features, and this number of IMEX channels."""
    files = special_files.files
    proc_devices = files.read_file("/proc/devices", 1 << 20) or b""
    lines = "".join(f"{major:3} {name}\n" for major, name in (_MODULE_MAJORS[feature] for feature in features))
    proc_devices = proc_devices.replace(b"\nBlock devices:", f"{lines}\nBlock devices:".encode())
    files.write_file("/proc/devices", proc_devices, 0o444)
    nodes = [node for feature in features for node in _NODES[feature]]
    nodes += [
        (f"/dev/nvidia-caps-imex-channels/channel{number}", IMEX_MAJOR, number) for number in range(imex_channels)
    ]
    for path, major, minor in nodes:
        if not special_files.make_node(path, major, minor):
            break
    for feature in features:
        for path, text in _FILES.get(feature, ()):
            files.write_file(path, text.encode())
    if "nvswitch" in features:
        special_files.make_socket("/run/nvidia-fabricmanager/socket")
