"""Pairs of CDI files and requests for the comparison with podman: files, requested devices, intended differences.

"@" in a file is a directory with what the files of a driver would be: `file`, `directory`, the nodes `char` (1:3,
mode 0640, owner 7:8), `block` (7:99), `pipe`, and the program `hook`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

from support.e2e import machine

Edits = dict[str, Any]

# What podman does otherwise than we do, on purpose; each pair names those that it shows.
DIFFERENCES = {
    "env": "podman adds a variable that is there already a second time; we replace it, or a reader of the first entry "
    "would be wrong",
    "rules": "podman writes a device rule again that is there; we do not, so that a second try changes nothing",
    "order": "podman's library (0.5) sorts mounts of one depth by name; later ones, and we, leave them in their order",
    "mode": "podman's library leaves the mode of a node out that the file does not give; later ones, and we, take the "
    "host's",
    "hook-env": "podman leaves a hook without an environment as it is, and runc up to 1.2 hands such a one the image's "
    "(CVE-2025-23266); we give it a PATH",
    "missing": "podman takes a mount's source or a hook that is not there, and the runtime then fails with a bare "
    "stat error; we refuse with the file and the device",
    "unmade": "podman hands on a mount that no runtime makes, for want of bind among its options, and the container "
    "does not start; we refuse with the place",
    "numbers": "podman hands out other numbers than the host's node has; we refuse, since the file is of another boot",
    "relative": "podman hands a hook with a relative path on, which the runtime looks for where it runs; we refuse",
    "unbuffered": 'podman refuses type "u" for a node that the host has as "c", which is the same device; we take it',
    "newer": "podman's library reads CDI up to 0.5.0 and refuses the whole file; we read up to 1.1.0",
    "version": "podman's library takes a node's hostPath in a file that declares less than 0.5.0; later ones, and we, "
    "refuse the file",
    "kind": "podman's library looks at a device's type on the host only where the file does not say its numbers; "
    "later ones, and we, refuse another type",
}


# Those that podman 5, whose library reads CDI 0.6 and later, shows no longer, and who refuses such a file then.
GONE_WITH_PODMAN_5 = {"newer": "", "version": "both", "order": ""}
# With which podman a difference is gone, if that is not 5.0. 5.4 has library 0.8, 5.8 has 1.0.
GONE_SINCE = {"order": (5, 8)}


def podman_version() -> str:
    """podman's version, such as "4.3.1"."""
    return machine.run_command([machine.find_program("podman"), "--version"]).check().stdout.split()[-1]


def is_gone(difference: str, version: str) -> bool:
    """Tell whether a podman of this version shows a difference no longer."""
    numbers = tuple(map(int, version.split(".")[:2]))
    return difference in GONE_WITH_PODMAN_5 and numbers >= GONE_SINCE.get(difference, (5, 0))


@dataclass(frozen=True)
class Pair:
    """One comparison.

    Arguments:
        files: name below the directories, "etc/a.json" or "run/a.yaml", to a spec or a text.
        ask: qualified names, in the order of the request.
        options: of `podman run`.
        differs: keys of DIFFERENCES that it shows.
        refused: by "both", or by "us" or "podman" alone (then `differs` says why).
    """

    files: dict[str, Any]
    ask: tuple[str, ...] = ("vendor.com/dev=a",)
    options: tuple[str, ...] = ()
    differs: frozenset[str] = field(default_factory=frozenset)
    refused: str = ""

    def for_podman(self, version: str) -> Pair:
        """The pair as a podman of this version is expected to show it."""
        gone = [key for key in self.differs if is_gone(key, version)]
        if not gone:
            return self
        return replace(self, differs=self.differs - set(gone), refused=GONE_WITH_PODMAN_5[gone[0]])


def make_spec(*devices: tuple[str, Edits], common: Edits | None = None, kind: str = "vendor.com/dev") -> dict[str, Any]:
    """Build a spec that podman 4.3 reads."""
    made: dict[str, Any] = {
        "cdiVersion": "0.5.0",
        "kind": kind,
        "devices": [{"name": name, "containerEdits": edits} for name, edits in devices],
    }
    if common is not None:
        made["containerEdits"] = common
    return made


def make_pair(edits: Edits, *differs: str, ask: tuple[str, ...] = ("vendor.com/dev=a",), **more: Any) -> Pair:
    """Build a pair of one file with one device."""
    return Pair({"etc/a.json": make_spec(("a", edits))}, ask, differs=frozenset(differs), **more)


def node_edits(path: str, **more: Any) -> Edits:
    """Build edits with one device node."""
    return {"deviceNodes": [{"path": path, **more}]}


def make_mount(destination: str, *options: str, source: str = "@/file", **more: Any) -> Edits:
    """Build a mount."""
    return {"hostPath": source, "containerPath": destination, "options": list(options or ("bind",)), **more}


def make_hook(stage: str, *args: str, env_edits: tuple[str, ...] = ("A=1",), **more: Any) -> Edits:
    """Build a hook whose program exists."""
    return {"hookName": stage, "path": "@/hook", "args": list(args), "env": list(env_edits), **more}


def env_edits(*entries: str) -> Edits:
    """Build edits with variables."""
    return {"env": list(entries)}


A, B, C = "vendor.com/dev=a", "vendor.com/dev=b", "vendor.com/dev=c"
NULL = {"path": "/dev/x", "type": "c", "major": 1, "minor": 3, "fileMode": 438}

WRITTEN_PAIRS: dict[str, Pair] = {
    # env
    "a variable": make_pair(env_edits("A=1")),
    "several variables": make_pair(env_edits("A=1", "B=", "C=a=b", "D=x y")),
    "a variable that is there": make_pair(env_edits("PATH=/opt"), "env"),
    "a variable of the container's own": make_pair(env_edits("X=new"), "env", options=("--env", "X=old")),
    "a variable of the container's own with this value": make_pair(env_edits("X=1"), "env", options=("--env", "X=1")),
    "a variable twice in a device": make_pair(env_edits("A=1", "A=2")),
    "a variable of the file and of the device": Pair(
        {"etc/a.json": make_spec(("a", env_edits("A=device")), common=env_edits("A=file", "B=1"))}
    ),
    "no list at all": Pair({"etc/a.json": make_spec(("a", env_edits("A=1")), common={})}),
    # device nodes
    "a node that says everything": make_pair({"deviceNodes": [NULL]}),
    "a node of the host's": make_pair(node_edits("@/char"), "mode"),
    "a node under another path": make_pair(node_edits("/dev/other", hostPath="@/char"), "mode"),
    "a node with a type": make_pair(node_edits("/dev/other", hostPath="@/char", type="c"), "mode"),
    "a node with a mode": make_pair(node_edits("/dev/other", hostPath="@/char", fileMode=0o600)),
    "a node with an owner": make_pair(node_edits("/dev/other", hostPath="@/char", uid=3, gid=4), "mode"),
    "a node that belongs to root": make_pair(node_edits("/dev/other", hostPath="@/char", uid=0, gid=0), "mode"),
    "a node for a user's process": make_pair({"deviceNodes": [NULL]}, options=("--user", "1000:1001")),
    "a node of root's for a user's process": make_pair(
        {"deviceNodes": [{**NULL, "uid": 0, "gid": 0}]}, options=("--user", "1000:1001")
    ),
    "a node for a user of group 0": make_pair({"deviceNodes": [NULL]}, options=("--user", "1000:0")),
    "a node to be read only": make_pair({"deviceNodes": [{**NULL, "permissions": "r"}]}),
    "a node to be made": make_pair({"deviceNodes": [{**NULL, "permissions": "rm"}]}),
    "a block device": make_pair(node_edits("/dev/b", hostPath="@/block"), "mode"),
    "a block device that says everything": make_pair(
        node_edits("/dev/b", type="b", major=259, minor=7, permissions="r")
    ),
    "a pipe": make_pair(node_edits("/dev/p", type="p", hostPath="@/pipe", fileMode=0o600)),
    "a pipe that the host does not have": make_pair(node_edits("/dev/p", type="p")),
    "a minor without a major": make_pair(node_edits("/dev/other", hostPath="@/char", type="c", minor=9), "mode"),
    "a major that the host need not have": make_pair(node_edits("/dev/none", type="c", major=60, minor=1)),
    "two nodes": make_pair({"deviceNodes": [NULL, {**NULL, "path": "/dev/y", "minor": 5}]}),
    "a node in the place of another": make_pair({"deviceNodes": [NULL, {**NULL, "minor": 5}]}),
    "a node that a container has anyway": make_pair({"deviceNodes": [{**NULL, "path": "/dev/full", "minor": 7}]}),
    "a node that the container has": make_pair(
        {"deviceNodes": [{"path": "/dev/full", "type": "c", "major": 1, "minor": 7, "fileMode": 438}]},
        "rules",
        options=("--device", "/dev/full:/dev/full:rwm"),
    ),
    "the same node for two devices": Pair(
        {"etc/a.json": make_spec(("a", {"deviceNodes": [NULL]}), ("b", {"deviceNodes": [NULL]}))},
        (A, B),
        differs=frozenset({"rules"}),
    ),
    "a node that is not there": make_pair(node_edits("/dev/none"), refused="both"),
    "a node that is none": make_pair(node_edits("/dev/other", hostPath="@/file"), refused="both"),
    "a node of another type": make_pair(node_edits("/dev/other", hostPath="@/char", type="b"), refused="both"),
    "a node of another type with numbers": make_pair(
        node_edits("/dev/other", hostPath="@/char", type="b", major=1, minor=3), "kind", refused="us"
    ),
    "a node with other numbers than the host's": make_pair(
        node_edits("/dev/other", hostPath="@/char", type="c", major=1, minor=5), "numbers", refused="us"
    ),
    "an unbuffered node of the host's": make_pair(
        node_edits("/dev/other", hostPath="@/char", type="u"), "unbuffered", refused="podman"
    ),
    "an unbuffered node that says everything": make_pair(
        node_edits("/dev/u", type="u", major=1, minor=3, fileMode=438)
    ),
    # mounts
    "a mount": make_pair({"mounts": [make_mount("/m")]}),
    "a mount with options": make_pair({"mounts": [make_mount("/m", "ro", "nosuid", "nodev", "bind")]}),
    "a mount with a type": make_pair({"mounts": [make_mount("/m", "ro", "bind", type="bind")]}),
    "a tmpfs": make_pair({"mounts": [make_mount("/m", "size=1m", source="tmpfs", type="tmpfs")]}),
    "a mount of a directory": make_pair({"mounts": [make_mount("/m", "rbind", source="@/directory")]}),
    "mounts deeper first": make_pair(
        {
            "mounts": [
                make_mount("/m/a/b/c"),
                make_mount("/m/a", source="@/directory"),
                make_mount("/m", source="@/directory"),
            ]
        }
    ),
    "mounts of one depth": make_pair({"mounts": [make_mount("/z"), make_mount("/y"), make_mount("/x")]}, "order"),
    "a mount that does not end well": make_pair({"mounts": [make_mount("/m//n/../o/"), make_mount("/m/p/")]}),
    "a mount twice": make_pair({"mounts": [make_mount("/m"), make_mount("/m", "ro", "bind")]}),
    "a mount in the place of the engine's": make_pair({"mounts": [make_mount("/etc/hosts", "ro", "bind")]}),
    "a mount in the place of the container's own": make_pair(
        {"mounts": [make_mount("/m", "ro", "bind")]}, options=("--volume", "/usr:/m")
    ),
    "a mount below the container's own": make_pair({"mounts": [make_mount("/m/n")]}, options=("--volume", "/usr:/m")),
    "a mount whose source is missing": make_pair(
        {"mounts": [make_mount("/m", source="@/none")]}, "missing", refused="us"
    ),
    "a mount without bind": make_pair(
        {"mounts": [{"hostPath": "@/file", "containerPath": "/m"}]}, "unmade", refused="us"
    ),
    "a mount of the type bind alone": make_pair(
        {"mounts": [make_mount("/m", "ro", type="bind")]}, "unmade", refused="us"
    ),
    # hooks
    **{
        f"a {stage} hook": make_pair({"hooks": [make_hook(stage, "hook", "--flag", "x y")]})
        for stage in ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")
    },
    "a hook with a time limit": make_pair({"hooks": [make_hook("createContainer", "hook", timeout=7)]}),
    "a hook without words": make_pair({"hooks": [make_hook("createContainer")]}),
    "a hook without an environment": make_pair({"hooks": [make_hook("createContainer", "hook", env=())]}, "hook-env"),
    "the same hook twice": make_pair(
        {"hooks": [make_hook("createContainer", "hook"), make_hook("createContainer", "hook")]}
    ),
    "the same hook of two devices": Pair(
        {
            "etc/a.json": make_spec(
                ("a", {"hooks": [make_hook("createContainer", "hook")]}),
                ("b", {"hooks": [make_hook("createContainer", "hook")]}),
            )
        },
        (A, B),
    ),
    "hooks of several stages": make_pair(
        {
            "hooks": [
                make_hook("poststop", "1"),
                make_hook("createContainer", "2"),
                make_hook("poststop", "3"),
                make_hook("prestart", "4"),
            ]
        }
    ),
    "a hook that is missing": make_pair(
        {"hooks": [{"hookName": "createContainer", "path": "@/none"}]}, "missing", refused="us"
    ),
    "a hook with a relative path": make_pair(
        {"hooks": [{"hookName": "createContainer", "path": "hook"}]}, "relative", refused="us"
    ),
    # several devices and files
    "devices in the order of the request": Pair(
        {
            "etc/a.json": make_spec(
                ("a", env_edits("A=a")), ("b", env_edits("B=b")), ("c", env_edits("C=c")), common=env_edits("F=f")
            )
        },
        (C, A, B),
    ),
    "the file's own edits once": Pair(
        {
            "etc/a.json": make_spec(
                ("a", env_edits("A=a")), ("b", env_edits("B=b")), common={"hooks": [make_hook("createContainer", "f")]}
            )
        },
        (A, B),
    ),
    "two files": Pair(
        {
            "etc/a.json": make_spec(("a", env_edits("A=a")), common=env_edits("FA=1")),
            "etc/b.json": make_spec(("b", env_edits("B=b")), common=env_edits("FB=1")),
        },
        (B, A),
    ),
    "two files by turns": Pair(
        {
            "etc/a.json": make_spec(("a", env_edits("A=a")), ("c", env_edits("C=c")), common=env_edits("FA=1")),
            "etc/b.json": make_spec(("b", env_edits("B=b")), common=env_edits("FB=1")),
        },
        (A, B, C),
    ),
    "two kinds": Pair(
        {
            "etc/a.json": make_spec(("a", env_edits("A=a"))),
            "etc/o.json": make_spec(("a", env_edits("O=o")), kind="other.com/net"),
        },
        ("other.com/net=a", A),
    ),
    "a later directory wins": Pair(
        {"etc/a.json": make_spec(("a", env_edits("A=etc"))), "run/a.json": make_spec(("a", env_edits("A=run")))}
    ),
    "a later directory wins for one device": Pair(
        {
            "etc/a.json": make_spec(("a", env_edits("A=etc")), ("b", env_edits("B=etc")), common=env_edits("F=etc")),
            "run/a.json": make_spec(("a", env_edits("A=run")), common=env_edits("F2=run")),
        },
        (A, B),
    ),
    "yaml": Pair(
        {
            "etc/a.yaml": "---\ncdiVersion: 0.5.0\nkind: vendor.com/dev\ndevices:\n- name: a\n  containerEdits:\n"
            "    env: [A=1]\n    hooks:\n    - {hookName: poststop, path: '@/hook', args: [x], env: [B=1]}\n"
        }
    ),
    "a device in two files of one directory": Pair(
        {"etc/a.json": make_spec(("a", env_edits("A=1"))), "etc/b.json": make_spec(("a", env_edits("A=2")))},
        refused="both",
    ),
    "a conflict leaves the files' other devices": Pair(
        {
            "etc/a.json": make_spec(("a", env_edits("A=1")), ("b", env_edits("B=1"))),
            "etc/b.json": make_spec(("a", env_edits("A=2"))),
        },
        (B,),
    ),
    "a conflict that a later directory does not settle": Pair(
        {
            "etc/a.json": make_spec(("a", env_edits("A=1"))),
            "etc/b.json": make_spec(("a", env_edits("A=2"))),
            "run/a.json": make_spec(("a", env_edits("A=3"))),
        },
        refused="both",
    ),
    "a broken neighbour": Pair(
        {"etc/0.json": "{", "etc/a.json": make_spec(("a", env_edits("A=1"))), "etc/z.yaml": "a: ["}
    ),
    "a neighbour with an unknown field": Pair(
        {
            "etc/0.json": {**make_spec(("b", env_edits("B=1"))), "new": 1},
            "etc/a.json": make_spec(("a", env_edits("A=1"))),
        }
    ),
    "a file with an unknown field": Pair(
        {"etc/a.json": {**make_spec(("a", env_edits("A=1"))), "new": 1}}, refused="both"
    ),
    "a device without edits": Pair({"etc/a.json": make_spec(("a", {}))}, refused="both"),
    "a device without edits beside another": Pair(
        {"etc/a.json": make_spec(("a", env_edits("A=1")), ("b", {}))}, refused="both"
    ),
    "a file with another suffix": Pair({"etc/a.yml": make_spec(("a", env_edits("A=1")))}, refused="both"),
    "a file in a subdirectory": Pair({"etc/sub/a.json": make_spec(("a", env_edits("A=1")))}, refused="both"),
    "a version that is too low": Pair(
        {"etc/a.json": {**make_spec(("a", node_edits("/dev/o", hostPath="@/char"))), "cdiVersion": "0.4.0"}},
        differs=frozenset({"version"}),
        refused="us",
    ),
    "a device that nobody has": Pair({"etc/a.json": make_spec(("a", env_edits("A=1")))}, (A, B), refused="both"),
    "groups": Pair(
        {"etc/a.json": {**make_spec(("a", {"additionalGids": [44]})), "cdiVersion": "0.7.0"}},
        differs=frozenset({"newer"}),
        refused="podman",
    ),
    # everything
    "a file like NVIDIA's": Pair(
        {
            "etc/nvidia.yaml": make_spec(
                ("0", {"deviceNodes": [{"path": "/dev/nvidia0", "hostPath": "@/char"}]}),
                ("all", {"deviceNodes": [{"path": "/dev/nvidia0", "hostPath": "@/char"}]}),
                common={
                    "env": ["NVIDIA_VISIBLE_DEVICES=void"],
                    "deviceNodes": [{"path": "/dev/nvidiactl", "type": "c", "major": 195, "minor": 255}],
                    "hooks": [
                        make_hook("createContainer", "nvidia-cdi-hook", "create-symlinks", "--link", "a::/b"),
                        make_hook("createContainer", "nvidia-cdi-hook", "update-ldcache", "--folder", "/usr/lib"),
                    ],
                    "mounts": [
                        make_mount(
                            "/usr/lib/x86_64-linux-gnu/libcuda.so.1", "ro", "nosuid", "nodev", "rbind", "rprivate"
                        ),
                        make_mount("/run/nvidia-persistenced/socket", "ro", "nosuid", "nodev", "bind", "noexec"),
                    ],
                },
                kind="nvidia.example/gpu",
            )
        },
        ("nvidia.example/gpu=0", "nvidia.example/gpu=all"),
        differs=frozenset({"mode", "rules"}),
    ),
}


def generate_pairs(count: int, seed: int) -> dict[str, Pair]:
    """Generate pairs: one to three files in both directories, some devices, everything that podman reads."""
    chance = random.Random(seed)
    pairs: dict[str, Pair] = {}
    for number in range(count):
        files: dict[str, Any] = {}
        names: list[str] = []
        for place in range(chance.randint(1, 3)):
            kind = f"vendor{place}.com/dev"
            devices = [(f"d{index}", _edits(chance, f"{place}{index}")) for index in range(chance.randint(1, 3))]
            names += [f"{kind}={name}" for name, _ in devices]
            common = _edits(chance, f"{place}f") if chance.random() < 0.7 else None
            suffix = chance.choice(("json", "yaml"))
            directory = chance.choice(("etc", "run"))
            files[f"{directory}/f{place}.{suffix}"] = make_spec(*devices, common=common, kind=kind)
        ask = tuple(chance.sample(names, chance.randint(1, min(4, len(names)))))
        options = chance.choice(((), (), ("--user", "7:9"), ("--env", "E0=own"), ("--volume", "/usr:/m0/d1")))
        pairs[f"generated {seed}-{number}"] = Pair(files, ask, options, frozenset({"any"}))
    return pairs


def _edits(chance: random.Random, tag: str) -> Edits:
    """Generate some edits, at least one."""
    made: Edits = {}
    while not made:
        if chance.random() < 0.5:
            made["env"] = [f"E{chance.randint(0, 5)}={tag}{index}" for index in range(chance.randint(1, 3))]
        if chance.random() < 0.5:
            made["deviceNodes"] = [_node(chance, f"/dev/n{chance.randint(0, 5)}") for _ in range(chance.randint(1, 3))]
        if chance.random() < 0.5:
            places = [f"/m{chance.randint(0, 2)}" + "/d1" * chance.randint(0, 3) for _ in range(chance.randint(1, 4))]
            made["mounts"] = [
                make_mount(place, *chance.choice((("ro", "bind"), ("rbind",), ("bind", "nosuid", "nodev"))))
                for place in places
            ]
        if chance.random() < 0.5:
            stages = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")
            made["hooks"] = [
                make_hook(chance.choice(stages), "hook", tag) | ({"timeout": 3} if chance.random() < 0.3 else {})
                for _ in range(chance.randint(1, 2))
            ]
    return made


def _node(chance: random.Random, path: str) -> Edits:
    node: Edits = {"path": path}
    if chance.random() < 0.5:
        node["hostPath"] = chance.choice(("@/char", "@/block"))
    else:
        node |= {"type": chance.choice("cb"), "major": chance.randint(200, 250), "minor": chance.randint(0, 9)}
    if chance.random() < 0.5:
        node["fileMode"] = chance.choice((0o600, 0o666))
    if chance.random() < 0.3:
        node |= {"uid": chance.randint(0, 3), "gid": chance.randint(0, 3)}
    if chance.random() < 0.3:
        node["permissions"] = chance.choice(("r", "rw", "rwm", "m"))
    return node
