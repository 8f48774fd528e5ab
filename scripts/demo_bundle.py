"""Create the demo's bundle: an image with this machine's Python and C library, and a config.json that requests GPU 0.

    python3 demo_bundle.py BUNDLE CGROUP EXPLANATION

EXPLANATION is the JSON of `explain` for a container that requests GPU 0, for the other GPUs of the machine. Nothing is
compiled or downloaded: programs are copied with the libraries that ldd lists.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

# The container's program. It uses none of our code.
LOOK_AROUND = """
import ctypes, errno, os, pathlib, subprocess, sys

def open_node(path):
    try:
        os.close(os.open(path, os.O_RDWR))
        return "opened"
    except OSError as error:
        return {errno.ENXIO: "allowed (ENXIO: no driver behind it, as this GPU is simulated)",
                errno.EPERM: "DENIED by the device cgroup"}.get(error.errno, os.strerror(error.errno))

print("the container sees")
for path in sorted(pathlib.Path("/dev").glob("nvidia*")):
    if path.is_char_device():
        print(f"  {str(path):22} {open_node(path)}")
listed = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True).stdout
for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
    paths = [line.partition("=> ")[2] for line in listed.splitlines() if line.split()[:1] == [name]]
    path = paths[0] if paths else "not in the loader cache"
    try:
        ctypes.CDLL(name)
        result = "loaded"
    except OSError as error:
        result = f"FAILED: {error}"
    print(f"  {name:22} {result} ({path})")
for other in sys.argv[1:]:
    path, _, minor = other.partition(":")
    os.mknod("/dev/other", 0o20666, os.makedev(195, int(minor)))
    print(f"  {path:22} not there; created with mknod: {open_node('/dev/other')}")
    os.unlink("/dev/other")
"""


def list_needed_libraries(program: Path) -> list[Path]:
    """Return the libraries that a program or library needs, and the loader, as ldd lists them."""
    done = subprocess.run(["ldd", str(program)], capture_output=True, text=True)
    words = (word for line in done.stdout.splitlines() for word in line.split())
    return [Path(word) for word in words if word.startswith("/")]


def copy_file(source: Path, root: Path) -> None:
    """Copy a file to its own path below the root, following links."""
    target = root / source.relative_to("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        shutil.copy2(source, target)


def build_image(root: Path) -> None:
    """Build a root file system with this Python, ldconfig and a loader cache."""
    for name in ("dev", "etc/ld.so.conf.d", "proc", "sys", "tmp", "run", "root", "usr"):
        (root / name).mkdir(parents=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        (root / "usr" / name).mkdir()
        (root / name).symlink_to(f"usr/{name}")
    python = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    library = Path(sysconfig.get_path("stdlib"))
    ignored = shutil.ignore_patterns(
        "test", "__pycache__", "dist-packages", "site-packages", "config-*", "idlelib", "lib2to3"
    )
    shutil.copytree(library, root / library.relative_to("/"), ignore=ignored)
    extensions = list((library / "lib-dynload").glob("_ctypes*.so"))
    copy_file(python, root)
    # Ubuntu's ldconfig is a shell script around the program.
    real = Path("/sbin/ldconfig.real")
    shutil.copy2(real if real.exists() else Path("/sbin/ldconfig"), root / "usr/sbin/ldconfig")
    for file in (python, *extensions):
        for dependency in list_needed_libraries(file):
            copy_file(dependency, root)
    # The driver's libraries were linked before these became parts of libc.so.6, and still need them.
    (libc,) = (path for path in list_needed_libraries(python) if path.name == "libc.so.6")
    for name in ("libdl.so.2", "libpthread.so.0", "librt.so.1", "libm.so.6"):
        copy_file(libc.parent / name, root)
    for conf in (Path("/etc/ld.so.conf"), *Path("/etc/ld.so.conf.d").glob("*-linux-gnu.conf")):
        copy_file(conf, root)
    subprocess.run(["/sbin/ldconfig", "-r", str(root)], check=True)
    (root / "look-around.py").write_text(LOOK_AROUND)


def list_other_gpus(explanation: Path) -> list[str]:
    """Return "node:minor" of each GPU that the container does not get."""
    gpus = json.loads(explanation.read_text())["gpus"]
    return [
        f"/dev/nvidia{gpu['minor']}:{gpu['minor']}" for gpu in gpus if not gpu["given"] and gpu["minor"] is not None
    ]


def write_config(bundle: Path, cgroup: str, others: list[str]) -> None:
    """Write `runc spec`'s example with our command and environment.

    Arguments:
        others: what `list_other_gpus` returns. The container may create nodes, as docker's do, and tries it.
    """
    subprocess.run(["runc", "spec", "--bundle", str(bundle)], check=True)
    path = bundle / "config.json"
    spec = json.loads(path.read_text())
    python = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    spec["process"]["terminal"] = False
    spec["process"]["args"] = [str(python), "-I", "/look-around.py", *others[:1]]
    for names in spec["process"]["capabilities"].values():
        names.append("CAP_MKNOD")
    spec["process"]["env"] += ["NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"]
    spec["process"].pop("rlimits", None)
    spec["linux"]["cgroupsPath"] = cgroup
    spec["root"]["readonly"] = False
    path.write_text(json.dumps(spec, indent=4))


if __name__ == "__main__":
    directory = Path(sys.argv[1])
    build_image(directory / "rootfs")
    write_config(directory, sys.argv[2], list_other_gpus(Path(sys.argv[3])))
