"""What goes in and what does not, with reasons: facts made by hand, no machine."""

from __future__ import annotations

import re
from typing import Any

import pytest

from gpu_oci_hook.container.image import Image
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.model.edits import (
    AddDeviceNode,
    AddDeviceRule,
    AddGroup,
    AddHook,
    AddMount,
    DropHook,
    DropMount,
    Plan,
    SetEnvVariable,
)
from gpu_oci_hook.model.file_edits import AddFile, AddLink, PrepareDirectory
from gpu_oci_hook.plan import build
from support.plan_input import (
    DRIVER_LIBRARY_DIR,
    FILES,
    IMAGE_LIBRARY_DIR,
    VERSION,
    FakeRootfs,
    make_library,
    make_node,
    make_plan_input,
)

ALL = ("compute", "compat32", "graphics", "utility", "video", "display", "ngx")
USER = {"namespaces": [{"type": "mount"}, {"type": "user"}]}
BIND = {"type": "bind", "options": ["rbind"]}
RULES = {"resources": {"devices": [{"allow": False, "access": "rwm"}]}}


def of(plan: Plan, kind: type) -> list[Any]:
    return [edit for edit in plan.edits if isinstance(edit, kind)]


def plan(asked: str = "0", capabilities: str = "", **more: Any) -> Plan:
    return build.build_plan(make_plan_input(asked, capabilities, **more))


def reasons(made: Plan) -> dict[str, str]:
    return {withheld.name: withheld.reason for withheld in made.withheld}


def mounted(made: Plan) -> dict[str, str]:
    """Destination to reason of everything that is mounted."""
    return {edit.destination: edit.reason for edit in of(made, AddMount)}


def libraries(made: Plan) -> set[str]:
    """The stems of the 64-bit libraries that go in."""
    return {
        edit.destination.rpartition("/")[2].partition(".so")[0]
        for edit in of(made, AddMount)
        if edit.source.startswith("/drv/x86_64/")
    }


# --- nodes, rules, groups: the four situations ------------------------------------------------------

PLAIN = [("/dev/nvidia1", 195, 1), ("/dev/nvidiactl", 195, 255), ("/dev/nvidia-uvm", 510, 0),
         ("/dev/nvidia-uvm-tools", 510, 1)]  # fmt: skip


def test_a_plain_container_gets_nodes_and_one_rule_for_each() -> None:
    made = plan()
    assert [(edit.path, edit.major, edit.minor) for edit in of(made, AddDeviceNode)] == PLAIN
    assert [(edit.major, edit.minor, edit.access) for edit in of(made, AddDeviceRule)] == [
        (major, minor, "rw") for _, major, minor in PLAIN
    ]
    assert not [path for path in mounted(made) if path.startswith("/dev/")]


def test_a_plain_container_gets_rules_even_if_its_spec_has_none() -> None:
    assert len(of(plan(spec={"linux": {}}), AddDeviceRule)) == len(PLAIN)
    assert len(of(plan(spec={"linux": {"namespaces": None, "resources": None}}), AddDeviceRule)) == len(PLAIN)


@pytest.mark.parametrize(
    ("linux", "inside", "rules"),
    [
        ({**USER, **RULES}, False, True),  # docker --userns-remap
        (USER, False, True),  # podman --uidmap as root: no rules in config.json, and runc has its own
        ({**USER, "resources": {"devices": []}}, False, True),
        ({**USER, **RULES}, True, False),  # rootless: we are inside ourselves
        (RULES, True, False),
        ({}, True, False),
    ],
)  # fmt: skip
def test_in_a_user_namespace_nodes_are_bound_and_rules_are_written_unless_we_are_inside(
    linux: dict[str, Any], inside: bool, rules: bool
) -> None:
    made = plan(spec={"linux": linux}, inside=inside)
    assert not of(made, AddDeviceNode)
    bound = [edit for edit in of(made, AddMount) if edit.destination.startswith("/dev/")]
    assert [(edit.source, edit.destination) for edit in bound] == [(f"/sim{path}", path) for path, _, _ in PLAIN]
    for edit in bound:
        assert "nodev" not in edit.options
        assert {"bind", "nosuid", "noexec"} <= set(edit.options)
        assert not edit.clear_mount_point
    assert len(of(made, AddDeviceRule)) == (len(PLAIN) if rules else 0)


def test_a_joined_user_namespace_counts_as_one() -> None:
    linux = {"namespaces": [{"type": "user", "path": "/proc/7/ns/user"}]}
    assert not of(plan(spec={"linux": linux}), AddDeviceNode)


def test_a_node_that_cannot_be_bound_is_named() -> None:
    made = make_plan_input(spec={"linux": USER})
    made.gpu_nodes[1] = make_node("/dev/nvidia1", 195, 1, exists=False)
    with pytest.raises(Fault, match=r"/sim/dev/nvidia1 is missing.*user namespace"):
        build.build_plan(made)


def test_a_node_that_the_host_lacks_costs_nothing_in_a_plain_container() -> None:
    made = make_plan_input()
    made.control_nodes = [("compute", make_node("/dev/nvidia-uvm", 510, 0, exists=False))]
    assert "/dev/nvidia-uvm" in [edit.path for edit in of(build.build_plan(made), AddDeviceNode)]


@pytest.mark.parametrize(
    ("mounts", "hidden"),
    [
        ([("/dev/nvidia1", "/dev/null")], "/dev/null on /dev/nvidia1, .* host's /dev/nvidia1. Remove"),
        ([("/dev", "/srv/dev")], "/srv/dev on /dev, .* /dev/nvidia1, /dev/nvidiactl, /dev/nvidia-uvm, "),
        ([("/dev/./", "/srv/dev/")], "/srv/dev.* on /dev, .* /dev/nvidia1, /dev/nvidiactl"),
        ([("/dev", "tmpfs"), ("/dev/nvidiactl", "/etc/passwd")], "/etc/passwd on /dev/nvidiactl, "),
        ([("/dev", "/sim/dev")], ""),
        ([("/dev/nvidia1", "/sim/dev/nvidia1")], ""),
        ([("/dev", "/srv/dev"), ("/dev", "tmpfs")], ""),
        ([("/dev", "tmpfs"), ("/dev/nvidia", "/srv"), ("/dev/shm", "/srv"), ("/device", "/srv")], ""),
    ],
)
def test_a_mount_that_hides_a_node_is_a_warning_unless_it_brings_the_hosts_own(
    mounts: list[tuple[str, str]], hidden: str
) -> None:
    spec_mounts = [
        {"destination": destination, "source": source, **({"type": "tmpfs"} if source == "tmpfs" else BIND)}
        for destination, source in mounts
    ]
    warnings = plan(spec={"mounts": spec_mounts}).warnings
    assert (len(warnings) == 1 and re.search(hidden, warnings[0])) if hidden else warnings == []
    in_user_namespace = plan(spec={"mounts": spec_mounts, "linux": {**USER, **RULES}})
    assert in_user_namespace.warnings == [], "there the nodes are mounted last"


def test_the_group_of_a_node_becomes_an_additional_group_once() -> None:
    made = make_plan_input()
    made.gpu_nodes[1] = make_node("/dev/nvidia1", 195, 1, gid=44, mode=0o660)
    made.control_nodes = [("", make_node("/dev/nvidiactl", 195, 255, gid=44, mode=0o660))]
    assert [(edit.gid, edit.reason) for edit in of(build.build_plan(made), AddGroup)] == [
        (44, "/dev/nvidia1 is for group 44 (mode 0660)")
    ]


def test_the_group_of_a_node_that_anybody_may_use_is_not_needed() -> None:
    made = make_plan_input()
    made.gpu_nodes[1] = make_node("/dev/nvidia1", 195, 1, gid=44, mode=0o666)
    assert not of(build.build_plan(made), AddGroup)


def test_every_gpu_that_is_not_given_is_withheld_by_name() -> None:
    assert reasons(plan("0"))["/dev/nvidia0 (GPU 1, GPU-00000000-0000-0000-0000-000000000001)"] == (
        "this GPU was not requested"
    )
    assert not [name for name in reasons(plan("all")) if "GPU" in name]
    assert len([name for name in reasons(plan("none")) if "GPU" in name]) == 2


def test_none_gives_the_control_nodes_alone() -> None:
    assert [edit.path for edit in of(plan("none"), AddDeviceNode)] == [path for path, _, _ in PLAIN[1:]]


@pytest.mark.parametrize("capabilities", ["compute", "video"])
def test_a_missing_uvm_module_is_named(capabilities: str) -> None:
    made = make_plan_input("0", capabilities)
    made.control_nodes = made.control_nodes[:1]
    made.absent_control_nodes = [("compute", "/dev/nvidia-uvm", "nvidia-uvm", "")]
    with pytest.raises(Fault) as caught:
        build.build_plan(made)
    text = str(caught.value)
    assert f"/dev/nvidia-uvm is required for {capabilities}" in text
    assert "the kernel module nvidia_uvm is not loaded (no nvidia-uvm in /proc/devices)" in text
    assert "modprobe nvidia_uvm" in text


def test_a_control_node_that_may_not_be_opened_is_named_with_the_reason() -> None:
    made = make_plan_input("0", "compute")
    made.control_nodes = made.control_nodes[:1]
    access = "/dev/nvidia-uvm cannot be opened: the device cgroup of this container or session denies 510:0"
    made.absent_control_nodes = [("compute", "/dev/nvidia-uvm", "nvidia-uvm", access)]
    with pytest.raises(Fault) as caught:
        build.build_plan(made)
    assert caught.value.what == f"/dev/nvidia-uvm is required for compute, but {access}"
    assert "start that container with the capability compute" in caught.value.hint
    assert "modprobe" not in caught.value.hint


def test_a_missing_uvm_module_is_nothing_to_a_container_without_compute() -> None:
    made = make_plan_input("0", "utility")
    made.absent_control_nodes = [("compute", "/dev/nvidia-uvm", "nvidia-uvm", "")]
    assert reasons(build.build_plan(made))["/dev/nvidia-uvm"] == "needs capability compute"


@pytest.mark.parametrize("capabilities", ["display", "graphics"])
def test_a_missing_modeset_module_is_a_warning(capabilities: str) -> None:
    made = make_plan_input("0", capabilities)
    made.absent_control_nodes = [("display", "/dev/nvidia-modeset", "nvidia-modeset", "")]
    done = build.build_plan(made)
    assert any("nvidia_modeset is not loaded" in warning for warning in done.warnings)
    assert "not loaded" in reasons(done)["/dev/nvidia-modeset"]


def test_a_missing_modeset_module_is_no_warning_for_compute() -> None:
    made = make_plan_input("0", "compute")
    made.absent_control_nodes = [("display", "/dev/nvidia-modeset", "nvidia-modeset", "")]
    done = build.build_plan(made)
    assert not done.warnings
    assert reasons(done)["/dev/nvidia-modeset"] == "needs capability display"


# --- files by capability -----------------------------------------------------------------------------

CUDA = {"libcuda", "libnvidia-ptxjitcompiler"}
GL = {"libGLX_nvidia", "libnvidia-glcore", "libnvidia-deep", "libnvidia-deeper"}


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        ("compute", CUDA),
        ("utility", {"libnvidia-ml"}),
        ("compute,utility", {*CUDA, "libnvidia-ml"}),
        ("", {*CUDA, "libnvidia-ml"}),
        ("video", {*CUDA, "libnvidia-encode"}),
        ("graphics", GL),
        ("display", GL),
        ("ngx", {"libnvidia-ngx", "libnvidia-deep", "libnvidia-deeper"}),
        ("all", {*CUDA, *GL, "libnvidia-ml", "libnvidia-encode", "libnvidia-ngx"}),
    ],
)
def test_libraries_by_capability(capabilities: str, expected: set[str]) -> None:
    assert libraries(plan("0", capabilities)) == expected


def test_video_brings_the_libraries_of_compute_and_nothing_else_of_it() -> None:
    made = plan("0", "video")
    assert mounted(made)[f"{DRIVER_LIBRARY_DIR}/libcuda.so.{VERSION}"] == "capability compute, brought by video"
    assert reasons(made)["/usr/bin/nvidia-cuda-mps-control"] == (
        "needs capability compute (video brings its libraries only)"
    )
    assert "/tmp/nvidia-mps" in reasons(made)


def test_display_brings_graphics_with_its_configuration() -> None:
    made = mounted(plan("0", "display"))
    assert made["/etc/vulkan/icd.d/nvidia_icd.json"] == "capability graphics, brought by display"


def test_what_a_library_needs_of_the_driver_comes_along_to_any_depth() -> None:
    made = mounted(plan("0", "ngx"))
    assert made[f"{DRIVER_LIBRARY_DIR}/libnvidia-deep.so.{VERSION}"] == "needed by libnvidia-ngx.so.1"
    assert made[f"{DRIVER_LIBRARY_DIR}/libnvidia-deeper.so.{VERSION}"] == f"needed by libnvidia-deep.so.{VERSION}"


def test_libraries_that_need_each_other_and_themselves_come_to_an_end() -> None:
    made = make_plan_input("0", "ngx")
    deep, deeper = f"libnvidia-deep.so.{VERSION}", f"libnvidia-deeper.so.{VERSION}"
    circle = make_library("libnvidia-deeper", "graphics", soname="", needs=(deep, deeper))
    made.inventory.files = (*FILES[:8], circle)
    assert libraries(build.build_plan(made)) == {"libnvidia-ngx", "libnvidia-deep", "libnvidia-deeper"}


def test_32_bit_libraries_go_in_with_compat32_alone_and_to_a_directory_of_their_own() -> None:
    name = f"libcuda.so.{VERSION}"
    assert reasons(plan("0", "compute"))["libcuda.so.1 (i386)"] == "needs capability compat32"
    made = plan("0", "compute,compat32")
    assert {edit.destination: edit.source for edit in of(made, AddMount) if edit.source.endswith(name)} == {
        f"{DRIVER_LIBRARY_DIR}/{name}": f"/drv/x86_64/{name}",
        f"/usr/local/nvidia/lib/{name}": f"/drv/i386/{name}",
    }


@pytest.mark.parametrize("prefix", ["/usr/local/nvidia", "/run/gpu-oci-hook"])
def test_32_bit_libraries_never_fall_together_with_those_of_64_bit(prefix: str) -> None:
    made = make_plan_input("0", "all", spec={"mounts": [{"destination": "/run", "type": "tmpfs"}]})
    made.container.image.writable = prefix.startswith("/usr")
    places = [edit.destination for edit in of(build.build_plan(made), AddMount)]
    assert len(places) == len(set(places))
    name = f"libcuda.so.{VERSION}"
    assert {path for path in places if path.endswith(name)} == {f"{prefix}/lib64/{name}", f"{prefix}/lib/{name}"}


def test_a_musl_image_gets_no_32_bit_libraries() -> None:
    made = plan("0", "compute,compat32", image=Image(libc="musl", library_dir="/usr/lib"))
    assert reasons(made)["libcuda.so.1 (i386)"] == "a musl image has no use for it"
    assert not [path for path in mounted(made) if path.startswith("/usr/local/nvidia/lib/")]


def test_compat32_alone_brings_nothing_that_was_not_asked_for() -> None:
    made = plan("0", "compat32")
    assert not [edit for edit in of(made, AddMount) if edit.source.startswith("/drv/i386/")]


@pytest.mark.parametrize("asked", ["0", "all", "none", "1"])
@pytest.mark.parametrize("capabilities", ["", "all", *ALL])
@pytest.mark.parametrize("config", [{}, {"sockets": False, "firmware": False}])
def test_every_file_and_every_gpu_is_either_given_or_withheld_with_a_reason(
    asked: str, capabilities: str, config: dict[str, object]
) -> None:
    made = plan(asked, capabilities, **config)
    sources = {edit.source for edit in of(made, AddMount)}
    names = reasons(made)
    for file in FILES:
        name = file.container_path or (f"{file.soname} (i386)" if file.arch == "i386" else file.soname)
        assert (file.source in sources) != (name in names), name
    assert all(edit.reason for edit in made.edits)
    assert all(one.reason and one.name and one.kind for one in made.withheld)
    given = {edit.path for edit in of(made, AddDeviceNode)}
    for path in ("/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-modeset"):
        assert (path in given) != any(name.split(" ")[0] == path for name in names), path


def test_what_the_administrator_switched_off_is_withheld_by_his_word() -> None:
    names = reasons(plan("0", "all", sockets=False, firmware=False))
    assert names["/var/run/nvidia-persistenced/socket"] == "[inject] sockets is off"
    assert names[f"/lib/firmware/nvidia/{VERSION}/gsp_tu10x.bin"] == "[inject] firmware is off"


def test_a_required_library_that_is_missing_is_named() -> None:
    made = make_plan_input("0", "video")
    made.inventory.missing_libraries = (("compute", "libcuda.so.1", "/x/libcuda.so.470"),)
    with pytest.raises(Fault, match=r"libcuda.so.1 is required for capability compute.*libcuda.so.470"):
        build.build_plan(made)
    made = make_plan_input("0", "utility")
    made.inventory.missing_libraries = (("compute", "libcuda.so.1", ""),)
    build.build_plan(made)


# --- mounts, links, loader -----------------------------------------------------------------------------


def test_options_of_each_kind_of_mount() -> None:
    by = {edit.destination: edit for edit in of(plan("0", "all"), AddMount)}
    library = by[f"{DRIVER_LIBRARY_DIR}/libcuda.so.{VERSION}"]
    assert library.options == ("ro", "nosuid", "nodev", "rbind", "rprivate")
    socket = by["/var/run/nvidia-persistenced/socket"]
    assert "ro" not in socket.options
    assert "rbind" in socket.options
    assert not by["/tmp/nvidia-mps"].clear_mount_point


def beside(made: Plan, directory: str) -> dict[str, str]:
    """The prepared directory that is mounted in a place: name to link text, "" for a library itself."""
    (found,) = [edit for edit in of(made, PrepareDirectory) if edit.destination == directory]
    assert found.source in [edit.source for edit in of(made, AddMount) if edit.destination == directory]
    return dict(found.entries)


def test_a_library_has_its_soname_and_its_development_link_beside_it() -> None:
    entries = beside(plan(), DRIVER_LIBRARY_DIR)
    assert entries[f"libcuda.so.{VERSION}"] == ""
    assert entries["libcuda.so.1"] == f"libcuda.so.{VERSION}"
    assert entries["libcuda.so"] == "libcuda.so.1"
    for edit in of(plan(), AddMount):
        if edit.destination.startswith(f"{DRIVER_LIBRARY_DIR}/"):
            assert entries[edit.destination.rpartition("/")[2]] == "", "a library has no place to be mounted on"


def test_the_directory_comes_before_the_libraries_that_are_mounted_in_it() -> None:
    paths = [edit.destination for edit in of(plan("0", "all"), AddMount)]
    for path in paths:
        above = path.rpartition("/")[0]
        if above in paths:
            assert paths.index(above) < paths.index(path)


def test_prepared_directories_of_one_name_have_one_content() -> None:
    found: dict[str, object] = {}
    for capabilities in ("", *ALL, "all"):
        for edit in of(plan("0", capabilities), PrepareDirectory):
            assert found.setdefault(edit.source, edit.entries) == edit.entries
    assert len(found) > 3


def test_the_main_libraries_are_linked_where_programs_look_that_do_not_ask_the_loader() -> None:
    links = {edit.path: edit.target for edit in of(plan("0", "all"), AddLink)}
    assert links[f"{IMAGE_LIBRARY_DIR}/libcuda.so.1"] == f"{DRIVER_LIBRARY_DIR}/libcuda.so.1"
    assert links[f"{IMAGE_LIBRARY_DIR}/libnvidia-ml.so.1"] == f"{DRIVER_LIBRARY_DIR}/libnvidia-ml.so.1"
    assert f"{IMAGE_LIBRARY_DIR}/libnvidia-encode.so.1" not in links


def test_a_leftover_in_the_image_gives_way_and_a_librarys_own_file_does_not() -> None:
    target = FakeRootfs(
        there=(f"{IMAGE_LIBRARY_DIR}/libnvidia-encode.so.1",),
        files=(f"{IMAGE_LIBRARY_DIR}/libnvidia-ptxjitcompiler.so.1",),
    )
    links = {edit.path: edit.reason for edit in of(plan("0", "all", target=target), AddLink)}
    assert "leftover" in links[f"{IMAGE_LIBRARY_DIR}/libnvidia-encode.so.1"]
    assert f"{IMAGE_LIBRARY_DIR}/libnvidia-ptxjitcompiler.so.1" not in links


def test_where_no_link_can_be_written_the_prepared_directory_has_them_all() -> None:
    image = Image(library_dir=IMAGE_LIBRARY_DIR, writable=False)
    made = plan(image=image, spec={"mounts": [{"destination": "/dev", "type": "tmpfs"}]})
    assert not of(made, AddLink)
    entries = beside(made, "/dev/gpu-oci-hook/lib64")
    assert {f"libcuda.so.{VERSION}", "libcuda.so.1", "libcuda.so"} <= set(entries)


@pytest.mark.parametrize("name", ["libcuda.so.1", f"libcuda.so.{VERSION}"])
def test_the_users_own_mount_on_a_librarys_place_wins_and_is_said(name: str) -> None:
    path = f"{IMAGE_LIBRARY_DIR}/{name}"
    made = plan(spec={"mounts": [{"destination": path, "type": "bind", "source": "/home/me/libcuda"}]})
    assert reasons(made)["libcuda.so.1"] == f"the container has its own mount on {path}"
    assert not [edit for edit in of(made, AddMount) if "libcuda.so" in edit.source]
    assert path not in [edit.path for edit in of(made, AddLink)]
    assert not [name for name in beside(made, DRIVER_LIBRARY_DIR) if name.startswith("libcuda.so")]
    (cache,) = [edit.content for edit in of(made, AddFile) if edit.path.endswith("ld.so.cache")]
    assert path.encode() + b"\0" in cache, "the loader is to find the user's"
    assert f"{DRIVER_LIBRARY_DIR}/libcuda.so".encode() not in cache


def test_a_choice_of_mounts_makes_no_directory_that_stays() -> None:
    path = f"{IMAGE_LIBRARY_DIR}/libcuda.so.1"
    made = plan(spec={"mounts": [{"destination": path, "type": "bind", "source": "/home/me/libcuda"}]})
    (directory,) = of(made, PrepareDirectory)
    assert directory.source.startswith(f"{make_plan_input().container.generated_dir}/libraries-")


def test_the_users_own_mount_on_a_programs_place_wins_and_is_said() -> None:
    made = plan(spec={"mounts": [{"destination": "/usr/bin/nvidia-smi", "type": "bind", "source": "/home/me/smi"}]})
    assert "/usr/bin/nvidia-smi" not in mounted(made)
    assert "own mount" in reasons(made)["/usr/bin/nvidia-smi"]


@pytest.mark.parametrize(
    ("links", "lost"),
    [
        # below the libraries' directory, which is read-only
        ({"/lib/firmware": DRIVER_LIBRARY_DIR}, f"/lib/firmware/nvidia/{VERSION}/gsp_tu10x.bin"),
        # on one of the libraries
        ({"/usr/bin": DRIVER_LIBRARY_DIR}, "/usr/bin/nvidia-smi"),
        # below a file, the other way round
        ({"/etc/OpenCL": "/usr/bin/nvidia-smi"}, "/etc/OpenCL/vendors/nvidia.icd"),
    ],
)
def test_links_of_the_image_that_bring_two_files_together_cost_the_second_one(links: dict[str, str], lost: str) -> None:
    made = plan("0", "all", target=FakeRootfs(links))
    assert "another driver file" in reasons(made)[lost]
    where = [edit.destination for edit in of(made, AddMount)]
    assert len(where) == len(set(where))


def test_a_container_without_any_place_for_libraries_is_refused_with_a_hint() -> None:
    with pytest.raises(Fault, match=r"no directory for the driver's libraries.*tmpfs"):
        plan(image=Image(library_dir=IMAGE_LIBRARY_DIR, writable=False))


def test_on_a_root_that_cannot_be_written_the_cache_is_mounted_and_nothing_is_written() -> None:
    image = Image(library_dir=IMAGE_LIBRARY_DIR, writable=False)
    made = plan(
        image=image,
        target=FakeRootfs(there=("/etc/ld.so.cache", "/etc/ld.so.conf")),
        spec={"mounts": [{"destination": "/dev", "type": "tmpfs"}]},
    )
    assert [edit.path for edit in of(made, AddFile)] == ["/etc/ld.so.cache"]
    assert all(edit.bind_mounted for edit in of(made, AddFile))
    assert not [edit for edit in of(made, AddMount) if edit.clear_mount_point]
    assert "/etc/ld.so.cache" in mounted(made)
    assert not of(made, SetEnvVariable)


def test_where_the_loaders_cache_cannot_be_had_the_environment_stands_in() -> None:
    made = plan(
        image=Image(library_dir=IMAGE_LIBRARY_DIR, writable=False),
        spec={"mounts": [{"destination": "/dev", "type": "tmpfs"}]},
        env=("LD_LIBRARY_PATH=/opt/own",),
    )
    (found,) = of(made, SetEnvVariable)
    assert (found.name, found.value) == ("LD_LIBRARY_PATH", "/dev/gpu-oci-hook/lib64:/opt/own")
    assert "/etc/ld.so.cache" in reasons(made)


COMPAT = Image(
    library_dir=IMAGE_LIBRARY_DIR, compat_libcudas=(("/usr/local/cuda-12.6/compat/libcuda.so.560.35.03", "560.35.03"),),
    compat_dir="/usr/local/cuda-12.6/compat", compat_names=("libcuda.so.1", "libcuda.so.560.35.03"),
)  # fmt: skip


def test_compat_libraries_come_first_in_the_loaders_order() -> None:
    made = plan("0", "compute", image=COMPAT)
    drop_in = next(edit for edit in of(made, AddFile) if edit.path.endswith("00-gpu-oci-hook.conf"))
    lines = drop_in.content.decode().splitlines()
    assert lines.index("/usr/local/cuda-12.6/compat") < lines.index(DRIVER_LIBRARY_DIR)
    cache = next(edit for edit in of(made, AddFile) if edit.path.endswith("ld.so.cache"))
    assert b"/usr/local/cuda-12.6/compat/libcuda.so.1\0" in cache.content
    assert f"{DRIVER_LIBRARY_DIR}/libcuda.so.1\0".encode() not in cache.content


@pytest.mark.parametrize(("capabilities", "named"), [("video", True), ("all", True), ("compute,utility", False)])
def test_what_a_requested_capability_should_have_and_the_host_lacks_is_withheld_by_name(
    capabilities: str, named: bool
) -> None:
    made = make_plan_input("0", capabilities)
    made.inventory.missing_expected = (("video", "libnvidia-encode.so.1"), ("video", "libnvcuvid.so.1"))
    done = build.build_plan(made)
    expected = {name: "not on the host; capability video needs it" for _, name in made.inventory.missing_expected}
    found = {name: reason for name, reason in reasons(done).items() if "not on the host" in reason}
    assert found == (expected if named else {})
    assert done.warnings == []


def test_the_linker_finds_nvml_and_the_video_libraries_where_it_looks() -> None:
    made = make_plan_input(
        "0", "compute,utility,video", target=FakeRootfs(files=(f"{IMAGE_LIBRARY_DIR}/libnvcuvid.so",))
    )
    made.inventory.files = (
        make_library("libcuda", "compute", links=("libcuda.so",)),
        make_library("libnvidia-ml", "utility", links=("libnvidia-ml.so",)),
        make_library("libnvcuvid", "video", links=("libnvcuvid.so",)),
        make_library("libnvidia-encode", "video", links=("libnvidia-encode.so",)),
        make_library("libnvidia-opticalflow", "video", links=("libnvidia-opticalflow.so",)),
    )
    links = {edit.path: edit.target for edit in of(build.build_plan(made), AddLink)}
    names = ("libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1", "libnvidia-ml.so", "libnvidia-encode.so")
    # The image's own libnvcuvid.so stays: it is a file that the linker can use.
    assert links == {f"{IMAGE_LIBRARY_DIR}/{name}": f"{DRIVER_LIBRARY_DIR}/{name}" for name in names}


def test_names_in_our_directory_lead_to_the_compat_libraries_and_the_directory_is_the_bundles() -> None:
    """CUDA images have our directory in LD_LIBRARY_PATH. The paths are the image's, so nobody shares the directory."""
    made = plan("0", "compute", image=COMPAT)
    entries = beside(made, DRIVER_LIBRARY_DIR)
    assert entries["libcuda.so.1"] == "/usr/local/cuda-12.6/compat/libcuda.so.1"
    assert entries["libcuda.so.560.35.03"] == "/usr/local/cuda-12.6/compat/libcuda.so.560.35.03"
    assert entries["libcuda.so"] == "libcuda.so.1"
    assert entries["libnvidia-ptxjitcompiler.so.1"] == f"libnvidia-ptxjitcompiler.so.{VERSION}"
    (directory,) = of(made, PrepareDirectory)
    assert directory.source.startswith(f"{make_plan_input().container.generated_dir}/libraries-")


def test_compat_libraries_in_a_mount_of_the_container_are_not_used() -> None:
    mounts = [{"destination": "/usr/local/cuda-12.6", "type": "bind", "source": "/opt/cuda"}]
    made = plan("0", "compute", image=COMPAT, spec={"mounts": mounts})
    assert "lies in a mount" in reasons(made)["/usr/local/cuda-12.6/compat/libcuda.so.560.35.03"]


@pytest.mark.parametrize("policy", ["auto", "always"])
def test_compat_is_nothing_to_a_container_without_compute(policy: str) -> None:
    made = plan("0", "utility", image=COMPAT, cuda_compat=policy)
    assert reasons(made)["/usr/local/cuda-12.6/compat/libcuda.so.560.35.03"] == "needs capability compute"
    assert b"compat" not in b"".join(edit.content for edit in of(made, AddFile))


def test_compat_that_is_not_used_is_withheld_with_its_reason() -> None:
    made = plan("0", "compute", image=COMPAT, cuda_compat="never")
    assert "never" in reasons(made)["/usr/local/cuda-12.6/compat/libcuda.so.560.35.03"]


def again(made: Plan, **more: Any) -> list[dict[str, Any]]:
    return [{"destination": edit.destination, "source": edit.source, "type": "bind"} for edit in of(made, AddMount)]


def test_mounts_of_an_earlier_run_are_known_again() -> None:
    first = plan("0", "all")
    second = plan("0", "all", spec={"mounts": again(first)})
    assert again(second) == again(first)
    assert reasons(second) == reasons(first)
    assert not of(second, DropMount)


def test_mounts_of_an_earlier_run_with_another_driver_give_way() -> None:
    mounts = [
        {"destination": DRIVER_LIBRARY_DIR, "source": "/state/libraries-77", "type": "bind"},
        {"destination": f"{DRIVER_LIBRARY_DIR}/libcuda.so.470.1", "source": "/drv/libcuda.so.470.1", "type": "bind"},
        {"destination": "/data", "source": "/state", "type": "bind"},
    ]
    made = plan(spec={"mounts": mounts})
    assert [(edit.source, edit.destination) for edit in of(made, DropMount)] == [
        ("/state/libraries-77", DRIVER_LIBRARY_DIR),
        ("/drv/libcuda.so.470.1", f"{DRIVER_LIBRARY_DIR}/libcuda.so.470.1"),
    ]  # fmt: skip
    assert DRIVER_LIBRARY_DIR in mounted(made)


# --- ModifyDeviceFiles --------------------------------------------------------------------------------

PROC = {"destination": "/proc", "type": "proc", "source": "proc"}
PARAMS = b"EnableMSI: 1\nModifyDeviceFiles: 1\nDeviceFileUID: 0\n"


def hidden(asked: str, params: bytes | None = PARAMS, *, program: bool = True, **more: Any) -> Plan:
    made = make_plan_input(asked, **{"spec": {"mounts": [PROC]}, **more})
    made.container.driver_params, made.container.has_mount_program = params, program
    return build.build_plan(made)


def test_a_subset_of_the_gpus_hides_the_modules_parameters() -> None:
    made = hidden("0")
    (hook,) = of(made, AddHook)
    assert hook.stage == "createContainer"
    assert hook.path == "/usr/bin/mount"
    assert hook.args == (
        "mount", "--bind", "-o", "ro,nosuid,nodev,noexec",
        "/b/gpu-oci-hook/proc-driver-nvidia-params", "/b/rootfs/proc/driver/nvidia/params",
    )  # fmt: skip
    assert all(entry.partition("=")[2] for entry in hook.env)
    assert hook.env
    (file,) = [edit for edit in of(made, AddFile) if edit.bind_mounted]
    assert file.content == b"EnableMSI: 1\nModifyDeviceFiles: 0\nDeviceFileUID: 0\n"


def test_in_a_user_namespace_the_file_has_no_owner_and_is_not_remounted() -> None:
    (hook,) = of(hidden("0", spec={"mounts": [PROC], "linux": {"namespaces": [{"type": "user"}]}}), AddHook)
    assert "-o" not in hook.args


def test_a_root_that_shares_its_mounts_with_the_host_gets_no_hook() -> None:
    made = hidden("0", spec={"mounts": [PROC], "linux": {"rootfsPropagation": "rshared"}})
    assert not of(made, AddHook)
    assert any("shares its mounts" in one.reason for one in made.withheld)


@pytest.mark.parametrize(
    ("asked", "params"),
    [("all", PARAMS), ("0,1", PARAMS), ("0", None), ("0", PARAMS.replace(b"s: 1", b"s: 0")), ("0", b"")],
)
def test_no_hook_where_there_is_nothing_to_hide(asked: str, params: bytes | None) -> None:
    made = hidden(asked, params)
    assert not of(made, AddHook)
    reason = reasons(made).get("/proc/driver/nvidia/params (ModifyDeviceFiles: 0)", "")
    assert ("containers have no such file" in reason) is (params is None)


@pytest.mark.parametrize(
    ("mounts", "program", "said"),
    [
        ([], True, "no procfs"),
        ([{**PROC, "type": "bind"}], True, "no procfs"),
        ([{**PROC, "options": ["nosuid", "subset=pid"]}], True, "no procfs"),
        ([PROC], False, "no /usr/bin/mount"),
    ],
)
def test_a_hook_that_cannot_be_is_said(mounts: list[dict[str, str]], program: bool, said: str) -> None:
    made = hidden("0", program=program, spec={"mounts": mounts})
    assert not of(made, AddHook)
    assert said in reasons(made)["/proc/driver/nvidia/params (ModifyDeviceFiles: 0)"]


def test_the_administrator_may_leave_the_parameters_alone() -> None:
    made = hidden("0", hide_device_files=False)
    assert not of(made, AddHook)
    assert "hide-device-files" in reasons(made)["/proc/driver/nvidia/params (ModifyDeviceFiles: 0)"]


# --- hooks of others -----------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["prestart", "createRuntime", "createContainer", "poststart", "poststop"])
@pytest.mark.parametrize(
    "hook",
    [
        {"path": "/usr/bin/nvidia-container-runtime-hook", "args": ["nvidia-container-runtime-hook", "prestart"]},
        {"path": "/opt/nvidia-container-toolkit"},
        {"path": "/usr/local/bin/gpu-oci-hook", "args": ["gpu-oci-hook", "prestart"]},
    ],
)
def test_a_hook_that_would_inject_a_second_time_is_dropped(stage: str, hook: dict[str, Any]) -> None:
    others = {"path": "/usr/bin/other-hook"}
    removals = build.list_gpu_hook_removals({"hooks": {stage: [others, hook, hook]}})
    assert [(edit.stage, edit.path) for edit in removals if isinstance(edit, DropHook)] == [(stage, hook["path"])]


def test_other_hooks_stay() -> None:
    hooks = {
        "prestart": [{"path": "/usr/bin/other"}, {"path": 7}, None, {}, {"path": "/x/gpu-oci-hook", "args": ["cdi"]}],
        "startContainer": [{"path": "/usr/bin/nvidia-container-runtime-hook"}],
    }
    assert build.list_gpu_hook_removals({"hooks": hooks}) == []


@pytest.mark.parametrize("stage", ["prestart", "createRuntime", "createContainer", "startContainer"])
@pytest.mark.parametrize("program", ["/usr/bin/nvidia-cdi-hook", "/usr/local/bin/nvidia-ctk"])
def test_a_bundle_that_a_cdi_file_has_done_is_recognised(stage: str, program: str) -> None:
    assert build.find_injecting_cdi_hook({"hooks": {stage: [{"path": "/bin/x"}, {"path": program}]}}) == program


@pytest.mark.parametrize("spec", [{}, {"hooks": None}, {"hooks": {"prestart": [{"path": "/bin/x"}]}}, [], None])
def test_a_bundle_that_is_not_done(spec: object) -> None:
    assert build.find_injecting_cdi_hook(spec) == ""
