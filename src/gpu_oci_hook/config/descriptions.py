"""The meaning of every config table and key, for config.toml, the JSON schema and the documentation.

Allowed strings and defaults are not repeated here: they come from the rows of `config.keys`.

Import budget: cold.
"""

from __future__ import annotations

TABLE_DESCRIPTIONS = {
    "host": "Where to find this host's GPU driver.",
    "runtime": "Settings of gpu-oci-runtime.",
    "request": "Who may request GPUs, and defaults for requests.",
    "inject": "What containers get in addition to device nodes and driver libraries.",
    "cdi": "Container Device Interface.",
}

KEY_DESCRIPTIONS = {
    "root": "Root directory of the host, below which /proc, /sys and /dev are read. Change it only for a tree made by "
    "`gpu-oci-hook simulate`.",
    "driver-root": "Root directory of the driver files, as seen from root. Change it for a driver that is installed in "
    "a container (/run/nvidia/driver).",
    "library-paths": "Directories below driver-root that are searched for driver libraries first, before the loader "
    "cache and the usual directories.",
    "load-modules": "Whether to run the host's nvidia-modprobe as root when a required kernel module is not loaded, or "
    "when a loaded one has no device node.",
    "platform": "Kind of host: desktop or server with NVIDIA's driver, Linux on Windows (WSL2), or Jetson (tegra). "
    "`gpu-oci-hook list -v` shows the evidence that auto uses.",
    "csv-directory": "Directory of JetPack's CSV lists of device nodes and files, on a Jetson.",
    "csv-ignore": "Symbolic links (sym lines) of the CSV lists that are not created in containers: patterns for a "
    "whole path, or for a name after **/, where * matches anything but a slash.",
    "low-level": "Low-level runtime that gpu-oci-runtime executes: the first of these that exists. Names are looked up "
    "in PATH and the standard directories. After a change, running containers keep the runtime that created them.",
    "log-file": "Log file, one JSON object per line; empty for no log. A log that cannot be written never stops a "
    "container.",
    "log-level": "Least severe level that is logged.",
    "env": "Which containers may request GPUs with NVIDIA_VISIBLE_DEVICES: all, privileged ones (CAP_SYS_ADMIN in the "
    "bounding set and no user namespace of their own), or none. This variable can also be set by the image.",
    "env-kinds": "CDI kinds of other vendors whose devices containers may request with NVIDIA_VISIBLE_DEVICES, "
    "and with podman in annotations. The image can set both, and a CDI file can mount any host path. Devices in other "
    "engines' annotations, in mounts and of the kinds of nvidia.com need no entry.",
    "device-variables": "Variables that replace NVIDIA_VISIBLE_DEVICES in containers that have one of them, such as "
    "DOCKER_RESOURCE_GPU for Docker Swarm. The values of several are joined, and an empty value requests nothing.",
    "volume-mounts": "Whether containers may request GPUs with mounts below /var/run/nvidia-container-devices, which "
    "an image cannot set.",
    "legacy-images": "Whether an image with CUDA_VERSION but without NVIDIA_REQUIRE_CUDA (CUDA images of 2017) "
    "requests all GPUs.",
    "default-capabilities": "Driver capabilities of containers that do not set NVIDIA_DRIVER_CAPABILITIES.",
    "supported-capabilities": "Driver capabilities that containers may request; requesting another one is an error.",
    "disable-require": "Whether to ignore NVIDIA_REQUIRE_* requirements, as NVIDIA_DISABLE_REQUIRE does for one "
    "container.",
    "management": "Who may get every device node and driver file by requesting management.nvidia.com/gpu=all: "
    "privileged containers, or none.",
    "missing-gpu": "What happens to a container that requests a GPU on a host without one: it fails, or it starts "
    "without a GPU and a warning is logged.",
    "version-mismatch": "What happens if the loaded kernel module and the driver libraries have different versions (an "
    "upgrade without a reboot): containers fail, or they start and a warning is logged.",
    "cuda-compat": "When the image's CUDA forward compatibility libraries take precedence over the host's libcuda: if "
    "they are newer than the driver, made for its branch, and all GPUs are data-centre GPUs, whenever the image has "
    "them, or never.",
    "sockets": "Whether to inject the sockets of the persistence daemon and the fabric manager and the MPS "
    "directories, if they exist.",
    "firmware": "Whether to inject the driver's GSP firmware, if it exists.",
    "hide-device-files": "Whether to set ModifyDeviceFiles: 0 in /proc/driver/nvidia/params of containers that get "
    "only some of the GPUs, so the driver libraries create no device nodes there.",
    "imex-channels": "IMEX channels: those requested with NVIDIA_IMEX_CHANNELS or mounts, all existing ones for every "
    "GPU container, or none.",
    "gds": "GPUDirect Storage (/dev/nvidia-fs*, cufile.json, udev database): for containers with NVIDIA_GDS=enabled, "
    "for every GPU container if the host has it, or for none.",
    "mofed": "RDMA devices (/dev/infiniband/uverbs*, rdma_cm): for containers with NVIDIA_MOFED=enabled, for every GPU "
    "container if the host has them, or for none.",
    "gdrcopy": "GDRCopy (/dev/gdrdrv): for containers with NVIDIA_GDRCOPY=enabled, for every GPU container if the host "
    "has it, or for none.",
    "nvswitch": "NVSwitch devices (/dev/nvidia-nvswitch*): for containers with NVIDIA_NVSWITCH=enabled, for every GPU "
    "container if the host has them, or for none.",
    "mps-pipe-directory": "Host directory of the MPS control daemon's pipes; empty for the directory in the engine's "
    "CUDA_MPS_PIPE_DIRECTORY, else /tmp/nvidia-mps. A container's own variable never names a host directory.",
    "mps-log-directory": "Host directory of the MPS logs, for containers that set CUDA_MPS_LOG_DIRECTORY; empty for "
    "none.",
    "mps-shm": "Host directory that replaces /dev/shm in containers with MPS pipes; empty for none. Needed if "
    "containers that share an MPS daemon do not use the host's IPC namespace.",
    "remove": "Driver files that are not injected: SONAMEs, file names or paths in the container, where * matches "
    "anything. A prefix such as graphics: limits the pattern to the files of one driver capability (graphics:*).",
    "extra": "More host files to inject, one [[inject.extra]] table each, at the end of [inject].",
    "spec-dirs": "Directories with CDI files; later directories have precedence.",
    "default-kind": "Vendor and class of this program's own CDI devices. Names of this kind need no CDI file.",
    "annotation-prefixes": "Annotations that request CDI devices, by the beginning of their names. Which of them are "
    'trusted depends on the engine; see docs/cdi.md, "Who may use CDI names".',
}

USER_FILE_DESCRIPTIONS = {
    "path": "Path on the host.",
    "container": "Path in the container; the same path if it is left out.",
    "capability": "Driver capability that injects it; every GPU container gets it if it is left out.",
    "kind": "Type of the file.",
    "required": "Whether containers fail if it is missing.",
}
