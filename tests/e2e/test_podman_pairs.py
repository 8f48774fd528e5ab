"""CDI files and requests, given to podman and to us: the config.json must be the same but for what is meant to
differ (tests/support/e2e/podman_pairs.py has the pairs, and the differences with their reasons).

podman makes the config.json and calls a runtime that keeps it and refuses: nothing runs. Ours is made of podman's own
config.json without the device. /etc/cdi and /var/run/cdi are directories of the test in a private mount namespace.
"""

from __future__ import annotations

import copy
import json
import os
import posixpath
import shlex
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_oci_hook.config.keys import Config
from gpu_oci_hook.container import spec_edits
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.files import state_dir
from gpu_oci_hook.host.root import Host
from gpu_oci_hook.inject import cdi_devices
from gpu_oci_hook.model.request import DeviceRequest, Request
from support.e2e import machine
from support.e2e.podman_pairs import DIFFERENCES, WRITTEN_PAIRS, Pair, generate_pairs, is_gone, podman_version
from support.e2e.requirements import require_programs

Spec = dict[str, Any]

PAIRS = {**WRITTEN_PAIRS, **generate_pairs(40, seed=1)}

pytestmark = pytest.mark.usefixtures("isolated_state")


class Podman:
    """podman with private storage, spec directories of its own, and a runtime that keeps the config.json."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.version = podman_version()
        self.things = home / "things"
        self.directories = {"etc": home / "etc-cdi", "run": home / "run-cdi"}
        for path in (*self.directories.values(), self.things, home / "root/dev", home / "over"):
            path.mkdir(parents=True)
        self._things()
        (home / "containers.conf").write_text("[engine]\n[containers]\n")
        self.kept = home / "config.json"
        self.runtime = home / "keeping"
        self.runtime.write_text(machine.KEEPING_RUNTIME.format(target=shlex.quote(str(self.kept))))
        self.runtime.chmod(0o755)
        script = [f"mount -t tmpfs tmpfs {home}/over"]
        for place, top, own in (("/etc", "etc", "/etc/cdi"), ("/run", "run", "/run/cdi")):
            # Making a directory to mount on would be a change of the machine: hence the overlays.
            over = f"{home}/over/{top}"
            script += [
                f"mkdir -p {over}/up {over}/work",
                f"mount -t overlay overlay -o lowerdir={place},upperdir={over}/up,workdir={over}/work {place}",
                f"mkdir -p {own}",
                f"mount --bind {self.directories[top]} {own}",
            ]
        self.holder = machine.MountNamespace("\n".join(script))
        self.holder.start()
        self._plain: dict[tuple[str, ...], Spec] = {}

    def _things(self) -> None:
        (self.things / "file").write_text("x")
        (self.things / "directory").mkdir()
        (self.things / "hook").write_text("#!/bin/sh\n")
        (self.things / "hook").chmod(0o755)
        os.mknod(self.things / "char", stat.S_IFCHR | 0o640, os.makedev(1, 3))
        os.chown(self.things / "char", 7, 8)
        os.chmod(self.things / "char", 0o640)
        os.mknod(self.things / "block", stat.S_IFBLK | 0o660, os.makedev(7, 99))
        os.mkfifo(self.things / "pipe")

    def files(self, pair: Pair) -> None:
        """Puts a pair's files into the directories, and nothing else."""
        for directory in self.directories.values():
            machine.run_command(["/bin/sh", "-c", f"rm -rf {directory}/*"]).check()
        for name, content in pair.files.items():
            top, _, rest = name.partition("/")
            path = self.directories[top] / rest
            path.parent.mkdir(exist_ok=True)
            text = content if isinstance(content, str) else json.dumps(content)
            path.write_text(text.replace("@/", f"{self.things}/"))

    def run(self, *options: str) -> tuple[Spec | None, str]:
        """The config.json of a container with these options, or None and podman's words."""
        self.kept.unlink(missing_ok=True)
        flags = ["--root", f"{self.home}/data", "--runroot", f"{self.home}/runroot", "--tmpdir", f"{self.home}/tmp"]
        flags += ["--cgroup-manager", "cgroupfs", "--events-backend", "file", "--runtime", str(self.runtime)]
        words = ["run", "--rm", "--network", "none", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"]
        words += ["--hostname", "h", "--env", "HOME=/h", *options, "--rootfs", f"{self.home}/root", "/x"]
        environment = {
            "PATH": machine.DIRECTORIES,
            "HOME": str(self.home),
            "CONTAINERS_CONF": f"{self.home}/containers.conf",
        }
        argv = [*self.holder.enter, machine.find_program("podman"), *flags, *words]
        done = machine.run_command(argv, env=environment, cwd=self.home)
        if not self.kept.exists():
            return None, done.text
        text = self.kept.read_text()
        identity = str(json.loads(text)["linux"]["cgroupsPath"]).rpartition("libpod-")[2]
        found: Spec = json.loads(text.replace(identity, "ID"))
        found["annotations"].pop("io.kubernetes.cri-o.Created", None)  # podman up to 4
        return found, done.text

    def plain(self, options: tuple[str, ...]) -> Spec:
        """The config.json without a device."""
        if options not in self._plain:
            found, text = self.run(*options)
            assert found is not None, text
            self._plain[options] = found
        return copy.deepcopy(self._plain[options])

    def theirs(self, pair: Pair) -> tuple[Spec | None, str]:
        """What podman makes of a pair."""
        return self.run(*pair.options, *(word for name in pair.ask for word in ("--device", name)))

    def ours(self, pair: Pair) -> tuple[Spec | None, str]:
        """What we make of it."""
        made = self.plain(pair.options)
        request = Request()
        request.cdi_devices = tuple(DeviceRequest(name, "the test", name) for name in pair.ask)
        config = Config(spec_dirs=tuple(str(path) for path in self.directories.values()))
        try:
            planned = cdi_devices.translate_cdi_devices(
                request, made, config, Host("/"), state_dir.StateCache(), []
            ).edits
        except Fault as fault:
            return None, str(fault)
        spec_edits.apply_to_spec(made, planned)
        once = copy.deepcopy(made)
        spec_edits.apply_to_spec(made, planned)
        assert made == once, "a second time changes something"
        return made, ""


@pytest.fixture(scope="module")
def podman() -> Iterator[Podman]:
    require_programs("podman", "unshare", "nsenter")
    podman = Podman(Path(tempfile.mkdtemp(prefix="cdi-")))  # podman wants short names
    yield podman
    podman.holder.stop()
    machine.remove_tree(podman.home)


def settled(made: Spec, plain: Spec) -> Spec:
    """A spec with what podman adds itself first in its lists, by name: podman has it in maps, whose order is chance."""
    names = {entry.partition("=")[0] for entry in plain["process"]["env"]}
    places = {mount["destination"] for mount in plain["mounts"]}

    def by_name(entry: str) -> tuple[bool, str]:
        name = entry.partition("=")[0]
        return name not in names, name if name in names else ""

    def by_place(mount: Spec) -> tuple[bool, str]:
        place = mount["destination"]
        return place not in places, place if place in places else ""

    made = copy.deepcopy(made)
    made["process"]["env"].sort(key=by_name)
    made["mounts"].sort(key=by_place)
    return made


# --- what makes two specs alike but for one difference: each changes both in place -------------------


def _env(ours: Spec, theirs: Spec) -> None:
    for spec in (ours, theirs):
        last: dict[str, str] = {}
        for entry in spec["process"]["env"]:
            last[entry.partition("=")[0]] = entry
        spec["process"]["env"] = list(last.values())


def _rules(ours: Spec, theirs: Spec) -> None:
    for spec in (ours, theirs):
        kept: list[Spec] = []
        for rule in spec["linux"]["resources"]["devices"]:
            covered = [
                one
                for one in kept
                if one["allow"]
                and all(one.get(key) == rule.get(key) for key in ("allow", "type", "major", "minor"))
                and set(rule["access"]) <= set(one["access"])
            ]
            if not covered:
                kept.append(rule)
        spec["linux"]["resources"]["devices"] = kept


def _order(ours: Spec, theirs: Spec) -> None:
    for spec in (ours, theirs):
        spec["mounts"].sort(key=lambda mount: (_depth(mount), mount["destination"]))


def _depth(mount: Spec) -> int:
    return posixpath.normpath(str(mount["destination"])).count("/")


def _mode(ours: Spec, theirs: Spec) -> None:
    left_out = [one["path"] for one in theirs["linux"].get("devices", []) if "fileMode" not in one]
    for node in ours["linux"].get("devices", []):
        if node["path"] in left_out:
            node.pop("fileMode", None)


def _hook_env(ours: Spec, theirs: Spec) -> None:
    for stage, hooks in theirs.get("hooks", {}).items():
        for mine, other in zip(ours["hooks"][stage], hooks, strict=True):
            if "env" not in other:
                assert mine.pop("env") == ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]


ALIKE: dict[str, Callable[[Spec, Spec], None]] = {
    "env": _env, "rules": _rules, "order": _order, "mode": _mode, "hook-env": _hook_env,
}  # fmt: skip

# Which of DIFFERENCES were seen.
SEEN: set[str] = set()


@pytest.mark.parametrize("name", PAIRS)
def test_our_config_json_is_podmans_but_for_what_is_meant_to_differ(podman: Podman, name: str) -> None:
    pair = PAIRS[name].for_podman(podman.version)
    podman.files(pair)
    theirs, their_words = podman.theirs(pair)
    ours, our_words = podman.ours(pair)
    assert (theirs is None) == (pair.refused in ("both", "podman")), their_words
    assert (ours is None) == (pair.refused in ("both", "us")), our_words
    if ours is None or theirs is None:
        SEEN.update(pair.differs)
        assert "Traceback" not in our_words
        assert bool(pair.differs) == (pair.refused != "both")
        return
    anything = "any" in pair.differs
    if "mounts" in json.dumps(pair.files):
        for made in (ours, theirs):
            depths = [_depth(mount) for mount in made["mounts"]]
            assert depths == sorted(depths), "the mounts are not in the order of their depth"
    ours, theirs = (settled(made, podman.plain(pair.options)) for made in (ours, theirs))
    for key in ALIKE if anything else pair.differs:
        # The difference is there, and nothing else makes it vanish: the table says no more than is so.
        before = copy.deepcopy((ours, theirs))
        others = [other for other in (ALIKE if anything else pair.differs) if other != key]
        for other in others:
            ALIKE[other](*before)
        if before[0] != before[1]:
            SEEN.add(key)
        else:
            assert anything, f"podman and we do not differ in {key}"
    for key in ALIKE if anything else pair.differs:
        ALIKE[key](ours, theirs)
    assert ours == theirs


def test_the_differences_on_purpose(podman: Podman, capsys: pytest.CaptureFixture[str]) -> None:
    """Prints them; each was seen above, so that the table is not longer than the truth."""
    with capsys.disabled():
        print(f"\n{len(PAIRS)} pairs; podman {podman.version} and we differ in:")
        expected = {key: DIFFERENCES[key] for key in DIFFERENCES if not is_gone(key, podman.version)}
        for key, reason in expected.items():
            print(f"  {key:<10} {reason}")
    assert set(expected) == SEEN
