"""A special file of an image is never opened: that would be to use the device, and a watchdog may reset the machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.bundles import PROC, container_spec, host_config, inject_in_process, make_bundle
from support.fixtures import SharedHost

pytestmark = pytest.mark.usefixtures("isolated_state")

LIBRARY = "usr/lib/x86_64-linux-gnu"
PLACES = (
    *("etc/ld.so.cache", "etc/ld.so.conf", "etc/ld.so.conf.d/00-gpu-oci-hook.conf", "etc/ld.so.conf.d/a.conf"),
    *("etc/vulkan", "etc/OpenCL", "etc/nvidia", "usr/bin/nvidia-smi", "usr/local/nvidia", "usr/local/nvidia/lib64"),
    *(f"{LIBRARY}/libcuda.so.1", f"{LIBRARY}/libcuda.so", f"{LIBRARY}/libnvidia-ml.so.1", "usr/local/cuda/compat"),
    *(
        "usr/local/cuda/compat/libcuda.so.999.1",
        "lib/firmware",
        "usr/share/vulkan",
        "usr/share/glvnd",
        "tmp/nvidia-mps",
    ),
)
# Opening a FIFO for writing waits until somebody opens it for reading.
WRITER = (
    "import os, sys; print('waits', flush=True); os.open(sys.argv[1], os.O_WRONLY); print('was opened', flush=True)"
)


@pytest.fixture(params=PLACES)
def watched_fifo(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that waits until the FIFO at a place of the image is opened."""
    bundle = make_bundle(
        tmp_path / "bundle",
        container_spec("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=all", mounts=[PROC]),
    )
    path = bundle / "rootfs" / request.param
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_file() or path.is_symlink():
        path.unlink()
    elif path.is_dir():
        path.rename(bundle / "rootfs/was-there")
    os.mkfifo(path)
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "waits\n"
        try:
            yield process
        finally:
            process.kill()


def test_no_special_file_of_an_image_is_opened(
    watched_fifo: subprocess.Popen[str], tmp_path: Path, shared_host: SharedHost
) -> None:
    inject_in_process(tmp_path / "bundle", host_config(shared_host(gpus=2)))
    with pytest.raises(subprocess.TimeoutExpired):
        watched_fifo.wait(0.3)
