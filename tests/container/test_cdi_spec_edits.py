"""Container edits on a config.json; the tables follow those of the reference library's own tests (pkg/cdi)."""

from __future__ import annotations

import copy
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from gpu_oci_hook.cdi import translate
from gpu_oci_hook.cdi.resolved_edits import ResolvedEdits
from gpu_oci_hook.container import cdi_spec_edits, spec_edits
from gpu_oci_hook.container.cdi_spec_edits import has_cdi_edits
from gpu_oci_hook.container.spec_edits import apply_to_spec
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.formats.oci import get_member
from gpu_oci_hook.host.root import Host
from gpu_oci_hook.model.cdi_edits import AddCdiDeviceNode, AddCdiHook, AddCdiMount, SortMounts
from gpu_oci_hook.model.edits import Edit

Spec = dict[str, Any]
DENY = {"allow": False, "access": "rwm"}
PATH = "PATH=/usr/sbin:/usr/bin:/sbin:/bin"
NODE = {"path": "/dev/x", "type": "c", "major": 60, "minor": 3}
MOUNT = {"hostPath": "/s", "containerPath": "/m", "options": ["bind"]}
OCI_NODE = {"path": "/dev/x", "type": "c", "major": 60, "minor": 3}
RULE = {"allow": True, "type": "c", "major": 60, "minor": 3, "access": "rwm"}


def apply_edits(spec: Spec, *edits: Spec, root: str = "/nowhere", inside: bool = False) -> Spec:
    """The spec with the edits of some parts; made twice, since nothing may change the second time."""
    host = Host(root)
    parts = [
        ResolvedEdits(f"vendor.com/dev={place}", "/etc/cdi/x.json", f"devices[{place}].containerEdits", edit, "asked")
        for place, edit in enumerate(edits)
    ]
    made = copy.deepcopy(spec)
    planned = translate.translate_cdi_edits(parts, made, host, process_in_user_namespace=inside)
    assert made == spec, "planning has changed the spec"
    spec_edits.apply_to_spec(made, planned)
    once = copy.deepcopy(made)
    assert cdi_spec_edits.has_cdi_edits(made, planned)
    spec_edits.apply_to_spec(made, translate.translate_cdi_edits(parts, made, host, process_in_user_namespace=inside))
    assert made == once, "a second time changes something"
    for edit in planned:
        assert edit.describe() and edit.kind and isinstance(edit.to_data(), dict) and edit.reason
    return made


def hooks(stage: str, *entries: Spec) -> Spec:
    return {"hooks": {stage: list(entries)}}


# What is before, the edits of one or more parts, what is after.
CASES: dict[str, tuple[Spec, list[Spec], Spec]] = {
    "empty edits": ({}, [{}], {}),
    "empty lists": ({}, [{"env": [], "mounts": [], "deviceNodes": [], "hooks": [], "additionalGids": []}], {}),
    "a variable added": (
        {"process": {"env": ["A=1"]}}, [{"env": ["B=2"]}], {"process": {"env": ["A=1", "B=2"]}}
    ),
    "a variable replaced where it stands": (
        {"process": {"env": ["A=1", "B=1", "C=1"]}}, [{"env": ["B=2"]}], {"process": {"env": ["A=1", "B=2", "C=1"]}}
    ),
    "of a variable set twice the last is replaced": (
        {"process": {"env": ["A=1", "A=2"]}}, [{"env": ["A=3"]}], {"process": {"env": ["A=1", "A=3"]}}
    ),
    "the last of two edits wins": (
        {}, [{"env": ["A=1"]}, {"env": ["A=2"]}], {"process": {"env": ["A=2"]}}
    ),
    "a name that begins like another": (
        {"process": {"env": ["AB=1"]}}, [{"env": ["A=2"]}], {"process": {"env": ["AB=1", "A=2"]}}
    ),
    "a node with the default permissions": (
        {}, [{"deviceNodes": [NODE]}], {"linux": {"devices": [OCI_NODE], "resources": {"devices": [RULE]}}}
    ),
    "explicit permissions": (
        {},
        [{"deviceNodes": [{**NODE, "permissions": "rw"}]}],
        {"linux": {"devices": [OCI_NODE], "resources": {"devices": [{**RULE, "access": "rw"}]}}},
    ),
    "permissions of none": (
        {}, [{"deviceNodes": [{**NODE, "permissions": "none"}]}], {"linux": {"devices": [OCI_NODE]}}
    ),
    "a rule that is there": (
        {"linux": {"resources": {"devices": [DENY, RULE]}}},
        [{"deviceNodes": [NODE]}],
        {"linux": {"devices": [OCI_NODE], "resources": {"devices": [DENY, RULE]}}},
    ),
    "a rule that a later one takes back": (
        {"linux": {"resources": {"devices": [RULE, DENY]}}},
        [{"deviceNodes": [NODE]}],
        {"linux": {"devices": [OCI_NODE], "resources": {"devices": [RULE, DENY, RULE]}}},
    ),
    "a rule for the block device of the same numbers": (
        {"linux": {"resources": {"devices": [RULE]}}},
        [{"deviceNodes": [{**NODE, "type": "b"}]}],
        {"linux": {"devices": [{**OCI_NODE, "type": "b"}], "resources": {"devices": [RULE, {**RULE, "type": "b"}]}}},
    ),
    "an unbuffered node gets no rule": (
        {}, [{"deviceNodes": [{**NODE, "type": "u"}]}], {"linux": {"devices": [{**OCI_NODE, "type": "u"}]}}
    ),
    "a pipe gets no numbers and no rule": (
        {},
        [{"deviceNodes": [{"path": "/dev/p", "type": "p", "fileMode": 384}]}],
        {"linux": {"devices": [{"path": "/dev/p", "type": "p", "major": 0, "minor": 0, "fileMode": 384}]}},
    ),
    "mode and owner as they are said, 0 too": (
        {"process": {"user": {"uid": 5, "gid": 6}}},
        [{"deviceNodes": [{**NODE, "fileMode": 0o640, "uid": 0, "gid": 0}]}],
        {
            "process": {"user": {"uid": 5, "gid": 6}},
            "linux": {
                "devices": [{**OCI_NODE, "fileMode": 0o640, "uid": 0, "gid": 0}], "resources": {"devices": [RULE]}
            },
        },
    ),
    "an owner that is not said is the container's user": (
        {"process": {"user": {"uid": 5, "gid": 0}}},
        [{"deviceNodes": [NODE]}],
        {
            "process": {"user": {"uid": 5, "gid": 0}},
            "linux": {"devices": [{**OCI_NODE, "uid": 5}], "resources": {"devices": [RULE]}},
        },
    ),
    "a node in the place of another": (
        {"linux": {"devices": [{"path": "/dev/x", "type": "c", "major": 1, "minor": 1}, {"path": "/dev/y"}]}},
        [{"deviceNodes": [NODE]}],
        {"linux": {"devices": [{"path": "/dev/y"}, OCI_NODE], "resources": {"devices": [RULE]}}},
    ),
    "a mount": (
        {"mounts": [{"destination": "/proc"}]},
        [{"mounts": [{"hostPath": "none", "containerPath": "/m", "type": "tmpfs", "options": ["ro"]}]}],
        {"mounts": [
            {"destination": "/proc"}, {"destination": "/m", "type": "tmpfs", "source": "none", "options": ["ro"]}
        ]},
    ),
    "a mount without type": (
        {},
        [{"mounts": [{"hostPath": "/a", "containerPath": "/m", "options": ["rbind"]}]}],
        {"mounts": [{"destination": "/m", "source": "/nowhere/a", "options": ["rbind"]}]},
    ),
    "a mount in the place of another": (
        {"mounts": [{"destination": "/m", "source": "old"}, {"destination": "/n"}]},
        [{"mounts": [{"hostPath": "/a", "containerPath": "/m", "options": ["bind"]}]}],
        {"mounts": [{"destination": "/n"}, {"destination": "/m", "source": "/nowhere/a", "options": ["bind"]}]},
    ),
    "mounts by depth, those of one depth as they were": (
        {"mounts": [{"destination": d} for d in ("/z/a", "/b", "/a/b/c", "/a", "/z//b/.", "/")]},
        [{"mounts": [{"hostPath": "/s", "containerPath": "/m/n", "options": ["bind"]}]}],
        {"mounts": [
            *({"destination": d} for d in ("/b", "/a", "/", "/z/a", "/z//b/.")),
            {"destination": "/m/n", "source": "/nowhere/s", "options": ["bind"]},
            {"destination": "/a/b/c"},
        ]},
    ),
    "mounts stay as they are without a mount": (
        {"mounts": [{"destination": "/a/b"}, {"destination": "/a"}]},
        [{"env": ["A=1"]}],
        {"mounts": [{"destination": "/a/b"}, {"destination": "/a"}], "process": {"env": ["A=1"]}},
    ),
    "a hook of each stage": (
        hooks("poststop", {"path": "/old"}),
        [{"hooks": [
            {"hookName": stage, "path": f"/{stage}", "args": [stage, "x"], "env": ["E=1"], "timeout": 5}
            for stage in ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")
        ]}],
        {"hooks": {
            "poststop": [
                {"path": "/old"}, {"path": "/poststop", "args": ["poststop", "x"], "env": ["E=1"], "timeout": 5}
            ],
            **{
                stage: [{"path": f"/{stage}", "args": [stage, "x"], "env": ["E=1"], "timeout": 5}]
                for stage in ("prestart", "createRuntime", "createContainer", "startContainer", "poststart")
            },
        }},
    ),
    "a hook without an environment gets a path": (
        {}, [{"hooks": [{"hookName": "prestart", "path": "/h"}]}], hooks("prestart", {"path": "/h", "env": [PATH]})
    ),
    "the same hook of two devices is two": (
        {},
        [{"hooks": [{"hookName": "prestart", "path": "/h", "env": ["A=1"]}]}] * 2,
        hooks("prestart", *[{"path": "/h", "env": ["A=1"]}] * 2),
    ),
    "a hook that the engine has made": (
        hooks("prestart", {"path": "/h"}),
        [{"hooks": [{"hookName": "prestart", "path": "/h"}]}],
        hooks("prestart", {"path": "/h"}),
    ),
    "groups once each, and 0 never": (
        {"process": {"user": {"additionalGids": [5]}}},
        [{"additionalGids": [5, 0, 6]}, {"additionalGids": [6, 7]}],
        {"process": {"user": {"additionalGids": [5, 6, 7]}}},
    ),
    "network interfaces": (
        {"linux": {"netDevices": {"eth9": {"name": "old"}, "eth1": {"name": "a"}}}},
        [{"netDevices": [{"hostInterfaceName": "eth9", "name": "new"}, {"hostInterfaceName": "eth2", "name": "b"}]}],
        {"linux": {"netDevices": {"eth9": {"name": "new"}, "eth1": {"name": "a"}, "eth2": {"name": "b"}}}},
    ),
    "RDT takes the place of what is there": (
        {"linux": {"intelRdt": {"closID": "old", "l3CacheSchema": "x"}}},
        [{"intelRdt": {"closID": "new", "schemata": ["L3:0=f"], "enableMonitoring": False}}],
        {"linux": {"intelRdt": {"closID": "new", "schemata": ["L3:0=f"]}}},
    ),
    "of several RDT the last counts": (
        {},
        [{"intelRdt": {"closID": "1"}}, {"intelRdt": {"closID": "2"}}, {"env": ["A=1"]}],
        {"linux": {"intelRdt": {"closID": "2"}}, "process": {"env": ["A=1"]}},
    ),
    "unknown keys of the config.json survive": (
        {"x": {"y": [1.5]}, "process": {"new": 1}},
        [{"env": ["A=1"]}],
        {"x": {"y": [1.5]}, "process": {"new": 1, "env": ["A=1"]}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_edits_make_this_of_that(name: str) -> None:
    before, edits, after = CASES[name]
    assert apply_edits(before, *edits) == after


def test_all_kinds_are_made_in_the_librarys_order() -> None:
    """Kind by kind over all parts, so that a file's own edits and those of its devices are not mixed up."""
    parts = [
        ResolvedEdits("n", "/f", "w", {"hooks": [{"hookName": "prestart", "path": "/1"}], "env": ["A=1"]}, "r"),
        ResolvedEdits("n", "/f", "w", {"mounts": [MOUNT], "env": ["B=1"]}, "r"),
        ResolvedEdits("n", "/f", "w", {"additionalGids": [4], "deviceNodes": [NODE], "intelRdt": {"closID": "x"}}, "r"),
        ResolvedEdits("n", "/f", "w", {"netDevices": [{"hostInterfaceName": "e", "name": "f"}]}, "r"),
    ]
    kinds = [
        edit.kind
        for edit in translate.translate_cdi_edits(parts, {}, Host("/nowhere"), process_in_user_namespace=False)
    ]
    assert kinds == ["env", "env", "device", "rule", "net-device", "mount", "order", "hook", "rdt", "group"]


# --- the host's nodes ------------------------------------------------------------------------------

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root can make device nodes")


@pytest.fixture
def host(tmp_path: Path) -> Path:
    (tmp_path / "dev").mkdir()
    os.mknod(tmp_path / "dev/char", stat.S_IFCHR, os.makedev(1, 3))
    os.chmod(tmp_path / "dev/char", 0o640)
    os.mknod(tmp_path / "dev/block", stat.S_IFBLK | 0o600, os.makedev(7, 9))
    os.mkfifo(tmp_path / "dev/pipe", 0o600)
    (tmp_path / "dev/file").write_text("")
    (tmp_path / "dev/link").symlink_to("char")
    return tmp_path


# What the file says, what linux.devices gets.
FILLED = {
    "all of it": ({"path": "/dev/char"}, ("c", 1, 3, 0o640)),
    "by another path": ({"path": "/dev/z", "hostPath": "/dev/char"}, ("c", 1, 3, 0o640)),
    "a block device": ({"path": "/dev/block"}, ("b", 7, 9, 0o600)),
    "a type and no numbers": ({"path": "/dev/char", "type": "c"}, ("c", 1, 3, 0o640)),
    "a minor is nothing without a major": ({"path": "/dev/char", "type": "c", "minor": 9}, ("c", 1, 3, 0o640)),
    "a mode that is said": ({"path": "/dev/char", "fileMode": 0o600}, ("c", 1, 3, 0o600)),
    "numbers that are said": (
        {"path": "/dev/char", "type": "c", "major": 1, "minor": 3}, ("c", 1, 3, 0o640)
    ),
    "an unbuffered device": ({"path": "/dev/char", "type": "u"}, ("u", 1, 3, 0o640)),
    "a pipe": ({"path": "/dev/pipe", "type": "p"}, ("p", 0, 0, 0o600)),
}  # fmt: skip


@needs_root
@pytest.mark.parametrize("name", FILLED)
def test_what_a_file_leaves_out_comes_from_the_hosts_node(host: Path, name: str) -> None:
    node, wanted = FILLED[name]
    (made,) = apply_edits({}, {"deviceNodes": [node]}, root=str(host))["linux"]["devices"]
    assert tuple(made.get(key) for key in ("type", "major", "minor", "fileMode")) == wanted


@needs_root
@pytest.mark.parametrize(
    ("node", "text"),
    [
        ({"path": "/dev/none"}, "/dev/none, which vendor.com/dev=0 needs, is missing on this host"),
        ({"path": "/dev/none", "type": "c"}, "missing"),
        ({"path": "/dev/none", "major": 1, "minor": 3}, "missing"),
        ({"path": "/dev/file"}, "not a device node"),
        ({"path": "/dev/link"}, "not a device node"),  # the library follows no links either
        ({"path": "/dev/char", "type": "b"}, '"c" on this host, and vendor.com/dev=0 expects "b"'),
        ({"path": "/dev/char", "type": "b", "major": 1, "minor": 3}, 'expects "b"'),
        ({"path": "/dev/block", "type": "u"}, 'expects "u"'),
    ],
)
def test_a_node_that_cannot_be_given_is_named_with_its_file(host: Path, node: Spec, text: str) -> None:
    with pytest.raises(Fault) as caught:
        apply_edits({}, {"deviceNodes": [node]}, root=str(host))
    assert text in str(caught.value)
    assert str(caught.value).startswith("/etc/cdi/x.json: devices[0].containerEdits.deviceNodes[0]")


@needs_root
@pytest.mark.parametrize("inside", [False, True])
def test_in_a_user_namespace_the_hosts_nodes_are_bound(host: Path, inside: bool) -> None:
    spec: Spec = {"linux": {"namespaces": [{"type": "user"}], "resources": {"devices": [DENY]}}}
    edits = {"deviceNodes": [{"path": "/dev/z", "hostPath": "/dev/char"}]}
    made = apply_edits(spec, edits, root=str(host), inside=inside)
    assert made["mounts"] == [
        {
            "destination": "/dev/z",
            "type": "bind",
            "source": f"{host}/dev/char",
            "options": ["nosuid", "noexec", "bind", "rprivate"],
        }
    ]
    assert "devices" not in made["linux"]
    rules = made["linux"]["resources"]["devices"]
    assert rules == ([DENY] if inside else [DENY, {**RULE, "major": 1, "minor": 3}])


def test_in_a_user_namespace_a_node_that_is_not_there_is_an_error() -> None:
    with pytest.raises(Fault, match="missing on this host"):
        apply_edits({"linux": {"namespaces": [{"type": "user"}]}}, {"deviceNodes": [NODE]})


# --- paths -----------------------------------------------------------------------------------------


def test_sources_lie_below_the_hosts_root_links_followed_inside(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/real").write_text("")
    (tmp_path / "lib/link").symlink_to("/lib/real")
    edits = {"mounts": [{"hostPath": "/lib/link", "containerPath": "/m", "options": ["bind"]}]}
    assert apply_edits({}, edits, root=str(tmp_path))["mounts"][0]["source"] == f"{tmp_path}/lib/real"


def test_a_file_made_for_a_host_elsewhere_may_name_that_directory(tmp_path: Path) -> None:
    (tmp_path / "hook").write_text("")
    edits = {
        "mounts": [{"hostPath": f"{tmp_path}/lib", "containerPath": "/m", "type": "bind", "options": ["rbind"]}],
        "hooks": [{"hookName": "prestart", "path": f"{tmp_path}/hook"}],
    }
    made = apply_edits({}, edits, root=str(tmp_path))
    assert made["mounts"][0]["source"] == f"{tmp_path}/lib"
    assert made["hooks"]["prestart"][0]["path"] == f"{tmp_path}/hook"


def test_a_hooks_program_is_the_hosts_or_else_this_machines(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/own").write_text("")
    edits = {"hooks": [{"hookName": "prestart", "path": path} for path in ("/bin/own", "/bin/sh")]}
    made = apply_edits({}, edits, root=str(tmp_path))["hooks"]["prestart"]
    assert [hook["path"] for hook in made] == [f"{tmp_path}/bin/own", "/bin/sh"]


def test_a_hook_of_the_container_is_the_containers(tmp_path: Path) -> None:
    (tmp_path / "hook").write_text("")
    edits = {"hooks": [{"hookName": "startContainer", "path": "/hook"}]}
    made = apply_edits({}, edits, root=str(tmp_path))
    assert made["hooks"]["startContainer"][0]["path"] == "/hook"


def test_a_hook_without_an_absolute_path_is_refused() -> None:
    with pytest.raises(Fault, match="not an absolute path"):
        apply_edits({}, {"hooks": [{"hookName": "prestart", "path": "hook"}]})


@pytest.mark.parametrize(
    "spec", [{"mounts": {}}, {"linux": []}, {"hooks": []}, {"hooks": {"prestart": {}}}, {"process": {"env": "x"}}]
)
def test_a_config_json_of_another_shape_is_an_error_in_one_sentence(spec: Spec) -> None:
    edits = {
        "env": ["A=1"],
        "mounts": [{"hostPath": "/s", "containerPath": "/m", "options": ["bind"]}],
        "deviceNodes": [NODE],
        "hooks": [{"hookName": "prestart", "path": "/h"}],
    }
    with pytest.raises(Fault, match=r"config\.json"):
        apply_edits(spec, edits)


@pytest.mark.parametrize(
    "more", [{}, {"options": ["ro"]}, {"type": "bind"}, {"type": "none", "options": ["ro", "Bind"]}]
)
def test_a_mount_that_no_runtime_makes_is_refused_with_its_place_and_the_word_that_it_lacks(more: Spec) -> None:
    mounts = [{"hostPath": "/s", "containerPath": "/m", **more}]
    with pytest.raises(Fault, match=r"/m, which .* mounts, has neither bind nor rbind in its options") as caught:
        apply_edits({}, {"mounts": mounts})
    assert caught.value.where.endswith("containerEdits.mounts[0]") and caught.value.hint == "Add rbind to its options"


@pytest.mark.parametrize("more", [{"type": "tmpfs"}, {"type": "proc"}, {"type": "x", "options": ["rbind"]}])
def test_a_mount_that_runtimes_make_goes_in_as_it_is(more: Spec) -> None:
    (made,) = apply_edits({}, {"mounts": [{"hostPath": "/nowhere/s", "containerPath": "/m", **more}]})["mounts"]
    assert made == {"destination": "/m", "source": "/nowhere/s", **more}


@pytest.mark.parametrize("again", [False, True], ids=["first", "again, in another order"])
def test_thousands_of_edits_take_time_in_proportion(again: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted in looks at entries, not in seconds."""
    count = 1000
    edits: list[Edit] = [AddCdiMount(f"/s/{n}", f"/d/{n}", ("rbind",), "", "x") for n in range(count)]
    edits += [AddCdiDeviceNode(f"/dev/{n}", "c", (1, n), None, (None, None), "x") for n in range(count)]
    edits += [AddCdiHook("prestart", f"/h/{n}", (), ("A=b",), None, "x") for n in range(count)]
    edits.append(SortMounts("x"))
    spec: dict[str, Any] = {}
    apply_to_spec(spec, edits)
    if again:
        edits = [*reversed(edits[:-1]), edits[-1]]
    looks = 0

    def look(value: object, *keys: str) -> object:
        nonlocal looks
        looks += 1
        return get_member(value, *keys)

    monkeypatch.setattr(cdi_spec_edits, "get_member", look)
    target: dict[str, Any] = spec if again else {}
    apply_to_spec(target, edits)
    assert has_cdi_edits(target, edits)
    assert looks < 20 * count
    assert [len(target[key]) for key in ("mounts",)] == [count] and len(target["linux"]["devices"]) == count
    assert len(target["hooks"]["prestart"]) == count
