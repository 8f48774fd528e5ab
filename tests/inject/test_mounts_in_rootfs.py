"""What is mounted in a root file system before the container's own mounts is somebody's: nothing is written there."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpu_oci_hook.errors import Fault
from support.bundles import (
    DEV,
    PROC,
    Shim,
    container_spec,
    host_config,
    inject_in_process,
    list_mount_destinations,
    make_bundle,
    make_debian_rootfs,
    skip_or_fail,
    snapshot_tree,
)
from support.fixtures import SharedHost

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount")]

ALL = ("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=all")
RUN = {"destination": "/run", "type": "tmpfs", "source": "tmpfs"}
ROUNDS = int(os.environ.get("GPU_OCI_HOOK_RACE_ROUNDS", "20"))


@pytest.fixture(scope="module")
def host(shared_host: SharedHost) -> Path:
    return shared_host(gpus=2)


def make_own_tree(directory: Path) -> Path:
    """Somebody's tree, as a host has it: with a driver's libraries in place."""
    make_debian_rootfs(directory)
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        (directory / "usr/lib/x86_64-linux-gnu" / name).write_text("the host's")
    (directory / "etc/ld.so.cache").write_text("the host's")
    return directory


def create_below_mount(shim: Shim, made: Path, source: Path, target: str) -> subprocess.CompletedProcess[str]:
    """Call `create` with a directory or file of the host mounted in the root file system."""
    script = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'
    return subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh",
         source, made / "rootfs" / target, shim.path, "create", "--bundle", made, "id"],
        env=shim.env, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


@pytest.mark.parametrize("target", ["usr", "usr/lib", "usr/lib/x86_64-linux-gnu", "etc", "etc/ld.so.conf.d"])
def test_a_mount_in_the_root_file_system_is_left_alone(target: str, tmp_path: Path, host: Path) -> None:
    own = make_own_tree(tmp_path / "own")
    made = make_bundle(tmp_path / "bundle", container_spec(*ALL, mounts=[PROC, DEV, RUN]))
    shim = Shim(tmp_path / "shim", host)
    before = snapshot_tree(own, temporaries=True)
    done = create_below_mount(shim, made, own / target, target)
    assert snapshot_tree(own, temporaries=True) == before
    assert (done.returncode, done.stderr) == (0, "")
    destinations = list_mount_destinations(shim.spec())
    directory = "/run/gpu-oci-hook/lib64" if target == "usr" else "/usr/local/nvidia/lib64"
    assert directory in destinations
    assert not [path for path in destinations if path.startswith(f"/{target}/") and not path.startswith("/usr/local")]


def test_a_file_that_is_mounted_in_the_root_file_system_gets_a_mount_over_it(tmp_path: Path, host: Path) -> None:
    own = make_own_tree(tmp_path / "own")
    made = make_bundle(tmp_path / "bundle", container_spec(*ALL, mounts=[PROC, DEV, RUN]))
    (made / "rootfs/etc/ld.so.cache").write_text("the image's")
    shim = Shim(tmp_path / "shim", host)
    done = create_below_mount(shim, made, own / "etc/ld.so.cache", "etc/ld.so.cache")
    assert (done.returncode, done.stderr) == (0, "")
    assert (own / "etc/ld.so.cache").read_text() == "the host's"
    assert "/etc/ld.so.cache" in list_mount_destinations(shim.spec())


RACER = """
import os, subprocess, sys
source, target = sys.argv[1:]
print("racing", flush=True)
while True:
    subprocess.run(["mount", "--bind", source, target])
    subprocess.run(["umount", "--lazy", target])
"""


@pytest.mark.timeout(600)
def test_a_mount_that_comes_and_goes_is_never_written_to(tmp_path: Path, host: Path) -> None:
    """GPU_OCI_HOOK_RACE_ROUNDS sets the number of rounds."""
    own = make_own_tree(tmp_path / "own")
    made = make_bundle(tmp_path / "bundle", container_spec(*ALL, mounts=[PROC, DEV, RUN]))
    config = (made / "config.json").read_bytes()
    shim = Shim(tmp_path / "shim", host)
    before = snapshot_tree(own, temporaries=True)
    script = f"""
import subprocess, sys, time
racer = subprocess.Popen([sys.executable, "-IS", "-c", {RACER!r}, {str(own / "usr")!r}, {str(made / "rootfs/usr")!r}])
try:
    for number in range({ROUNDS}):
        open({str(made / "config.json")!r}, "wb").write({config!r})
        done = subprocess.run([{str(shim.path)!r}, "create", "--bundle", {str(made)!r}, "id"], capture_output=True)
        assert b"Traceback" not in done.stderr and b"internal" not in done.stderr, done
finally:
    racer.kill()
    racer.wait()
print({ROUNDS}, "rounds")
"""
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "python3", "-c", script],
        env=shim.env, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done
    assert snapshot_tree(own, temporaries=True) == before
    print(done.stdout)


@pytest.mark.usefixtures("isolated_state")
def test_a_root_that_is_a_link_is_refused_and_left_as_it_is(tmp_path: Path, host: Path) -> None:
    made = make_bundle(tmp_path / "bundle", container_spec(*ALL))
    (made / "rootfs").rename(tmp_path / "elsewhere")
    (made / "rootfs").symlink_to(tmp_path / "elsewhere")
    before = snapshot_tree(tmp_path / "elsewhere")
    shim = Shim(tmp_path / "shim", host)
    done = shim.create(made)
    assert done.returncode == 1
    assert f"{made}/rootfs: the rootfs is a symbolic link, which runc refuses" in done.stderr
    assert snapshot_tree(tmp_path / "elsewhere") == before


def list_contents(path: Path) -> dict[str, bytes]:
    """Return the names in a directory, with the content of the files, or the content of a file."""
    entries = path.iterdir() if path.is_dir() else [path]
    return {entry.name: entry.read_bytes() if entry.is_file() else b"" for entry in entries}


def protect(path: Path, flag: str) -> None:
    if subprocess.run(["chattr", flag, path], check=False).returncode:
        skip_or_fail("this file system has no such attributes")


@pytest.mark.usefixtures("isolated_state")
@pytest.mark.parametrize("flag", ["i", "a"])
@pytest.mark.parametrize("target", ["etc/ld.so.cache", "etc", "usr/lib/x86_64-linux-gnu", "usr/local"])
def test_what_is_immutable_or_append_only_is_left_alone_and_the_container_starts(
    target: str, flag: str, tmp_path: Path, host: Path
) -> None:
    made = make_bundle(tmp_path / "bundle", container_spec(*ALL, mounts=[PROC, DEV, RUN]))
    (made / "rootfs/etc/ld.so.cache").write_text("the image's")
    (made / "rootfs/usr/local").mkdir()
    protect(made / "rootfs" / target, f"+{flag}")
    try:
        before = list_contents(made / "rootfs" / target)
        after: dict[str, Any] = inject_in_process(made, host_config(host))
        assert list_contents(made / "rootfs" / target) == before
    finally:
        protect(made / "rootfs" / target, f"-{flag}")
    destinations = list_mount_destinations(after)
    assert ("/etc/ld.so.cache" in destinations) == target.startswith("etc")
    assert ("/usr/local/nvidia/lib64" in destinations) == (target != "usr/local")


@pytest.mark.usefixtures("isolated_state")
def test_device_nodes_are_never_created_in_a_host_directory_that_is_mounted_on_the_root(
    tmp_path: Path, host: Path
) -> None:
    root = {"destination": "/", "type": "bind", "source": "/srv", "options": ["rbind"]}
    made = make_bundle(tmp_path / "bundle", container_spec(*ALL, mounts=[root, RUN]))
    before = (made / "config.json").read_bytes()
    with pytest.raises(Fault, match="/srv is mounted on /, and device nodes would be created in it"):
        inject_in_process(made, host_config(host))
    assert (made / "config.json").read_bytes() == before
    with_dev = make_bundle(tmp_path / "other", container_spec(*ALL, mounts=[root, RUN, DEV]))
    assert inject_in_process(with_dev, host_config(host))["linux"]["devices"]
