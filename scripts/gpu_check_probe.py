"""Report what a container can do with its GPU; run in the container by gpu_check.py.

    python gpu_check_probe.py FORBIDDEN...

FORBIDDEN are "MAJOR:MINOR" of GPU nodes that the container must not open. Prints one JSON object: `nodes` and
`forbidden` by name with the result of opening them, `nvidia_smi`, and `cuda`. Uses none of our code.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import subprocess
import sys
from pathlib import Path


def open_node(path: str) -> str:
    """Return "opened", or the name of the error."""
    try:
        os.close(os.open(path, os.O_RDWR))
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error.errno))
    return "opened"


def open_forbidden(number: str) -> str:
    """Create a node and return the result of opening it; "not created" if the kernel refuses that already."""
    major, minor = map(int, number.split(":"))
    path = f"/tmp/forbidden-{major}-{minor}"
    try:
        os.mknod(path, 0o600 | 0o020000, os.makedev(major, minor))
    except OSError as error:
        return f"not created: {errno.errorcode.get(error.errno or 0, '')}"
    return open_node(path)


def use_cuda() -> dict[str, object]:
    """Initialise CUDA, count the devices, and allocate and free one MiB on the first one.

    The functions and their signatures are those of cuda.h (CUDA driver API, 2.0 and later).
    """
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return {"error": f"dlopen: {error}"}
    count, device, context, pointer = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    calls = (
        ("cuInit", (ctypes.c_uint(0),)),
        ("cuDeviceGetCount", (ctypes.byref(count),)),
        ("cuDeviceGet", (ctypes.byref(device), ctypes.c_int(0))),
        ("cuCtxCreate_v2", (ctypes.byref(context), ctypes.c_uint(0), device)),
        ("cuMemAlloc_v2", (ctypes.byref(pointer), ctypes.c_size_t(1 << 20))),
        ("cuMemFree_v2", (pointer,)),
        ("cuCtxDestroy_v2", (context,)),
    )
    for name, arguments in calls:
        if not hasattr(cuda, name):
            return {"error": f"libcuda.so.1 has no {name}", "count": count.value}
        status = getattr(cuda, name)(*arguments)
        if status != 0:
            return {"error": f"{name} returned CUDA error {status}", "count": count.value}
    return {"count": count.value, "error": ""}


def run_nvidia_smi() -> dict[str, object]:
    """Run `nvidia-smi -L` and return its exit status and output."""
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=120)
    except OSError as error:
        return {"status": -1, "output": str(error)}
    return {"status": done.returncode, "output": (done.stdout + done.stderr).strip()}


def main() -> None:
    """Print the report."""
    nodes = sorted(path for path in Path("/dev").glob("nvidia*") if path.is_char_device())
    report = {
        "nodes": {str(path): open_node(str(path)) for path in nodes},
        "forbidden": {number: open_forbidden(number) for number in sys.argv[1:]},
        "nvidia_smi": run_nvidia_smi(),
        "cuda": use_cuda(),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
