"""Graphics, 32-bit programs and other machines, the whole way in this process."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gpu_oci_hook.config.keys import Config
from gpu_oci_hook.container import lint
from gpu_oci_hook.files import state_dir
from gpu_oci_hook.formats import elf_builder, ldcache
from gpu_oci_hook.formats.architectures import ARCHITECTURES
from gpu_oci_hook.host.optional.graphics import EGL_PROFILE_PATH
from gpu_oci_hook.inject import pipeline
from gpu_oci_hook.model.edits import AddMount
from gpu_oci_hook.model.outcome import Outcome
from gpu_oci_hook.simulate import host_tree
from gpu_oci_hook.simulate.kernel import list_drm_names
from support.bundles import (
    DEV,
    PROC,
    Spec,
    container_spec,
    host_config,
    inject_in_process,
    list_allowed_numbers,
    list_device_numbers,
    list_mount_destinations,
    make_bundle,
    snapshot_tree,
)

pytestmark = pytest.mark.usefixtures("isolated_state")

V = "555.42.02"
LIB = "usr/lib/x86_64-linux-gnu"
PLACE = "/usr/local/nvidia/lib64"
GPU0 = "NVIDIA_VISIBLE_DEVICES=0"
ALL_GPUS = "NVIDIA_VISIBLE_DEVICES=all"
GRAPHICS = "NVIDIA_DRIVER_CAPABILITIES=graphics"
ICD = "usr/share/vulkan/icd.d/nvidia_icd.x86_64.json"


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """Three GPUs and a display controller that is none of NVIDIA's."""
    host_tree.build_host(tmp_path / "host", gpus=3, driver=V, arch="x86_64")
    return tmp_path / "host"


def outcome(directory: Path, config: Config) -> Outcome:
    return pipeline.prepare_injection(
        json.loads((directory / "config.json").read_text()), config, str(directory), state_dir.StateCache()
    )


def sources(done: Spec) -> dict[str, str]:
    return {mount["destination"]: mount["source"] for mount in done["mounts"]}


# --- DRM nodes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("capability", ["graphics", "display", "all"])
def test_a_container_that_draws_gets_the_drm_nodes_of_its_gpus_and_no_others(
    host: Path, tmp_path: Path, capability: str
) -> None:
    report = host_tree.build_host(host, gpus=3, driver=V, arch="x86_64")
    done = inject_in_process(
        make_bundle(
            tmp_path / "b", container_spec("NVIDIA_VISIBLE_DEVICES=0,2", f"NVIDIA_DRIVER_CAPABILITIES={capability}")
        ),
        host_config(host),
    )
    expected = dict(pair for gpu in (report.gpus[0], report.gpus[2]) for pair in list_drm_names(gpu))
    assert {path: numbers for path, numbers in list_device_numbers(done).items() if "/dri/" in path} == {
        f"/dev/dri/{name}": (226, minor) for name, minor in expected.items()
    }
    assert [numbers for numbers in list_allowed_numbers(done) if numbers[0] == 226] == [
        (226, n) for n in expected.values()
    ]
    assert (226, 0) not in list_allowed_numbers(done)  # the board's own display controller


@pytest.mark.parametrize("capability", ["compute,utility", "video", "ngx", "compat32"])
def test_a_container_that_does_not_draw_gets_none_and_no_profile(host: Path, tmp_path: Path, capability: str) -> None:
    made = make_bundle(tmp_path / "b", container_spec(GPU0, f"NVIDIA_DRIVER_CAPABILITIES={capability}", mounts=[DEV]))
    done = inject_in_process(made, host_config(host))
    assert not [path for path in [*list_device_numbers(done), *list_mount_destinations(done)] if "/dri" in path]
    assert "/dev/nvidia-modeset" not in list_device_numbers(done)
    assert not (made / "rootfs" / EGL_PROFILE_PATH[1:]).exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root can make device nodes")
def test_mode_and_group_are_those_of_the_host_s_nodes(host: Path, tmp_path: Path) -> None:
    done = inject_in_process(make_bundle(tmp_path / "b", container_spec(GPU0, GRAPHICS)), host_config(host))
    nodes = {node["path"]: node for node in done["linux"]["devices"]}
    for name in ("card2", "renderD129"):
        status = (host / f"dev/dri/{name}").stat()
        node = nodes[f"/dev/dri/{name}"]
        assert (node["fileMode"], node["gid"]) == (status.st_mode & 0o777, status.st_gid) != (0o666, 0)
        assert status.st_gid in done["process"]["user"]["additionalGids"]


def test_a_host_without_its_own_nodes_gives_them_for_root_alone(host: Path, tmp_path: Path) -> None:
    for path in (host / "dev/dri").glob("*D*"):
        path.unlink()
    done = inject_in_process(make_bundle(tmp_path / "b", container_spec(GPU0, GRAPHICS)), host_config(host))
    (node,) = [node for node in done["linux"]["devices"] if node["path"] == "/dev/dri/renderD129"]
    assert (node["major"], node["minor"], node["fileMode"], node["gid"]) == (226, 129, 0o660, 0)


def test_in_a_user_namespace_a_missing_drm_node_is_withheld_and_the_start_goes_on(host: Path, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("NOT TESTED: only root can make device nodes")
    (host / "dev/dri/card2").unlink()
    linux = {"namespaces": [{"type": "user"}, {"type": "mount"}]}
    made = make_bundle(tmp_path / "b", container_spec(GPU0, GRAPHICS, linux=linux, mounts=[DEV]))
    plan = outcome(made, host_config(host)).plan
    bound = {edit.destination: edit.source for edit in plan.edits if isinstance(edit, AddMount)}
    assert bound["/dev/dri/renderD129"] == f"{host}/dev/dri/renderD129"
    assert "/dev/dri/card2" not in bound
    assert "in a user namespace" in next(one.reason for one in plan.withheld if one.name == "/dev/dri/card2")


def test_without_the_drm_module_the_container_starts_and_the_plan_says_what_it_lacks(
    host: Path, tmp_path: Path
) -> None:
    for directory in (host / "sys/bus/pci/devices").iterdir():
        if (directory / "drm").exists():
            (directory / "drm").rename(directory / "gone")
    plan = outcome(make_bundle(tmp_path / "b", container_spec(GPU0, GRAPHICS)), host_config(host)).plan
    assert "nvidia_drm is not loaded" in next(one.reason for one in plan.withheld if one.name == "DRM nodes of GPU 0")


# --- /dev/dri/by-path --------------------------------------------------------------------------------

BY_PATH = {"pci-0000:07:00.0-card": "../card2", "pci-0000:07:00.0-render": "../renderD129"}


def test_names_by_path_lie_in_a_directory_of_ours_where_dev_is_a_tmpfs(host: Path, tmp_path: Path) -> None:
    """The tmpfs is not there yet when we write, so the directory is mounted on it; its links are real ones."""
    made = make_bundle(tmp_path / "b", container_spec(GPU0, GRAPHICS, mounts=[DEV]))
    done = inject_in_process(made, host_config(host))
    directory = Path(sources(done)["/dev/dri/by-path"])
    assert directory.parent == made / "gpu-oci-hook"
    assert {path.name: os.readlink(path) for path in directory.iterdir()} == BY_PATH
    assert not (made / "rootfs/dev/dri").exists()
    assert inject_in_process(made, host_config(host)) == done


def test_names_by_path_are_written_where_dev_is_the_image_s(host: Path, tmp_path: Path) -> None:
    made = make_bundle(tmp_path / "b", container_spec(GPU0, GRAPHICS))
    done = inject_in_process(made, host_config(host))
    assert "/dev/dri/by-path" not in list_mount_destinations(done)
    assert {p.name: os.readlink(p) for p in (made / "rootfs/dev/dri/by-path").iterdir()} == BY_PATH


def test_a_container_s_own_dev_dri_is_left_alone(host: Path, tmp_path: Path) -> None:
    own = {"destination": "/dev/dri", "type": "bind", "source": "/dev/dri", "options": ["rbind"]}
    made = make_bundle(tmp_path / "b", container_spec(GPU0, GRAPHICS, mounts=[DEV, own]))
    plan = outcome(made, host_config(host)).plan
    assert not [edit for edit in plan.edits if isinstance(edit, AddMount) and "by-path" in edit.destination]
    reasons = [one.reason for one in plan.withheld if "by-path" in one.name]
    assert reasons and all("another mount" in reason for reason in reasons)


def test_names_by_path_of_another_choice_give_way(host: Path, tmp_path: Path) -> None:
    made = make_bundle(tmp_path / "b", container_spec(GPU0, GRAPHICS, mounts=[DEV]))
    first = inject_in_process(made, host_config(host))
    first["process"]["env"] = [word.replace("DEVICES=0", "DEVICES=1") for word in first["process"]["env"]]
    (made / "config.json").write_text(json.dumps(first))
    second = inject_in_process(made, host_config(host))
    assert list_mount_destinations(second).count("/dev/dri/by-path") == 1
    assert [p.name for p in Path(sources(second)["/dev/dri/by-path"]).glob("*card")] == ["pci-0000:0f:00.0-card"]


# --- the profile that hides other GPUs from EGL --------------------------------------------------------


def test_a_part_of_the_gpus_gets_a_profile_with_their_minors(host: Path, tmp_path: Path) -> None:
    made = make_bundle(tmp_path / "b", container_spec("NVIDIA_VISIBLE_DEVICES=0,2", GRAPHICS, mounts=[PROC]))
    inject_in_process(made, host_config(host))
    text = (made / "rootfs" / EGL_PROFILE_PATH[1:]).read_text()
    assert '"EGLVisibleDGPUDevices", 0x6]' in text  # minors 1 and 2
    assert json.loads(text.replace("0x6", "6"))["rules"] == [{"pattern": [], "profile": "_container_"}]


def test_all_gpus_need_none_but_an_older_one_in_the_image_is_replaced(host: Path, tmp_path: Path) -> None:
    made = make_bundle(tmp_path / "b", container_spec(ALL_GPUS, GRAPHICS))
    inject_in_process(made, host_config(host))
    assert not (made / "rootfs/etc/nvidia").exists()
    old = made / "rootfs" / EGL_PROFILE_PATH[1:]
    old.parent.mkdir(parents=True)
    old.write_text("committed from a container with GPU 0 alone")
    inject_in_process(made, host_config(host))
    assert "0x7]" in old.read_text()


def test_minors_beyond_the_mask_are_said(tmp_path: Path) -> None:
    host_tree.build_host(tmp_path / "many", gpus=70, driver=V, arch="x86_64")
    made = make_bundle(tmp_path / "b", container_spec("NVIDIA_VISIBLE_DEVICES=63-65", GRAPHICS))
    plan = outcome(made, host_config(tmp_path / "many")).plan
    assert any("/dev/nvidia64" in warning for warning in plan.warnings)
    inject_in_process(made, host_config(tmp_path / "many"))
    assert "0x8000000000000000]" in (made / "rootfs" / EGL_PROFILE_PATH[1:]).read_text()


def test_a_container_with_the_driver_and_no_gpu_gets_no_profile(host: Path, tmp_path: Path) -> None:
    made = make_bundle(tmp_path / "b", container_spec("NVIDIA_VISIBLE_DEVICES=none", GRAPHICS))
    inject_in_process(made, host_config(host))
    assert not (made / "rootfs/etc/nvidia").exists()


# --- manifests and what they need -----------------------------------------------------------------


@pytest.fixture
def fedora_like(host: Path) -> Path:
    """A host with an ICD named by its architecture, whose library needs glsi."""
    (host / "usr/share/vulkan/icd.d/nvidia_icd.json").rename(host / ICD)
    glx = elf_builder.build_shared_object(soname="libGLX_nvidia.so.0", needed=[f"libnvidia-glsi.so.{V}", "libc.so.6"])
    (host / LIB / f"libGLX_nvidia.so.{V}").write_bytes(glx)
    return host


def test_manifests_end_where_loaders_look_and_bring_what_their_libraries_need(
    fedora_like: Path, tmp_path: Path
) -> None:
    done = inject_in_process(make_bundle(tmp_path / "b", container_spec(GPU0, GRAPHICS)), host_config(fedora_like))
    mounts = sources(done)
    assert mounts["/etc/vulkan/icd.d/nvidia_icd.x86_64.json"] == str(fedora_like / ICD)
    assert mounts["/usr/share/glvnd/egl_vendor.d/10_nvidia.json"].endswith("/10_nvidia.json")
    assert f"{PLACE}/libnvidia-glsi.so.{V}" in mounts
    assert f"{PLACE}/libnvidia-allocator.so.{V}" in mounts  # opened by name, and of the capability compute


def test_what_a_manifest_needs_and_the_host_lacks_is_a_warning(fedora_like: Path, tmp_path: Path) -> None:
    (fedora_like / LIB / f"libnvidia-glsi.so.{V}").unlink()
    made = make_bundle(tmp_path / "b", container_spec(GPU0, GRAPHICS))
    assert (
        f"nvidia_icd needs libnvidia-glsi.so.{V}, not found on host"
        in outcome(made, host_config(fedora_like)).plan.warnings
    )
    assert "/etc/vulkan/icd.d/nvidia_icd.x86_64.json" in sources(inject_in_process(made, host_config(fedora_like)))


def test_a_missing_library_of_a_manifest_that_does_not_go_in_is_no_warning(host: Path, tmp_path: Path) -> None:
    (host / LIB / f"libnvidia-glsi.so.{V}").unlink()
    made = make_bundle(tmp_path / "b", container_spec(GPU0, "NVIDIA_DRIVER_CAPABILITIES=compute"))
    assert not [text for text in outcome(made, host_config(host)).plan.warnings if "not found on host" in text]


def test_of_a_manifest_behind_alternatives_the_resolved_file_is_mounted(tmp_path: Path) -> None:
    host_tree.build_host(tmp_path / "host", gpus=1, driver=V, layout="debian-alternatives", arch="x86_64")
    assert (tmp_path / "host/usr/share/vulkan/icd.d/nvidia_icd.json").is_symlink()
    done = inject_in_process(
        make_bundle(tmp_path / "b", container_spec(GPU0, GRAPHICS)), host_config(tmp_path / "host")
    )
    source = Path(sources(done)["/etc/vulkan/icd.d/nvidia_icd.json"])
    assert source == tmp_path / "host/usr/lib/nvidia/current/vulkan/icd.d/nvidia_icd.json"
    assert not source.is_symlink()


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("/usr/lib64/libGLX_nvidia.so.0", "/usr/lib64/libGLX_nvidia.so.0"),
        ("/nix/store/abc-nvidia-x11/lib/libGLX_nvidia.so.0", "/nix/store/abc-nvidia-x11/lib/libGLX_nvidia.so.0"),
        ("../../../lib/libGLX_nvidia.so.0", "/lib/libGLX_nvidia.so.0"),
    ],
)
def test_a_library_named_by_its_path_is_a_warning_and_gets_a_link(
    fedora_like: Path, tmp_path: Path, written: str, meant: str
) -> None:
    (fedora_like / ICD).write_text(json.dumps({"ICD": {"library_path": written}}))
    made = make_bundle(tmp_path / "b", container_spec(GPU0, GRAPHICS))
    (warning,) = [text for text in outcome(made, host_config(fedora_like)).plan.warnings if written in text]
    assert f"in the container that library lies at {PLACE}/libGLX_nvidia.so.0" in warning
    inject_in_process(made, host_config(fedora_like))
    assert os.readlink(made / "rootfs" / meant[1:]) == f"{PLACE}/libGLX_nvidia.so.0"


def test_a_file_of_the_image_at_such_a_path_stays(fedora_like: Path, tmp_path: Path) -> None:
    path = "/usr/lib64/libGLX_nvidia.so.0"
    (fedora_like / ICD).write_text(json.dumps({"ICD": {"library_path": path}}))
    made = make_bundle(tmp_path / "b", container_spec(GPU0, GRAPHICS))
    (made / "rootfs/usr/lib64").mkdir()
    (made / "rootfs" / path[1:]).write_text("the image's own")
    (warning,) = [text for text in outcome(made, host_config(fedora_like)).plan.warnings if path in text]
    assert "a link leads there" not in warning
    inject_in_process(made, host_config(fedora_like))
    assert (made / "rootfs" / path[1:]).read_text() == "the image's own"


def test_a_manifest_for_32_bit_programs_goes_in_with_compat32_alone(host: Path, tmp_path: Path) -> None:
    small = host / "usr/share/vulkan/icd.d/nvidia_icd.i686.json"
    small.write_bytes((host / "usr/share/vulkan/icd.d/nvidia_icd.json").read_bytes())
    place = "/etc/vulkan/icd.d/nvidia_icd.i686.json"
    assert place not in sources(
        inject_in_process(make_bundle(tmp_path / "a", container_spec(GPU0, GRAPHICS)), host_config(host))
    )
    assert place in sources(
        inject_in_process(make_bundle(tmp_path / "b", container_spec(GPU0, GRAPHICS + ",compat32")), host_config(host))
    )


def test_a_manifest_for_another_machine_never_goes_in(host: Path, tmp_path: Path) -> None:
    (host / "usr/share/vulkan/icd.d/nvidia_icd.aarch64.json").write_text("{}")
    done = inject_in_process(
        make_bundle(tmp_path / "b", container_spec(GPU0, "NVIDIA_DRIVER_CAPABILITIES=all")), host_config(host)
    )
    assert [name for name in list_mount_destinations(done) if "/nvidia_icd" in name] == [
        "/etc/vulkan/icd.d/nvidia_icd.json"
    ]


@pytest.mark.parametrize(
    "text", ["", "[", "[]", '{"ICD": 3}', '{"ICD": {"library_path": 7}}', "[" * 60000, "x" * 70000]
)
def test_a_damaged_manifest_is_a_file_like_others(fedora_like: Path, tmp_path: Path, text: str) -> None:
    (fedora_like / ICD).write_text(text)
    done = inject_in_process(make_bundle(tmp_path / "b", container_spec(GPU0, GRAPHICS)), host_config(fedora_like))
    assert ("/etc/vulkan/icd.d/nvidia_icd.x86_64.json" in list_mount_destinations(done)) is bool(
        text
    )  # an empty file is none


def test_what_will_not_load_in_the_image_is_said(fedora_like: Path, tmp_path: Path) -> None:
    glsi = elf_builder.build_shared_object(soname=f"libnvidia-glsi.so.{V}", needed=["libX11.so.6"], glibc="2.38")
    (fedora_like / LIB / f"libnvidia-glsi.so.{V}").write_bytes(glsi)
    made = make_bundle(tmp_path / "b", container_spec(GPU0, GRAPHICS))
    (made / "rootfs" / LIB / "libc.so.6").write_bytes(b"\x7fELF GLIBC_2.2.5\0GLIBC_2.36\0")
    found = outcome(made, host_config(fedora_like))
    assert found.rootfs and found.image and found.inventory
    mounted = {edit.source for edit in found.plan.edits if isinstance(edit, AddMount)}
    files = [file for file in found.inventory.files if file.source in mounted]
    said = lint.lint_image(found.rootfs, found.image, files, {})
    (mine,) = [text for text in said if text.startswith("nvidia_icd.x86_64.json")]
    assert f"libnvidia-glsi.so.{V} needs GLIBC_2.38, image provides 2.36" in mine
    assert f"libnvidia-glsi.so.{V} needs libX11.so.6, not found in the image" in mine
    (made / "rootfs" / LIB / "libX11.so.6").symlink_to("libX11.so.6.4.0")
    said = lint.lint_image(found.rootfs, found.image, files, {})
    (mine,) = [text for text in said if text.startswith("nvidia_icd.x86_64.json")]
    assert "libX11" not in mine


# --- links that loaders follow ------------------------------------------------------------------------


def test_gbm_s_back_end_and_vdpau_s_driver_lie_where_their_loaders_look(host: Path, tmp_path: Path) -> None:
    made = make_bundle(tmp_path / "b", container_spec(GPU0, "NVIDIA_DRIVER_CAPABILITIES=graphics,video"))
    inject_in_process(made, host_config(host))
    links = {
        name: os.readlink(made / "rootfs" / LIB / name)
        for name in ("gbm/nvidia-drm_gbm.so", "vdpau/libvdpau_nvidia.so.1")
    }
    assert links == {
        "gbm/nvidia-drm_gbm.so": f"{PLACE}/libnvidia-allocator.so.1",
        "vdpau/libvdpau_nvidia.so.1": f"{PLACE}/libvdpau_nvidia.so.1",
    }


@pytest.mark.parametrize("modules", ["/usr/lib/xorg/modules", "/usr/lib64/xorg/modules"])
def test_modules_of_the_x_server_lie_where_the_image_s_server_has_its_own(
    host: Path, tmp_path: Path, modules: str
) -> None:
    made = make_bundle(tmp_path / "b", container_spec(GPU0, "NVIDIA_DRIVER_CAPABILITIES=display"))
    (made / "rootfs" / modules[1:]).mkdir(parents=True)
    done = sources(inject_in_process(made, host_config(host)))
    assert done[f"{modules}/drivers/nvidia_drv.so"] == f"{host}/{LIB}/xorg/modules/drivers/nvidia_drv.so"
    assert done[f"{modules}/extensions/libglxserver_nvidia.so"].endswith(f"/libglxserver_nvidia.so.{V}")
    assert "/usr/share/X11/xorg.conf.d/nvidia-drm-outputclass.conf" in done


# --- 32-bit programs and other machines ------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
def test_each_machine_s_libraries_and_their_32_bit_sisters_are_in_the_cache_with_their_flags(
    tmp_path: Path, arch: str
) -> None:
    """The machine is what the driver below the root says, whichever this one is."""
    known, small = ARCHITECTURES[arch], ARCHITECTURES[ARCHITECTURES[arch].arch32]
    host_tree.build_host(tmp_path / "host", gpus=1, driver=V, arch=arch)
    made = tmp_path / "b"
    for name in (f"usr/lib/{known.triple}", f"usr/lib/{small.triple}", "etc", "proc", "dev", "run"):
        (made / "rootfs" / name).mkdir(parents=True)
    capabilities = "NVIDIA_DRIVER_CAPABILITIES=compute,utility,compat32"
    done = sources(
        inject_in_process(make_bundle(made, container_spec(GPU0, capabilities)), host_config(tmp_path / "host"))
    )
    assert done[f"/usr/local/nvidia/lib64/libcuda.so.{V}"] == f"{tmp_path}/host/usr/lib/{known.triple}/libcuda.so.{V}"
    assert done[f"/usr/local/nvidia/lib/libcuda.so.{V}"] == f"{tmp_path}/host/usr/lib/{small.triple}/libcuda.so.{V}"
    cache = ldcache.parse_ld_cache((made / "rootfs/etc/ld.so.cache").read_bytes())
    assert {(e.flags, e.path) for e in cache.entries if e.name == "libcuda.so.1"} == {
        (known.cache_flags, "/usr/local/nvidia/lib64/libcuda.so.1"),
        (small.cache_flags, "/usr/local/nvidia/lib/libcuda.so.1"),
    }
    assert os.readlink(made / f"rootfs/usr/lib/{known.triple}/libcuda.so.1") == "/usr/local/nvidia/lib64/libcuda.so.1"


@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
def test_a_musl_image_of_each_machine_gets_its_path_file(tmp_path: Path, arch: str) -> None:
    host_tree.build_host(tmp_path / "host", gpus=1, driver=V, arch=arch)
    made = tmp_path / "b"
    for name in ("lib", "usr/lib", "etc", "proc", "dev", "run"):
        (made / "rootfs" / name).mkdir(parents=True)
    (made / f"rootfs/lib/ld-musl-{arch}.so.1").touch()
    (made / "rootfs/etc/alpine-release").write_text("3.19.0\n")
    inject_in_process(make_bundle(made, container_spec(GPU0)), host_config(tmp_path / "host"))
    assert (made / f"rootfs/etc/ld-musl-{arch}.path").read_text().startswith("/usr/local/nvidia/lib64\n")


def test_a_second_injection_changes_nothing(host: Path, tmp_path: Path) -> None:
    made = make_bundle(tmp_path / "b", container_spec(GPU0, "NVIDIA_DRIVER_CAPABILITIES=all", mounts=[DEV, PROC]))
    inject_in_process(made, host_config(host))
    before = snapshot_tree(made)
    inject_in_process(made, host_config(host))
    assert snapshot_tree(made) == before
