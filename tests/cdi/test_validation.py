"""What is wrong with a CDI file: the cases of pkg/cdi's own tests, and ours."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpu_oci_hook.cdi.spec import reading, validation
from gpu_oci_hook.cdi.spec.finding import Finding
from support.valid_specs import FULL_SPEC, SPECS_BY_VERSION, Spec, minimal_spec, with_change

EDITS = "devices[0].containerEdits"


def found(spec: object, **more: Any) -> list[tuple[str, str, str]]:
    return [(one.level, one.where, one.text) for one in validation.validate_spec(spec, "x.json", **more)]


def only(spec: object, **more: Any) -> Finding:
    (one,) = validation.validate_spec(spec, "x.json", **more)
    return one


def device(**values: Any) -> Spec:
    """A file with a device node that has these values, too."""
    return minimal_spec("0.5.0", deviceNodes=[{"path": "/dev/null", **values}])


def hook(**values: Any) -> Spec:
    return minimal_spec(hooks=[{"hookName": "prestart", "path": "/usr/bin/x", **values}])


def rdt(**values: Any) -> Spec:
    return minimal_spec("1.1.0", intelRdt=values)


def net(*pairs: tuple[str, str]) -> Spec:
    return minimal_spec("1.1.0", netDevices=[{"hostInterfaceName": host, "name": name} for host, name in pairs])


GOOD: dict[str, Spec] = {
    "an environment variable": minimal_spec(env=["BAR=BARVALUE1"]),
    "a variable without a value": minimal_spec(env=["BAR="]),
    "a variable with an equals sign in its value": minimal_spec(env=["BAR=a=b"]),
    "a device, path only": device(),
    "a device, path and type": device(type="c"),
    "a device of any type": device(type=""),
    "a device, path, type and permissions": device(type="b", permissions="rwm"),
    "a device, permissions omitted": device(permissions=""),
    "a FIFO": device(type="p"),
    "an unbuffered device": device(type="u", major=1, minor=2),
    "the greatest device numbers": device(type="c", major=2**63 - 1, minor=0, uid=2**32 - 1, gid=0, fileMode=2**32 - 1),
    "a mount": minimal_spec(mounts=[{"hostPath": "/dev/vendorctl", "containerPath": "/dev/vendorctl"}]),
    "every stage of hooks": minimal_spec(
        hooks=[
            {"hookName": name, "path": "/usr/local/bin/hook", "args": ["--verbose"], "env": ["A=b"]}
            for name in ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")
        ]
    ),
    "an empty Intel RDT": rdt(),
    "a class of Intel RDT": rdt(closID="foo-bar"),
    "the root class of Intel RDT": rdt(closID="/"),
    "a long class of Intel RDT": rdt(closID="x" * 4095),
    "Intel RDT schemata": rdt(schemata=["MB:0=70"], enableMonitoring=True),
    "network devices": net(("eth0", "net0"), ("eth1", "net1")),
    "additional groups": minimal_spec("0.7.0", additionalGids=[5, 6, 5]),
    "empty edits of the file": minimal_spec() | {"containerEdits": {}},
    "a device with nothing but groups": minimal_spec("0.7.0", additionalGids=[1]),
    "a version with a v": minimal_spec("v0.3.0"),
    "a version newer than needed": minimal_spec("1.0.0"),
    "an annotation with a domain": minimal_spec("0.6.0") | {"annotations": {"vendor.com/Key_1.x": "anything\n"}},
    "an annotation with a domain in capitals": minimal_spec("0.6.0") | {"annotations": {"Vendor.com/key": ""}},
    "the longest annotation": minimal_spec("0.6.0") | {"annotations": {f"{'a' * 253}/{'b' * 63}": ""}},
    "the most annotations": minimal_spec("0.6.0") | {"annotations": {"key": "v" * ((256 << 10) - 3)}},
    "a device's name that begins with a digit": with_change(minimal_spec("0.5.0"), "devices", 0, "name", to="0:1"),
    "a long device name, which only the prose forbids": with_change(minimal_spec(), "devices", 0, "name", to="x" * 64),
}


@pytest.mark.parametrize("name", GOOD)
def test_nothing_is_said_of(name: str) -> None:
    assert found(GOOD[name]) == []


@pytest.mark.parametrize("version", SPECS_BY_VERSION)
def test_nothing_is_said_of_what_a_version_brought_but_that_a_field_is_gone(version: str) -> None:
    said = ["enableCMT was in CDI up to 1.0.0: engines that read later versions refuse the file"]
    assert [text for _, _, text in found(SPECS_BY_VERSION[version])] == (said if version == "0.7.0" else [])


def test_nothing_is_said_of_a_file_with_every_field() -> None:
    assert found(FULL_SPEC) == []


BAD: dict[str, tuple[Spec, str, str]] = {
    "an empty variable": (minimal_spec(env=[""]), f"{EDITS}.env[0]", '"" is not NAME=value'),
    "a variable without a name": (minimal_spec(env=["=foo"]), f"{EDITS}.env[0]", '"=foo" is not NAME=value'),
    "a variable without an assignment": (
        minimal_spec(env=["A=b", "FOO"]),
        f"{EDITS}.env[1]",
        '"FOO" is not NAME=value',
    ),
    "a NUL in a variable": (minimal_spec(env=["A=\0"]), f"{EDITS}.env[0]", "has a NUL character"),
    "a device with an empty path": (device(path=""), f"{EDITS}.deviceNodes[0].path", "is empty"),
    "a device without a path": (minimal_spec(deviceNodes=[{"type": "c"}]), f"{EDITS}.deviceNodes[0]", "has no path"),
    "a device of a wrong type": (device(type="f"), f"{EDITS}.deviceNodes[0].type", '"f" is not known'),
    "a device with wrong permissions": (
        device(permissions="to land"),
        f"{EDITS}.deviceNodes[0].permissions",
        '"to land" is not some of the letters r, w and m',
    ),
    "a device with the permissions of a later version": (
        device(permissions="none"),
        f"{EDITS}.deviceNodes[0].permissions",
        '"none" is not understood by engines that read CDI up to 1.1.0',
    ),
    "a negative major number": (device(major=-1), f"{EDITS}.deviceNodes[0].major", "-1 is not 0 or more"),
    "a major number of more than 63 bits": (
        device(major=2**63),
        f"{EDITS}.deviceNodes[0].major",
        '"9223372036854775808" is more than 9223372036854775807',
    ),
    "a user of more than 32 bits": (device(uid=2**32), f"{EDITS}.deviceNodes[0].uid", '"4294967296" is more than'),
    "a mode as text": (device(fileMode="0666"), f"{EDITS}.deviceNodes[0].fileMode", "must be a whole number, not text"),
    "a mode that is a fraction": (
        device(fileMode=1.5),
        f"{EDITS}.deviceNodes[0].fileMode",
        "must be a whole number, not a fraction",
    ),
    "a mode that is true": (
        device(fileMode=True),
        f"{EDITS}.deviceNodes[0].fileMode",
        "must be a whole number, not true or false",
    ),
    "a mount with an empty host path": (
        minimal_spec(mounts=[{"hostPath": "", "containerPath": "/a"}]),
        f"{EDITS}.mounts[0].hostPath",
        "is empty",
    ),
    "a mount with an empty container path": (
        minimal_spec(mounts=[{"hostPath": "/a", "containerPath": ""}]),
        f"{EDITS}.mounts[0].containerPath",
        "is empty",
    ),
    "a mount without a container path": (
        minimal_spec(mounts=[{"hostPath": "/a"}]),
        f"{EDITS}.mounts[0]",
        "has no containerPath",
    ),
    "a mount that is null": (minimal_spec(mounts=[None]), f"{EDITS}.mounts[0]", "must be a mapping, not null"),
    "mounts that are no list": (
        minimal_spec(mounts={}, env=["A=b"]),
        f"{EDITS}.mounts",
        "must be a list, not a mapping",
    ),
    "a hook with an empty path": (hook(path=""), f"{EDITS}.hooks[0].path", "is empty"),
    "a hook of an unknown name": (
        hook(hookName="misCreateRuntime"),
        f"{EDITS}.hooks[0].hookName",
        '"misCreateRuntime" is not known',
    ),
    "a hook with a wrong variable": (hook(env=["=value2"]), f"{EDITS}.hooks[0].env[0]", '"=value2" is not NAME=value'),
    "a class of Intel RDT that is a dot": (rdt(closID="."), f"{EDITS}.intelRdt.closID", '"." is not a file name'),
    "a class of Intel RDT that is two dots": (rdt(closID=".."), f"{EDITS}.intelRdt.closID", '".." is not a file name'),
    "a class of Intel RDT with a slash": (rdt(closID="a/b"), f"{EDITS}.intelRdt.closID", '"a/b" is not a file name'),
    "a class of Intel RDT with a newline": (rdt(closID="a\n"), f"{EDITS}.intelRdt.closID", '"a\n" is not a file name'),
    "a class of Intel RDT that is too long": (rdt(closID="x" * 4096), f"{EDITS}.intelRdt.closID", '"xxx'),
    "a network device without a name": (net(("eth0", "")), f"{EDITS}.netDevices[0].name", "is empty"),
    "a network device without a host interface": (
        net(("", "eth0")),
        f"{EDITS}.netDevices[0].hostInterfaceName",
        "is empty",
    ),
    "a host interface twice": (
        net(("eth0", "a"), ("eth0", "b")),
        f"{EDITS}.netDevices[1].hostInterfaceName",
        f'"eth0" is the host interface of {EDITS}.netDevices[0] already',
    ),
    "a name of a network device twice": (
        net(("eth0", "a"), ("eth1", "a")),
        f"{EDITS}.netDevices[1].name",
        f'"a" is the name of {EDITS}.netDevices[0] already',
    ),
    "a negative group": (
        minimal_spec("0.7.0", additionalGids=[-1]),
        f"{EDITS}.additionalGids[0]",
        "-1 is not 0 or more",
    ),
    "no devices": (minimal_spec() | {"devices": []}, "devices", "is an empty list"),
    "missing devices": (with_change(minimal_spec(), "devices", remove=True), "", "has no devices"),
    "a device that is null": (minimal_spec() | {"devices": [None]}, "devices[0]", "must be a mapping, not null"),
    "a device without edits": (
        with_change(minimal_spec(), "devices", 0, "containerEdits", remove=True),
        "devices[0]",
        "has no containerEdits",
    ),
    "empty edits of a device": (
        with_change(minimal_spec(), "devices", 0, "containerEdits", to={}),
        EDITS,
        "has no edits: engines refuse the whole file",
    ),
    "edits of a device that are empty lists": (
        with_change(minimal_spec(), "devices", 0, "containerEdits", to={"env": [], "mounts": []}),
        EDITS,
        "has no edits: engines refuse the whole file",
    ),
    "edits that are a list, as in the specification's example": (
        minimal_spec() | {"containerEdits": [{"env": ["A=b"]}]},
        "containerEdits",
        "must be a mapping, not a list",
    ),
    "two devices of one name": (
        minimal_spec() | {"devices": minimal_spec()["devices"] * 2},
        "devices[1].name",
        '"dev" is the name of devices[0] already: engines refuse the whole file',
    ),
    "an empty device name": (
        with_change(minimal_spec(), "devices", 0, "name", to=""),
        "devices[0].name",
        '"" is not letters',
    ),
    "a device name with a slash": (
        with_change(minimal_spec(), "devices", 0, "name", to="a/b"),
        "devices[0].name",
        '"a/b" is not',
    ),
    "a device name that ends in a dash": (
        with_change(minimal_spec(), "devices", 0, "name", to="a-"),
        "devices[0].name",
        '"a-" is',
    ),
    "a kind without a class": (minimal_spec() | {"kind": "vendor.com"}, "kind", '"vendor.com" is not vendor/class'),
    "a kind with two slashes": (
        minimal_spec() | {"kind": "vendor.com/aa/bb"},
        "kind",
        '"vendor.com/aa/bb" is not vendor/class',
    ),
    "a vendor that begins with a digit": (minimal_spec() | {"kind": "0v.com/class"}, "kind", '"0v.com/class" is not'),
    "no kind": (with_change(minimal_spec(), "kind", remove=True), "", "has no kind"),
    "no version": (with_change(minimal_spec(), "cdiVersion", remove=True), "", "has no cdiVersion"),
    "an unknown version": (
        minimal_spec("0.9.0"),
        "cdiVersion",
        '"0.9.0" is not a known version of CDI (0.3.0 to 1.1.0)',
    ),
    "a version that nobody accepts": (
        minimal_spec("0.2.0"),
        "cdiVersion",
        '"0.2.0" is older than 0.3.0, the oldest version that engines accept',
    ),
    "another version that nobody accepts": (minimal_spec("v0.1.0"), "cdiVersion", '"v0.1.0" is older than 0.3.0'),
    "a version that is a number": (minimal_spec() | {"cdiVersion": 1}, "cdiVersion", "must be text, not a whole"),
    "an unknown field": (
        minimal_spec() | {"foo": 1},
        "foo",
        "unknown field: engines refuse the whole file",
    ),
    "an unknown field of a device": (
        with_change(minimal_spec(), "devices", 0, "foo", to=1),
        "devices[0].foo",
        "unknown field",
    ),
    "an unknown field of a mount": (
        minimal_spec(mounts=[{"hostPath": "/a", "containerPath": "/a", "readonly": True}]),
        f"{EDITS}.mounts[0].readonly",
        "unknown field",
    ),
    "an annotation that is a number": (
        minimal_spec("0.6.0") | {"annotations": {"a": 1}},
        "annotations.a",
        "must be text, not a whole number",
    ),
    "an annotation with an empty key": (
        minimal_spec("0.6.0") | {"annotations": {"": "b"}},
        'annotations[""]',
        '"" is not a name of up to 63 letters',
    ),
    "an annotation with two slashes": (
        minimal_spec("0.6.0") | {"annotations": {"a/b/c": "d"}},
        'annotations["a/b/c"]',
        '"a/b/c" is not a name',
    ),
    "an annotation with a long name": (
        minimal_spec("0.6.0") | {"annotations": {"b" * 64: ""}},
        f"annotations.{'b' * 64}",
        '"bbb',
    ),
    "an annotation with an odd domain": (
        minimal_spec("0.6.0") | {"annotations": {"a_b/c": ""}},
        'annotations["a_b/c"]',
        '"a_b/c" is not a name',
    ),
    "too many annotations": (
        minimal_spec("0.6.0") | {"annotations": {"key": "é" * (128 << 10)}},
        "annotations",
        "262147 bytes of keys and values are more than 262144",
    ),
    "a field that is gone": (
        rdt(enableMBM=True),
        f"{EDITS}.intelRdt.enableMBM",
        "enableMBM was removed after CDI 1.0.0, and the file declares 1.1.0",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_engines_refuse(name: str) -> None:
    spec, where, text = BAD[name]
    one = only(spec)
    assert (one.level, one.where) == ("error", where)
    assert one.text.startswith(text)


DOUBTFUL: dict[str, tuple[Spec, str, str]] = {
    "a relative device": (
        device(path="dev/null"),
        f"{EDITS}.deviceNodes[0].path",
        '"dev/null" is not an absolute path',
    ),
    "a relative host device": (
        device(hostPath="null"),
        f"{EDITS}.deviceNodes[0].hostPath",
        '"null" is not an absolute',
    ),
    "a hook that takes the image's variables": (
        hook(hookName="createContainer"),
        f"{EDITS}.hooks[0]",
        "has no env: runc up to 1.2 runs it with the image's variables",
    ),
    "a relative hook": (hook(path="x"), f"{EDITS}.hooks[0].path", '"x" is not an absolute path'),
    "a relative mount point": (
        minimal_spec(mounts=[{"hostPath": "/a", "containerPath": "a"}]),
        f"{EDITS}.mounts[0].containerPath",
        '"a" is not an absolute path',
    ),
    "a relative source": (
        minimal_spec(mounts=[{"hostPath": "a", "containerPath": "/a"}]),
        f"{EDITS}.mounts[0].hostPath",
        '"a" is not an absolute path',
    ),
    "a hook without time": (hook(timeout=0), f"{EDITS}.hooks[0].timeout", "0 is not more than 0 seconds"),
    "a hook with less than no time": (hook(timeout=-1), f"{EDITS}.hooks[0].timeout", "-1 is not more than 0 seconds"),
    "group 0": (
        minimal_spec("0.7.0", additionalGids=[0]),
        f"{EDITS}.additionalGids[0]",
        "0 is not a group other than 0",
    ),
    "a mode that looks octal": (
        device(fileMode=666),
        f"{EDITS}.deviceNodes[0].fileMode",
        "666 is a decimal number, the mode 1232",
    ),
    "a class of one letter": (
        minimal_spec() | {"kind": "vendor.com/c"},
        "kind",
        '"vendor.com/c" has a part of one letter',
    ),
    "annotations that differ by case": (
        minimal_spec("0.6.0") | {"annotations": {"a": "", "A": ""}},
        "annotations.A",
        'differs from "a" only by case',
    ),
    "an empty list of a later version": (
        minimal_spec(env=["A=b"], netDevices=[]),
        f"{EDITS}.netDevices",
        "netDevices came with CDI 1.1.0: engines that read up to 0.3.0 refuse it, even empty",
    ),
}


@pytest.mark.parametrize("name", DOUBTFUL)
def test_engines_read_and_a_warning_says_what_is_odd_about(name: str) -> None:
    spec, where, text = DOUBTFUL[name]
    one = only(spec)
    assert (one.level, one.where) == ("warning", where)
    assert one.text.startswith(text)


@pytest.mark.parametrize("data", [[], "a", 1, 1.5, True, {}, [{}]])
def test_a_document_of_another_kind_has_errors(data: object) -> None:
    assert all(level == "error" for level, _, _ in found(data)) and found(data)


# --- versions ---------------------------------------------------------------------------------


def test_a_field_that_needs_more_than_the_file_declares_is_an_error_with_both_versions() -> None:
    text = (
        '{"cdiVersion":"0.5.0","kind":"nvidia.com/gpu","devices":[{"name":"0","containerEdits":'
        '{"deviceNodes":[{"path":"/dev/nvidia0"}],\n"additionalGids":[44]}}]}'
    )
    document = reading.parse_spec(text.encode(), "/etc/cdi/nvidia.json")
    (one,) = validation.validate_spec(document.data, "/etc/cdi/nvidia.json", line_numbers=document.line_numbers)
    assert str(one) == (
        "/etc/cdi/nvidia.json:2: error: devices[0].containerEdits.additionalGids: this field needs "
        "CDI 0.7.0 or later, and the file declares "
        "0.5.0. Declare 0.7.0, which docker 26.1, containerd 1.7.16, crio 1.30, podman 5.1 or later read"
    )


@pytest.mark.parametrize(
    "version", [version for version in SPECS_BY_VERSION if version not in ("0.3.0", "0.8.0", "1.0.0")]
)
def test_what_a_version_brought_is_an_error_in_a_file_that_declares_less(version: str) -> None:
    said = found(with_change(SPECS_BY_VERSION[version], "cdiVersion", to="0.3.0"))
    assert {level for level, _, text in said if "needs CDI" in text} == {"error"}
    assert all(text.startswith(("this field needs CDI ", "enableCMT")) for _, _, text in said) and said


def test_a_digit_first_and_a_dot_in_the_class_say_so_in_words() -> None:
    spec = with_change(minimal_spec(), "devices", 0, "name", to="0") | {"kind": "a.com/b.c"}
    assert [text for _, _, text in found(spec)] == [
        "a dot in the class needs CDI 0.6.0 or later, and the file declares 0.3.0",
        "a device name that begins with a digit needs CDI 0.5.0 or later, and the file declares 0.3.0",
    ]


def test_several_features_ask_for_the_version_that_serves_all() -> None:
    spec = minimal_spec("0.3.0", additionalGids=[1], mounts=[{"hostPath": "/a", "containerPath": "/a", "type": "bind"}])
    hints = {one.hint.partition(",")[0] for one in validation.validate_spec(spec, "x")}
    assert hints == {"Declare 0.7.0"}


# --- an engine that reads less ----------------------------------------------------------------------


@pytest.mark.parametrize("version", SPECS_BY_VERSION)
def test_a_file_is_right_for_engines_that_read_what_it_declares(version: str) -> None:
    levels = {level for level, _, _ in found(SPECS_BY_VERSION[version], maximum=version)}
    assert levels <= {"warning"}


def test_an_engine_that_reads_less_refuses_the_version_and_each_field() -> None:
    said = validation.validate_spec(FULL_SPEC, "x", maximum="0.5.0", reader="podman 4.3")
    assert {one.level for one in said} == {"error"}
    assert [(one.where, one.text.partition(":")[0]) for one in said] == [
        ("cdiVersion", "podman 4.3 reads CDI up to 0.5.0, and the file declares 1.1.0"),
        ("kind", "a dot in the class needs CDI 0.6.0 or later"),
        ("annotations", "this field needs CDI 0.6.0 or later"),
        ("devices[0].annotations", "this field needs CDI 0.6.0 or later"),
        (f"{EDITS}.netDevices", "this field needs CDI 1.1.0 or later"),
        (f"{EDITS}.intelRdt", "this field needs CDI 0.7.0 or later"),
        (f"{EDITS}.intelRdt.schemata", "this field needs CDI 1.1.0 or later"),
        (f"{EDITS}.intelRdt.enableMonitoring", "this field needs CDI 1.1.0 or later"),
        (f"{EDITS}.additionalGids", "this field needs CDI 0.7.0 or later"),
        ("devices[1].containerEdits.intelRdt", "this field needs CDI 0.7.0 or later"),
    ]


def test_a_file_that_declares_too_much_may_declare_less() -> None:
    assert only(minimal_spec("0.7.0"), maximum="0.5.0").hint == "Declare 0.3.0: the content needs no more"


def test_an_empty_field_is_unknown_to_an_engine_that_reads_less() -> None:
    spec = minimal_spec("0.5.0", env=["A=b"], additionalGids=[])
    said = [text for level, _, text in found(spec, maximum="0.6.0") if level == "error"]
    assert said == ["unknown field additionalGids: an engine that reads CDI up to 0.6.0 refuses the whole file"]


def test_old_engines_do_not_know_the_letter_before_a_version() -> None:
    assert only(minimal_spec("v0.5.0"), maximum="0.5.0").text.endswith('does not know the letter "v"')
    assert found(minimal_spec("v0.5.0"), maximum="0.6.0") == []


def test_a_field_that_is_gone_is_an_error_for_an_engine_that_does_not_know_it_any_more() -> None:
    spec = minimal_spec("0.7.0", intelRdt={"enableCMT": True})
    assert [level for level, _, _ in found(spec, maximum="1.0.0")] == ["warning"]
    assert [level for level, _, _ in found(spec, maximum="1.1.0")] == ["warning", "error"]


# --- what to do -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "hint"),
    [
        (minimal_spec() | {"containerEdit": {}}, "Did you mean containerEdits?"),
        (minimal_spec() | {"mounts": []}, "It belongs in containerEdits"),
        (minimal_spec() | {"hostPath": "/a"}, "It belongs in deviceNodes or mounts"),
        (minimal_spec() | {"closID": "a"}, "It belongs in intelRdt"),
        (minimal_spec() | {"zzzzz": 1}, "Remove it"),
        (hook(hookName="createcontainer"), "Did you mean createContainer?"),
        (device(type="f"), "Use one of b, c, u, p"),
        (device(fileMode=660), "For 0660 write 432"),
    ],
)
def test_a_hint_is_offered(spec: Spec, hint: str) -> None:
    assert only(spec).hint == hint


def test_findings_come_in_the_order_of_the_file_with_their_lines() -> None:
    spec = {"devices": [{"name": "-"}], "kind": 3, "cdiVersion": "7"}
    document = reading.parse_spec(json.dumps(spec, indent=0).encode(), "x.json")
    said = validation.validate_spec(document.data, "x.json", line_numbers=document.line_numbers)
    assert [(one.line, one.where) for one in said] == [
        (3, "devices[0]"),
        (4, "devices[0].name"),
        (7, "kind"),
        (8, "cdiVersion"),
    ]


def test_the_same_is_not_said_twice() -> None:
    said = validation.validate_spec(FULL_SPEC, "x", maximum="0.3.0")
    assert len(said) == len(set(said))


@pytest.mark.parametrize(
    ("mount", "wrong"),
    [
        ({}, True),
        ({"options": ["ro"]}, True),
        ({"type": "bind", "options": ["ro"]}, True),
        ({"type": "none"}, True),
        ({"options": ["ro", "bind"]}, False),
        ({"type": "bind", "options": ["rbind"]}, False),
        ({"type": "tmpfs"}, False),
        ({"type": "proc", "options": ["ro"]}, False),
    ],
)
def test_a_mount_that_no_runtime_makes_is_told_apart_from_what_engines_refuse(mount: Spec, wrong: bool) -> None:
    spec = minimal_spec("0.5.0", mounts=[{"hostPath": "/a", "containerPath": "/a", **mount}])
    assert found(spec) == []
    told = validation.find_unmountable_mounts(spec, "x.json")
    assert [(one.level, one.where, one.hint) for one in told] == (
        [("error", f"{EDITS}.mounts[0]", "Add rbind to its options")] if wrong else []
    )
    assert all("has neither bind nor rbind in its options" in one.text for one in told)


@pytest.mark.parametrize("data", [None, [], {"devices": [None, {"containerEdits": {"mounts": [None, []]}}]}])
def test_a_file_of_another_shape_has_no_mounts(data: object) -> None:
    assert validation.find_unmountable_mounts(data, "x.json") == []
