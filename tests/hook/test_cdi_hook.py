"""The hook as a process: a state on stdin, what refuses a container, what stops nothing, and kill -9."""

from __future__ import annotations

import json
import os
import random
import socket
import stat
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.formats import ldcache
from gpu_oci_hook.hook import called_container, cdi_hook, nvidia_hooks
from gpu_oci_hook.reporting import failure
from gpu_oci_hook.simulate import host_tree
from support import cdi_edits
from support.bundles import read_spec, skip_or_fail, snapshot_tree
from support.cdi_edits import OUR_LIBRARY_DIR, VERSION, call_hook, write_hook_launcher
from support.fixtures import SharedHost
from support.hook_scenes import DATACENTRE_HOST, DROP_IN, LD_CACHE, HookScene


@pytest.fixture(scope="module")
def host(shared_host: SharedHost) -> Path:
    return shared_host(**DATACENTRE_HOST)


@pytest.fixture
def scene(tmp_path: Path, host: Path) -> HookScene:
    return HookScene(tmp_path, host)


# --- what a runtime says ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (b"", "the container's state is empty"),
        (b" \n", "the container's state is empty"),
        (b"{", "invalid container state: not valid JSON"),
        (b"[]", "invalid container state: it is not an object"),
        (b"\xff\xfe", "invalid container state: it is not UTF-8"),
        (b"[" * 100000, "invalid container state: it is nested too deeply"),
        (b"{}", "has no absolute bundle path (none)"),
        (b'{"bundle": 7}', "has no absolute bundle path (none)"),
        (b'{"bundle": ""}', "has no absolute bundle path ('')"),
        (b'{"bundle": "here"}', "has no absolute bundle path ('here')"),
        (b'{"bundle": "/a\\u0000b"}', "has no absolute bundle path"),
        (b'{"bundle": "/nowhere/at/all"}', "/nowhere/at/all/config.json: the bundle has no config.json"),
        (b'{"bundle": "%s"}' % (b"x" * (5 << 20)), "the container's state is larger than 4 MiB"),
    ],
    ids=lambda value: value[:20].decode("latin-1") if isinstance(value, bytes) else "",
)
def test_a_state_that_means_nothing_is_a_sentence(scene: HookScene, said: bytes, text: str) -> None:
    done = call_hook(scene.program, ["hook", "create-container"], said)
    assert (done.returncode, done.stdout) == (1, "")
    assert text in done.stderr and done.stderr.count("\n") == 1
    assert "no such file or directory" not in done.stderr.lower()


def test_an_endless_state_is_a_sentence(scene: HookScene) -> None:
    with open("/dev/zero", "rb") as zero:
        done = subprocess.run([scene.program, "hook", "create-container"], stdin=zero, capture_output=True, timeout=30)
    assert done.returncode == 1 and b"larger than 4 MiB" in done.stderr


def test_a_closed_state_is_a_sentence(scene: HookScene) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", f"{scene.program} hook create-container <&-"], capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 1
    assert "standard input: cannot read the container's state: it is closed" in done.stderr


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (b"", "not valid JSON"),
        (b"[]", "must be a JSON object"),
        (b"{}", '"root.path" is missing'),
        (b'{"root": {"path": "nowhere"}}', "the rootfs does not exist"),
        (b'{"root": {"path": "/"}}', "is the host's root"),
        (b'{"root": {"path": "/../"}}', "is the host's root"),
    ],
)
def test_a_config_json_that_means_nothing_is_a_sentence(scene: HookScene, config: bytes, text: str) -> None:
    (scene.bundle / "config.json").write_bytes(config)
    done = call_hook(scene.program, ["hook", "create-container"], json.dumps({"bundle": str(scene.bundle)}))
    assert (done.returncode, done.stdout) == (1, "")
    assert text in done.stderr and done.stderr.count("\n") == 1


def test_the_machines_own_root_is_refused_under_another_name(scene: HookScene) -> None:
    (scene.bundle / "config.json").write_text('{"root": {"path": "other"}}')
    (scene.bundle / "other").symlink_to("/")
    done = call_hook(scene.program, ["hook", "create-container"], json.dumps({"bundle": str(scene.bundle)}))
    assert done.returncode == 1 and "is the host's root" in done.stderr
    done = call_hook(
        scene.program, ["hook", "create-container"], json.dumps({"bundle": str(scene.bundle), "root": "/"})
    )
    assert done.returncode == 1 and "is the host's root" in done.stderr


def test_crun_says_the_root_itself_and_is_believed(scene: HookScene) -> None:
    scene.finish_bundle()
    scene.root.rename(scene.bundle / "other")
    words = ["hook", "create-container", *scene.hook_arguments.to_command_line()]
    done = call_hook(scene.program, words, json.dumps({"bundle": str(scene.bundle), "root": "other"}))
    assert (done.returncode, done.stderr) == (0, "")
    assert OUR_LIBRARY_DIR in (scene.bundle / "other" / DROP_IN).read_text()


def test_without_a_bundle_the_current_directory_is_not_believed_when_it_may_be_the_images(scene: HookScene) -> None:
    """runc starts hooks in the root file system, whose config.json is the image's."""
    (scene.root / "config.json").write_text(json.dumps({"root": {"path": "rootfs"}}))
    (scene.root / "rootfs").mkdir()
    words = ["hook", "create-container", *scene.hook_arguments.to_command_line()]
    for said in ({"bundle": ""}, {"bundle": "", "root": "rootfs"}, {"root": "."}):
        done = call_hook(scene.program, words, json.dumps(said), cwd=scene.root)
        assert done.returncode == 1, said
        assert os.listdir(scene.root / "rootfs") == []


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root can mount")
def test_without_a_bundle_cruns_current_directory_is(scene: HookScene) -> None:
    scene.finish_bundle()
    words = " ".join(["hook", "create-container", *scene.hook_arguments.to_command_line()])
    script = f"mount --bind {scene.root} {scene.root} && exec {scene.program} {words}"
    done = call_hook(
        "/usr/bin/unshare", ["-m", "sh", "-c", script], '{"bundle": "", "root": "rootfs"}', cwd=scene.bundle
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert OUR_LIBRARY_DIR in (scene.root / DROP_IN).read_text()


@pytest.mark.parametrize("words", [["--nope"], ["--link", "x"], ["x"]])
def test_a_wrong_command_line_is_a_sentence(scene: HookScene, words: list[str]) -> None:
    done = call_hook(scene.program, ["hook", "create-container", *words], json.dumps({"bundle": str(scene.bundle)}))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)


# --- what stops nothing -------------------------------------------------------------------------------------


def test_a_driver_that_is_another_one_by_now_is_said(scene: HookScene) -> None:
    scene.hook_arguments.driver_version = "535.183.06"
    said = scene.run_successfully()
    assert "the CDI file was generated for driver 535.183.06, and this host runs 550.163.01" in said
    assert said.endswith(". Run: gpu-oci-hook cdi refresh\n") and said.count("\n") == 1
    scene.hook_arguments.made_by = "gpu-oci-hook cdi refresh --output /etc/cdi/x.yaml"
    assert scene.run_successfully().endswith(f". Run: {scene.hook_arguments.made_by}\n")


def test_what_is_said_goes_into_the_log_too(scene: HookScene, tmp_path: Path) -> None:
    scene.hook_arguments.driver_version = "535.183.06"
    scene.hook_arguments.log = str(tmp_path / "log")
    said = scene.run_successfully()
    (scene.bundle / "config.json").write_text("{")
    refused = call_hook(scene.program, ["hook", "create-container", "--log", scene.hook_arguments.log, "--nope"], "{}")
    lines = (tmp_path / "log").read_text().splitlines()
    assert len(lines) == 2
    assert "level=warning" in lines[0] and said.strip() in lines[0]
    assert "level=error" in lines[1] and refused.stderr.strip() in lines[1]


@pytest.mark.parametrize("log", ["/nowhere/at/all/log", "/dev/full", "FIFO", "DIRECTORY"])
def test_a_log_that_takes_nothing_stops_nothing(scene: HookScene, tmp_path: Path, log: str) -> None:
    os.mkfifo(tmp_path / "FIFO")
    (tmp_path / "DIRECTORY").mkdir()
    scene.hook_arguments.log = log if log.startswith("/") else str(tmp_path / log)
    scene.hook_arguments.driver_version = "535.183.06"
    assert "this host runs" in scene.run_successfully()


def test_a_root_that_is_no_mount_point_is_as_good(scene: HookScene) -> None:
    assert scene.run_successfully() == ""
    assert scene.read_ld_cache()["libcuda.so.1"] == f"{OUR_LIBRARY_DIR}/libcuda.so.1"


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root can become another user")
@pytest.mark.parametrize("owner", [1000, 0])
def test_a_user_in_a_user_namespace_without_mount_rights(open_place: Path, owner: int) -> None:
    """With a root of its own all but the mount is done; with one that it may not write nothing is, and that is said."""
    host = open_place / "host"
    host_tree.build_host(host, driver=VERSION)
    scene = HookScene(open_place, host, source=open_place / "code")
    scene.hook_arguments.hide_device_files = True
    scene.finish_bundle()
    for directory, names, files in os.walk(scene.bundle):
        for name in (".", *names, *files):
            os.chown(os.path.join(directory, name), owner, owner, follow_symlinks=False)
    words = ["--reuid=1000", "--regid=1000", "--clear-groups", "/usr/bin/unshare", "--user"]
    words += [str(scene.program), "hook", "create-container", *scene.hook_arguments.to_command_line()]
    done = call_hook("/usr/bin/setpriv", words, json.dumps({"bundle": str(scene.bundle)}))
    if "unshare failed" in done.stderr:
        skip_or_fail(f"this kernel gives users no user namespace ({done.stderr.strip()})")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    if owner:
        assert done.stderr == ""
        assert scene.read_ld_cache()["libcuda.so.1"] == f"{OUR_LIBRARY_DIR}/libcuda.so.1"
    else:
        assert not (scene.root / LD_CACHE).exists()
        assert "cannot create the link" in done.stderr and "the root file system cannot be written" in done.stderr
        assert f"Set LD_LIBRARY_PATH={OUR_LIBRARY_DIR}" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root can mount")
def test_a_read_only_file_system_is_said_in_a_line_each(scene: HookScene) -> None:
    scene.hook_arguments.egl_profile = True
    scene.nodes = {"/dev/nvidia0": (195, 0)}
    scene.finish_bundle()
    before = snapshot_tree(scene.root)
    words = " ".join(["hook", "create-container", *scene.hook_arguments.to_command_line()])
    mount = f"mount --bind {scene.root} {scene.root} && mount -o remount,bind,ro {scene.root}"
    done = call_hook(
        "/usr/bin/unshare", ["-m", "sh", "-c", f"{mount} && exec {scene.program} {words}"],
        json.dumps({"bundle": str(scene.bundle)}),
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "")
    lines = done.stderr.splitlines()
    assert len(lines) == 4 and all(line.startswith("gpu-oci-hook: warning: ") for line in lines), done.stderr
    assert any(f"Set LD_LIBRARY_PATH={OUR_LIBRARY_DIR}" in line for line in lines)
    assert snapshot_tree(scene.root) == before


def test_a_disk_that_is_full_refuses_the_container(scene: HookScene) -> None:
    """What is required fails by name; the image's cache is the old one."""
    scene.finish_bundle()
    prelude = (
        "from gpu_oci_hook.files import directory\n"
        "def _fill(*_, **__): raise OSError(28, 'full')\n"
        "directory.replace_file_at = _fill"
    )
    scene.program = write_hook_launcher(scene.bundle.parent / "full", prelude)
    assert "/etc/ld.so.cache: cannot write the file: the disk is full" in scene.run_refused()
    assert not (scene.root / LD_CACHE).exists()


# --- the reason that is left where it can be looked for -----------------------------------------------------------


def failed(scene: HookScene, *words: str) -> str:
    """A call that refuses the container; the sentence."""
    said = json.dumps({"bundle": str(scene.bundle)})
    done = call_hook(scene.program, ["hook", "create-container", *(words or ("--nope",))], said)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    return done.stderr.strip()


def test_the_reason_of_a_failure_is_kept_in_the_directory_of_our_state(scene: HookScene) -> None:
    said = failed(scene)
    scene.hook_arguments.requirements = True
    scene.finish_bundle()
    config = read_spec(scene.bundle)
    config["process"]["env"].append("NVIDIA_REQUIRE_CUDA=cuda>=99.0")
    (scene.bundle / "config.json").write_text(json.dumps(config))
    second = scene.run_refused().strip().replace('"', '\\"')
    lines = (scene.state_dir / "hook.log").read_text().splitlines()
    assert len(lines) == 2
    assert "level=error" in lines[0] and said in lines[0]
    assert second in lines[1] and lines[1].endswith(f'bundle="{scene.bundle}"'), "in its path is the container's id"
    assert stat.S_IMODE((scene.state_dir / "hook.log").stat().st_mode) == 0o600


def test_a_reason_that_no_file_takes_is_sent_to_the_system_log(
    open_place: Path, isolated_state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    isolated_state.write_text("not a directory")
    monkeypatch.setattr(failure, "SYSTEM_LOG_SOCKET", str(open_place / "log"))
    failure.save_hook_failure(Fault("no daemon listens"), "gpu-oci-hook")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as daemon:
        daemon.bind(str(open_place / "log"))
        failure.save_hook_failure(Fault("something failed"), "gpu-oci-hook")
        assert daemon.recv(1000) == b"<11>gpu-oci-hook: something failed"


def test_a_container_that_starts_leaves_nothing(scene: HookScene) -> None:
    scene.hook_arguments.driver_version = "535.183.06"
    assert scene.run_successfully() != "" and not (scene.state_dir / "hook.log").exists()


def test_a_reason_that_the_named_log_has_is_not_kept_twice(scene: HookScene, tmp_path: Path) -> None:
    failed(scene, "--log", str(tmp_path / "log"), "--nope")
    assert (tmp_path / "log").exists() and not (scene.state_dir / "hook.log").exists()
    said = failed(scene, "--log", "/nowhere/at/all/log", "--nope")
    assert said in (scene.state_dir / "hook.log").read_text(), "a log that takes nothing is as good as none"


def test_the_kept_reasons_never_fill_the_disk(scene: HookScene) -> None:
    said = failed(scene)
    log = scene.state_dir / "hook.log"
    log.write_bytes(b"x" * (64 << 10))
    failed(scene)
    assert (scene.state_dir / "hook.log.1").read_bytes() == b"x" * (64 << 10)
    assert said in log.read_text() and log.read_text().count("\n") == 1
    log.write_bytes(b"y" * (64 << 10))
    failed(scene)
    assert (scene.state_dir / "hook.log.1").read_bytes() == b"y" * (64 << 10)
    assert sorted(path.name for path in scene.state_dir.iterdir()) == ["hook.log", "hook.log.1"]


@pytest.mark.parametrize("what", ["link", "fifo", "directory", "open to all", "directory open to all", "no directory"])
def test_what_others_could_have_put_in_its_place_is_left_alone(scene: HookScene, tmp_path: Path, what: str) -> None:
    log, precious = scene.state_dir / "hook.log", tmp_path / "precious"
    precious.write_text("precious")
    if what == "no directory":
        scene.state_dir.symlink_to(tmp_path / "elsewhere")
    else:
        scene.state_dir.mkdir(mode=0o755)
    if what == "link":
        log.symlink_to(precious)
    elif what == "fifo":
        os.mkfifo(log)
    elif what == "directory":
        log.mkdir()
    elif what == "open to all":
        log.touch()
        log.chmod(0o666)
    elif what == "directory open to all":
        scene.state_dir.chmod(0o777)
    before = snapshot_tree(tmp_path, times=False)
    assert "--nope" in failed(scene)
    assert snapshot_tree(tmp_path, times=False) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root can become another user")
def test_a_user_finds_the_reason_in_the_users_own_run_directory(open_place: Path, host: Path) -> None:
    """A hook of a CDI file has no environment but PATH, and rootless podman calls it in a user namespace."""
    scene = HookScene(open_place, host, source=open_place / "code")
    (open_place / "run").mkdir()
    words = f"{scene.program} hook create-container --nope"
    user = "/usr/bin/setpriv --reuid=1000 --regid=1000 --clear-groups"
    prepare = f"mount --bind {open_place}/run /run && mkdir -p /run/user/1000 && chown 1000:1000 /run/user/1000"
    for command in (f"{user} /usr/bin/unshare --user --map-root-user {words}", f"{user} {words}"):
        done = call_hook("/usr/bin/unshare", ["-m", "sh", "-c", f"{prepare} && exec {command}"], "{}")
        if "unshare failed" in done.stderr:
            skip_or_fail(f"this kernel gives users no user namespace ({done.stderr.strip()})")
        assert done.returncode == 1 and "--nope" in done.stderr
    log = open_place / "run/user/1000/gpu-oci-hook/hook.log"
    assert log.read_text().count("--nope") == 2 and log.stat().st_uid == 1000
    assert not scene.state_dir.exists()


# --- kill -9 ------------------------------------------------------------------------------------------------

KILL = """
import os
COUNT = 0
def wrap(name):
    real = getattr(os, name)
    def call(*args, **kwargs):
        global COUNT
        if name == "open" and not args[1] & os.O_CREAT:
            return real(*args, **kwargs)
        COUNT += 1
        if COUNT == {at}:
            if {half} and name == "write":
                real(args[0], bytes(args[1])[: len(args[1]) // 2])
            os.kill(os.getpid(), 9)
        return real(*args, **kwargs)
    setattr(os, name, call)
for name in ("open", "write", "rename", "symlink", "unlink", "mkdir", "fchmod"):
    wrap(name)
"""


@pytest.mark.parametrize("half", [False, True], ids=["before", "amid"])
def test_killed_at_any_step_the_cache_is_whole_and_the_next_call_comes_to_the_same_end(
    scene: HookScene, tmp_path: Path, half: bool
) -> None:
    scene.hook_arguments.egl_profile = True
    scene.nodes = {"/dev/nvidia0": (195, 0)}
    old = ldcache.dump_ld_cache(ldcache.merge_ld_cache(None, [("libc.so.6", "/lib/libc.so.6", 0x303)]))
    scene.finish_bundle()
    (scene.root / LD_CACHE).write_bytes(old)
    kept = tmp_path / "kept"
    subprocess.run(["cp", "-a", scene.root, kept], check=True)
    scene.run_successfully()
    end = snapshot_tree(scene.root, times=False)
    new = (scene.root / LD_CACHE).read_bytes()
    own, at = scene.program, 0
    while True:
        at += 1
        assert at < 200
        subprocess.run(["rm", "-rf", scene.root], check=True)
        subprocess.run(["cp", "-a", kept, scene.root], check=True)
        scene.program = write_hook_launcher(tmp_path / "killed", KILL.format(at=at, half=half))
        status = scene.run().returncode
        assert (scene.root / LD_CACHE).read_bytes() in (old, new)
        if status == 0:
            break
        assert status == -9
        scene.program = own
        assert scene.run_successfully() == ""
        assert snapshot_tree(scene.root, times=False) == end, at
    assert at > 10


def test_no_hook_takes_long_over_a_fifo_or_a_huge_file_of_the_image(scene: HookScene) -> None:
    os.mkfifo(scene.root / LD_CACHE)
    with (scene.root / "etc/huge").open("wb") as file:
        file.truncate(1 << 40)
    (scene.root / "etc/ld.so.conf").unlink()
    (scene.root / "etc/ld.so.conf").symlink_to("huge")
    begin = time.monotonic()
    assert "cannot be read or is too large, so it is replaced" in scene.run_successfully()
    assert time.monotonic() - begin < 10
    assert (scene.root / LD_CACHE).is_file()


# --- whatever is in config.json -----------------------------------------------------------------------------

ODD = (
    *(None, True, -1, 1 << 80, 1.5, "", "x", "/", "//", "/../..", "a\0b", "\udcff", "/dev/nvidia0"),
    *([], [[]], {}, {"a": 1}),
)


def places(value: object, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to every value in a JSON document."""
    found = [path] if path else []
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            found += places(value[key], (*path, key))
    return found


@pytest.mark.parametrize("way", ["ours", "theirs"])
def test_any_value_of_config_json_may_be_anything(tmp_path: Path, host: Path, way: str, isolated_state: Path) -> None:
    """A sentence or success, never a mistake of ours; and nothing outside of the bundle."""
    scene = HookScene(tmp_path, host, "NVIDIA_REQUIRE_CUDA=cuda>=12")
    config = read_spec(scene.bundle)
    cdi_edits.add_devices(config, {"/dev/nvidia0": (195, 0), "/dev/dri/card0": (226, 0)})
    cdi_edits.EDITS_OF[way](config, host, scene.program)
    cdi_edits.make_mount_points(scene.bundle, config)
    arguments = scene.hook_arguments
    arguments.requirements = arguments.egl_profile = arguments.drm_links = arguments.hide_device_files = True
    text = json.dumps(config)
    choose = random.Random(way)
    before = snapshot_tree(host)
    for number, path in enumerate(places(config) * 2):
        spoilt = json.loads(text)
        inner = spoilt
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = choose.choice([odd for odd in ODD if path[:2] != ("root", "path") or odd != "/dev/nvidia0"])
        (scene.bundle / "config.json").write_text(json.dumps(spoilt))
        state_file = tmp_path / "state.json"
        state_file.write_text(json.dumps({"bundle": str(scene.bundle)}))
        fd = os.open(state_file, os.O_RDONLY)
        try:
            here = called_container.read_container(fd)
            if way == "ours":
                cdi_hook.run_create_container(arguments, here)
            else:
                for words in cdi_edits.list_nvidia_hooks():
                    nvidia_hooks.run_nvidia_hook([*words, f"--container-spec={state_file}"])
        except Fault as fault:
            assert str(fault)
        except Exception as error:
            raise AssertionError(f"{number}: {path} = {inner[path[-1]]!r}") from error
        finally:
            os.close(fd)
    assert snapshot_tree(host) == before
