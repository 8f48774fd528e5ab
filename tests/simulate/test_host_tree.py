"""The simulated host: every layout has one driver, real tools agree with it, and nothing outside is touched."""

from __future__ import annotations

import os
import platform
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.files.rootfs import Rootfs
from gpu_oci_hook.formats import elf, ldcache, proc
from gpu_oci_hook.formats.architectures import ARCHITECTURES
from gpu_oci_hook.simulate import host_tree

ROOT = os.geteuid() == 0


def inside(report: host_tree.SimulatedHost, path: str) -> Path:
    """The real place of a path inside the driver root, links followed inside it."""
    base = Path(report.directory + report.driver_root.rstrip("/"))
    with Rootfs(str(base)) as files:
        found = files.resolve_path(path)
    assert found is not None, f"{path} is missing in {report.layout}"
    return Path(str(base) + found)


@pytest.fixture(scope="module", params=host_tree.DESKTOP_LAYOUTS)
def host(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> host_tree.SimulatedHost:
    """One host of each layout, with three GPUs."""
    layout: str = request.param
    return host_tree.build_host(tmp_path_factory.mktemp("host") / layout, gpus=3, layout=layout, arch="x86_64")


def test_the_layouts_are_those_of_real_hosts() -> None:
    assert (*host_tree.DESKTOP_LAYOUTS, "wsl", "jetson") == host_tree.LAYOUTS
    assert host_tree.DESKTOP_LAYOUTS == (
        "debian",
        "debian-alternatives",
        "fedora",
        "arch",
        "nixos",
        "cos",
        "flatcar",
        "talos",
        "usr-local-nvidia",
        "var-lib-nvidia",
        "driver-container",
    )


def test_every_layout_has_the_same_libraries_and_each_is_what_it_says(
    host: host_tree.SimulatedHost, tmp_path: Path
) -> None:
    other = host_tree.build_host(tmp_path / "other", layout="debian", arch="x86_64")
    assert set(host.libraries) == set(other.libraries)
    assert len(host.libraries) >= 45
    for soname, path in host.libraries.items():
        library = elf.read_shared_object(inside(host, path).read_bytes())
        assert (library.soname, library.arch, library.glibc) == (soname, "x86_64", "2.17")


def test_what_a_library_needs_of_the_driver_is_there(host: host_tree.SimulatedHost) -> None:
    for path in host.libraries.values():
        for name in elf.read_shared_object(inside(host, path).read_bytes()).needed:
            assert name in host.libraries or ("nvidia" not in name and "cuda" not in name)


def test_programs_firmware_and_configuration_are_where_the_layout_has_them(host: host_tree.SimulatedHost) -> None:
    base = Path(host.directory)
    names = [path.name for path in base.rglob("*")]
    for name in ("nvidia-smi", "nvidia-cuda-mps-server", "gsp_ga10x.bin", "10_nvidia.json", "nvidia.icd"):
        assert name in names
    assert any(name.startswith("nvidia_icd") for name in names)
    smi = next(p for p in base.rglob("nvidia-smi") if not p.is_symlink())
    assert smi.stat().st_mode & 0o777 == 0o755
    done = subprocess.run([smi], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout.startswith("nvidia-smi 550.163.01 (simulated)")


def test_the_kernels_tables_stay_in_the_outer_root_and_say_what_the_report_says(host: host_tree.SimulatedHost) -> None:
    base = Path(host.directory)
    assert proc.parse_driver_version((base / "proc/driver/nvidia/version").read_bytes()) == "550.163.01"
    assert proc.parse_driver_version((base / "sys/module/nvidia/version").read_bytes()) == "550.163.01"
    majors = proc.parse_proc_devices((base / "proc/devices").read_bytes())
    assert majors["nvidia"] == majors["nvidiactl"] == 195 and majors["nvidia-uvm"] > 0
    assert proc.parse_key_value_lines((base / "proc/driver/nvidia/params").read_bytes())["ModifyDeviceFiles"] == "1"
    cards = sorted((base / "proc/driver/nvidia/gpus").iterdir())
    said = [proc.parse_gpu_information((card / "information").read_bytes()) for card in cards]
    assert [(s["uuid"], s["pci"], s["minor"], s["model"]) for s in said] == [
        (gpu.uuid, gpu.pci, gpu.minor, gpu.model) for gpu in host.gpus
    ]
    if host.driver_root != "/":
        assert not (base / host.driver_root[1:] / "proc").exists()


def test_the_socket_of_the_persistence_daemon_is_a_real_one(host: host_tree.SimulatedHost) -> None:
    path = inside(host, "/var/run/nvidia-persistenced/socket")
    assert stat.S_ISSOCK(path.lstat().st_mode)
    assert not [line for line in host.left_out if "socket" in line]


def test_no_link_to_the_run_directory_leads_out_of_the_host(host: host_tree.SimulatedHost) -> None:
    """A tool that knows nothing of another root would look at the machine's own /run."""
    links = [path for path in Path(host.directory).rglob("var/run") if path.is_symlink()]
    assert links and {os.readlink(path) for path in links} == {"../run"}


def test_the_loader_cache_knows_the_driver_only_where_it_does_on_real_hosts(host: host_tree.SimulatedHost) -> None:
    knowing = ("debian", "debian-alternatives", "fedora", "arch", "driver-container")
    if host.layout == "nixos":
        assert host.loader_cache == "" and not (Path(host.directory) / "etc/ld.so.cache").exists()
        return
    entries = ldcache.parse_ld_cache(inside(host, host.loader_cache).read_bytes()).entries
    assert entries
    assert ("libcuda.so.1" in [e.name for e in entries]) == (host.layout in knowing)
    for entry in entries:
        library = elf.read_shared_object(inside(host, entry.path).read_bytes())
        assert library.soname.startswith(entry.name)
        assert ARCHITECTURES[library.arch].cache_flags == entry.flags


@pytest.mark.skipif(not ROOT, reason="nodes need root")
def test_device_nodes_are_real_ones_with_the_numbers_of_the_tables(host: host_tree.SimulatedHost) -> None:
    base = Path(host.directory)
    majors = proc.parse_proc_devices((base / "proc/devices").read_bytes())
    numbers = {}
    for path in host.nodes:
        status = (base / path[1:]).lstat()
        assert stat.S_ISCHR(status.st_mode)
        numbers[path] = (os.major(status.st_rdev), os.minor(status.st_rdev), stat.S_IMODE(status.st_mode))
    for gpu in host.gpus:
        assert numbers[f"/dev/nvidia{gpu.minor}"] == (195, gpu.minor, 0o666)
    assert numbers["/dev/nvidiactl"] == (195, 255, 0o666)
    assert numbers["/dev/nvidia-uvm"] == (majors["nvidia-uvm"], 0, 0o666)
    assert numbers["/dev/nvidia-uvm-tools"] == (majors["nvidia-uvm"], 1, 0o666)
    assert numbers["/dev/nvidia-caps/nvidia-cap1"] == (majors["nvidia-caps"], 1, 0o400)
    assert host.left_out == ()


def test_without_root_nodes_are_left_out_and_the_report_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object, **_keywords: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "mknod", refuse)
    report = host_tree.build_host(tmp_path / "host", gpus=2)
    assert report.nodes == ()
    assert "device nodes" in report.left_out[0] and "root" in report.left_out[0]
    assert [p for p in (tmp_path / "host/dev").rglob("*") if not p.is_dir()] == []


def test_the_real_ldconfig_would_have_written_the_same_cache(tmp_path: Path) -> None:
    report = host_tree.build_host(tmp_path / "host", layout="debian", arch="x86_64")
    ours = ldcache.parse_ld_cache((tmp_path / "host/etc/ld.so.cache").read_bytes()).entries
    command = ["/sbin/ldconfig", "-r", report.directory, "-X", "-C", "/theirs"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    theirs = ldcache.parse_ld_cache((tmp_path / "host/theirs").read_bytes()).entries
    assert [(e.name, e.flags, e.path) for e in ours] == [(e.name, e.flags, e.path) for e in theirs]


@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="libraries of this machine's kind")
@pytest.mark.parametrize("layout", ["debian", "debian-alternatives", "nixos", "fedora"])
def test_the_libraries_really_load(tmp_path: Path, layout: str) -> None:
    report = host_tree.build_host(tmp_path / "host", layout=layout)
    base = Path(report.directory)
    sonames = [n for n in report.libraries if "pkcs11" not in n and report.libraries[n].count("xorg") == 0]
    directories = {str(inside(report, path).parent) for path in report.libraries.values()}
    stand_ins = host_tree.build_host(tmp_path / "debian", layout="debian").library_directory
    directories.add(f"{tmp_path}/debian{stand_ins}")
    code = (
        "import ctypes, sys\n"
        "for name in sys.argv[1:]: ctypes.CDLL(name)\n"
        "assert ctypes.CDLL('libcuda.so.1').cuInit(0) == 0\n"
        "assert ctypes.CDLL('libnvidia-ml.so.1').nvmlInit_v2() == 0\n"
        "print(len(sys.argv))\n"
    )
    environment = {"LD_LIBRARY_PATH": ":".join(sorted(directories)), "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [sys.executable, "-Sc", code, *sonames], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == f"{len(sonames) + 1}\n", done.stderr
    assert base.is_dir()


def test_index_and_minor_differ_and_addresses_rise(tmp_path: Path) -> None:
    cards = host_tree.build_host(tmp_path / "host", gpus=40).gpus
    assert [card.minor for card in cards] == [1, 0, *range(2, 40)]
    assert [card.pci for card in cards] == sorted({card.pci for card in cards})
    assert len({card.uuid for card in cards}) == 40
    assert host_tree.build_host(tmp_path / "again", gpus=40).gpus == cards


def test_one_gpu_has_minor_zero_and_none_is_possible(tmp_path: Path) -> None:
    assert [card.minor for card in host_tree.build_host(tmp_path / "one").gpus] == [0]
    report = host_tree.build_host(tmp_path / "none", gpus=0)
    assert report.gpus == () and (tmp_path / "none/proc/driver/nvidia/gpus").is_dir()


def test_another_driver_version_is_everywhere(tmp_path: Path) -> None:
    report = host_tree.build_host(tmp_path / "host", driver="580.65.06", arch="x86_64")
    assert report.libraries["libcuda.so.1"].endswith("/libcuda.so.580.65.06")
    assert "libnvidia-glcore.so.580.65.06" in report.libraries
    left = [str(p) for p in (tmp_path / "host").rglob("*") if "550.163.01" in p.name]
    assert left == []


def test_a_model_name_is_taken_over(tmp_path: Path) -> None:
    report = host_tree.build_host(tmp_path / "host", model="NVIDIA GeForce RTX 4090")
    text = (tmp_path / f"host/proc/driver/nvidia/gpus/{report.gpus[0].pci}/information").read_text()
    assert proc.parse_gpu_information(text)["model"] == "NVIDIA GeForce RTX 4090"


@pytest.mark.parametrize(("layout", "directory"), [("debian", "/usr/lib/i386-linux-gnu"), ("fedora", "/usr/lib")])
def test_debian_and_fedora_have_32_bit_libraries(tmp_path: Path, layout: str, directory: str) -> None:
    report = host_tree.build_host(tmp_path / "host", layout=layout, arch="x86_64")
    assert report.libraries32["libcuda.so.1"] == f"{directory}/libcuda.so.550.163.01"
    for path in report.libraries32.values():
        assert elf.read_shared_object(inside(report, path).read_bytes()).arch == "i386"
    flags = {e.flags for e in ldcache.parse_ld_cache(inside(report, report.loader_cache).read_bytes()).entries}
    assert flags == {ARCHITECTURES["x86_64"].cache_flags, ARCHITECTURES["i386"].cache_flags}


def test_fedora_has_some_libraries_by_their_soname_only(tmp_path: Path) -> None:
    report = host_tree.build_host(tmp_path / "host", layout="fedora", arch="x86_64")
    assert report.libraries["libGLX_nvidia.so.0"] == "/usr/lib64/libGLX_nvidia.so.0"
    assert not (tmp_path / "host/usr/lib64/libGLX_nvidia.so.550.163.01").exists()
    assert not (tmp_path / "host/usr/lib64/libGLX_nvidia.so.0").is_symlink()


def test_debians_alternatives_are_three_links_deep(tmp_path: Path) -> None:
    host_tree.build_host(tmp_path / "host", layout="debian-alternatives", arch="x86_64")
    base = tmp_path / "host"
    public = "usr/lib/x86_64-linux-gnu/libcuda.so.1"
    chain = [public]
    while (base / chain[-1]).is_symlink():
        target = (base / chain[-1]).readlink()
        chain.append(str(target)[1:] if target.is_absolute() else str(Path(chain[-1]).parent / target))
    assert chain == [
        public,
        "etc/alternatives/nvidia--libcuda.so.1-x86_64-linux-gnu",
        "usr/lib/x86_64-linux-gnu/nvidia/current/libcuda.so.1",
        "usr/lib/x86_64-linux-gnu/nvidia/current/libcuda.so.550.163.01",
    ]
    assert os.readlink(base / "etc/alternatives/glx--libGL.so.1-x86_64-linux-gnu").startswith("/usr/lib")


def test_an_arm_host_has_arm_libraries(tmp_path: Path) -> None:
    report = host_tree.build_host(tmp_path / "host", layout="debian", arch="aarch64")
    assert report.library_directory == "/usr/lib/aarch64-linux-gnu"
    assert elf.read_shared_object(inside(report, report.libraries["libcuda.so.1"]).read_bytes()).arch == "aarch64"
    assert elf.read_shared_object(inside(report, report.libraries32["libcuda.so.1"]).read_bytes()).arch == "armhf"


def test_no_cache_is_written_when_none_is_wanted(tmp_path: Path) -> None:
    report = host_tree.build_host(tmp_path / "host", loader_cache=False)
    assert report.loader_cache == "" and not (tmp_path / "host/etc/ld.so.cache").exists()


def test_a_directory_with_something_else_in_it_is_refused_and_stays_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "letter").write_text("dear")
    with pytest.raises(Fault, match="not empty"):
        host_tree.build_host(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["letter"]


def test_a_marker_that_is_a_link_is_none(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("")
    (tmp_path / "host").mkdir()
    (tmp_path / "host/.gpu-oci-hook-simulate").symlink_to("../elsewhere")
    with pytest.raises(Fault, match="not empty"):
        host_tree.build_host(tmp_path / "host")


def test_a_simulated_host_is_rebuilt_without_following_links_out_of_it(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "keep").write_text("kept")
    host = tmp_path / "host"
    host_tree.build_host(host, driver="535.261.03")
    subprocess.run(["rm", "-r", host / "etc"], check=True, timeout=60)
    (host / "etc").symlink_to(outside)
    (host / "stray").symlink_to(outside / "keep")
    host_tree.build_host(host, layout="arch")
    assert [(p.name, p.read_text()) for p in outside.iterdir()] == [("keep", "kept")]
    assert (host / "etc/ld.so.cache").is_file() and not (host / "etc").is_symlink()
    assert not list(host.rglob("*535.261.03*"))


def test_a_file_in_the_place_of_the_directory_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Fault):
        host_tree.build_host(tmp_path / "file")
    with pytest.raises(Fault):
        host_tree.build_host(tmp_path / "file/below")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"layout": "gentoo"}, "debian-alternatives"),
        ({"driver": "../../x"}, "invalid driver version"),
        ({"driver": "550"}, "invalid driver version"),
        ({"driver": "535.104.05.01"}, "invalid driver version"),
        ({"driver": "550.1\n"}, "invalid driver version"),
        ({"gpus": -1}, "-1 GPUs"),
        ({"gpus": 1000}, "1000 GPUs"),
        ({"model": "A\nGPU UUID: x"}, "name of a GPU"),
        ({"arch": "vax"}, "vax"),
    ],
)
def test_wrong_arguments_are_named_and_make_nothing(tmp_path: Path, arguments: dict[str, object], words: str) -> None:
    with pytest.raises(Fault) as caught:
        host_tree.build_host(tmp_path / "host", **arguments)  # type: ignore[arg-type]
    assert words in str(caught.value).replace("\\n", "\n")
    assert not (tmp_path / "host").exists()
