"""The directory for libraries and the mount points, under the spec's own mounts."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_oci_hook.plan.layout import Layout
from support.plan_input import FakeRootfs

NVIDIA = "/usr/local/nvidia/lib64"


def mount(destination: str, kind: str = "bind") -> dict[str, str]:
    return {"destination": destination, "type": kind, "source": "/vol"}


def places(*mounts: dict[str, Any], writable: bool = True, target: FakeRootfs | None = None) -> Layout:
    return Layout({"mounts": list(mounts)}, target or FakeRootfs(), [], writable=writable)


@pytest.mark.parametrize(
    ("mounts", "writable", "directory"),
    [
        ((), True, NVIDIA),
        ((mount("/proc", "proc"), mount("/dev", "tmpfs")), True, NVIDIA),
        # The image's directory is hidden by a volume.
        ((mount("/usr/local/nvidia"),), True, "/usr/lib/gpu-oci-hook/lib64"),
        ((mount("/usr/local"),), True, "/usr/lib/gpu-oci-hook/lib64"),
        ((mount("/usr/local/"),), True, "/usr/lib/gpu-oci-hook/lib64"),
        # Its neighbour is not.
        ((mount("/usr/local/nvid"),), True, NVIDIA),
        # A file of the user's would be hidden by ours.
        ((mount(f"{NVIDIA}/libfoo.so.1"),), True, "/usr/lib/gpu-oci-hook/lib64"),
        ((mount("/usr/local/nvidia/lib/libfoo.so.1"),), True, "/usr/lib/gpu-oci-hook/lib64"),
        # A tmpfs is fresh: the runtime makes mount points there.
        ((mount("/usr/local", "tmpfs"),), True, NVIDIA),
        # All of /usr is somebody else's.
        ((mount("/usr"), mount("/run", "tmpfs")), True, "/run/gpu-oci-hook/lib64"),
        ((mount("/usr"), mount("/dev", "tmpfs")), True, "/run/gpu-oci-hook/lib64"),
        # A root that cannot be written.
        ((mount("/run", "tmpfs"), mount("/dev", "tmpfs")), False, "/run/gpu-oci-hook/lib64"),
        ((mount("/dev", "tmpfs"),), False, "/dev/gpu-oci-hook/lib64"),
        ((mount("/dev", "devtmpfs"),), False, "/dev/gpu-oci-hook/lib64"),
        ((mount("/run"), mount("/dev", "tmpfs")), False, "/dev/gpu-oci-hook/lib64"),
        # A volume inside the tmpfs hides the place again.
        ((mount("/dev", "tmpfs"), mount("/dev/gpu-oci-hook")), False, ""),
        ((), False, ""),
        # Of two mounts on one place the later one counts, as in the kernel.
        ((mount("/run"), mount("/run", "tmpfs")), False, "/run/gpu-oci-hook/lib64"),
        ((mount("/run", "tmpfs"), mount("/run")), False, ""),
        # A destination as runtimes take it: from the root, whatever its text says.
        ((mount("usr/local"),), True, "/usr/lib/gpu-oci-hook/lib64"),
        ((mount("//usr/./local/"),), True, "/usr/lib/gpu-oci-hook/lib64"),
        ((mount("/opt"), mount("/opt/../usr/local")), True, "/usr/lib/gpu-oci-hook/lib64"),
        # What is bound is the host's, though it calls itself a tmpfs.
        (({**mount("/usr/local", "tmpfs"), "options": ["rbind"]},), True, "/usr/lib/gpu-oci-hook/lib64"),
    ],
)
def test_the_directory_for_libraries(mounts: tuple[dict[str, Any], ...], writable: bool, directory: str) -> None:
    found = places(*mounts, writable=writable)
    assert found.driver_library_dir == directory
    assert found.driver_library_dir32 == directory.removesuffix("64")


def test_a_root_that_cannot_be_written_may_have_the_directories_already() -> None:
    """CUDA images of old have them."""
    there = ("/usr/local/nvidia/lib", "/usr/local/nvidia/lib64")
    found = places(writable=False, target=FakeRootfs(there=there))
    assert found.driver_library_dir == NVIDIA
    assert places(writable=False, target=FakeRootfs(there=there[:1])).driver_library_dir == ""


def test_a_file_in_the_directorys_place_is_passed_by() -> None:
    found = places(target=FakeRootfs(files=(NVIDIA,)))
    assert found.driver_library_dir == "/usr/lib/gpu-oci-hook/lib64"


def test_mounts_of_an_earlier_run_of_ours_do_not_count() -> None:
    ours = [("/run/gpu-oci-hook/libraries-1", NVIDIA), ("/drv/libcuda.so.1", f"{NVIDIA}/libcuda.so.1")]
    mounts = [{"destination": destination, "source": source, "type": "bind"} for source, destination in ours]
    assert Layout({"mounts": mounts}, FakeRootfs(), ours, writable=True).driver_library_dir == NVIDIA
    assert Layout({"mounts": mounts}, FakeRootfs(), ours[:1], writable=True).driver_library_dir != NVIDIA


def test_odd_mounts_are_ignored() -> None:
    found = Layout(
        {"mounts": [None, 7, {}, {"destination": 7}, {"destination": "usr/lib"}, {"destination": None}]},
        FakeRootfs(), [], writable=True,
    )  # fmt: skip
    assert found.driver_library_dir == NVIDIA


@pytest.mark.parametrize("mounts", [None, 7, "x", {}, [[]]])
def test_a_list_of_mounts_that_is_none(mounts: object) -> None:
    assert Layout({"mounts": mounts}, FakeRootfs(), [], writable=True).driver_library_dir == NVIDIA


def test_a_mount_point_in_the_image_is_free_of_links() -> None:
    target = FakeRootfs({"/var/run": "/run"})
    assert places(target=target).find_mount_point("/var/run/x/socket") == ("/run/x/socket", "")


def test_a_link_in_the_place_of_a_file_is_not_followed_and_in_that_of_a_directory_it_is() -> None:
    target = FakeRootfs({"/usr/bin/nvidia-smi": "/etc", "/tmp/nvidia-mps": "/var/mps"})
    found = places(target=target)
    assert found.find_mount_point("/usr/bin/nvidia-smi") == ("/usr/bin/nvidia-smi", "")
    assert found.find_mount_point("/tmp/nvidia-mps", follow=True) == ("/var/mps", "")


def test_a_mount_point_below_another_mount_is_refused() -> None:
    destination, reason = places(mount("/usr/bin")).find_mount_point("/usr/bin/nvidia-smi")
    assert destination == ""
    assert "another mount" in reason


def test_a_link_of_the_image_into_another_mount_is_seen_through() -> None:
    """The runtime would make the mount point in the volume, which is a directory of the user's."""
    target = FakeRootfs({"/usr/bin": "/data/bin"})
    destination, reason = places(mount("/data"), target=target).find_mount_point("/usr/bin/nvidia-smi")
    assert destination == ""
    assert "another mount" in reason


def test_a_spec_that_mounts_through_a_link_of_the_image_is_seen_through() -> None:
    target = FakeRootfs({"/lib": "/usr/lib", "/var/run": "/run", "/opt/n": "/usr/local/nvidia"})
    assert places(mount("/opt/n"), target=target).driver_library_dir == "/usr/lib/gpu-oci-hook/lib64"
    assert (
        places(mount("/var/run", "tmpfs"), writable=False, target=target).driver_library_dir
        == "/run/gpu-oci-hook/lib64"
    )
    assert places(mount("/lib/x/libcuda.so.1"), target=target).is_mount_destination("/usr/lib/x/libcuda.so.1")


def test_a_link_of_the_image_into_a_tmpfs_is_fresh() -> None:
    target = FakeRootfs({"/usr/bin": "/run/bin"})
    found = places(mount("/run", "tmpfs"), writable=False, target=target)
    assert found.find_mount_point("/usr/bin/nvidia-smi") == ("/run/bin/nvidia-smi", "")


def test_a_root_that_cannot_be_written_has_only_the_mount_points_that_are_there() -> None:
    target = FakeRootfs(there=("/etc/ld.so.cache",))
    found = places(writable=False, target=target)
    assert found.find_mount_point("/etc/ld.so.cache") == ("/etc/ld.so.cache", "")
    destination, reason = found.find_mount_point("/etc/other")
    assert destination == ""
    assert "cannot be written and has no /etc/other" in reason


OWN = "/usr/lib/x86_64-linux-gnu"


@pytest.mark.parametrize(
    ("links", "there", "directory"),
    [
        # Made for programs with fixed paths: a mount there would hide the C library.
        ({NVIDIA: OWN}, (OWN, f"{OWN}/libc.so.6"), "/usr/lib/gpu-oci-hook/lib64"),
        ({"/usr/local/nvidia": "/usr"}, ("/usr/lib", "/usr/lib/os-release"), "/usr/lib/gpu-oci-hook/lib64"),
        # Nothing is hidden.
        ({"/usr/local": "/opt/local"}, (), "/opt/local/nvidia/lib64"),
        ({"/usr/local": "/opt/local"}, ("/opt/local/nvidia/lib64", "/opt/local/nvidia/lib"), "/opt/local/nvidia/lib64"),
        # The image's own, by its own name: what an earlier driver has left there shall be hidden.
        ({}, (NVIDIA, f"{NVIDIA}/libcuda.so.1"), NVIDIA),
        # The runtime makes /dev/null after our directory.
        ({"/usr/local/nvidia": "/dev/null"}, (), "/usr/lib/gpu-oci-hook/lib64"),
    ],
)
def test_a_link_of_the_image_never_has_us_hide_what_is_there(
    links: dict[str, str], there: tuple[str, ...], directory: str
) -> None:
    found = places(mount("/dev", "tmpfs"), target=FakeRootfs(links, there))
    assert found.driver_library_dir == directory


def test_a_link_of_the_image_into_dev_gets_no_mount_point() -> None:
    found = places(mount("/dev", "tmpfs"), target=FakeRootfs({"/etc/vulkan": "/dev/null"}))
    where, why = found.find_mount_point("/etc/vulkan/icd.d/nvidia_icd.json")
    assert where == ""
    assert "/dev/null/icd.d/nvidia_icd.json" in why


@pytest.mark.parametrize("target", ["/", "/dev", "/proc", "/sys/kernel"])
def test_no_link_of_the_image_brings_a_directory_to_a_place_of_the_runtimes(target: str) -> None:
    """The runtime would make the container's nodes in a directory of the host's."""
    found = places(target=FakeRootfs({"/tmp/nvidia-mps": target, "/usr/local": target}))
    where, why = found.find_mount_point("/tmp/nvidia-mps", follow=True)
    assert where == ""
    assert f"leads from /tmp/nvidia-mps to {target}, which is the runtime's" in why
    assert target == "/" or found.driver_library_dir.startswith("/usr/lib/gpu-oci-hook")


def test_thousands_of_mounts_cost_a_look_each() -> None:
    """Counted, not timed: with every mount held against every other one it would be millions."""
    asked = 0

    class Counting(dict[str, bool]):
        def get(self, key: str, default: bool | None = None) -> bool | None:  # type: ignore[override]
            nonlocal asked
            asked += 1
            return super().get(key, default)

    found = places(*(mount(f"/data/{number}") for number in range(5000)))
    found._mounts = Counting(found._mounts)
    assert found.classify_path("/data/4999/x") == "foreign" and found.classify_path("/usr/lib/x") == "image"
    assert asked < 50
