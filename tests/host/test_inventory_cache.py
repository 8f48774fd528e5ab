"""The inventory: what lies around the libraries, what is looked at live, and what is remembered for how long."""

from __future__ import annotations

import marshal
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpu_oci_hook.host.driver import discovery
from gpu_oci_hook.host.driver.inventory_cache import load_inventory
from gpu_oci_hook.host.root import Host
from gpu_oci_hook.model.machine import DriverFile, Inventory
from support.driver_tree import (
    LIBRARY_DIR,
    VERSION,
    index_libraries,
    search_inventory,
    write_driver,
    write_ld_cache,
    write_library,
)
from support.fake_cache import FakeCache


def put(root: Path, path: str, text: str = "x", mode: int = 0o644) -> Path:
    """A file and its directories."""
    place = root / path.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)
    place.chmod(mode)
    return place


def of(found: Inventory, kind: str) -> dict[str, DriverFile]:
    """The files of a kind by their place in the container."""
    return {file.container_path: file for file in found.files if file.kind == kind}


# ------------------------------------------------------------------------------------------ around the libraries


def test_programs_are_found_through_links_and_get_to_usr_bin(tmp_path: Path) -> None:
    put(tmp_path, "/usr/lib/nvidia/current/nvidia-smi", "#!/bin/sh\n", 0o755)
    (tmp_path / "etc/alternatives").mkdir(parents=True)
    (tmp_path / "usr/bin").mkdir()
    (tmp_path / "usr/bin/nvidia-smi").symlink_to("/etc/alternatives/nvidia-smi")
    (tmp_path / "etc/alternatives/nvidia-smi").symlink_to("/usr/lib/nvidia/current/nvidia-smi")
    put(tmp_path, "/usr/bin/nvidia-cuda-mps-server", mode=0o755)
    put(tmp_path, "/usr/bin/nvidia-debugdump", mode=0o644)  # no program
    put(tmp_path, "/usr/bin/nvidia-modprobe", mode=0o755)  # changes the host: stays out
    found = of(search_inventory(tmp_path), "binary")
    assert set(found) == {"/usr/bin/nvidia-smi", "/usr/bin/nvidia-cuda-mps-server"}
    smi = found["/usr/bin/nvidia-smi"]
    assert (smi.path, smi.found_in, smi.capability) == (
        "/usr/lib/nvidia/current/nvidia-smi",
        "/usr/bin",
        "utility",
    )
    assert found["/usr/bin/nvidia-cuda-mps-server"].capability == "compute"


def test_programs_beside_an_odd_library_directory_are_found(tmp_path: Path) -> None:
    write_driver(tmp_path, "/srv/drv/lib64")
    put(tmp_path, "/srv/drv/bin/nvidia-smi", mode=0o755)
    found = search_inventory(tmp_path, paths=("/srv/drv/lib64",))
    assert of(found, "binary")["/usr/bin/nvidia-smi"].path == "/srv/drv/bin/nvidia-smi"


def test_programs_of_a_bottlerocket_host_are_found(tmp_path: Path) -> None:
    write_driver(tmp_path, "/x86_64-bottlerocket-linux-gnu/sys-root/usr/lib/nvidia/tesla")
    path = "/x86_64-bottlerocket-linux-gnu/sys-root/usr/libexec/nvidia/tesla/bin/nvidia-smi"
    put(tmp_path, path, mode=0o755)
    assert of(search_inventory(tmp_path), "binary")["/usr/bin/nvidia-smi"].path == path


def test_firmware_comes_from_the_kernels_search_path_and_is_optional(tmp_path: Path) -> None:
    put(tmp_path, "/sys/module/firmware_class/parameters/path", "/srv/firmware\n")
    put(tmp_path, f"/srv/firmware/nvidia/{VERSION}/gsp_ga10x.bin")
    put(tmp_path, f"/usr/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin")
    put(tmp_path, f"/usr/lib/firmware/nvidia/{VERSION}/gsp_tu10x.bin")
    put(tmp_path, "/usr/lib/firmware/nvidia/535.183.01/gsp_tu10x.bin")
    (tmp_path / "lib").symlink_to("usr/lib")
    found = of(search_inventory(tmp_path), "firmware")
    assert {container: file.path for container, file in found.items()} == {
        f"/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin": f"/srv/firmware/nvidia/{VERSION}/gsp_ga10x.bin",
        f"/lib/firmware/nvidia/{VERSION}/gsp_tu10x.bin": f"/usr/lib/firmware/nvidia/{VERSION}/gsp_tu10x.bin",
    }


@pytest.mark.parametrize(
    ("path", "container", "capability"),
    [
        ("/etc/OpenCL/vendors/nvidia.icd", "/etc/OpenCL/vendors/nvidia.icd", "compute"),
        ("/etc/vulkan/icd.d/nvidia_icd.json", "/etc/vulkan/icd.d/nvidia_icd.json", "graphics"),
        ("/usr/local/etc/vulkan/icd.d/nvidia_icd.json", "/etc/vulkan/icd.d/nvidia_icd.json", "graphics"),
        (
            "/usr/share/vulkan/icd.d/nvidia_icd.x86_64.json",
            "/etc/vulkan/icd.d/nvidia_icd.x86_64.json",
            "graphics",
        ),
        (
            "/usr/share/vulkan/implicit_layer.d/nvidia_layers.json",
            "/etc/vulkan/implicit_layer.d/nvidia_layers.json",
            "graphics",
        ),
        (
            "/run/opengl-driver/share/glvnd/egl_vendor.d/10_nvidia.json",
            "/usr/share/glvnd/egl_vendor.d/10_nvidia.json",
            "graphics",
        ),
        (
            "/usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json",
            "/usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json",
            "graphics",
        ),
        ("/usr/share/nvidia/nvoptix.bin", "/usr/share/nvidia/nvoptix.bin", "graphics"),
        (f"{LIBRARY_DIR}/nvidia/xorg/nvidia_drv.so", "/usr/lib/xorg/modules/drivers/nvidia_drv.so", "display"),
    ],
)
def test_configuration_files_get_to_where_images_look(
    tmp_path: Path, path: str, container: str, capability: str
) -> None:
    write_driver(tmp_path)
    put(tmp_path, path)
    found = of(search_inventory(tmp_path), "config")
    assert {place: file.capability for place, file in found.items()} == {container: capability}
    assert found[container].path == path


def test_the_first_place_of_a_configuration_file_wins_and_links_are_resolved(tmp_path: Path) -> None:
    put(tmp_path, "/etc/alternatives/icd", "etc")
    put(tmp_path, "/usr/share/vulkan/icd.d/nvidia_icd.json", "share")
    (tmp_path / "etc/vulkan/icd.d").mkdir(parents=True)
    (tmp_path / "etc/vulkan/icd.d/nvidia_icd.json").symlink_to("/etc/alternatives/icd")
    found = of(search_inventory(tmp_path), "config")
    assert [(file.path, file.name) for file in found.values()] == [("/etc/alternatives/icd", "nvidia_icd.json")]


# ------------------------------------------------------------------------------------------------- looked at live


def listen(path: Path) -> socket.socket:
    """A listening socket; bound from inside its directory, as the path may be too long for one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    made = socket.socket(socket.AF_UNIX)
    here = Path.cwd()
    os.chdir(path.parent)
    try:
        made.bind(path.name)
    finally:
        os.chdir(here)
    return made


def test_sockets_come_and_go_without_a_new_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_driver(tmp_path)
    (tmp_path / "run").mkdir()
    memory, host = FakeCache(), Host(str(tmp_path))
    assert of(load_inventory(host, host, (), VERSION, memory), "socket") == {}
    monkeypatch.setattr(discovery, "discover_driver_files", never)
    with listen(tmp_path / "run/nvidia-persistenced/socket"):
        found = of(load_inventory(host, host, (), VERSION, memory), "socket")
        assert found["/var/run/nvidia-persistenced/socket"].path == "/run/nvidia-persistenced/socket"
    (tmp_path / "run/nvidia-persistenced/socket").unlink()
    put(tmp_path, "/run/nvidia-persistenced/socket")  # no socket
    assert of(load_inventory(host, host, (), VERSION, memory), "socket") == {}


def test_the_mps_directory_is_given_only_when_it_is_a_real_one_of_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    pipe = tmp_path / "tmp/nvidia-mps"
    put(tmp_path, "/etc/shadow")
    pipe.parent.mkdir()
    pipe.symlink_to("/etc")
    assert of(search_inventory(tmp_path), "directory") == {}
    pipe.unlink()
    pipe.mkdir()
    assert of(search_inventory(tmp_path), "directory")["/tmp/nvidia-mps"].path == "/tmp/nvidia-mps"
    os.chown(pipe, 12345, 12345)
    found = search_inventory(tmp_path)
    assert of(found, "directory") == {}
    assert "belongs to user 12345" in found.problems[0]


def test_the_engines_environment_may_name_another_mps_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/srv/mps")
    (tmp_path / "srv/mps").mkdir(parents=True)
    (tmp_path / "tmp/nvidia-mps").mkdir(parents=True)
    assert of(search_inventory(tmp_path), "directory")["/tmp/nvidia-mps"].path == "/srv/mps"


def test_a_daemons_socket_may_be_the_hosts_while_the_driver_has_its_own_root(tmp_path: Path) -> None:
    write_driver(tmp_path / "run/nvidia/driver")
    with listen(tmp_path / "run/nvidia-fabricmanager/socket"):
        found = of(search_inventory(tmp_path, below="/run/nvidia/driver"), "socket")
    assert found["/var/run/nvidia-fabricmanager/socket"].source == f"{tmp_path}/run/nvidia-fabricmanager/socket"


# ----------------------------------------------------------------------------------------------------- remembered


def never(*_: object, **__: object) -> object:
    """A search that must not happen."""
    raise AssertionError("searched again")


def test_what_was_found_is_cached_and_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_driver(tmp_path)
    write_driver(tmp_path, "/usr/lib/i386-linux-gnu", arch="i386")
    put(tmp_path, "/usr/bin/nvidia-smi", mode=0o755)
    memory, host = FakeCache(), Host(str(tmp_path))
    first = load_inventory(host, host, ("/opt/x",), VERSION, memory)
    assert memory.puts == 1
    monkeypatch.setattr(discovery, "discover_driver_files", never)
    second = load_inventory(host, host, ("/opt/x",), VERSION, memory)
    assert second.to_data() == first.to_data()
    assert memory.puts == 1
    assert memory.locks == 1


def replace_library(root: Path) -> None:
    """The file is rewritten in place, so that its directory does not change."""
    path = root / LIBRARY_DIR.lstrip("/") / f"libcuda.so.{VERSION}"
    path.write_bytes(path.read_bytes() + b"\0" * 64)


def turn_link(root: Path) -> None:
    """A link in a directory that nobody scanned leads elsewhere."""
    link = root / "etc/alternatives/glx"
    link.unlink()
    link.symlink_to("/srv/b")


CHANGES: dict[str, Callable[[Path], object]] = {
    "a library is added": lambda root: write_library(
        root, LIBRARY_DIR, f"libnvidia-x.so.{VERSION}", "libnvidia-x.so.1"
    ),
    "a library is removed": lambda root: (root / LIBRARY_DIR.lstrip("/") / f"libcuda.so.{VERSION}").unlink(),
    "a library is rewritten in place": replace_library,
    "a program appears": lambda root: put(root, "/usr/bin/nvidia-smi", mode=0o755),
    "the first cache appears": lambda root: write_ld_cache(root, [("libcuda.so.1", f"{LIBRARY_DIR}/libcuda.so.1")]),
    "a well-known directory appears": lambda root: (root / "usr/lib64").mkdir(),
    "a configured directory appears": lambda root: (root / "opt/configured/lib").mkdir(parents=True),
    "a directory for a pattern appears": lambda root: write_driver(root, "/opt/nvidia/550/lib64"),
    "a link on the way is turned": turn_link,
    "an ICD appears": lambda root: put(root, "/etc/vulkan/icd.d/nvidia_icd.json"),
    "firmware appears": lambda root: put(root, f"/lib/firmware/nvidia/{VERSION}/gsp_x.bin"),
}


@pytest.mark.parametrize("change", list(CHANGES))
def test_any_change_that_matters_is_noticed(tmp_path: Path, change: str) -> None:
    write_driver(tmp_path)
    (tmp_path / "usr/bin").mkdir()
    (tmp_path / "etc/alternatives").mkdir(parents=True)
    write_library(tmp_path, "/srv/a", "libcudadebugger.so.1", "libcudadebugger.so.1")
    write_library(tmp_path, "/srv/b", "libcudadebugger.so.1", "libcudadebugger.so.1")
    (tmp_path / "etc/alternatives/glx").symlink_to("/srv/a")
    (tmp_path / LIBRARY_DIR.lstrip("/") / "libcudadebugger.so.1").symlink_to(
        "/etc/alternatives/glx/libcudadebugger.so.1"
    )
    memory, host = FakeCache(), Host(str(tmp_path))
    load_inventory(host, host, ("/opt/configured/lib",), VERSION, memory)
    load_inventory(host, host, ("/opt/configured/lib",), VERSION, memory)
    assert memory.puts == 1
    time.sleep(0.02)  # the kernel stamps files with the time of its last tick
    CHANGES[change](tmp_path)
    again = load_inventory(host, host, ("/opt/configured/lib",), VERSION, memory)
    assert memory.puts == 2, change
    assert again.to_data() == load_inventory(host, host, ("/opt/configured/lib",), VERSION, FakeCache()).to_data()


@pytest.mark.parametrize(
    ("paths", "version", "below"),
    [(("/opt/y",), VERSION, "/"), ((), "535.183.01", "/"), ((), None, "/"), ((), VERSION, "/usr")],
)
def test_another_question_is_not_answered_from_the_cache(
    tmp_path: Path, paths: tuple[str, ...], version: str | None, below: str
) -> None:
    write_driver(tmp_path)
    memory, host = FakeCache(), Host(str(tmp_path))
    load_inventory(host, host, (), VERSION, memory)
    load_inventory(host, host.sub_host(below), paths, version, memory)
    assert memory.puts == 2


def test_a_damaged_cache_only_costs_a_search(tmp_path: Path) -> None:
    write_driver(tmp_path)
    memory, host = FakeCache(), Host(str(tmp_path))
    expected = load_inventory(host, host, (), VERSION, memory).to_data()
    ((name, good),) = memory.blobs.items()
    bad = [b"", b"\0", b"garbage", good[:10], good[: len(good) // 2], good[:-1]]
    bad += [marshal.dumps(value) for value in (None, (1, 2), (1, 2, 3, 4), {"a": 1})]
    key, signatures, data, live = marshal.loads(good)
    bad += [marshal.dumps((key, signatures, data[:-1], live)), marshal.dumps((key, 7, data, live))]
    bad += [marshal.dumps((key, signatures, (*data[:2], (("x",),), *data[3:]), live))]
    for blob in bad:
        memory.blobs[name] = blob
        assert load_inventory(host, host, (), VERSION, memory).to_data() == expected
        assert memory.blobs[name] == good


def test_many_starts_at_once_search_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_driver(tmp_path)
    searches = []
    real = discovery.discover_driver_files

    def slow(*arguments: object) -> object:
        searches.append(1)
        time.sleep(0.05)
        return real(*arguments)  # type: ignore[arg-type]

    class Locked(FakeCache):
        mutex = threading.Lock()

        @contextmanager
        def lock(self, name: str) -> Iterator[None]:
            with self.mutex:
                yield

    monkeypatch.setattr(discovery, "discover_driver_files", slow)
    memory, host = Locked(), Host(str(tmp_path))
    results: list[object] = []
    threads = [
        threading.Thread(target=lambda: results.append(load_inventory(host, host, (), VERSION, memory).to_data()))
        for _ in range(64)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(searches) == 1
    assert len(results) == 64
    assert all(result == results[0] for result in results)


def test_caching_is_fast_and_imports_nothing_of_the_search(tmp_path: Path) -> None:
    write_driver(tmp_path)
    for number in range(60):
        write_library(tmp_path, LIBRARY_DIR, f"libnvidia-n{number}.so.{VERSION}", f"libnvidia-n{number}.so.1")
    program = """
import sys, time
sys.path.insert(0, sys.argv[1])
before = set(sys.modules)
from gpu_oci_hook.host import device_nodes, gpus, root
from gpu_oci_hook.host.driver import inventory_cache
class Memory:
    def __init__(self, data): self.data = data
    def get(self, name): return self.data
    def put(self, name, data): raise AssertionError("searched again")
    def lock(self, name): raise AssertionError("searched again")
data = open(sys.argv[3], "rb").read()
host = root.Host(sys.argv[2])
gpus.read_gpus(host); device_nodes.read_module_parameters(host); device_nodes.read_device_majors(host)
best = 1.0
for _ in range(20):
    start = time.perf_counter()
    found = inventory_cache.load_inventory(host, host, (), sys.argv[4], Memory(data))
    best = min(best, time.perf_counter() - start)
assert len(found.files) >= 67, len(found.files)
new = sorted(name for name in set(sys.modules) - before if not name.startswith("gpu_oci_hook"))
print(best, ",".join(new), ",".join(sorted(n for n in sys.modules if n.startswith("gpu_oci_hook.host."))))
"""
    memory, host = FakeCache(), Host(str(tmp_path))
    load_inventory(host, host, (), VERSION, memory)
    (blob,) = memory.blobs.values()
    (tmp_path / "blob").write_bytes(blob)
    source = Path(discovery.__file__).parents[3]
    arguments = [str(source), str(tmp_path), str(tmp_path / "blob"), VERSION]
    done = subprocess.run(
        [sys.executable, "-IS", "-c", program, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    best, new, ours = done.stdout.rstrip("\n").split(" ")
    operating_system = {"os", "os.path", "posixpath", "genericpath", "stat", "_stat", "_collections_abc"}
    assert set(new.split(",")) <= operating_system | {"__future__", "errno", "marshal"}
    assert ours.split(",") == [
        f"gpu_oci_hook.host.{name}" for name in ("device_nodes", "driver", "driver.inventory_cache", "gpus", "root")
    ]
    assert float(best) < 0.005  # below 1 ms on an idle machine; this guards against another order of magnitude


def test_the_libraries_of_a_cached_inventory_are_whole(tmp_path: Path) -> None:
    write_driver(tmp_path)
    first = search_inventory(tmp_path)
    again = Inventory.from_data(marshal.loads(marshal.dumps(first.to_data())))  # type: ignore[arg-type]
    cuda = index_libraries(again)["libcuda.so.1", "x86_64"]
    before = index_libraries(first)["libcuda.so.1", "x86_64"]
    assert all(getattr(cuda, name) == getattr(before, name) for name in DriverFile.__slots__)
