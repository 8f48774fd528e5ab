"""Container engines in temporary directories, all driven through the same few verbs.

An `Engine` is started with an `EngineHome` (directories, image, and the runtime under test for a low-level runtime).
Then `run`, `background`, `exec` and `remove` mean the same for a bare runtime as for dockerd.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from support.e2e import images, machine
from support.e2e.machine import CommandResult, find_program

# The user that owns the rootless containers. It needs a name and ranges in /etc/subuid; both exist in a
# private mount namespace only.
ROOTLESS_ID = 4807
ROOTLESS_NAME = "gpu-oci-e2e"
SUBORDINATE = (1_200_000, 65536)

# The parent of every cgroup that the tests make.
CGROUP = "gpu-oci-e2e"

# The capability that lets the probe make another GPU's node itself; docker and containerd give it by default.
MKNOD = "CAP_MKNOD"


@dataclass(frozen=True)
class ContainerRequest:
    """A container to run.

    Arguments:
        args: the command.
        env: entries `NAME=value`.
        read_only: whether its root file system is read-only.
        binds: (host path, container path) of bind mounts.
        root: another root file system than the standard image (engines that know images only import it).
        user: the user and group id of its process (`BareRuntime` only).
        devices: qualified names of CDI devices (docker and podman).
        options: more options of `run` (docker and podman).
    """

    args: Sequence[str]
    env: Sequence[str] = ()
    read_only: bool = False
    binds: Sequence[tuple[str, str]] = ()
    root: Path | None = None
    user: int = 0
    devices: Sequence[str] = ()
    options: Sequence[str] = ()


@dataclass
class EngineHome:
    """The directories of an engine, and what it runs.

    Arguments:
        directory: a private directory, mode 0755, short enough for sockets in it.
        image: the standard image's root file system.
        runtime: low-level runtime's name -> path of the executable that engines shall use in its place.
    """

    directory: Path
    image: Path
    runtime: Callable[[str], Path]


class Engine:
    """A way to run containers; subclasses implement it."""

    name = "?"
    # Programs that this engine needs on the machine.
    programs: tuple[str, ...] = ()
    # Whether containers live in a user namespace: nodes are bind mounts then.
    user_namespace = False
    # Whether a device cgroup keeps containers from nodes that they were not given.
    device_cgroup = True
    # The exit status of `run` when the runtime refuses a container.
    refusal = 1

    def __init__(self) -> None:
        self.place: EngineHome
        self._numbers = itertools.count(1)

    def start(self, place: EngineHome) -> None:
        """Start the engine."""
        self.place = place

    def stop(self) -> None:
        """Stop everything that `start` started; never fail."""

    def run(self, request: ContainerRequest) -> CommandResult:
        """Run a container in the foreground and remove it."""
        raise NotImplementedError

    def background(self, request: ContainerRequest) -> str:
        """Start a container and return its name."""
        raise NotImplementedError

    def exec(self, name: str, args: Sequence[str]) -> CommandResult:
        """Run a command in a running container."""
        raise NotImplementedError

    def remove(self, name: str) -> None:
        """Kill and remove a container."""
        raise NotImplementedError

    def fresh_name(self) -> str:
        """Return a new container name."""
        return f"e2e-{os.getpid()}-{next(self._numbers)}"

    def fresh_root(self, request: ContainerRequest) -> Path:
        """Copy the image, for engines that take a directory."""
        return images.copy_image(request.root or self.place.image, self.place.directory / f"root-{next(self._numbers)}")


class BareRuntime(Engine):
    """A low-level runtime called directly, with bundles that we write.

    Arguments:
        low_level: runc or crun.
        cgroup: "v1" (the machine's own tree, as it is) or "v2" (a private mount namespace with a cgroup2
            mount as /sys/fs/cgroup; the kernel's device filter is real there, too).
        style: "create" (create, start, wait, delete) or "run".
        furnish: more shell commands that prepare the private mount namespace in which it runs.
    """

    def __init__(self, low_level: str, cgroup: str, style: str, *, furnish: str = "") -> None:
        super().__init__()
        self._furnish = furnish
        self.low_level, self.cgroup, self.style = low_level, cgroup, style
        self.name = f"{low_level} {cgroup} {'create+start' if style == 'create' else 'run'}"
        self.programs = (low_level, "busybox", "gcc", "unshare", "nsenter")
        self._holder: machine.MountNamespace | None = None
        self._bundles: dict[str, Path] = {}
        self._environment: list[str] = []

    def start(self, place: EngineHome) -> None:
        super().start(place)
        script = ""
        if self.cgroup == "v2":
            script = "umount -R /sys/fs/cgroup\nmount -t cgroup2 none /sys/fs/cgroup"
        elif self.low_level == "crun":
            # crun refuses a hybrid tree; without the unified part it is a plain v1 tree.
            script = "umount /sys/fs/cgroup/unified || true"
        if script or self._furnish:
            self._holder = machine.MountNamespace(f"{script}\n{self._furnish}\n")
            self._holder.start()
        if self.low_level == "crun" and self.cgroup == "v2" and not machine.may_raise_memlock():
            library = images.build_forgiving_setrlimit(place.directory / "forgiving.so")
            self._environment = [find_program("env"), f"LD_PRELOAD={library}"]

    def stop(self) -> None:
        for name in list(self._bundles):
            self.remove(name)
        if self._holder is not None:
            self._holder.stop()

    def command(self, *words: str) -> list[str]:
        """Build a command of the runtime with its global flags."""
        flags = ["--root", str(self.place.directory / "state")]
        if self.low_level == "crun":
            flags += ["--cgroup-manager", "cgroupfs"]
        prefix = self._holder.enter if self._holder is not None else []
        return [*prefix, *self._environment, str(self.place.runtime(self.low_level)), *flags, *words]

    def bundle(self, request: ContainerRequest) -> Path:
        """Create a bundle for the request."""
        directory = self.place.directory / f"bundle-{next(self._numbers)}"
        directory.mkdir()
        images.copy_image(request.root or self.place.image, directory / "rootfs")
        machine.run_command([find_program("runc"), "spec", "--bundle", str(directory)]).check()
        config = json.loads((directory / "config.json").read_text())
        edit_spec(config, request, cgroup=f"/{CGROUP}/{directory.name}-{os.getpid()}")
        (directory / "config.json").write_text(json.dumps(config))
        return directory

    def run(self, request: ContainerRequest) -> CommandResult:
        if self.style == "run":
            name = self.fresh_name()
            bundle = self.bundle(request)
            done = machine.run_command(self.command("run", "--bundle", str(bundle), name))
            self._forget(name, bundle)
            return done
        name = self.fresh_name()
        bundle = self.bundle(request)
        out, err = bundle / "stdout", bundle / "stderr"
        created = self._create(name, bundle, out, err)
        status = created
        if created == 0:
            started = machine.run_command(self.command("start", name))
            err.write_text(err.read_text() + started.text)
            status = started.status
            machine.wait_for(lambda: self._state(name) == "stopped", f"{self.name}: end of {name}")
        done = CommandResult(("create+start", name), status, out.read_text(), err.read_text())
        self._forget(name, bundle)
        return done

    def start_bundle(self, bundle: Path) -> CommandResult:
        """Run a bundle and keep it."""
        name = self.fresh_name()
        try:
            return machine.run_command(self.command("run", "--bundle", str(bundle), name))
        finally:
            machine.run_command(self.command("delete", "--force", name))

    def background(self, request: ContainerRequest) -> str:
        name = self.fresh_name()
        bundle = self.bundle(request)
        self._bundles[name] = bundle
        status = self._create(name, bundle, bundle / "stdout", bundle / "stderr")
        assert status == 0, (bundle / "stderr").read_text()
        machine.run_command(self.command("start", name)).check()
        return name

    def exec(self, name: str, args: Sequence[str]) -> CommandResult:
        return machine.run_command(self.command("exec", name, *args))

    def remove(self, name: str) -> None:
        self._forget(name, self._bundles.pop(name))

    def _create(self, name: str, bundle: Path, out: Path, err: Path) -> int:
        with out.open("wb") as stdout, err.open("wb") as stderr:
            return subprocess.run(
                self.command("create", "--bundle", str(bundle), name),
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                timeout=60,
            ).returncode

    def _state(self, name: str) -> str:
        done = machine.run_command(self.command("state", name))
        return str(json.loads(done.stdout)["status"]) if done.status == 0 else "stopped"

    def _forget(self, name: str, bundle: Path) -> None:
        machine.run_command(self.command("delete", "--force", name))
        machine.remove_tree(bundle)


def edit_spec(config: dict[str, object], request: ContainerRequest, *, cgroup: str) -> None:
    """Change a spec of `runc spec` into one of the request."""
    process = config["process"]
    root = config["root"]
    linux = config["linux"]
    mounts = config["mounts"]
    assert isinstance(process, dict)
    assert isinstance(root, dict)
    assert isinstance(linux, dict)
    assert isinstance(mounts, list)
    process["terminal"] = False
    process["user"] = {"uid": request.user, "gid": request.user}
    process["args"] = list(request.args)
    process["env"] = ["PATH=/usr/sbin:/usr/bin:/sbin:/bin", *request.env]
    for names in process["capabilities"].values():
        names.append(MKNOD)
    # Lowering the limit needs no capability; the default of `runc spec` does where the machine's own is
    # lower.
    process.pop("rlimits", None)
    root["readonly"] = request.read_only
    linux["cgroupsPath"] = cgroup
    mounts += [
        {"destination": target, "type": "bind", "source": source, "options": ["rbind", "rprivate"]}
        for source, target in request.binds
    ]


class Containerd(Engine):
    """containerd with everything private; containers by `ctr run --rootfs --runc-binary`."""

    name = "ctr run"
    programs = ("containerd", "ctr", "runc", "busybox", "gcc")

    def __init__(self, *, furnish: str = "") -> None:
        super().__init__()
        self._furnish = furnish
        self._holder: machine.MountNamespace | None = None

    def start(self, place: EngineHome) -> None:
        super().start(place)
        home = place.directory
        if self._furnish:
            self._holder = machine.MountNamespace(self._furnish)
            self._holder.start()
        self.socket = home / "c.sock"
        config = home / "containerd.toml"
        config.write_text(
            f'version = 2\nroot = "{home}/root"\nstate = "{home}/state"\n'
            'disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.internal.v1.opt"]\n'
            f'[grpc]\naddress = "{self.socket}"\n[ttrpc]\naddress = "{self.socket}.ttrpc"\n'
        )
        with (home / "containerd.log").open("wb") as log:
            enter = self._holder.enter if self._holder is not None else []
            self._daemon = subprocess.Popen(
                [*enter, find_program("containerd"), "--config", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={"PATH": machine.DIRECTORIES},
            )
        machine.wait_for(lambda: machine.run_command([*self._ctr(), "version"], timeout=10).status == 0, "containerd")

    def stop(self) -> None:
        machine.stop_daemon(self._daemon)
        if self._holder is not None:
            self._holder.stop()

    def _ctr(self) -> list[str]:
        return [find_program("ctr"), "--address", str(self.socket), "--namespace", "e2e"]

    def _run_words(self, request: ContainerRequest, name: str, *extra: str) -> list[str]:
        words = [*self._ctr(), "run", *extra, "--rootfs", "--runc-binary", str(self.place.runtime("runc"))]
        words += ["--runc-root", str(self.place.directory / "runc"), "--cap-add", MKNOD]
        words += ["--cgroup", f"/{CGROUP}/{name}"]
        for entry in request.env:
            words += ["--env", entry]
        for source, target in request.binds:
            words += ["--mount", f"type=bind,src={source},dst={target},options=rbind"]
        if request.read_only:
            words.append("--read-only")
        return [*words, str(self.fresh_root(request)), name, *request.args]

    def run(self, request: ContainerRequest) -> CommandResult:
        name = self.fresh_name()
        try:
            return machine.run_command(self._run_words(request, name, "--rm"))
        finally:
            self.remove(name)

    def background(self, request: ContainerRequest) -> str:
        name = self.fresh_name()
        machine.run_command(self._run_words(request, name, "--detach")).check()
        return name

    def exec(self, name: str, args: Sequence[str]) -> CommandResult:
        return machine.run_command([*self._ctr(), "tasks", "exec", "--exec-id", self.fresh_name(), name, *args])

    def remove(self, name: str) -> None:
        machine.run_command([*self._ctr(), "tasks", "delete", "--force", name])
        machine.run_command([*self._ctr(), "containers", "delete", name])


class Docker(Engine):
    """dockerd with everything private, no network, and the runtime under test as `gpu`.

    Arguments:
        remap: whether containers live in a user namespace (`--userns-remap`).
        settings: more of daemon.json.
        runtime: the runtime of containers; empty for the daemon's default.
        furnish: more shell commands that prepare the private mount namespace in which dockerd runs.
    """

    programs = ("dockerd", "docker", "containerd", "runc", "busybox", "gcc", "unshare", "nsenter")

    def __init__(
        self,
        *,
        remap: bool = False,
        settings: Mapping[str, object] | None = None,
        runtime: str = "gpu",
        furnish: str = "",
    ) -> None:
        super().__init__()
        self._furnish = furnish
        self.settings = settings or {}
        self.runtime_words = ["--runtime", runtime] if runtime else []
        self.user_namespace = remap
        self.path = machine.DIRECTORIES  # dockerd's PATH
        self.refusal = 125  # "the daemon failed"; 126 and 127 would say that the command cannot be run or found
        self.name = "docker userns-remap" if remap else "docker run"
        self._images: dict[Path, str] = {}

    def start(self, place: EngineHome) -> None:
        super().start(place)
        home = place.directory
        self.socket = home / "d.sock"
        config = home / "daemon.json"
        config.write_text(json.dumps({"runtimes": {"gpu": {"path": str(place.runtime("runc"))}}, **self.settings}))
        # dockerd writes /etc/docker/key.json, and reads the remapped user's ranges from /etc/subuid: it gets
        # its own of both.
        script = private_etc_script(home)
        self._holder = machine.MountNamespace(
            f"{script}\nmkdir -p /etc/docker\nmount -t tmpfs none /etc/docker\n{self._furnish}"
        )
        self._holder.start()
        words = [
            *self._holder.enter,
            find_program("dockerd"),
            *(
                "--config-file",
                str(config),
                "--host",
                f"unix://{self.socket}",
                "--pidfile",
                str(home / "d.pid"),
            ),
            *("--data-root", str(home / "data"), "--exec-root", str(home / "exec")),
            *("--iptables=false", "--ip6tables=false", "--bridge=none"),
        ]
        if self.user_namespace:
            words.append(f"--userns-remap={ROOTLESS_NAME}")
        with (home / "dockerd.log").open("wb") as log:
            self._daemon = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={"PATH": self.path, "HOME": "/root"},
            )
        machine.wait_for(lambda: self.command("version").status == 0, f"dockerd ({home}/dockerd.log)")

    def stop(self) -> None:
        machine.stop_daemon(self._daemon)
        self._holder.stop()

    def command(self, *words: str, timeout: float = 60) -> CommandResult:
        """Run a docker command."""
        return machine.run_command([find_program("docker"), "--host", f"unix://{self.socket}", *words], timeout=timeout)

    def _image(self, request: ContainerRequest) -> str:
        root = request.root or self.place.image
        if root not in self._images:
            archive = images.write_archive(root, self.place.directory / f"image-{next(self._numbers)}.tar")
            self._images[root] = self.command("import", str(archive)).check().stdout.strip()
            archive.unlink()
        return self._images[root]

    def _run_words(self, request: ContainerRequest, *extra: str) -> list[str]:
        words = ["run", *extra, *self.runtime_words, "--network", "none", "--cgroup-parent", f"/{CGROUP}"]
        words += request.options
        for name in request.devices:
            words += ["--device", name]
        for entry in request.env:
            words += ["--env", entry]
        for source, target in request.binds:
            words += ["--volume", f"{source}:{target}"]
        if request.read_only:
            words.append("--read-only")
        return [*words, self._image(request), *request.args]

    def run(self, request: ContainerRequest) -> CommandResult:
        return self.command(*self._run_words(request, "--rm"))

    def background(self, request: ContainerRequest) -> str:
        return self.command(*self._run_words(request, "--detach")).check().stdout.strip()

    def exec(self, name: str, args: Sequence[str]) -> CommandResult:
        return self.command("exec", name, *args)

    def remove(self, name: str) -> None:
        self.command("rm", "--force", name)


class Podman(Engine):
    """podman with private storage, run by root.

    Arguments:
        furnish: shell commands that prepare the private mount namespace in which it runs; "" for none.
    """

    name = "podman run"
    refusal = 126  # for every error of the runtime but "not found"
    programs: tuple[str, ...] = ("podman", "runc", "busybox", "gcc", "unshare", "nsenter")

    def __init__(self, *, furnish: str = "") -> None:
        super().__init__()
        self._images: dict[Path, str] = {}
        self._furnish = furnish
        self._holder: machine.MountNamespace | None = None

    def start(self, place: EngineHome) -> None:
        super().start(place)
        if self._furnish:
            self._holder = machine.MountNamespace(self._furnish)
            self._holder.start()
        self._configure()

    def _configure(self) -> None:
        (self.place.directory / "home").mkdir()
        (self.place.directory / "containers.conf").write_text("[engine]\n[containers]\n")
        (self.place.directory / "policy.json").write_text('{"default": [{"type": "insecureAcceptAnything"}]}')

    def _global_flags(self) -> list[str]:
        home = self.place.directory
        flags = ["--root", str(home / "data"), "--runroot", str(home / "run"), "--tmpdir", str(home / "tmp")]
        flags += ["--cgroup-manager", "cgroupfs", "--events-backend", "file"]
        return [*flags, "--runtime", str(self.place.runtime("runc"))]

    def command(self, *words: str) -> CommandResult:
        """Run a podman command."""
        home = self.place.directory
        flags = self._global_flags()
        env = {
            "PATH": machine.DIRECTORIES,
            "HOME": str(home / "home"),
            "PODMAN_IGNORE_CGROUPSV1_WARNING": "1",  # podman 5 warns of cgroup v1 on stderr
            "CONTAINERS_CONF": str(home / "containers.conf"),
        }
        enter = self._holder.enter if self._holder is not None else []
        return machine.run_command([*enter, find_program("podman"), *flags, *words], env=env, cwd=home)

    def _image(self, request: ContainerRequest) -> str:
        root = request.root or self.place.image
        if root not in self._images:
            archive = images.write_archive(root, self.place.directory / f"image-{next(self._numbers)}.tar")
            self._images[root] = self.command("import", "--quiet", str(archive)).check().stdout.strip()
            archive.unlink()
        return self._images[root]

    def _run_words(self, request: ContainerRequest, *extra: str) -> list[str]:
        words = ["run", *extra, "--network", "none", "--cap-add", MKNOD, *self._cgroup_words()]
        # Podman asks for the highest limits there are: on a machine that lacks CAP_SYS_RESOURCE (a container,
        # a sandbox) that fails.
        words += ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"]
        for entry in request.env:
            words += ["--env", entry]
        for source, target in request.binds:
            words += ["--volume", f"{source}:{target}"]
        for name in request.devices:
            words += ["--device", name]
        words += request.options
        if request.read_only:
            # Its own tmpfs on /run, /tmp and /var/tmp would hide nothing from us, but the plain case is the
            # harder one.
            words += ["--read-only", "--read-only-tmpfs=false"]
        return [*words, self._image(request), *request.args]

    def _cgroup_words(self) -> list[str]:
        return ["--cgroup-parent", f"/{CGROUP}"]

    def run(self, request: ContainerRequest) -> CommandResult:
        return self.command(*self._run_words(request, "--rm"))

    def background(self, request: ContainerRequest) -> str:
        return self.command(*self._run_words(request, "--detach")).check().stdout.strip()

    def exec(self, name: str, args: Sequence[str]) -> CommandResult:
        return self.command("exec", name, *args)

    def remove(self, name: str) -> None:
        self.command("rm", "--force", "--time", "0", name)

    def stop(self) -> None:
        self.command("rm", "--force", "--all", "--time", "0")
        if self._holder is not None:
            self._holder.stop()


class MappedPodman(Podman):
    """podman, run by root, with containers in a user namespace of their own.

    Their config.json has no cgroup device rules, and runc enforces its default ones.
    """

    name = "podman --uidmap"
    user_namespace = True

    def _cgroup_words(self) -> list[str]:
        return [*super()._cgroup_words(), "--uidmap", f"0:{SUBORDINATE[0]}:{SUBORDINATE[1]}"]

    def stop(self) -> None:
        super().stop()
        os.chown("/dev/null", 0, 0)  # crun 1.8 gives the container's standard input to the container's root


class RootlessPodman(Podman):
    """podman as an unprivileged user."""

    name = "podman rootless"
    programs = ("podman", "runc", "busybox", "gcc", "unshare", "nsenter", "newuidmap", "setpriv")
    user_namespace = True
    device_cgroup = False

    def _cgroup_words(self) -> list[str]:
        # On cgroup v1 nothing is delegated to users: podman leaves cgroups alone by itself, and runc forgives
        # the failure.
        return []

    def start(self, place: EngineHome) -> None:
        self._holder = machine.MountNamespace(f"{self._furnish}\n{private_etc_script(place.directory)}")
        self._holder.start()
        self.place = place
        self._configure()
        for name in ("home", "xdg", "data", "run", "tmp"):
            path = place.directory / name
            path.mkdir(exist_ok=True)
            path.chmod(0o700)
            os.chown(path, ROOTLESS_ID, ROOTLESS_ID)

    def command(self, *words: str) -> CommandResult:
        """Run a podman command."""
        home = self.place.directory
        flags = self._global_flags()
        env = {
            "PATH": machine.DIRECTORIES,
            "HOME": str(home / "home"),
            "PODMAN_IGNORE_CGROUPSV1_WARNING": "1",
            "XDG_RUNTIME_DIR": str(home / "xdg"),
            "CONTAINERS_CONF": str(home / "containers.conf"),
        }
        user = [
            find_program("setpriv"),
            f"--reuid={ROOTLESS_ID}",
            f"--regid={ROOTLESS_ID}",
            "--clear-groups",
            "--inh-caps=-all",
        ]
        assert self._holder is not None
        return machine.run_command(
            [*self._holder.enter, *user, find_program("podman"), *flags, *words], env=env, cwd=home
        )


class NestedPodman(RootlessPodman):
    """podman as an unprivileged user, with containers in a user namespace below podman's own."""

    name = "podman rootless --userns"

    def _cgroup_words(self) -> list[str]:
        return ["--uidmap", "0:1:4096", "--gidmap", "0:1:4096"]


def private_etc_script(directory: Path) -> str:
    """Return shell commands that add the unprivileged user with its subordinate ids to a private mount namespace."""
    lines = []
    for name, line in (
        ("passwd", f"{ROOTLESS_NAME}:x:{ROOTLESS_ID}:{ROOTLESS_ID}::{directory}/home:/bin/sh"),
        ("group", f"{ROOTLESS_NAME}:x:{ROOTLESS_ID}:"),
        ("subuid", f"{ROOTLESS_NAME}:{SUBORDINATE[0]}:{SUBORDINATE[1]}"),
        ("subgid", f"{ROOTLESS_NAME}:{SUBORDINATE[0]}:{SUBORDINATE[1]}"),
    ):
        real = Path("/etc") / name
        text = real.read_text() if real.exists() else ""
        private = directory / f"etc-{name}"
        private.write_text(f"{text.rstrip()}\n{line}\n".lstrip())
        private.chmod(0o644)
        if not real.exists():
            lines.append(f"touch {real}")
        lines.append(f"mount --bind {private} {real}")
    return "\n".join(lines)


def list_engines() -> list[Engine]:
    """Return the engines of the matrix, one for each row."""
    return [
        *(
            BareRuntime(low_level, cgroup, style)
            for low_level, cgroup in (("runc", "v1"), ("runc", "v2"), ("crun", "v1"), ("crun", "v2"))
            for style in ("create", "run")
        ),
        Containerd(),
        Docker(),
        Docker(remap=True),
        Podman(),
        MappedPodman(),
        RootlessPodman(),
    ]
