"""Problems that people met in the field, each with what the shim does about it.

Unless a test says otherwise, the host has driver 555.42.02 and one GPU, and the image is like Debian's.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpu_oci_hook import cli
from gpu_oci_hook.config.keys import Config
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.files import state_dir
from gpu_oci_hook.formats import elf_builder, ldcache
from gpu_oci_hook.formats.architectures import ARCHITECTURES
from gpu_oci_hook.inject import gather, pipeline
from gpu_oci_hook.simulate import host_tree
from support.bundles import (
    DEV,
    PROC,
    Shim,
    Spec,
    container_spec,
    host_config,
    inject_in_process,
    list_allowed_numbers,
    list_device_numbers,
    list_mount_destinations,
    make_bundle,
    read_spec,
    skip_or_fail,
    snapshot_tree,
    write_spec,
)
from support.fixtures import SharedHost

pytestmark = pytest.mark.usefixtures("isolated_state")

DRIVER = "555.42.02"
GPU0 = "NVIDIA_VISIBLE_DEVICES=0"
NODES = {
    "/dev/nvidia0": (195, 0),
    "/dev/nvidiactl": (195, 255),
    "/dev/nvidia-uvm": (510, 0),
    "/dev/nvidia-uvm-tools": (510, 1),
}
LIBRARIES = "usr/lib/x86_64-linux-gnu"


@pytest.fixture(scope="module")
def host(shared_host: SharedHost) -> Path:
    return shared_host(driver=DRIVER)


Explain = Callable[..., dict[str, Any]]


@pytest.fixture
def explain(host: Path, capsys: pytest.CaptureFixture[str]) -> Explain:
    """The JSON answer of `explain` about a bundle."""

    def ask(made: Path, root: Path = host) -> dict[str, Any]:
        capsys.readouterr()
        cli.run_command_line(
            ["explain", "--bundle", str(made), "--root", str(root), "--format", "json"], "gpu-oci-hook"
        )
        document: dict[str, Any] = json.loads(capsys.readouterr().out)
        return document

    return ask


def refused(made: Path, config: Config) -> str:
    before = snapshot_tree(made)
    with pytest.raises(Fault) as caught:
        inject_in_process(made, config)
    assert snapshot_tree(made) == before
    return str(caught.value)


def inside(rootfs: Path, path: str) -> str:
    """A path with the image's links followed inside the image, as a container sees it."""
    links = 0
    todo = path.strip("/").split("/")[::-1]
    done: list[str] = []
    while todo:
        name = todo.pop()
        if name == "..":
            del done[-1:]
            continue
        here = rootfs.joinpath(*done, name)
        if here.is_symlink():
            links += 1
            assert links < 40
            text = os.readlink(here)
            if text.startswith("/"):
                done = []
            todo += [part for part in text.split("/")[::-1] if part]
        else:
            done.append(name)
    return "/" + "/".join(done)


# --- hooks and the image's environment --------------------------------------------------------------------------------


def test_every_hook_that_we_write_has_an_absolute_path_and_an_environment_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host_tree.build_host(tmp_path / "host", driver=DRIVER, gpus=2)
    params = (tmp_path / "host/proc/driver/nvidia/params").read_bytes()
    monkeypatch.setattr(gather, "_read_visible_params", lambda _: params)
    made = make_bundle(
        tmp_path / "bundle", container_spec(GPU0, "PYTHONPATH=evil", "LD_PRELOAD=/x.so", "PROBE=1", mounts=[PROC])
    )
    after = inject_in_process(made, host_config(tmp_path / "host"))
    hooks = [hook for stage in after["hooks"].values() for hook in stage]
    assert hooks
    for hook in hooks:
        assert hook["path"].startswith("/")
        assert hook["env"]
        assert not [entry for entry in hook["env"] if entry.startswith(("PYTHON", "LD_", "PROBE"))]
        if "python" in hook["path"]:
            assert "-I" in "".join(hook["args"])


@pytest.mark.parametrize("program", ["runc", "crun"])
def test_our_hook_under_a_real_runtime_sees_nothing_of_the_images_environment(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The very hook that we write, with a witness in the place of mount(8): it notes what it is given."""
    runtime = shutil.which(program)
    busybox = shutil.which("busybox")
    if os.geteuid() != 0 or runtime is None or busybox is None:
        skip_or_fail(f"a real hook needs root, {program} and a static busybox")
    host_tree.build_host(tmp_path / "host", driver=DRIVER, gpus=2)
    params = (tmp_path / "host/proc/driver/nvidia/params").read_bytes()
    monkeypatch.setattr(gather, "_read_visible_params", lambda _: params)
    rootfs = tmp_path / "bundle/rootfs"
    (rootfs / "bin").mkdir(parents=True)
    for name in ("etc/ld.so.conf.d", "usr/lib/x86_64-linux-gnu", "usr/bin", "proc", "dev", "tmp", "evil"):
        (rootfs / name).mkdir(parents=True)
    shutil.copy(busybox, rootfs / "bin/sh")
    (rootfs / "evil/sitecustomize.py").write_text(f"open({str(tmp_path / 'marker')!r}, 'w')")
    made = make_bundle(
        tmp_path / "bundle",
        container_spec(GPU0, "PYTHONPATH=evil", "LD_PRELOAD=/x.so", "PROBE=1", mounts=[PROC, DEV]),
    )
    after = inject_in_process(made, host_config(tmp_path / "host"))
    (hook,) = after["hooks"]["createContainer"]
    recorder = tmp_path / "witness"
    recorder.write_text(f"#!/bin/sh\nenv > {tmp_path}/env\n")
    recorder.chmod(0o755)
    hook["path"] = str(recorder)
    after["process"]["args"] = ["/bin/sh", "-c", "true"]
    after["process"]["env"] = [entry for entry in after["process"]["env"] if not entry.startswith("LD_PRELOAD")]
    after["process"]["env"].append("LD_PRELOAD=/x.so")
    write_spec(made, after)
    name = f"r01-{os.getpid()}-{program}"
    command = f"{runtime} --root {tmp_path}/run run --bundle {made} {name}"
    if program == "crun":
        # It does not start where both versions of cgroups are mounted: a v2 of its own, in a namespace of its own.
        command = f"mount -t cgroup2 none /sys/fs/cgroup && {runtime} --root {tmp_path}/run "
        command += f"--cgroup-manager disabled run --bundle {made} {name}"
    done = subprocess.run(["unshare", "--mount", "/bin/sh", "-c", command], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    seen = (tmp_path / "env").read_text()
    for word in ("PROBE", "LD_PRELOAD", "PYTHONPATH", "NVIDIA_VISIBLE_DEVICES"):
        assert word not in seen
    assert not (tmp_path / "marker").exists()


# --- device rules ---------------------------------------------------------------------------------------------


def test_nodes_and_rules_stand_in_the_spec_and_survive_a_daemon_reload(tmp_path: Path, host: Path) -> None:
    shim = Shim(tmp_path / "shim", host)
    done = shim.create(make_bundle(tmp_path / "bundle", container_spec(GPU0)))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    dumped = shim.spec()
    assert list_device_numbers(dumped) == NODES
    assert {node["type"] for node in dumped["linux"]["devices"]} == {"c"}
    rules = dumped["linux"]["resources"]["devices"]
    assert rules[0] == {"allow": False, "access": "rwm"}
    assert [(rule["major"], rule["minor"]) for rule in rules[1:]] == list(NODES.values())
    for rule in rules[1:]:
        assert rule["allow"] is True
        assert rule["type"] == "c"
        assert rule["access"] in ("rw", "rwm")
    assert "hooks" not in dumped


def test_a_configuration_of_nvidias_toolkit_does_not_take_the_rules_away(tmp_path: Path, host: Path) -> None:
    shim = Shim(tmp_path / "shim", host, "[nvidia-container-cli]\nno-cgroups = true\n")
    assert shim.create(make_bundle(tmp_path / "bundle", container_spec(GPU0))).returncode == 0
    assert list_allowed_numbers(shim.spec()) == list(NODES.values())


def test_in_a_user_namespace_below_root_the_nodes_are_bound_and_allowed(tmp_path: Path, host: Path) -> None:
    if not stat.S_ISCHR((host / "dev/nvidia0").stat().st_mode if (host / "dev/nvidia0").exists() else 0):
        skip_or_fail("only root can make the nodes that are bound")
    linux = {
        "namespaces": [{"type": "mount"}, {"type": "pid"}, {"type": "user"}],
        "uidMappings": [{"containerID": 0, "hostID": 1000, "size": 1}],
    }
    shim = Shim(tmp_path / "shim", host)
    done = shim.create(make_bundle(tmp_path / "bundle", container_spec(GPU0, linux=linux)))
    assert (done.returncode, done.stderr) == (0, "")
    dumped = shim.spec()
    assert "devices" not in dumped["linux"]
    allowed = {(rule["major"], rule["minor"]) for rule in dumped["linux"]["resources"]["devices"] if rule["allow"]}
    numbers = [(host / path.lstrip("/")).stat().st_rdev for path in NODES]
    assert allowed == {(os.major(number), os.minor(number)) for number in numbers}
    bound = {mount["destination"]: mount for mount in dumped["mounts"] if mount["destination"].startswith("/dev/")}
    assert list(bound) == list(NODES)
    for path, mount in bound.items():
        assert mount["source"] == f"{host}{path}"
        assert mount["type"] == "bind"
        assert {"bind", "nosuid", "noexec"} <= set(mount["options"])
        assert "nodev" not in mount["options"]


# --- missing nodes and modules ---------------------------------------------------------------------------


def test_a_lost_node_of_a_loaded_module_costs_nothing_and_says_nothing(tmp_path: Path) -> None:
    host_tree.build_host(tmp_path / "host", driver=DRIVER)
    for name in ("nvidia-uvm", "nvidia-uvm-tools"):
        (tmp_path / "host/dev" / name).unlink(missing_ok=True)
    shim = Shim(tmp_path / "shim", tmp_path / "host")
    done = shim.create(make_bundle(tmp_path / "bundle", container_spec(GPU0)))
    assert (done.returncode, done.stderr) == (0, "")
    assert list_device_numbers(shim.spec()) == NODES


def test_a_module_that_is_not_loaded_is_named_with_its_cause(tmp_path: Path) -> None:
    host_tree.build_host(tmp_path / "host", driver=DRIVER)
    table = tmp_path / "host/proc/devices"
    text = table.read_text()
    table.chmod(0o644)
    table.write_text("".join(line for line in text.splitlines(keepends=True) if "nvidia-uvm" not in line))
    shim = Shim(tmp_path / "shim", tmp_path / "host")
    done = shim.create(make_bundle(tmp_path / "bundle", container_spec(GPU0)))
    assert done.returncode == 1
    assert "/dev/nvidia-uvm is required for compute" in done.stderr
    assert "nvidia_uvm is not loaded" in done.stderr
    table.write_text("".join(line for line in text.splitlines(keepends=True) if "nvidia-modeset" not in line))
    shutil.rmtree(tmp_path / "host/sys/module/nvidia_modeset")
    assert (
        shim.create(make_bundle(tmp_path / "other", container_spec(GPU0, "NVIDIA_DRIVER_CAPABILITIES=all"))).returncode
        == 0
    )


# --- library links and leftovers --------------------------------------------------------------------------------------


def names_in_cache(made: Path) -> dict[str, str]:
    """The 64-bit names of the image's loader cache and their paths."""
    cache = ldcache.parse_ld_cache((made / "rootfs/etc/ld.so.cache").read_bytes())
    found: dict[str, str] = {}
    for entry in cache.entries:
        if entry.flags == ARCHITECTURES["x86_64"].cache_flags:
            found.setdefault(entry.name, entry.path)
    return found


def library_of(made: Path, name: str) -> str:
    """The file of the host that a program of the container gets for a name, through cache, links and mounts."""
    path = inside(made / "rootfs", names_in_cache(made)[name])
    sources = {mount["destination"]: mount["source"] for mount in read_spec(made)["mounts"]}
    for _ in range(5):
        if path in sources:
            return sources[path]
        above, _, last = path.rpartition("/")
        link = Path(sources[above]) / last  # in a directory that is mounted as a whole
        path = f"{above}/{os.readlink(link)}" if link.is_symlink() else path
    raise AssertionError(f"{path} is not mounted")


def test_libcuda_is_found_by_both_names_and_twice_is_once(tmp_path: Path, host: Path) -> None:
    made = make_bundle(tmp_path / "bundle", container_spec(GPU0))
    inject_in_process(made, host_config(host))
    for name in ("libcuda.so", "libcuda.so.1", "libnvidia-ml.so.1"):
        stem = name.partition(".so")[0]
        assert library_of(made, name) == f"{host}/{LIBRARIES}/{stem}.so.{DRIVER}"
    for name in ("libcuda.so", "libcuda.so.1"):  # also for who does not ask the loader
        assert inside(made / "rootfs", f"{LIBRARIES}/{name}").rpartition("/")[2].startswith("libcuda.so")
    drop_in = (made / "rootfs/etc/ld.so.conf.d/00-gpu-oci-hook.conf").read_text()
    assert names_in_cache(made)["libcuda.so.1"].rpartition("/")[0] in drop_in.splitlines()
    assert "libnvidia-opticalflow.so.1" not in names_in_cache(made)  # needs video
    before = snapshot_tree(made)
    inject_in_process(made, host_config(host))
    assert snapshot_tree(made) == before


def test_a_library_that_the_host_lacks_is_no_link(tmp_path: Path) -> None:
    host_tree.build_host(tmp_path / "host", driver=DRIVER)
    for path in (tmp_path / "host" / LIBRARIES).glob("libnvidia-opticalflow*"):
        path.unlink()
    made = make_bundle(tmp_path / "bundle", container_spec(GPU0, "NVIDIA_DRIVER_CAPABILITIES=all"))
    after = inject_in_process(made, host_config(tmp_path / "host"))
    assert "libnvidia-encode.so.1" in names_in_cache(made)
    assert "opticalflow" not in json.dumps(after)
    assert b"opticalflow" not in (made / "rootfs/etc/ld.so.cache").read_bytes()
    assert not list((made / "rootfs").rglob("libnvidia-opticalflow*"))


def test_leftovers_of_a_committed_container_give_way_and_are_warned_about(
    tmp_path: Path, host: Path, explain: Explain
) -> None:
    made = make_bundle(tmp_path / "bundle", container_spec(GPU0))
    left = [f"{LIBRARIES}/libnvidia-ml.so.1", f"{LIBRARIES}/libcuda.so.418.56", "usr/bin/nvidia-smi"]
    for name in left:
        (made / "rootfs" / name).touch()
    (warning,) = [text for text in explain(made)["warnings"] if "driver files, probably" in text]
    # The third file is the mount point of a program that this container gets.
    assert "the image contains 2 driver files, probably committed from a GPU container" in warning
    assert [f"/{name}" in warning for name in left] == [True, True, False]
    shim = Shim(tmp_path / "shim", host)
    done = shim.create(made)
    assert (done.returncode, done.stderr) == (0, "")
    assert library_of(made, "libcuda.so.1").endswith(f"libcuda.so.{DRIVER}")
    assert library_of(made, "libnvidia-ml.so.1").endswith(f"libnvidia-ml.so.{DRIVER}")
    assert (made / "rootfs" / left[0]).is_symlink()
    assert "/usr/bin/nvidia-smi" in list_mount_destinations(shim.spec())


# --- compat directories and musl --------------------------------------------------------------------------------------


def test_a_compat_directory_behind_absolute_links_is_found_inside(tmp_path: Path) -> None:
    host_tree.build_host(tmp_path / "host", driver="535.183.06")
    made = make_bundle(tmp_path / "bundle", container_spec(GPU0))
    rootfs = made / "rootfs"
    (rootfs / "usr/local/cuda-12.4/compat").mkdir(parents=True)
    (rootfs / "etc/alternatives").mkdir()
    (rootfs / "usr/local/cuda").symlink_to("/etc/alternatives/cuda")
    (rootfs / "etc/alternatives/cuda").symlink_to("/usr/local/cuda-12.4")
    (rootfs / "usr/local/cuda-12.4/compat/libcuda.so.560.35.03").write_bytes(b"\x7fELF")
    (rootfs / "usr/local/cuda-12.4/compat/libcuda.so.1").symlink_to("libcuda.so.560.35.03")
    inject_in_process(made, host_config(tmp_path / "host"))
    assert names_in_cache(made)["libcuda.so.1"] == "/usr/local/cuda-12.4/compat/libcuda.so.1"


def test_nothing_is_made_outside_of_the_image(tmp_path: Path, host: Path) -> None:
    escape = tmp_path / "escape"
    (escape / "ld.so.conf.d").mkdir(parents=True)
    before = snapshot_tree(escape)
    made = make_bundle(tmp_path / "bundle", container_spec(GPU0))
    rootfs = made / "rootfs"
    (rootfs / LIBRARIES).rmdir()
    (rootfs / LIBRARIES).symlink_to(f"/../../../../..{escape}")
    (rootfs / "etc/ld.so.conf.d").rmdir()
    (rootfs / "etc/ld.so.conf.d").symlink_to(escape)
    after = inject_in_process(made, host_config(host))
    assert snapshot_tree(escape) == before
    for mount in after["mounts"]:
        assert inside(rootfs, mount["destination"]) == mount["destination"], "a destination leads over a link"


def test_musl_gets_its_path_file_with_its_defaults(tmp_path: Path, host: Path, explain: Explain) -> None:
    rootfs = tmp_path / "bundle/rootfs"
    for name in ("lib", "usr/lib", "etc", "usr/bin"):
        (rootfs / name).mkdir(parents=True)
    (rootfs / "lib/ld-musl-x86_64.so.1").write_bytes(b"\x7fELF")
    made = make_bundle(tmp_path / "bundle", container_spec(GPU0))
    (rootfs / "etc/ld-musl-x86_64.path").write_text("/opt/own\n")
    # The simulated nvidia-smi is a script; a real one is a program of glibc's.
    assert "nvidia-smi is a glibc binary; needs gcompat" in explain(made)["warnings"]
    inject_in_process(made, host_config(host))
    own = (rootfs / "etc/ld-musl-x86_64.path").read_text().splitlines()
    assert own[-1] == "/opt/own"
    assert own[0].startswith("/usr/")
    (rootfs / "etc/ld-musl-x86_64.path").unlink()
    write_spec(made, container_spec(GPU0))
    inject_in_process(made, host_config(host))
    assert (rootfs / "etc/ld-musl-x86_64.path").read_text().splitlines() == [
        own[0], "/lib", "/usr/local/lib", "/usr/lib",
    ]  # fmt: skip
    assert not (rootfs / "etc/ld.so.cache").exists()


# --- user namespaces and read-only roots ------------------------------------------------------------------------------


def test_a_user_in_a_user_namespace_gets_cache_and_bound_nodes(open_place: Path) -> None:
    unshare, setpriv = shutil.which("unshare"), shutil.which("setpriv")
    if os.geteuid() != 0 or unshare is None or setpriv is None:
        skip_or_fail("another user needs root, unshare and setpriv")
    host_tree.build_host(open_place / "host", driver=DRIVER)
    shim = Shim(open_place / "shim", open_place / "host", source=open_place / "code")
    made = make_bundle(open_place / "bundle", container_spec(GPU0, linux={"namespaces": [{"type": "mount"}]}))
    for top in (made, shim.path.parent):
        for where, _, files in os.walk(top):
            for name in (".", *files):
                os.chown(os.path.join(where, name), 1000, 1000, follow_symlinks=False)
    done = subprocess.run(
        [setpriv, "--reuid", "1000", "--regid", "1000", "--clear-groups", unshare, "--user", "--map-root-user",
         shim.path, "create", "--bundle", made, "id"],
        env=shim.env, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    if "unshare failed" in done.stderr:
        skip_or_fail(f"this kernel gives users no user namespace ({done.stderr.strip()})")
    assert (done.returncode, done.stderr) == (0, "")
    dumped = shim.spec()
    assert not list_device_numbers(dumped)
    assert not list_allowed_numbers(dumped)
    assert set(NODES) <= set(list_mount_destinations(dumped))
    assert "libcuda.so.1" in names_in_cache(made)
    assert (made / "config.json").stat().st_uid == 1000


def test_a_root_that_is_no_mount_point_is_as_good(tmp_path: Path, host: Path) -> None:
    made = make_bundle(tmp_path / "bundle", container_spec(GPU0))
    assert not os.path.ismount(made / "rootfs")
    inject_in_process(made, host_config(host))
    assert "libcuda.so.1" in names_in_cache(made)


@pytest.mark.parametrize("cache", [False, True], ids=["no cache", "a cache"])
def test_a_read_only_file_system_is_announced(cache: bool, tmp_path: Path, host: Path, explain: Explain) -> None:
    if os.geteuid() != 0:
        skip_or_fail("a read-only file system needs root")
    made = make_bundle(tmp_path / "bundle", container_spec(GPU0, mounts=[PROC, DEV]))
    rootfs = made / "rootfs"
    if cache:
        (rootfs / "etc/ld.so.cache").write_bytes((host / "etc/ld.so.cache").read_bytes())
    subprocess.run(["mount", "--bind", rootfs, rootfs], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", rootfs], check=True)
        document = explain(made)
        after = inject_in_process(made, host_config(host))
    finally:
        subprocess.run(["umount", "-l", rootfs], check=True)
    place = "/dev/gpu-oci-hook/lib64"
    assert f"{place}/libcuda.so.{DRIVER}" in list_mount_destinations(after)
    env = [edit for edit in document["edits"] if edit["kind"] == "env"]
    if cache:
        assert "/etc/ld.so.cache" in list_mount_destinations(after)
        assert not env
    else:
        assert env[0]["text"] == f"LD_LIBRARY_PATH={place}"
        assert f"LD_LIBRARY_PATH={place}" in after["process"]["env"]


# --- two driver versions ----------------------------------------------------------------------------------------------


def test_module_and_libraries_of_different_versions_are_refused(tmp_path: Path) -> None:
    host_tree.build_host(tmp_path / "host", driver=DRIVER)
    path = tmp_path / "host/proc/driver/nvidia/version"
    path.chmod(0o644)
    path.write_text(path.read_text().replace(DRIVER, "550.54.14"))
    made = make_bundle(tmp_path / "bundle", container_spec(GPU0))
    text = refused(made, host_config(tmp_path / "host"))
    assert "the loaded kernel module is version 550.54.14" in text
    assert f"the driver libraries are version {DRIVER}" in text
    assert "reboot, or unload and reload the nvidia modules" in text
    assert "version mismatch" in text
    inject_in_process(made, host_config(tmp_path / "host", version_mismatch="warn"))
    assert library_of(made, "libcuda.so.1").endswith(DRIVER)


# --- CUDA forward compatibility (decisions alone: tests/plan/test_compat.py) ---------------------------

COMPAT = "usr/local/cuda/compat"


@pytest.mark.parametrize(
    ("files", "driver", "model", "wins", "said"),
    [
        (["560.35.03"], "535.183.06", "NVIDIA A100-SXM4-40GB", True, "560 > 535"),
        (["535.183.06"], "535.104.05", "NVIDIA A100-SXM4-40GB", False, "same major"),
        (["525.60.13"], "555.42.02", "NVIDIA GeForce RTX 3090", False, "older"),
        (["560.35.03"], "535.183.06", "NVIDIA GeForce RTX 3090", False, "error 804"),
        (["560.35.03", "555.42.02"], "535.183.06", "NVIDIA A100-SXM4-40GB", False, "ambiguous"),
    ],
)
def test_cuda_forward_compatibility_is_used_where_it_helps(
    files: list[str], driver: str, model: str, wins: bool, said: str, tmp_path: Path, explain: Explain
) -> None:
    host_tree.build_host(tmp_path / "host", driver=driver, model=model)
    made = make_bundle(tmp_path / "bundle", container_spec(GPU0))
    (made / "rootfs" / COMPAT).mkdir(parents=True)
    for version in files:
        (made / "rootfs" / COMPAT / f"libcuda.so.{version}").write_bytes(b"\x7fELF")
    (made / "rootfs" / COMPAT / "libcuda.so.1").symlink_to(f"libcuda.so.{files[0]}")
    document = explain(made, tmp_path / "host")
    inject_in_process(made, host_config(tmp_path / "host"))
    assert (names_in_cache(made)["libcuda.so.1"] == f"/{COMPAT}/libcuda.so.1") == wins
    text = json.dumps([document["warnings"], document["withheld"], document["edits"]])
    assert said in text
    if said == "ambiguous":
        for version in files:
            assert any(version in warning for warning in document["warnings"])


def test_a_stub_in_the_library_path_is_warned_about(tmp_path: Path, explain: Explain, host: Path) -> None:
    made = make_bundle(tmp_path / "bundle", container_spec(GPU0, "LD_LIBRARY_PATH=/usr/local/cuda/lib64/stubs"))
    assert any("CUDA fails with error 34" in warning for warning in explain(made)["warnings"])
    inject_in_process(made, host_config(host))
    assert library_of(made, "libcuda.so.1").endswith(DRIVER)


def test_a_libcuda_of_the_images_own_loses_and_is_warned_about(tmp_path: Path, explain: Explain, host: Path) -> None:
    made = make_bundle(tmp_path / "bundle", container_spec(GPU0))
    (made / "rootfs" / LIBRARIES / "libcuda.so.450.80.02").write_bytes(b"\x7fELF")
    (made / "rootfs" / LIBRARIES / "libcuda.so.1").symlink_to("libcuda.so.450.80.02")
    assert any("450.80.02" in warning and "CUDA error 803" in warning for warning in explain(made)["warnings"])
    inject_in_process(made, host_config(host))
    assert library_of(made, "libcuda.so.1").endswith(DRIVER)
    assert "450" not in inside(made / "rootfs", f"{LIBRARIES}/libcuda.so.1")


# --- requirements ----------------------------------------------------------------------------------------------------

REQUIRE = "NVIDIA_REQUIRE_CUDA=cuda>=12.8 brand=tesla,driver>=535,driver<536"


@pytest.fixture(scope="module")
def gaming(shared_host: SharedHost) -> Path:
    return shared_host(driver=DRIVER, model="NVIDIA GeForce RTX 3090")


def test_a_requirement_that_is_not_met_says_all_about_it(gaming: Path, tmp_path: Path, explain: Explain) -> None:
    made = make_bundle(tmp_path / "bundle", container_spec(GPU0, REQUIRE))
    text = refused(made, host_config(gaming))
    for part in (
        "NVIDIA_REQUIRE_CUDA", '"cuda>=12.8"', '"brand=tesla,driver>=535,driver<536"', "cuda 12.5", f"driver {DRIVER}",
        "brand geforce", 'nearest is "cuda>=12.8"',
    ):  # fmt: skip
        assert part in text
    done = Shim(tmp_path / "shim", gaming).create(made)
    assert done.returncode == 1
    assert text in done.stderr
    assert explain(made, gaming)["reason"] == text


def test_other_requirements_pass_or_name_what_fails(gaming: Path, tmp_path: Path, explain: Explain) -> None:
    inject_in_process(
        make_bundle(tmp_path / "a", container_spec(GPU0, "NVIDIA_REQUIRE_CUDA=cuda>=12.4")), host_config(gaming)
    )
    made = make_bundle(tmp_path / "b", container_spec(GPU0, "NVIDIA_REQUIRE_CUDA=cuda=>12"))
    assert "cannot parse at column 5" in refused(made, host_config(gaming))
    made = make_bundle(tmp_path / "c", container_spec(GPU0, REQUIRE, "NVIDIA_DISABLE_REQUIRE=1"))
    document = explain(made, gaming)
    assert document["state"] == "inject"
    assert any("requirements are not checked" in warning for warning in document["warnings"])
    assert "NVIDIA_DISABLE_REQUIRE=1" in document["request"]["requirements_off"]


# --- values of NVIDIA_VISIBLE_DEVICES ---------------------------------------------------------------------------------

UUID = "GPU-" + "0" * 35 + "1"
SYS_ADMIN = {"capabilities": {"bounding": ["CAP_SYS_ADMIN"]}}


@pytest.fixture(scope="module")
def numbered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two GPUs; the second has the UUID of the case. GPUDirect Storage is there, too."""
    directory = tmp_path_factory.mktemp("numbered")
    report = host_tree.build_host(directory, driver=DRIVER, gpus=2, features=("gds",))
    path = directory / f"proc/driver/nvidia/gpus/{report.gpus[0].pci}/information"
    path.chmod(0o644)
    path.write_text(path.read_text().replace(report.gpus[0].uuid, UUID))
    return directory


ONE, BOTH = ["/dev/nvidia1"], ["/dev/nvidia1", "/dev/nvidia0"]


@pytest.mark.parametrize(
    ("env", "process", "config", "expected"),
    [
        (["CUDA_VERSION=11.8"], {}, {}, BOTH),
        ([], {}, {}, None),
        (["NVIDIA_VISIBLE_DEVICES="], {}, {}, None),
        (["NVIDIA_VISIBLE_DEVICES=void"], {}, {}, None),
        (["NVIDIA_VISIBLE_DEVICES=none"], {}, {}, []),
        ([GPU0], {}, {}, ONE),
        ([f"NVIDIA_VISIBLE_DEVICES={UUID}"], {}, {}, ONE),
        ([f"NVIDIA_VISIBLE_DEVICES=0,{UUID}"], {}, {}, ONE),
        (["NVIDIA_VISIBLE_DEVICES=9"], {}, {}, "has GPUs 0 to 1; "),
        (["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES=void"], {}, {}, None),
        (["NVIDIA_VISIBLE_DEVICES= 0 , 1 "], {}, {}, BOTH),
        (["NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=0"], {}, {}, ONE),
        (["NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=0,1"], {}, {}, BOTH),
        ([f"NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu={UUID}"], {}, {}, ONE),
        (["NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=all"], {}, {}, BOTH),
        (["NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=none"], {}, {}, []),
        (["NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=9"], {}, {}, "has GPUs 0 to 1; "),
        (["NVIDIA_VISIBLE_DEVICES=vendor.com/gpu=0"], {}, {}, "no CDI file defines it"),
        (["NVIDIA_VISIBLE_DEVICES=all"], {}, {"env": "privileged"}, None),
        (["NVIDIA_VISIBLE_DEVICES=all"], SYS_ADMIN, {"env": "privileged"}, BOTH),
    ],
)
def test_each_value_of_the_devices_variable_has_its_meaning(
    env: list[str], process: dict[str, Any], config: dict[str, str], expected: list[str] | str | None, tmp_path: Path,
    numbered: Path,
) -> None:  # fmt: skip
    config_json: Spec = container_spec(*env)
    config_json["process"].update(process)
    made = make_bundle(tmp_path / "bundle", config_json)
    before = snapshot_tree(made)
    if isinstance(expected, str):
        assert expected in refused(made, host_config(numbered, **config))
        return
    after = inject_in_process(made, host_config(numbered, **config))
    if expected is None:
        assert snapshot_tree(made) == before
        return
    nodes = [node["path"] for node in after["linux"]["devices"]]
    if "CUDA_VERSION=11.8" in env:  # a legacy image has every capability
        nodes = [path for path in nodes if not path.startswith("/dev/dri/")]
        assert nodes.pop() == "/dev/nvidia-modeset"
    assert nodes == [*expected, "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"]
    assert library_of(made, "libcuda.so.1")


def test_a_variable_that_is_set_twice_is_warned_about(tmp_path: Path, numbered: Path) -> None:
    made = make_bundle(tmp_path / "bundle", container_spec("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES=void"))
    outcome = pipeline.prepare_injection(read_spec(made), host_config(numbered), str(made), state_dir.StateCache())
    assert any("set twice" in warning for warning in outcome.plan.warnings)


# --- old C libraries --------------------------------------------------------------------------------------------------


def test_a_libc_too_old_for_a_library_is_a_warning(tmp_path: Path, explain: Explain) -> None:
    host_tree.build_host(tmp_path / "host", driver=DRIVER)
    data = elf_builder.build_shared_object(
        soname="libcuda.so.1", needed=["libc.so.6"], arch="x86_64", symbols=["cuInit"], glibc="2.34"
    )
    (tmp_path / f"host/{LIBRARIES}/libcuda.so.{DRIVER}").write_bytes(data)
    made = make_bundle(tmp_path / "bundle", container_spec(GPU0))
    libc = made / "rootfs" / LIBRARIES / "libc.so.6"
    libc.write_bytes(b"\x7fELF\0GLIBC_2.2.5\0GLIBC_2.31\0GLIBC_PRIVATE\0")
    warning = "libcuda.so.1 needs GLIBC_2.34, image provides 2.31: will not load"
    assert warning in explain(made, tmp_path / "host")["warnings"]
    libc.write_bytes(b"\x7fELF\0GLIBC_2.2.5\0GLIBC_2.34\0GLIBC_PRIVATE\0")
    assert warning not in explain(made, tmp_path / "host")["warnings"]


# --- explain, as its schema has it ------------------------------------------------------------------------


def test_explain_of_a_rich_bundle_gives_a_reason_for_everything_and_is_valid(
    tmp_path: Path, numbered: Path, explain: Explain
) -> None:
    import jsonschema

    schema = json.loads((Path(cli.__file__).parent / "explain.schema.json").read_text())
    nvidia = {"path": "/usr/bin/nvidia-container-runtime-hook", "args": ["x", "prestart"]}
    config_json = container_spec(
        GPU0, "NVIDIA_DRIVER_CAPABILITIES=compute,video", "NVIDIA_GDS=enabled", "NVIDIA_REQUIRE_CUDA=cuda>=12",
        mounts=[PROC, DEV, {"destination": "/usr/bin/nvidia-smi", "type": "bind", "source": "/x"}],
        hooks={"prestart": [nvidia]},
    )  # fmt: skip
    made = make_bundle(tmp_path / "bundle", config_json)
    (made / "rootfs" / COMPAT).mkdir(parents=True)
    (made / "rootfs" / COMPAT / "libcuda.so.525.60.13").write_bytes(b"\x7fELF")
    (made / "rootfs" / LIBRARIES / "libcuda.so.418.56").touch()
    before = snapshot_tree(made)
    document = explain(made, numbered)
    assert snapshot_tree(made) == before
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(document, schema, cls=jsonschema.Draft202012Validator)
    assert {edit["kind"] for edit in document["edits"]} >= {"device", "rule", "mount", "link", "file", "drop-hook"}
    for thing in (*document["edits"], *document["withheld"], *document["gpus"]):
        assert thing["reason"].strip()
    kinds = {one["kind"] for one in document["withheld"]}
    assert kinds >= {"library", "device", "binary", "compat", "config"}
    assert len(document["withheld"]) > 20
    assert {edit["reason"] for edit in document["edits"]} >= {"capability video", "capability compute"}
