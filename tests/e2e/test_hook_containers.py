"""The hook, called by real runtimes: containers whose bundle has a CDI file's edits, and no shim.

Ours and those of NVIDIA's generator, with our program under NVIDIA's name. No machine of the tests has NVIDIA's
module, so /proc/version stands in for its parameters where these matter.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support import cdi_edits
from support.bundles import snapshot_tree
from support.e2e import engines, images, machine
from support.e2e.attacks import ATTACKS, LIBRARY, WATCHED
from support.e2e.engines import BareRuntime, ContainerRequest, EngineHome
from support.e2e.hook_files import OK, PROBE, SPEC_MAKERS, HookProgram, build_spec_document
from support.e2e.host import InstalledRuntime, SimulatedHost
from support.e2e.host_watch import PATIENCE, RACER, fingerprint_host
from support.e2e.requirements import require_programs


@pytest.fixture
def program(tmp_path: Path, runtime: InstalledRuntime, simulated: SimulatedHost) -> HookProgram:
    return HookProgram(tmp_path / "program", runtime, simulated)


@pytest.fixture(scope="module", params=["runc", "crun"])
def bare_runtime(request: pytest.FixtureRequest, workspace: Path, image: Path) -> Iterator[BareRuntime]:
    """The runtime itself, without the shim."""
    require_programs(request.param)
    engine = BareRuntime(request.param, "v1", "run")
    directory = workspace / f"hook-{request.param}"
    directory.mkdir()
    engine.start(EngineHome(directory, image, lambda name: Path(machine.find_program(name))))
    yield engine
    engine.stop()


def prepared(
    bare_runtime: BareRuntime, program: HookProgram, way: str, request: ContainerRequest,
    nodes: dict[str, tuple[int, int]] | None = None, change: Callable[[dict[str, Any]], None] | None = None,
) -> Path:  # fmt: skip
    """A bundle with the edits in it."""
    bundle = bare_runtime.bundle(request)
    spec = json.loads((bundle / "config.json").read_text())
    program.edit(spec, way, nodes)
    if change is not None:
        change(spec)
    (bundle / "config.json").write_text(json.dumps(spec))
    return bundle


def libraries(bare_runtime: BareRuntime, bundle: Path) -> dict[str, str]:
    """What dlopen answers in the container."""
    found: dict[str, str] = json.loads(bare_runtime.start_bundle(bundle).check().stdout)["libraries"]
    return found


IMAGES: dict[str, Callable[[Path], Path]] = {
    "glibc": images.build_glibc_image,
    "musl": images.build_musl_image,
    "distroless": images.build_distroless_image,
}


@pytest.mark.parametrize("read_only", [False, True], ids=["writable", "read-only"])
@pytest.mark.parametrize("kind", IMAGES)
@pytest.mark.parametrize("way", SPEC_MAKERS)
def test_the_loader_of_each_image_finds_the_libraries(
    bare_runtime: BareRuntime, program: HookProgram, tmp_path: Path, way: str, kind: str, read_only: bool
) -> None:
    if kind == "musl":
        require_programs("musl-gcc")
    root = IMAGES[kind](tmp_path / kind)
    assert (
        libraries(
            bare_runtime, prepared(bare_runtime, program, way, ContainerRequest(PROBE, read_only=read_only, root=root))
        )
        == OK
    )


@pytest.mark.parametrize("way", SPEC_MAKERS)
def test_a_later_ldconfig_in_the_container_does_no_harm(
    bare_runtime: BareRuntime, program: HookProgram, way: str
) -> None:
    script = f"/usr/sbin/ldconfig && exec {' '.join(PROBE)}"
    bundle = prepared(bare_runtime, program, way, ContainerRequest(["/bin/sh", "-c", script]))
    assert libraries(bare_runtime, bundle) == OK


@pytest.mark.parametrize("way", SPEC_MAKERS)
def test_a_second_start_changes_nothing(bare_runtime: BareRuntime, program: HookProgram, way: str) -> None:
    bundle = prepared(bare_runtime, program, way, ContainerRequest(PROBE))
    assert libraries(bare_runtime, bundle) == OK
    before = snapshot_tree(bundle / "rootfs")
    assert libraries(bare_runtime, bundle) == OK
    assert snapshot_tree(bundle / "rootfs") == before


@pytest.mark.parametrize("way", SPEC_MAKERS)
def test_the_nodes_given_can_be_opened_and_others_not(
    bare_runtime: BareRuntime, program: HookProgram, simulated: SimulatedHost, way: str
) -> None:
    """Profile and rights agree: the mask has the GPU whose node opens."""
    program.hook_arguments.egl_profile = True
    first, second = simulated.cards
    major, minor = (int(part) for part in first.numbers.split(":"))
    words = ["/probe", "--node", first.node, "--make", second.numbers, "--library", "libcuda.so.1"]
    bundle = prepared(bare_runtime, program, way, ContainerRequest(words), {first.node: (major, minor)})
    answer = json.loads(bare_runtime.start_bundle(bundle).check().stdout)
    assert answer["nodes"] == {first.node: "ENXIO"}
    assert answer["made"] == {second.numbers: "EPERM"}
    assert answer["libraries"] == {"libcuda.so.1": "ok"}
    profile = bundle / "rootfs/etc/nvidia/nvidia-application-profiles-rc.d/10-container.conf"
    assert f'"EGLVisibleDGPUDevices", {1 << minor:#x}]' in profile.read_text()


def test_links_by_path_lie_in_the_containers_own_dev(
    bare_runtime: BareRuntime, program: HookProgram, simulated: SimulatedHost
) -> None:
    program.hook_arguments.drm_links = True
    drm = next((simulated.root / "sys/bus/pci/devices").glob("*/drm/card*/dev"))
    minor = int(drm.read_text().partition(":")[2])
    words = ["/bin/sh", "-c", "cd /dev/dri/by-path && for x in *; do echo $x $(readlink $x); done"]
    bundle = prepared(
        bare_runtime, program, "ours", ContainerRequest(words), {f"/dev/dri/{drm.parent.name}": (226, minor)}
    )
    done = bare_runtime.start_bundle(bundle).check()
    assert done.stdout == f"pci-{drm.parents[2].name}-card ../{drm.parent.name}\n"
    assert os.listdir(bundle / "rootfs/dev") == []


# --- environment ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", SPEC_MAKERS)
def test_nothing_of_the_images_environment_reaches_the_hook(
    bare_runtime: BareRuntime, program: HookProgram, tmp_path: Path, way: str
) -> None:
    marker = tmp_path / "marker"
    env = ["PYTHONPATH=evil", "LD_PRELOAD=/x.so", "PROBE=1", "PYTHONHOME=/evil", "GPU_OCI_HOOK_CONFIG=/evil/c.toml"]
    bundle = prepared(bare_runtime, program, way, ContainerRequest(["/bin/true"], env))
    evil = bundle / "rootfs/evil"
    evil.mkdir()
    code = f"open({str(marker)!r}, 'w').close()\n"
    for name in ("sitecustomize", "usercustomize", "os", "errno", "gpu_oci_hook", "_signal", "encodings"):
        (evil / f"{name}.py").write_text(code)
        (bundle / f"rootfs/{name}.py").write_text(code)  # the current directory under runc
    bare_runtime.start_bundle(bundle).check()
    assert not marker.exists()
    spec = json.loads((bundle / "config.json").read_text())
    for hook in spec["hooks"]["createContainer"]:
        assert hook["env"] and hook["path"].startswith("/")
    assert program.paths[way].read_text().startswith("#!/") and " -ISXutf8\n" in program.paths[way].read_text()


# --- parameters ---------------------------------------------------------------------------------------------

STAND_IN = "from gpu_oci_hook.hook import device_steps; device_steps.DRIVER_PARAMS = '/proc/version'"
SHOW = "cat /proc/version; echo x >> /proc/version || echo closed; grep -c ' /proc/version ' /proc/self/mountinfo"


@pytest.fixture
def hiding(tmp_path: Path, runtime: InstalledRuntime, simulated: SimulatedHost) -> Iterator[HookProgram]:
    """A program for which /proc/version is the file of the module's parameters."""
    text = simulated.root / "proc/version"
    text.write_bytes(b"A: 1\nModifyDeviceFiles: 1\n")
    made = HookProgram(tmp_path / "hiding", runtime, simulated, STAND_IN)
    made.hook_arguments.hide_device_files = True
    yield made
    text.unlink()


@pytest.mark.parametrize("remapped", [False, True], ids=["plain", "user namespace"])
@pytest.mark.parametrize("way", SPEC_MAKERS)
def test_the_container_sees_our_parameters_and_cannot_change_them(
    bare_runtime: BareRuntime, hiding: HookProgram, way: str, remapped: bool
) -> None:
    def change(spec: dict[str, Any]) -> None:
        if remapped:
            spec["linux"]["namespaces"].append({"type": "user"})
            whole = [{"containerID": 0, "hostID": 0, "size": 65536}]
            spec["linux"] |= {"uidMappings": whole, "gidMappings": whole}

    bundle = prepared(bare_runtime, hiding, way, ContainerRequest(["/bin/sh", "-c", SHOW]), change=change)
    for _ in range(2):
        lines = bare_runtime.start_bundle(bundle).check().stdout.splitlines()
        assert lines == ["A: 1", "ModifyDeviceFiles: 0", "closed", "1"]
        text = (bundle / "gpu-oci-hook/proc-version").read_bytes()
        assert text == b"A: 1\nModifyDeviceFiles: 0\n"
    assert "ModifyDeviceFiles" not in Path("/proc/version").read_text()


@pytest.mark.parametrize(
    ("kind", "said"), [("nothing", "does not show it"), ("made up", "no procfs"), ("link", "does not show it")]
)
def test_a_container_without_a_procfs_is_told(hiding: HookProgram, tmp_path: Path, kind: str, said: str) -> None:
    """Neither no /proc at all, nor one that the image has made up, nor one that leads elsewhere, is mounted on."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "version").write_text("A: 1\n")
    root = tmp_path / "b/rootfs"
    root.mkdir(parents=True)
    if kind == "made up":
        (root / "proc").mkdir()
        (root / "proc/version").write_text("A: 1\n")
    elif kind == "link":
        (root / "proc").symlink_to(outside)
    config = {"root": {"path": "rootfs"}, "process": {"env": []}, "mounts": [], "hooks": {}}
    (tmp_path / "b/config.json").write_text(json.dumps(config))
    before, mounts = snapshot_tree(tmp_path), Path("/proc/self/mountinfo").read_text()
    words = ["hook", "create-container", "--hide-device-files", "--root", str(hiding.host)]
    done = cdi_edits.call_hook(hiding.paths["ours"], words, json.dumps({"bundle": str(tmp_path / "b")}))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (0, "", 1)
    assert said in done.stderr
    assert (snapshot_tree(tmp_path), Path("/proc/self/mountinfo").read_text()) == (before, mounts)


def test_a_container_that_shares_its_mounts_does_not_get_the_mount(hiding: HookProgram, tmp_path: Path) -> None:
    """What is mounted in a shared mount would be seen on the host too."""
    (tmp_path / "b/rootfs/proc").mkdir(parents=True)
    config = {"root": {"path": "rootfs"}, "process": {"env": []}, "mounts": [], "hooks": {}}
    (tmp_path / "b/config.json").write_text(json.dumps(config))
    words = " ".join(["hook", "create-container", "--hide-device-files", "--root", str(hiding.host)])
    root = tmp_path / "b/rootfs"
    state = json.dumps({"bundle": str(tmp_path / "b")})
    for how, said, count in (("shared", "shares its mounts", 0), ("private", "", 1)):
        script = (
            f"mount --bind {root} {root}; mount --make-{how} {root}; mount -t proc proc {root}/proc; "
            f"{hiding.paths['ours']} {words}; echo $?; grep -c '{root}/proc/version' /proc/self/mountinfo"
        )
        done = cdi_edits.call_hook("/usr/bin/unshare", ["-m", "sh", "-c", script], state)
        assert done.stdout.split() == ["0", str(count)], done
        assert said in done.stderr


def test_a_user_without_the_right_to_mount_is_told(hiding: HookProgram, tmp_path: Path) -> None:
    """In a mount namespace with a procfs of the container's, but without CAP_SYS_ADMIN."""
    root = tmp_path / "b/rootfs"
    (root / "proc").mkdir(parents=True)
    config = {"root": {"path": "rootfs"}, "process": {"env": []}, "mounts": [], "hooks": {}}
    (tmp_path / "b/config.json").write_text(json.dumps(config))
    words = f"hook create-container --hide-device-files --root {hiding.host}"
    script = (
        f"mount --bind {root} {root}; mount -t proc proc {root}/proc; "
        f"exec setpriv --bounding-set=-sys_admin --inh-caps=-sys_admin {hiding.paths['ours']} {words}"
    )
    done = cdi_edits.call_hook(
        "/usr/bin/unshare", ["-m", "sh", "-c", script], json.dumps({"bundle": str(tmp_path / "b")})
    )
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.count("\n") == 1
    assert "ModifyDeviceFiles: 0 is not set" in done.stderr
    assert "the kernel refuses it to this user" in done.stderr


# --- failures -----------------------------------------------------------------------------------------------


def test_a_requirement_stops_the_container_in_the_words_of_the_shim(
    bare_runtime: BareRuntime, program: HookProgram, runtime: InstalledRuntime, simulated: SimulatedHost, tmp_path: Path
) -> None:
    """runc quotes the hook's stderr; crun drops it, and the log has it."""
    require = "NVIDIA_REQUIRE_CUDA=cuda>=12.8 brand=tesla,driver>=535,driver<536"
    program.hook_arguments.requirements, program.hook_arguments.log = True, str(tmp_path / "log")
    first = simulated.cards[0]
    numbers = tuple(int(part) for part in first.numbers.split(":"))
    bundle = prepared(
        bare_runtime,
        program,
        "ours",
        ContainerRequest(["/bin/true"], [require]),
        {first.node: (numbers[0], numbers[1])},
    )
    done = bare_runtime.start_bundle(bundle)
    assert done.status != 0
    logged = re.search(r'msg="gpu-oci-hook: (.*)"$', (tmp_path / "log").read_text())
    assert logged is not None
    sentence = logged[1].replace('\\"', '"')
    shim = runtime.wrapper(bare_runtime.low_level, simulated.root)
    other = bare_runtime.bundle(ContainerRequest(["/bin/true"], ["NVIDIA_VISIBLE_DEVICES=0", require]))
    refused = machine.run_command([str(shim), "create", "--bundle", str(other), "r22"])
    assert refused.stderr == f"gpu-oci-runtime: {sentence}\n"
    if bare_runtime.low_level == "runc":
        assert "the requirement" in done.stderr and "is not met" in done.stderr


def test_a_broken_command_line_stops_the_container_with_a_sentence(
    bare_runtime: BareRuntime, program: HookProgram
) -> None:
    def change(spec: dict[str, Any]) -> None:
        spec["hooks"]["createContainer"][0]["args"].append("--nope")

    done = bare_runtime.start_bundle(
        prepared(bare_runtime, program, "ours", ContainerRequest(["/bin/true"]), change=change)
    )
    assert done.status != 0 and "Traceback" not in done.text
    if bare_runtime.low_level == "runc":
        assert "--nope: unknown flag" in done.stderr


# --- hostile images -----------------------------------------------------------------------------------------

# The runtime itself fails or is taken in by these before any hook runs.
_BEFORE_US = ("dev is a link", "run is a link", "our directory is a node")


@pytest.mark.timeout(240)
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda name: name.replace(" ", "-"))
def test_the_host_stays_untouched(
    attack: str, program: HookProgram, tmp_path: Path, image: Path, simulated: SimulatedHost
) -> None:
    """Each attack against our errand under runc, and against NVIDIA's chain with the mount points as they are."""
    watched = tmp_path / "watched"
    watched.mkdir()
    for name, text in WATCHED.items():
        (watched / name).write_text(text)
    bare_runtime = BareRuntime("runc", "v1", "run")
    bare_runtime.start(EngineHome(tmp_path, image, lambda name: Path(machine.find_program(name))))
    root = images.copy_image(image, tmp_path / "spoilt")
    images.copy_static_program(root / "busybox")
    env = list(ATTACKS[attack](root, watched, simulated.version) or ())
    program.hook_arguments.egl_profile = True
    nodes = {"/dev/nvidia0": (195, 0)}
    before = fingerprint_host(watched, simulated)
    if attack not in _BEFORE_US:
        bundle = prepared(
            bare_runtime, program, "ours", ContainerRequest(["/busybox", "echo", "alive"], env, root=root), nodes
        )
        begin = time.monotonic()
        done = bare_runtime.start_bundle(bundle)
        took = time.monotonic() - begin
        assert fingerprint_host(watched, simulated) == before
        assert took < PATIENCE, done
        assert "Traceback" not in done.text and "internal error" not in done.text, done
        if done.status == 0:
            assert done.stdout == "alive\n", done
    for way in SPEC_MAKERS:
        bundle = bare_runtime.bundle(ContainerRequest(["/busybox", "true"], env, root=root))
        spec = json.loads((bundle / "config.json").read_text())
        program.edit(spec, way, nodes)
        (bundle / "config.json").write_text(json.dumps(spec))
        for hook in spec["hooks"]["createContainer"]:
            # in the root, as runc has it, and with nothing mounted there
            called = cdi_edits.call_hook(
                hook["path"], hook["args"][1:], json.dumps({"bundle": str(bundle)}), cwd=bundle / "rootfs"
            )
            assert called.returncode in (0, 1) and called.stdout == ""
            assert "internal error" not in called.stderr and called.stderr.isascii(), called
            assert called.returncode == 0 or called.stderr.count("\n") == 1
    assert fingerprint_host(watched, simulated) == before


def test_links_lead_nowhere_but_into_the_root(program: HookProgram, tmp_path: Path, image: Path) -> None:
    root = images.copy_image(image, tmp_path / "root")
    escape = tmp_path / "escape"
    (escape / "lib").mkdir(parents=True)
    (root / "up").symlink_to("/../../../../.." + str(escape))
    (root / "opt").symlink_to("../" * 40 + str(escape)[1:])
    before = snapshot_tree(escape)
    config = {"root": {"path": "root"}, "process": {"env": []}, "mounts": [], "hooks": {}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    words = ["create-symlinks", "--link", "x::/up/lib/a", "--link", "x::/opt/lib/b", "--link", "x::/../../../c"]
    done = cdi_edits.call_hook(program.paths["theirs"], words, json.dumps({"bundle": str(tmp_path)}))
    assert (done.returncode, done.stderr) == (0, "")
    assert snapshot_tree(escape) == before
    assert os.readlink(root / "c") == "x"
    assert os.readlink(f"{root}{escape}/lib/a") == os.readlink(f"{root}{escape}/lib/b") == "x"


@pytest.mark.timeout(240)
@pytest.mark.parametrize("place", [LIBRARY, "etc", "etc/ld.so.conf.d", "usr/local", "usr"])
def test_a_second_process_exchanges_directories_and_links(
    program: HookProgram, tmp_path: Path, image: Path, simulated: SimulatedHost, place: str
) -> None:
    watched = tmp_path / "watched"
    watched.mkdir()
    for name, text in WATCHED.items():
        (watched / name).write_text(text)
    bare_runtime = BareRuntime("runc", "v1", "run")
    bare_runtime.start(EngineHome(tmp_path, image, lambda name: Path(machine.find_program(name))))
    program.hook_arguments.egl_profile = True
    bundles = [
        prepared(bare_runtime, program, way, ContainerRequest(["/bin/true"]), {"/dev/nvidia0": (195, 0)})
        for way in SPEC_MAKERS
    ]
    root = bundles[0] / "rootfs"
    (root / place).mkdir(parents=True, exist_ok=True)
    (root / "decoy").symlink_to(watched)
    other = json.loads((bundles[1] / "config.json").read_text())
    other["root"]["path"] = str(root)
    (bundles[1] / "config.json").write_text(json.dumps(other))
    before = fingerprint_host(watched, simulated)
    racer = subprocess.Popen(
        [sys.executable, "-c", RACER, str(root / place), str(root / "decoy")], stdout=subprocess.PIPE
    )
    tries = 0
    try:
        assert racer.stdout is not None
        assert racer.stdout.readline() == b"racing\n"
        end = time.monotonic() + 6
        while time.monotonic() < end:
            for bundle in bundles:
                spec = json.loads((bundle / "config.json").read_text())
                for hook in spec["hooks"]["createContainer"]:
                    done = cdi_edits.call_hook(hook["path"], hook["args"][1:], json.dumps({"bundle": str(bundle)}))
                    assert "Traceback" not in done.stderr and "internal error" not in done.stderr, done
                    assert done.returncode in (0, 1)
                    tries += 1
    finally:
        racer.kill()
        racer.wait()
        racer.stdout.close()  # type: ignore[union-attr]
    assert tries > 20
    assert fingerprint_host(watched, simulated) == before


def test_what_the_image_has_in_place_of_proc_and_etc_is_not_believed(
    program: HookProgram, hiding: HookProgram, tmp_path: Path, image: Path
) -> None:
    """A state that is right and an image that has moved /proc and /etc to where the host has its own."""
    root = images.copy_image(image, tmp_path / "root")
    for name in ("proc", "etc"):
        machine.run_command(["rm", "-rf", str(root / name)]).check()
        (root / name).symlink_to(f"/../../../../{name}")
    config: dict[str, Any] = {"root": {"path": "root"}, "process": {"env": []}, "mounts": []}
    hiding.edit(config, "ours")
    (tmp_path / "config.json").write_text(json.dumps(config))
    before = Path("/proc/version").read_bytes(), snapshot_tree(Path("/etc"))
    words = ["hook", "create-container", *hiding.hook_arguments.to_command_line()]
    done = cdi_edits.call_hook(hiding.paths["ours"], words, json.dumps({"bundle": str(tmp_path)}))
    assert done.returncode in (0, 1), done
    assert (Path("/proc/version").read_bytes(), snapshot_tree(Path("/etc"))) == before


def _bound(watched: Path, destination: str, kind: str = "bind") -> dict[str, Any]:
    return {"destination": destination, "type": kind, "source": str(watched), "options": ["rbind", "rprivate"]}


# (mounts before the file's own, links of the image): each binds the watched directory where the hook would write.
MOUNTED: dict[str, Callable[[Path], tuple[list[dict[str, Any]], dict[str, str]]]] = {
    "a relative destination": lambda watched: ([_bound(watched, "etc")], {}),
    "a relative destination with dots": lambda watched: ([_bound(watched, "./etc//")], {}),
    "back out of another mount": lambda watched: ([_bound(watched, "/opt"), _bound(watched, "/opt/../etc")], {}),
    "a tmpfs by its type alone": lambda watched: ([_bound(watched, "/usr/local", "tmpfs")], {}),
    "a link that a later mount hides": lambda watched: (
        [_bound(watched, "/opt/link"), {"destination": "/opt", "type": "tmpfs", "source": "tmpfs"}],
        {"opt/link": "/etc"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", SPEC_MAKERS)
@pytest.mark.parametrize("mounted", MOUNTED, ids=lambda name: name.replace(" ", "-"))
def test_what_the_container_mounts_is_not_written_however_it_came_there(
    mounted: str, way: str, program: HookProgram, tmp_path: Path, image: Path
) -> None:
    watched = tmp_path / "watched"
    watched.mkdir()
    bare_runtime = BareRuntime("runc", "v1", "run")
    bare_runtime.start(EngineHome(tmp_path, image, lambda name: Path(machine.find_program(name))))
    root = images.copy_image(image, tmp_path / "root")
    (root / "opt").mkdir(exist_ok=True)
    mounts, links = MOUNTED[mounted](watched)
    for name, target in links.items():
        (root / name).symlink_to(target)

    def change(spec: dict[str, Any]) -> None:
        own = {"/proc", "/dev", "/sys"}
        places = [at for at, mount in enumerate(spec["mounts"]) if mount["destination"] in own]
        spec["mounts"][places[-1] + 1 : places[-1] + 1] = mounts

    done = bare_runtime.start_bundle(
        prepared(bare_runtime, program, way, ContainerRequest(["/bin/true"], root=root), change=change)
    )
    assert done.status == 0, done
    # The mount points are the runtime's own.
    assert [path for path in watched.rglob("*") if path.is_symlink() or path.name.startswith("ld.so")] == []


# --- engines that read CDI files ----------------------------------------------------------------------------


@pytest.mark.parametrize("way", SPEC_MAKERS)
@pytest.mark.parametrize("low_level", ["runc", "crun"])
@pytest.mark.parametrize("kind", [engines.Podman, engines.RootlessPodman, engines.MappedPodman, engines.NestedPodman])
def test_podman_runs_a_file_with_the_hook_in_it(
    kind: type[engines.Podman], low_level: str, way: str, workspace: Path, image: Path, runtime: InstalledRuntime,
    simulated: SimulatedHost, request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    """Rootful and rootless, with no shim at all; the file lies in an /etc/cdi of the test's own."""
    require_programs(*kind.programs, low_level)
    directory = Path(tempfile.mkdtemp(prefix="h-", dir=workspace))  # podman wants short names
    directory.chmod(0o755)
    request.addfinalizer(lambda: machine.remove_tree(directory))
    made = HookProgram(directory / "program", runtime, simulated)
    specs = directory / "specs"
    specs.mkdir()
    spec = specs / "nvidia.json"
    spec.write_text(
        json.dumps(build_spec_document(made, way, simulated.root / "dev/nvidia0", bound=kind.user_namespace))
    )
    spec.chmod(0o644)
    # crun 1.8 refuses a hybrid cgroup tree; without the unified part it is a plain v1 tree
    hybrid = "umount /sys/fs/cgroup/unified || true\n" if low_level == "crun" else ""
    engine = kind(furnish=hybrid + machine.private_cdi_script(directory, specs))
    engine.start(EngineHome(directory, image, lambda _: Path(machine.find_program(low_level))))
    try:
        done = engine.run(ContainerRequest([*PROBE, "--node", "/dev/nvidia0"], devices=["nvidia.com/gpu=gpu0"]))
        if done.status != 0 and kind in (engines.MappedPodman, engines.NestedPodman) and low_level == "crun":
            # Below podman 5, crun before 1.27 runs no hook at all here (facts: hooks-in-user-namespaces).
            made.paths[way].unlink()
            made.paths[way].symlink_to("/usr/bin/true")
            again = engine.run(ContainerRequest([*PROBE], devices=["nvidia.com/gpu=gpu0"]))
            assert "error executing hook" in again.text, (done, again)
            return
        answer = json.loads(done.check().stdout)
    finally:
        engine.stop()
    assert answer["libraries"] == OK
    # podman writes no device rule for a bind mount, and runc as root denies the node then.
    denied = kind is engines.MappedPodman and low_level == "runc"
    assert answer["nodes"] == {"/dev/nvidia0": "EPERM" if denied else "ENXIO"}


@pytest.mark.parametrize("read_only", [False, True], ids=["writable", "read-only"])
@pytest.mark.parametrize("way", SPEC_MAKERS)
def test_a_hook_in_a_user_namespace_that_hides_config_json_does_its_work(
    bare_runtime: BareRuntime, program: HookProgram, tmp_path: Path, way: str, read_only: bool
) -> None:
    """podman 5 keeps bundles where only root can look, and the hook runs with the rights of the container's root."""
    first, count = engines.SUBORDINATE
    for directory in (tmp_path, *tmp_path.parents[:2]):
        directory.chmod(0o755)  # for the hook's program

    def change(spec: dict[str, Any]) -> None:
        spec["linux"]["namespaces"].append({"type": "user"})
        spec["linux"]["uidMappings"] = [{"containerID": 0, "hostID": first, "size": count}]
        spec["linux"]["gidMappings"] = spec["linux"]["uidMappings"]

    bundle = prepared(bare_runtime, program, way, ContainerRequest(PROBE, read_only=read_only), change=change)
    machine.run_command(["chown", "-hR", f"{first}:{first}", str(bundle / "rootfs")]).check()
    (bundle / "config.json").chmod(0o600)
    assert libraries(bare_runtime, bundle) == OK


# --- daemons ---------------------------------------------------------------------------------------------------------

SHOW_SOCKETS = """
test -S /run/daemon/socket && echo socket; test -d /run/pipes && echo directory
test -w /run/daemon/socket && echo writable; echo x >/run/pipes/written && echo written
grep -e " /run/daemon/socket " -e " /run/pipes " /proc/self/mountinfo
"""


@pytest.mark.parametrize("read_only", [False, True], ids=["writable", "read-only"])
def test_the_sockets_of_daemons_that_run_are_mounted_and_those_that_are_gone_stop_nothing(
    bare_runtime: BareRuntime, program: HookProgram, tmp_path: Path, read_only: bool
) -> None:
    (tmp_path / "pipes").mkdir()
    with socket.socket(socket.AF_UNIX) as daemon:
        daemon.bind(str(tmp_path / "daemon"))
        pairs = [(str(tmp_path / "daemon"), "/run/daemon/socket"), (str(tmp_path / "pipes"), "/run/pipes")]
        program.hook_arguments.sockets = [*pairs, (str(tmp_path / "gone"), "/run/gone")]
        request = ContainerRequest(["/bin/sh", "-c", SHOW_SOCKETS], read_only=read_only)
        bundle = prepared(bare_runtime, program, "ours", request)
        done = bare_runtime.start_bundle(bundle).check()
        lines = done.stdout.splitlines()
        assert lines[:4] == ["socket", "directory", "writable", "written"], done.text
        assert len(lines) == 6 and all("nosuid,nodev,noexec" in line for line in lines[4:])
        assert (tmp_path / "pipes/written").exists()
        assert not (bundle / "rootfs/run/gone").exists()
    (tmp_path / "daemon").unlink()
    assert bare_runtime.start_bundle(bundle).check().stdout.splitlines()[0] == "directory"


def test_a_socket_that_was_exchanged_for_a_link_or_a_file_is_not_mounted(
    bare_runtime: BareRuntime, program: HookProgram, tmp_path: Path
) -> None:
    """A daemon of a user of its own owns the directory of its socket."""
    (tmp_path / "link").symlink_to("/etc")
    (tmp_path / "file").write_text("secret")
    program.hook_arguments.sockets = [(f"{tmp_path}/link", "/run/a"), (f"{tmp_path}/file", "/run/b")]
    bundle = prepared(bare_runtime, program, "ours", ContainerRequest(["/bin/sh", "-c", "ls /run"]))
    assert bare_runtime.start_bundle(bundle).check().stdout == ""
