"""What a simulated host has beside GPUs: IMEX channels, GPUDirect Storage, RDMA, GDRCopy, NVSwitches.

Cost rule: none.
"""

from __future__ import annotations

import os
import socket
import stat

from gpu_oci_hook.errors import describe_os_error
from gpu_oci_hook.simulate.kernel import KernelFiles

FEATURES = ("gds", "mofed", "gdrcopy", "nvswitch")
IMEX_MAJOR = 234
_VERBS_MAJOR, _MISC_MAJOR, _FS_MAJOR, _GDR_MAJOR, _SWITCH_MAJOR = 231, 10, 509, 508, 507

# Lines of /proc/devices; nodes: path, major, minor, mode; files: path and text.
_MODULE_MAJORS = {"gds": (_FS_MAJOR, "nvidia-fs"), "mofed": (_VERBS_MAJOR, "infiniband_verbs"), "gdrcopy": (_GDR_MAJOR, "gdrdrv"),
            "nvswitch": (_SWITCH_MAJOR, "nvidia-nvswitch")}  # fmt: skip
_NODES = {
    "gds": [(f"/dev/nvidia-fs{number}", _FS_MAJOR, number, 0o666) for number in range(3)],
    "mofed": [
        ("/dev/infiniband/uverbs0", _VERBS_MAJOR, 192, 0o666),
        ("/dev/infiniband/uverbs1", _VERBS_MAJOR, 193, 0o666),
        ("/dev/infiniband/rdma_cm", _MISC_MAJOR, 122, 0o666),
    ],
    "gdrcopy": [("/dev/gdrdrv", _GDR_MAJOR, 0, 0o666)],
    "nvswitch": [
        ("/dev/nvidia-nvswitchctl", _SWITCH_MAJOR, 255, 0o666),
        ("/dev/nvidia-nvswitch0", _SWITCH_MAJOR, 0, 0o666),
        ("/dev/nvidia-nvswitch1", _SWITCH_MAJOR, 1, 0o666),
    ],
}
_FILES = {
    "gds": [
        ("/etc/cufile.json", '{ "properties": { "use_compat_mode": false } }\n'),
        ("/run/udev/data/b259:0", "E:ID_MODEL=simulated NVMe disk\n"),
    ],
    "mofed": [("/proc/misc", "122 rdma_cm\n227 mcelog\n 61 network_latency\n")],
}


def add_simulated_features(kernel_files: KernelFiles, features: tuple[str, ...], imex: int) -> None:
    """Makes the nodes and files of these features, and so many IMEX channels."""
    files = kernel_files.files
    table = files.read_file("/proc/devices", 1 << 20) or b""
    lines = "".join(f"{major:3} {name}\n" for major, name in (_MODULE_MAJORS[key] for key in features))
    files.write_file("/proc/devices", table.replace(b"\nBlock devices:", f"{lines}\nBlock devices:".encode()), 0o444)
    nodes = [node for key in features for node in _NODES[key]]
    nodes += [(f"/dev/nvidia-caps-imex-channels/channel{number}", IMEX_MAJOR, number, 0o666) for number in range(imex)]
    for path, major, minor, mode in nodes:
        above, _, name = path.rpartition("/")
        directory = files.open_directory(above)
        try:
            os.mknod(name, stat.S_IFCHR | mode, os.makedev(major, minor), dir_fd=directory.fd)
            os.chmod(name, mode, dir_fd=directory.fd)  # undoes the umask
        except OSError as error:
            kernel_files.left_out.append(
                f"device nodes of features: {describe_os_error(error)}; only root can make them"
            )
            break
        kernel_files.made_nodes.append(path)
    for key in features:
        for path, text in _FILES.get(key, ()):
            files.write_file(path, text.encode())
    if "nvswitch" in features:
        _create_socket(kernel_files, "/run/nvidia-fabricmanager/socket")


def _create_socket(kernel_files: KernelFiles, path: str) -> None:
    above, _, name = path.rpartition("/")
    directory = kernel_files.files.open_directory(above)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        try:
            listener.bind(f"/proc/self/fd/{directory.fd}/{name}")  # a socket's path may have 107 bytes only
        except OSError as error:
            kernel_files.left_out.append(f"socket {path}: {describe_os_error(error)}")
