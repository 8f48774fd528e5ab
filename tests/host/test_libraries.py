"""Driver libraries: by SONAME, from any place, of the running driver's version, whatever stands in the way."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from gpu_oci_hook.plan.driver_problems import describe_version_mismatch
from support.driver_tree import (
    LIBRARY_DIR,
    SONAMES,
    VERSION,
    find_report_line,
    index_libraries,
    search_inventory,
    write_driver,
    write_ld_cache,
    write_library,
)

EXPECTED = {(soname.replace("{v}", VERSION), "x86_64") for soname in SONAMES}


@pytest.fixture(autouse=True)
def on_x86_64(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trees are x86_64 ones."""
    real = os.uname()
    fake = os.uname_result((real.sysname, real.nodename, real.release, real.version, "x86_64"))
    monkeypatch.setattr(os, "uname", lambda: fake)


@pytest.mark.parametrize(
    "directory",
    [
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/x86_64-linux-gnu/nvidia/current",
        "/lib/x86_64-linux-gnu",
        "/usr/lib64",
        "/lib64",
        "/usr/lib",
        "/run/opengl-driver/lib",
        "/home/kubernetes/bin/nvidia/lib64",
        "/usr/local/nvidia/lib64",
        "/usr/local/nvidia/lib",
        "/var/lib/nvidia/lib64",
        "/opt/nvidia/550.163.01/lib64",
        "/usr/local/glibc/usr/lib",
        "/x86_64-bottlerocket-linux-gnu/sys-root/usr/lib/nvidia/tesla",
    ],
)
@pytest.mark.parametrize("cached", [True, False])
def test_a_driver_is_found_where_real_hosts_have_it(tmp_path: Path, directory: str, *, cached: bool) -> None:
    write_driver(tmp_path, directory)
    if cached:
        write_ld_cache(tmp_path, [(soname, f"{directory}/{soname}") for soname, _ in EXPECTED])
    found = search_inventory(tmp_path)
    assert set(index_libraries(found)) == EXPECTED
    assert found.version == found.library_version == VERSION
    assert found.problems == ()
    assert found.missing_libraries == ()
    cuda = index_libraries(found)["libcuda.so.1", "x86_64"]
    assert cuda.path == f"{directory}/libcuda.so.{VERSION}"
    assert cuda.source == f"{tmp_path}{directory}/libcuda.so.{VERSION}"
    assert cuda.name == f"libcuda.so.{VERSION}"
    assert (cuda.capability, cuda.required, cuda.links) == ("compute", True, ("libcuda.so",))
    assert cuda.found_in == ("/etc/ld.so.cache" if cached else directory)


def test_the_catalogue_says_the_capability_and_the_version_makes_a_stranger_compute(tmp_path: Path) -> None:
    write_driver(tmp_path)
    found = index_libraries(search_inventory(tmp_path))
    capabilities = {soname: file.capability for (soname, _), file in found.items()}
    assert capabilities == {
        "libcuda.so.1": "compute",
        "libnvidia-ml.so.1": "utility",
        "libnvidia-ptxjitcompiler.so.1": "compute",
        "libnvidia-encode.so.1": "video",
        "libGLX_nvidia.so.0": "graphics",
        f"libnvidia-glcore.so.{VERSION}": "graphics",
        "libnvidia-brandnew.so.1": "compute",
    }


@pytest.mark.parametrize("cached", [True, False])
def test_every_name_without_a_version_that_the_host_has_becomes_a_link(tmp_path: Path, *, cached: bool) -> None:
    write_driver(tmp_path)
    directory = tmp_path / LIBRARY_DIR[1:]
    (directory / "libnvidia-encode.so").symlink_to("libnvidia-encode.so.1")
    (directory / "libnvidia-brandnew.so").symlink_to(f"libnvidia-brandnew.so.{VERSION}")
    (directory / "libnvidia-nowhere.so").symlink_to("libnvidia-nowhere.so.1")
    (directory / "libGLX_nvidia.so").symlink_to("libcuda.so.1")
    if cached:
        names = ("libnvidia-encode.so.1", "libnvidia-encode.so", "libnvidia-brandnew.so.1", "libnvidia-brandnew.so")
        write_ld_cache(tmp_path, [(name, f"{LIBRARY_DIR}/{name}") for name in names])
    found = {soname: file.links for (soname, _), file in index_libraries(search_inventory(tmp_path)).items()}
    assert found["libnvidia-encode.so.1"] == ("libnvidia-encode.so",)
    assert found["libnvidia-brandnew.so.1"] == ("libnvidia-brandnew.so",)
    assert found["libcuda.so.1"] == ("libcuda.so", "libGLX_nvidia.so")
    assert found["libnvidia-ptxjitcompiler.so.1"] == ()


def test_nvml_has_its_name_without_a_version_even_if_the_host_lacks_it(tmp_path: Path) -> None:
    write_driver(tmp_path)
    assert index_libraries(search_inventory(tmp_path))["libnvidia-ml.so.1", "x86_64"].links == ("libnvidia-ml.so",)


def test_what_a_capability_should_have_and_the_host_lacks_is_named(tmp_path: Path) -> None:
    write_driver(tmp_path)
    missing = search_inventory(tmp_path).missing_expected
    assert ("video", "libnvcuvid.so.1") in missing
    assert ("utility", "nvidia-smi") in missing
    assert "libnvidia-encode.so.1" not in [name for _, name in missing]
    assert "libcuda.so.1" not in [name for _, name in missing]  # required: a start without it fails
    write_library(tmp_path, LIBRARY_DIR, f"libnvcuvid.so.{VERSION}", "libnvcuvid.so.1", arch="i386")
    assert ("video", "libnvcuvid.so.1") in search_inventory(tmp_path).missing_expected
    write_library(tmp_path, LIBRARY_DIR, f"libnvcuvid.so.{VERSION}", "libnvcuvid.so.1")
    assert "video" not in [capability for capability, _ in search_inventory(tmp_path).missing_expected]


def test_nvswitch_monitoring_is_utility_and_ngx_opens_nvml(tmp_path: Path) -> None:
    write_driver(tmp_path)
    write_library(tmp_path, LIBRARY_DIR, f"libnvsdm.so.{VERSION}", "libnvsdm.so.1")
    write_library(tmp_path, LIBRARY_DIR, f"libnvidia-ngx.so.{VERSION}", "libnvidia-ngx.so.1")
    found = index_libraries(search_inventory(tmp_path))
    assert found["libnvsdm.so.1", "x86_64"].capability == "utility"
    assert found["libnvidia-ngx.so.1", "x86_64"].needs == ("libnvidia-ml.so.1",)


def test_the_soname_counts_and_not_the_file_name(tmp_path: Path) -> None:
    write_library(tmp_path, "/opt/odd", "driver-part-one.so", "libcuda.so.1")
    write_library(tmp_path, "/opt/odd", "libcuda.so.1", "libsomething.so.4")
    found = index_libraries(search_inventory(tmp_path, paths=("/opt/odd",)))
    assert {key: file.name for key, file in found.items()} == {("libcuda.so.1", "x86_64"): "driver-part-one.so"}


def test_files_without_soname_links_are_found(tmp_path: Path) -> None:
    write_driver(tmp_path, links=False)
    assert set(index_libraries(search_inventory(tmp_path))) == EXPECTED


def test_an_unversioned_file_of_a_distribution_is_accepted(tmp_path: Path) -> None:
    write_library(tmp_path, "/usr/lib64", "libGLX_nvidia.so.0", "libGLX_nvidia.so.0")
    write_library(tmp_path, "/usr/lib64", "libnvidia-egl-gbm.so.1.1.1", "libnvidia-egl-gbm.so.1")
    write_library(tmp_path, "/usr/lib64", "libnvidia-nvvm70.so.4", "libnvidia-nvvm70.so.4")
    found = index_libraries(search_inventory(tmp_path))
    assert {soname for soname, _ in found} == {
        "libGLX_nvidia.so.0",
        "libnvidia-egl-gbm.so.1",
        "libnvidia-nvvm70.so.4",
    }
    assert found["libGLX_nvidia.so.0", "x86_64"].links == ("libGLX_indirect.so.0",)


def test_of_several_versions_the_running_one_wins_and_the_other_is_named(tmp_path: Path) -> None:
    write_driver(tmp_path, version="535.183.01")
    write_driver(tmp_path, links=False)  # the links still lead to the old ones
    found = search_inventory(tmp_path)
    assert index_libraries(found)["libcuda.so.1", "x86_64"].name == f"libcuda.so.{VERSION}"
    assert set(index_libraries(found)) == EXPECTED
    assert "libcuda.so.535.183.01 (the driver is 550.163.01)" in find_report_line(found, LIBRARY_DIR)
    assert found.problems == ()


def test_a_versioned_file_wins_over_one_without_version(tmp_path: Path) -> None:
    write_library(tmp_path, "/opt/first", "libGLX_nvidia.so.0", "libGLX_nvidia.so.0")
    write_driver(tmp_path)
    found = index_libraries(search_inventory(tmp_path, paths=("/opt/first",)))
    assert found["libGLX_nvidia.so.0", "x86_64"].name == f"libGLX_nvidia.so.{VERSION}"


def test_libraries_of_another_version_than_the_module_are_a_problem_with_a_hint(tmp_path: Path) -> None:
    write_driver(tmp_path, version="555.42.02")
    found = search_inventory(tmp_path, version="550.54.14")
    assert found.has_version_mismatch
    assert (found.version, found.library_version) == ("550.54.14", "555.42.02")
    assert ("libcuda.so.1", "x86_64") in index_libraries(found)
    assert describe_version_mismatch(found).startswith(
        "the loaded kernel module is version 550.54.14, the driver libraries are version 555.42.02"
    )


def test_a_half_done_upgrade_names_what_is_missing(tmp_path: Path) -> None:
    write_driver(tmp_path)
    (tmp_path / LIBRARY_DIR.lstrip("/") / f"libnvidia-ml.so.{VERSION}").unlink()
    write_library(tmp_path, LIBRARY_DIR, "libnvidia-ml.so.535.183.01", "libnvidia-ml.so.1")
    found = search_inventory(tmp_path)
    assert found.missing_libraries == (
        ("utility", "libnvidia-ml.so.1", f"{LIBRARY_DIR}/libnvidia-ml.so.535.183.01 (535.183.01)"),
    )


@pytest.mark.parametrize(("name", "version"), [("libcuda.so.535.183.01", "535.183.01"), ("libcuda.so.1.1", "")])
def test_without_a_module_the_libraries_tell_the_version_if_it_looks_like_one(
    tmp_path: Path, name: str, version: str
) -> None:
    write_library(tmp_path, LIBRARY_DIR, name, "libcuda.so.1")
    found = search_inventory(tmp_path, version=None)
    assert (found.version, found.library_version, found.has_version_mismatch) == (version, version, False)
    assert ("libcuda.so.1", "x86_64") in index_libraries(found)


def test_without_a_module_the_linked_version_wins_over_a_higher_one(tmp_path: Path) -> None:
    write_driver(tmp_path, version="535.183.01")
    write_driver(tmp_path, version="550.163.01", links=False)
    assert search_inventory(tmp_path, version=None).version == "535.183.01"


def test_an_old_cache_and_one_without_the_driver_only_cost_a_note(tmp_path: Path) -> None:
    write_driver(tmp_path, "/usr/lib64")
    write_ld_cache(tmp_path, [("libcuda.so.1", "/usr/lib/gone/libcuda.so.1"), ("libc.so.6", "/lib/libc.so.6")])
    write_ld_cache(tmp_path, [("libz.so.1", "/lib/libz.so.1")], "/usr/local/glibc/etc/ld.so.cache")
    found = search_inventory(tmp_path)
    assert set(index_libraries(found)) == EXPECTED
    assert "libcuda.so.1 leads nowhere" in find_report_line(found, "/etc/ld.so.cache")
    assert find_report_line(found, "/usr/local/glibc/etc/ld.so.cache") == "no driver library among 1"


@pytest.mark.parametrize("data", [b"", b"garbage", b"glibc-ld.so.cache1.1" + b"\xff" * 40])
def test_a_broken_cache_only_costs_a_note(tmp_path: Path, data: bytes) -> None:
    write_driver(tmp_path)
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/ld.so.cache").write_bytes(data)
    found = search_inventory(tmp_path)
    assert set(index_libraries(found)) == EXPECTED
    assert find_report_line(found, "/etc/ld.so.cache").startswith("not usable")


def test_the_directory_that_the_cache_leads_to_is_searched_too(tmp_path: Path) -> None:
    write_driver(tmp_path, "/somewhere/odd")
    write_library(tmp_path, "/somewhere/odd/vdpau", f"libvdpau_nvidia.so.{VERSION}", "libvdpau_nvidia.so.1")
    write_ld_cache(tmp_path, [("libcuda.so.1", "/somewhere/odd/libcuda.so.1")])
    found = search_inventory(tmp_path)
    assert set(index_libraries(found)) == EXPECTED | {("libvdpau_nvidia.so.1", "x86_64")}
    assert find_report_line(found, "/somewhere/odd") == f"{len(EXPECTED) - 1} driver libraries"
    assert index_libraries(found)["libvdpau_nvidia.so.1", "x86_64"].links == (
        "libvdpau_nvidia.so",
        "vdpau/libvdpau_nvidia.so.1",
    )


def test_libraries_for_32_bit_programs_keep_their_capability_and_say_their_architecture(tmp_path: Path) -> None:
    write_driver(tmp_path)
    write_driver(tmp_path, "/usr/lib/i386-linux-gnu", arch="i386")
    found = index_libraries(search_inventory(tmp_path))
    assert ("libcuda.so.1", "i386") in found
    assert found["libcuda.so.1", "i386"].capability == "compute"
    assert not found["libcuda.so.1", "i386"].required
    assert found["libcuda.so.1", "x86_64"].required


def test_a_library_for_another_machine_is_left_out(tmp_path: Path) -> None:
    write_library(tmp_path, LIBRARY_DIR, f"libcuda.so.{VERSION}", "libcuda.so.1", arch="aarch64")
    found = search_inventory(tmp_path)
    assert index_libraries(found) == {}
    assert f"libcuda.so.{VERSION} is for aarch64" in find_report_line(found, LIBRARY_DIR)
    assert [soname for _, soname, _ in found.missing_libraries] == ["libnvidia-ml.so.1", "libcuda.so.1"]


def test_vendor_neutral_and_toolkit_libraries_stay_out(tmp_path: Path) -> None:
    write_driver(tmp_path)
    for name in ("libGL.so.1", "libEGL.so.1", "libOpenCL.so.1", "libGLdispatch.so.0", f"libGL.so.{VERSION}"):
        write_library(tmp_path, LIBRARY_DIR, name, name)
    write_library(tmp_path, "/usr/local/cuda/lib64/stubs", "libcuda.so", "libcuda.so.1")
    write_library(tmp_path, "/usr/local/cuda/compat", "libcuda.so.560.35.03", "libcuda.so.1")
    paths = ("/usr/local/cuda/lib64/stubs", "/usr/local/cuda/compat")
    found = search_inventory(tmp_path, paths=paths)
    assert set(index_libraries(found)) == EXPECTED
    assert "belongs to a CUDA toolkit" in find_report_line(found, "/usr/local/cuda/compat")


def test_what_a_driver_library_needs_comes_along_even_unlisted_and_unversioned(tmp_path: Path) -> None:
    write_driver(tmp_path)
    needed = ("libnvidia-new.so.7", "libc.so.6", "libfine.so.1")
    write_library(tmp_path, LIBRARY_DIR, f"libcuda.so.{VERSION}", "libcuda.so.1", needed=needed)
    write_library(tmp_path, LIBRARY_DIR, "libnvidia-new.so.7", "libnvidia-new.so.7", needed=("libnvidia-newer.so.1",))
    write_library(tmp_path, LIBRARY_DIR, "libnvidia-newer.so.1", "libnvidia-newer.so.1")
    write_library(tmp_path, LIBRARY_DIR, "libnvidia-unrelated.so.1", "libnvidia-unrelated.so.1")
    write_library(tmp_path, LIBRARY_DIR, "libfine.so.1", "libfine.so.1")
    found = index_libraries(search_inventory(tmp_path))
    extra = {("libnvidia-new.so.7", "x86_64"), ("libnvidia-newer.so.1", "x86_64")}
    assert set(found) == EXPECTED | extra
    assert found["libcuda.so.1", "x86_64"].needs == needed


def test_links_out_of_the_root_stay_inside(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    write_library(tmp_path, "outside", f"libcuda.so.{VERSION}", "libcuda.so.1")
    root = tmp_path / "root"
    place = root / LIBRARY_DIR.lstrip("/")
    place.mkdir(parents=True)
    (place / "libcuda.so.1").symlink_to(outside / f"libcuda.so.{VERSION}")
    (place / "libnvidia-ml.so.1").symlink_to(f"../../../../outside/libcuda.so.{VERSION}")
    found = search_inventory(root)
    assert index_libraries(found) == {}
    assert "libcuda.so.1 leads nowhere" in find_report_line(found, LIBRARY_DIR)


def test_absolute_links_are_followed_inside_the_root(tmp_path: Path) -> None:
    write_driver(tmp_path, "/nix/store/x/lib")
    (tmp_path / "run/opengl-driver/lib").mkdir(parents=True)
    for soname, _ in EXPECTED:
        (tmp_path / "run/opengl-driver/lib" / soname).symlink_to(f"/nix/store/x/lib/{soname}")
    found = index_libraries(search_inventory(tmp_path))
    assert set(found) == EXPECTED
    assert found["libcuda.so.1", "x86_64"].path == f"/nix/store/x/lib/libcuda.so.{VERSION}"


@pytest.mark.timeout(20)
@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("kind", ["fifo", "directory", "loop", "dangling", "truncated", "empty", "text", "socket"])
def test_hostile_things_in_place_of_libcuda_are_named_and_nothing_else_suffers(
    tmp_path: Path, kind: str, *, cached: bool
) -> None:
    write_driver(tmp_path)
    real = tmp_path / LIBRARY_DIR.lstrip("/") / f"libcuda.so.{VERSION}"
    data = real.read_bytes()
    real.unlink()
    if kind == "fifo":
        os.mkfifo(real)
    elif kind == "directory":
        real.mkdir()
    elif kind == "loop":
        real.symlink_to("libcuda.so.1")
    elif kind == "dangling":
        real.symlink_to("/nowhere")
    elif kind == "truncated":
        real.write_bytes(data[:100])
    elif kind == "empty":
        real.write_bytes(b"")
    elif kind == "text":
        real.write_text("#!/bin/sh\n" * 100)
    else:
        os.mknod(real, 0o140644)
    if cached:
        write_ld_cache(tmp_path, [("libcuda.so.1", f"{LIBRARY_DIR}/libcuda.so.1")])
    found = search_inventory(tmp_path)
    assert set(index_libraries(found)) == EXPECTED - {("libcuda.so.1", "x86_64")}
    assert found.missing_libraries == (("compute", "libcuda.so.1", ""),)
    assert "libcuda.so.1" in find_report_line(found, "/etc/ld.so.cache" if cached else LIBRARY_DIR)


def test_every_place_is_reported_even_on_an_empty_host(tmp_path: Path) -> None:
    found = search_inventory(tmp_path, version=None)
    assert found.files == ()
    assert found.version == ""
    assert len(found.search_report) >= 25
    assert all(text == "missing" for _, text in found.search_report)
    assert [capability for capability, _, _ in found.missing_libraries] == ["utility", "compute"]


def test_one_directory_under_two_names_is_read_once(tmp_path: Path) -> None:
    write_driver(tmp_path, "/usr/lib64")
    (tmp_path / "lib64").symlink_to("usr/lib64")
    found = search_inventory(tmp_path)
    assert find_report_line(found, "/lib64") == "the same as /usr/lib64"
    assert set(index_libraries(found)) == EXPECTED


def test_a_driver_root_of_its_own_is_searched_below_itself(tmp_path: Path) -> None:
    write_driver(tmp_path / "run/nvidia/driver")
    (tmp_path / "run/nvidia/driver/usr/bin").mkdir(parents=True)
    smi = tmp_path / "run/nvidia/driver/usr/bin/nvidia-smi"
    smi.write_text("#!/bin/sh\n")
    smi.chmod(0o755)
    write_driver(tmp_path, version="535.183.01")
    found = search_inventory(tmp_path, below="/run/nvidia/driver")
    assert set(index_libraries(found)) == EXPECTED
    cuda = index_libraries(found)["libcuda.so.1", "x86_64"]
    assert cuda.path == f"{LIBRARY_DIR}/libcuda.so.{VERSION}"
    assert cuda.source == f"{tmp_path}/run/nvidia/driver{cuda.path}"
    assert [file.source for file in found.files if file.name == "nvidia-smi"] == [str(smi)]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_what_this_user_may_not_read_is_not_called_missing() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        root = Path(name)
        write_driver(root, "/usr/lib/x86_64-linux-gnu")
        write_ld_cache(root, [("libcuda.so.1", "/usr/lib/x86_64-linux-gnu/libcuda.so.1")])
        for directory in ("opt", "usr/lib/i386-linux-gnu"):
            (root / directory).mkdir()
        for path, mode in (
            (".", 0o755),
            ("etc/ld.so.cache", 0),
            ("usr/lib/x86_64-linux-gnu", 0o711),
            ("usr/lib/i386-linux-gnu", 0o711),
            ("opt", 0),
        ):
            (root / path).chmod(mode)
        os.seteuid(65534)
        try:
            found = search_inventory(root)
        finally:
            os.seteuid(0)
    refused = "cannot be read: this user may not read it"
    assert find_report_line(found, "/etc/ld.so.cache") == f"not usable: it {refused}"
    for place in ("/usr/lib/x86_64-linux-gnu", "/usr/lib/i386-linux-gnu", "/opt/nvidia/lib64"):
        assert find_report_line(found, place) == refused
    assert find_report_line(found, "/usr/lib32") == "missing"
