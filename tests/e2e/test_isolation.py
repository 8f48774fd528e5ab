"""A container that may mount in its own user namespace cannot change the libraries of another one, running or later."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_oci_hook.files import state_dir
from support.e2e import images, machine
from support.e2e.engines import (
    ROOTLESS_ID,
    SUBORDINATE,
    BareRuntime,
    ContainerRequest,
    Docker,
    Engine,
    EngineHome,
    Podman,
    RootlessPodman,
)
from support.e2e.machine import CommandResult, find_program
from support.e2e.requirements import require_programs

LIBRARIES = "/usr/local/nvidia/lib64"
ENV = ["NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"]

# Makes the mounts writable and puts another library in the place of libcuda, in the directory and in the file itself.
PREAMBLE = """
remount() { mount -o remount,bind,rw "$1" || mount -o remount,bind,rw,nosuid,nodev "$1"; } 2>/dev/null
"""
DIRECTORY_ATTACK = f"""
remount {LIBRARIES}
{{ rm {LIBRARIES}/libcuda.so.1 && echo evil > {LIBRARIES}/libcuda.so.1 && echo directory; }} 2>/dev/null
echo done
"""
FILE_ATTACK = f"""
for file in {LIBRARIES}/libcuda.so.*.*; do
    remount "$file"
    {{ echo evil >> "$file" && echo library; }} 2>/dev/null
done
"""
LOOK = ["sh", "-c", f"readlink {LIBRARIES}/libcuda.so.1; cat {LIBRARIES}/libcuda.so.1 | md5sum; ls {LIBRARIES}"]
ADMIN = "CAP_SYS_ADMIN"


class MappedRunc(BareRuntime):
    """runc with a user namespace in the spec, and CAP_SYS_ADMIN in it.

    Arguments:
        host_id: the number of the container's root on the host.
        user: the user that calls runc; 0 for root.
    """

    user_namespace = True

    def __init__(self, host_id: int, *, user: int = 0) -> None:
        super().__init__("runc", "v1", "create")
        self.host_id, self.user = host_id, user

    def command(self, *words: str) -> list[str]:
        command = super().command(*words)
        if not self.user:
            return command
        user = [find_program("setpriv"), f"--reuid={self.user}", f"--regid={self.user}", "--clear-groups"]
        return [find_program("env"), f"XDG_RUNTIME_DIR={self.place.directory}/xdg", *user, *command]

    def bundle(self, request: ContainerRequest) -> Path:
        directory = super().bundle(request)
        config = json.loads((directory / "config.json").read_text())
        linux = config["linux"]
        rows = [{"containerID": 0, "hostID": self.host_id, "size": 1 if self.user else 65536}]
        linux["uidMappings"] = linux["gidMappings"] = rows
        linux["namespaces"].append({"type": "user"})
        for names in config["process"]["capabilities"].values():
            names.append(ADMIN)
        if self.user:
            # As `runc spec --rootless` does: what a user cannot do is left out.
            linux["namespaces"] = [one for one in linux["namespaces"] if one["type"] != "network"]
            linux.pop("resources", None)
            linux.pop("cgroupsPath", None)
            config["mounts"] = [
                {"destination": "/sys", "type": "none", "source": "/sys", "options": ["rbind", "nosuid", "ro"]}
                if mount["destination"] == "/sys"
                else {**mount, "options": [o for o in mount.get("options", ()) if not o.startswith(("gid=", "uid="))]}
                for mount in config["mounts"]
                if mount["destination"] != "/sys/fs/cgroup"
            ]
        (directory / "config.json").write_text(json.dumps(config))
        machine.run_command(["chown", "-R", f"{self.host_id}:{self.host_id}", str(directory / "rootfs")]).check()
        if self.user:
            for path in (directory, directory / "config.json"):
                os.chown(path, self.user, self.user)
        return directory


class RootlessRunc(MappedRunc):
    """runc called by an unprivileged user, who is the container's root."""

    name = "runc rootless"

    def __init__(self) -> None:
        super().__init__(ROOTLESS_ID, user=ROOTLESS_ID)

    def start(self, place: EngineHome) -> None:
        super().start(place)
        for name in ("xdg", "state"):
            (place.directory / name).mkdir(mode=0o700)
            os.chown(place.directory / name, ROOTLESS_ID, ROOTLESS_ID)


class PrivilegedRunc(BareRuntime):
    """runc with CAP_SYS_ADMIN and without a user namespace."""

    def __init__(self) -> None:
        super().__init__("runc", "v1", "create")

    def bundle(self, request: ContainerRequest) -> Path:
        directory = super().bundle(request)
        config = json.loads((directory / "config.json").read_text())
        for names in config["process"]["capabilities"].values():
            names.append(ADMIN)
        (directory / "config.json").write_text(json.dumps(config))
        return directory


MAY_MOUNT = ("--cap-add", "SYS_ADMIN", "--security-opt", "seccomp=unconfined", "--security-opt", "apparmor=unconfined")


def attack(engine: Engine, script: str) -> CommandResult:
    """Run the attack in a container of its own."""
    request = ContainerRequest(["sh", "-c", script], ENV)
    if isinstance(engine, Docker):
        return engine.command(*engine._run_words(request, "--rm", *MAY_MOUNT))
    if isinstance(engine, Podman):
        return engine.command(*engine._run_words(request, "--rm", *MAY_MOUNT[:4]))
    return engine.run(request)


# Engine, and whether the library's file is safe from it:
# a container whose root is the host's root can always write the host's files.
ENGINES: dict[str, tuple[Callable[[], Engine], bool]] = {
    "runc-rootless": (RootlessRunc, True),
    "podman-rootless": (RootlessPodman, True),
    "runc-remapped": (lambda: MappedRunc(SUBORDINATE[0]), True),
    "docker-userns-remap": (lambda: Docker(remap=True), True),
    "runc-mapped-to-root": (lambda: MappedRunc(0), False),
    "runc-privileged": (PrivilegedRunc, False),
}


@pytest.fixture(params=ENGINES)
def scene(
    request: pytest.FixtureRequest, workspace: Path, image: Path, runtime_for: Callable[[str], Path]
) -> Iterator[tuple[Engine, bool]]:
    """An engine that is started, and whether the library's file itself is safe."""
    make, file_is_safe = ENGINES[request.param]
    engine = make()
    require_programs(*engine.programs)
    directory = Path(tempfile.mkdtemp(prefix="i-", dir=workspace))
    directory.chmod(0o755)
    try:
        engine.start(EngineHome(directory, image, runtime_for))
        yield engine, file_is_safe
    finally:
        try:
            engine.stop()
        finally:
            machine.remove_tree(directory)


@pytest.mark.timeout(300)
def test_no_container_changes_the_libraries_of_another(
    scene: tuple[Engine, bool],
) -> None:
    engine, file_is_safe = scene
    name = engine.background(ContainerRequest(["sleep", "60"], ENV))
    try:
        before = engine.exec(name, LOOK).check().stdout
        done = attack(engine, PREAMBLE + (FILE_ATTACK if file_is_safe else "") + DIRECTORY_ATTACK)
        *changed, end = done.stdout.split()
        assert end == "done", done
        assert "library" not in changed, done
        assert engine.exec(name, LOOK).check().stdout == before
        assert engine.run(ContainerRequest(LOOK, ENV)).check().stdout == before
        print(f"the attacker wrote {changed or 'nothing'}; a running and a later container see no change")
    finally:
        engine.remove(name)


NESTED_ATTACK = f"""
busybox unshare -Urm busybox sh -c '
mount -o remount,bind,rw {LIBRARIES} && echo remounted
mount -o remount,bind,rw,nosuid,nodev {LIBRARIES} && echo remounted
mount --rbind {LIBRARIES} /mnt && echo bound
mount -o remount,bind,rw,nosuid,nodev /mnt && echo remounted
umount -l {LIBRARIES} && echo unmounted
for file in {LIBRARIES}/*.so.*.*; do umount "$file" && echo unmounted; done
echo evil > {LIBRARIES}/new && echo written
rm {LIBRARIES}/libcuda.so.1 && echo removed
' 2>/dev/null
"""
# What the kernel wants of a process that maps itself as root of a new user namespace; docker gives these.
MAPPING = ("CAP_SETFCAP", "CAP_SETUID", "CAP_SETGID")


@pytest.mark.parametrize("low_level", ["runc", "crun"])
def test_a_user_namespace_of_the_containers_own_making_gives_no_way_to_the_shared_directory(
    tmp_path: Path, image: Path, runtime_for: Callable[[str], Path], low_level: str
) -> None:
    """Mounts that a more privileged mount namespace has made stay read-only and together (mount_namespaces(7))."""
    root = images.copy_image(image, tmp_path / "root")
    images.copy_static_program(root / "bin/busybox")
    engine = BareRuntime(low_level, "v1", "run")
    engine.start(EngineHome(tmp_path, image, runtime_for))
    try:
        bundle = engine.bundle(ContainerRequest(["sh", "-c", NESTED_ATTACK], ENV, root=root))
        path = bundle / "config.json"
        config = json.loads(path.read_text())
        for names in config["process"]["capabilities"].values():
            names += MAPPING
        path.write_text(json.dumps(config))
        done = engine.start_bundle(bundle)
        (source,) = (m["source"] for m in json.loads(path.read_text())["mounts"] if m["destination"] == LIBRARIES)
        assert source.startswith(f"{state_dir.DIRECTORY}/")  # shared
        assert done.stdout.split() == ["bound"], done
    finally:
        engine.stop()
