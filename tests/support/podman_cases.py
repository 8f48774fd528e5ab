"""What podman does with odd CDI files, as recorded; tests/e2e/test_podman_cases.py checks the record with a real
podman.

With it, unit tests compare our reading with an engine's on machines without one.
"""

from __future__ import annotations

from typing import NamedTuple


class Case(NamedTuple):
    """A file. text: its content. engine: whether podman 4.3 reads it. ours: whether we call it free of errors for that
    engine, where that is on purpose something else. why: then the reason. device: the name to ask for. file: its name.
    newer: whether podman 5 reads it, where that is otherwise. newest: the same of podman 5.8.
    """

    text: str | bytes
    engine: bool
    ours: bool | None = None
    why: str = ""
    device: str = "vendor.com/class=dev"
    file: str = "x.yaml"
    newer: bool | None = None
    newest: bool | None = None

    def is_read_by(self, podman_version: str) -> bool:
        """Tell whether a podman of this version reads the file: 4.3 has CDI library 0.5, 5.x has 0.6, 5.8 has 1.0."""
        numbers = tuple(map(int, podman_version.split(".")[:2]))
        if self.newest is not None and numbers >= (5, 8):
            return self.newest
        return self.engine if self.newer is None or numbers < (5, 0) else self.newer


def yaml_file(edits: str = "env: [A=b]", *, version: str = "0.5.0", name: str = '"dev"', more: str = "") -> str:
    """Build a small file with these edits in its only device, and more lines at its end."""
    return (
        f"cdiVersion: {version}\nkind: vendor.com/class\ndevices:\n- name: {name}\n"
        f"  containerEdits:\n    {edits}\n{more}"
    )


def json_file(env: str = "A=b", *, kind: str = "vendor.com/class") -> str:
    """Build a small file with a variable, as JSON."""
    return f'{{"cdiVersion":"0.5.0","kind":"{kind}","devices":[{{"name":"dev","containerEdits":{{"env":["{env}"]}}}}]}}'


def node_edits(more: str) -> str:
    """Build the edits of a device node that needs nothing of the host."""
    return f"deviceNodes: [{{path: /dev/null, type: c, major: 1, minor: 3, {more}}}]"


def named_case(name: str, read: str, *, engine: bool = True) -> Case:
    """Build a case with a device name that YAML does not read as text."""
    return Case(yaml_file(name=name), engine, device=f"vendor.com/class={read}")


LATER = "libraries from 0.6.0 on refuse it"

CASES: dict[str, Case] = {
    "plain": Case(yaml_file(), True),
    "the suffix .yml": Case(
        yaml_file(), False, True, "whether a file counts is not its content's matter", file="x.yml"
    ),
    "YAML in a JSON file": Case(yaml_file(), True, file="x.json"),
    "JSON in a YAML file": Case(json_file(), True),
    "JSON": Case(json_file(), True, file="x.json"),
    "JSON indented with tabs": Case(json_file().replace(",", ",\n\t\t"), True, file="x.json"),
    "JSON after a byte order mark": Case("\ufeff" + json_file(), True, file="x.json"),
    "JSON with an escaped letter": Case(json_file(r"A=\u00e9"), True, file="x.json"),
    "JSON with an escaped pair": Case(
        json_file(r"A=\ud83d\ude00"), False, True, "it is right JSON; a warning", file="x.json"
    ),
    "JSON with an escaped slash": Case(
        json_file(kind=r"vendor.com\/class"), False, True, "it is right JSON; a warning", file="x.json"
    ),
    "UTF-16": Case(yaml_file().encode("utf-16"), True),
    "not UTF-8": Case(yaml_file().encode() + b"# \xff\xfe\n", False),
    "CRLF": Case(yaml_file().replace("\n", "\r\n"), True),
    "a number as a name": named_case("0", "0"),
    "yes as a name": named_case("yes", "true"),
    "y as a name": named_case("y", "true"),
    "an octal number as a name": named_case("0666", "438"),
    "1:30 as a name": named_case("1:30", "1:30"),
    "a date as a name": named_case("2001-01-01", "2001-01-01"),
    "1.0 as a name": named_case("1.0", "1"),
    "an exponent as a name": named_case("12e5", "1.2e+06", engine=False),
    "null as a name": Case(yaml_file(name="null"), False),
    "two documents": Case(yaml_file(more="---\nfoo: bar\n"), True),
    "something that is no YAML after the first document": Case(yaml_file(more="---\n}{\n"), True),
    "an unknown field": Case(yaml_file(more="foo: bar\n"), False),
    "an unknown field of a mount": Case(yaml_file("mounts: [{hostPath: /a, containerPath: /a, foo: 1}]"), False),
    "another case of a key": Case(yaml_file().replace("kind:", "KIND:"), True),
    "a key twice": Case(yaml_file(more="kind: vendor.com/class\n"), False),
    "a key twice in JSON": Case(json_file().replace("{", '{"kind":"a.com/bb",', 1), False, file="x.json"),
    "null edits of the file": Case(yaml_file(more="containerEdits:\n"), True),
    "null mounts": Case(yaml_file("env: [A=b]\n    mounts:"), True),
    "a mount that is null": Case(yaml_file("env: [A=b]\n    mounts: [null]"), False),
    "a variable that is null": Case(yaml_file("env: [null]"), False),
    "an unknown tag of a list": Case(yaml_file("env: !foo [A=b]"), True),
    "an unknown tag of a word": Case(yaml_file(name="!foo dev"), True),
    "!!str of a number": Case(yaml_file(name="!!str 007"), True, device="vendor.com/class=007"),
    "!!int of a word": Case(yaml_file(name="!!int dev"), False),
    "!!binary": Case(yaml_file(name="!!binary ZGV2"), True),
    "an alias": Case(yaml_file("env: &x [A=b]", more="containerEdits: {env: *x}\n"), True),
    "an alias of nothing": Case(yaml_file("env: *x"), False),
    "an anchor that contains itself": Case(yaml_file("env: &x [A=b, *x]"), False),
    "a merge": Case(yaml_file("<<: {env: [A=b]}"), True),
    "a merge of what is there before": Case(yaml_file("env: [C=d]\n    <<: {env: [A=b]}"), False),
    "a merge of what comes after": Case(yaml_file("<<: {env: [A=b]}\n    env: [C=d]"), False),
    "a merge of a list": Case(yaml_file("<<: [{env: [A=b]}, {mounts: []}]"), True),
    "a merge of a list that has a key twice": Case(yaml_file("<<: [{env: [A=b]}, {env: [A=c]}]"), False),
    "a merge of a word": Case(yaml_file("<<: foo\n    env: [A=b]"), False),
    "a key that is null": Case(yaml_file(more="~: 1\n"), False),
    "a key that is a list": Case(yaml_file(more="[a]: 1\n"), False),
    "a complex key": Case(yaml_file("? env\n    : [A=b]"), True),
    "a DEL character": Case(yaml_file('env: ["A=\x7f"]'), False),
    "a NUL character": Case(yaml_file('env: ["A=\0"]'), False),
    "an escaped NUL character": Case(yaml_file(r'env: ["A=\0"]'), True, False, "nothing can be done with it"),
    "YAML 1.1": Case("%YAML 1.1\n---\n" + yaml_file(), True),
    "YAML 1.2": Case("%YAML 1.2\n---\n" + yaml_file(), False),
    "a tab after a colon": Case(yaml_file("env:\t[A=b]"), True),
    "a tab before a comment": Case(yaml_file("env: [A=b]\t# c"), True),
    "a question mark in a word between brackets": Case(yaml_file("env: [A=http://b?c]"), False),
    "a question mark in a word of its own": Case(yaml_file("env:\n    - A=http://b?c"), True),
    "a question mark in quotes": Case(yaml_file("env: ['A=http://b?c']"), True),
    "a colon before a comma": Case(yaml_file("env: [A=b:,C=d]"), True),
    "an unknown directive at the end": Case(yaml_file(more="%foo\n"), False),
    "a tab as indentation": Case(yaml_file("env:\n\t- A=b"), False),
    "a list as the document": Case("- a\n", False),
    "a word as the document": Case("hello\n", False),
    "nothing": Case("", False),
    "nothing but a comment": Case("# nothing\n", False),
    "null": Case("null\n", False),
    "version 0.2.0": Case(yaml_file(version="0.2.0"), True, False, LATER, newer=False),
    "version 0.3.0": Case(yaml_file(version="0.3.0"), True),
    "version 0.4.0": Case(yaml_file(version="0.4.0"), True),
    "version 0.6.0": Case(yaml_file(version="0.6.0"), False, newer=True),
    "version 0.7.0": Case(yaml_file(version="0.7.0"), False, newer=True),
    "version 1.0.0": Case(yaml_file(version="1.0.0"), False, newest=True),
    "version v0.5.0": Case(yaml_file(version="v0.5.0"), False, newer=True),
    "version 0.5": Case(yaml_file(version="0.5"), False),
    "no version": Case(yaml_file().replace("cdiVersion: 0.5.0\n", ""), False),
    "hostPath in 0.3.0": Case(
        yaml_file("deviceNodes: [{path: /dev/null, hostPath: /dev/null}]", version="0.3.0"),
        True,
        False,
        LATER,
        newer=False,
    ),
    "a mount's type in 0.3.0": Case(
        yaml_file("mounts: [{hostPath: /dev/null, containerPath: /b, type: bind}]", version="0.3.0"),
        True,
        False,
        LATER,
        newer=False,
    ),
    "a digit first in 0.3.0": Case(
        yaml_file(version="0.3.0", name="0d"), True, False, LATER, newer=False, device="vendor.com/class=0d"
    ),
    "additionalGids": Case(yaml_file("additionalGids: [1]"), False),
    "empty additionalGids": Case(yaml_file("env: [A=b]\n    additionalGids: []"), False, newer=True),
    "null additionalGids": Case(
        yaml_file("env: [A=b]\n    additionalGids: null"),
        False,
        True,
        "what is null is gone before we look",
        newer=True,
    ),
    "annotations": Case(yaml_file(more="annotations: {a: b}\n"), False),
    "empty annotations": Case(yaml_file(more="annotations: {}\n"), False, newer=True),
    "a dot in the class": Case(yaml_file().replace("com/class", "com/cla.ss"), False, device="vendor.com/cla.ss=dev"),
    "a class of one letter": Case(
        yaml_file().replace("com/class", "com/c"), False, True, "podman crashes; later ones do not", "vendor.com/c=dev"
    ),
    "a vendor of one letter": Case(
        yaml_file().replace("vendor.com", "v"), False, True, "podman crashes; later ones do not", "v/class=dev"
    ),
    "a device name of one letter": Case(yaml_file(name="d"), True, device="vendor.com/class=d"),
    "a variable without a name": Case(yaml_file("env: [=b]"), False),
    "a variable without a value": Case(yaml_file("env: [A]"), False),
    "an empty list of variables": Case(yaml_file("env: []"), False),
    "no edits": Case(yaml_file().replace("  containerEdits:\n    env: [A=b]\n", ""), False),
    "null edits": Case(yaml_file().replace("    env: [A=b]\n", ""), False),
    "a device name twice": Case(yaml_file() + "- name: dev\n  containerEdits: {env: [A=b]}\n", False),
    "a major number that is 1.0": Case(yaml_file(node_edits("uid: 0").replace("major: 1", "major: 1.0")), True),
    "a major number that is 1e1": Case(yaml_file(node_edits("uid: 0").replace("major: 1", "major: 1e1")), True),
    "a major number that is 1.5": Case(yaml_file(node_edits("uid: 0").replace("major: 1", "major: 1.5")), False),
    "a major number in quotes": Case(yaml_file(node_edits("uid: 0").replace("major: 1", 'major: "1"')), False),
    "a negative major number": Case(
        yaml_file(node_edits("uid: 0").replace("major: 1", "major: -1")),
        True,
        False,
        "1.1.0 refuses it: -1 means any device",
    ),
    "a negative user": Case(yaml_file(node_edits("uid: -1")), False),
    "a mode in octal": Case(yaml_file(node_edits("fileMode: 0666")), True),
    "a mode in new octal": Case(yaml_file(node_edits("fileMode: 0o666")), True),
    "no permissions by name": Case(yaml_file("deviceNodes: [{path: /dev/null, permissions: none}]"), False),
    "permissions three times": Case(yaml_file("deviceNodes: [{path: /dev/null, permissions: rrr}]"), True),
    "a node of an unknown type": Case(yaml_file("deviceNodes: [{path: /dev/null, type: f}]"), False),
    "a node without a path": Case(yaml_file("deviceNodes: [{type: c}]"), False),
    "a hook without time": Case(yaml_file("hooks: [{hookName: prestart, path: /bin/true, timeout: 0}]"), True),
    "a hook with a relative path": Case(yaml_file('hooks: [{hookName: prestart, path: "true"}]'), True),
    "a hook of an unknown name": Case(yaml_file("hooks: [{hookName: prestrat, path: /bin/true}]"), False),
    "a hook without a path": Case(yaml_file("hooks: [{hookName: prestart}]"), False),
    "relative mounts": Case(yaml_file("mounts: [{hostPath: a, containerPath: b}]"), True),
    "a mount without a source": Case(yaml_file("mounts: [{containerPath: /b}]"), False),
    "a mapping where a list belongs": Case(yaml_file("mounts: {hostPath: /a, containerPath: /b}"), False),
    "a list where a mapping belongs": Case(yaml_file(more="containerEdits: [{env: [A=b]}]\n"), False),
}

# What a hook's argument of this spelling is in config.json with podman 4.3: go-yaml's value as Go writes it.
SCALARS = {
    "1e5": "100000", "1e6": "1e+06", "12e5": "1.2e+06", "123456.0": "123456", "1234567.0": "1.234567e+06",
    "1e20": "1e+20", "1e21": "1e+21", "1e22": "1e+22", "1.5": "1.5", "0.0001": "0.0001", "0.00001": "1e-05",
    ".5": "0.5", "5.": "5", "-1.5e-7": "-1.5e-07", "1e400": "1e400", "18446744073709551615": "18446744073709551615",
    "18446744073709551616": "1.8446744e+19", "-9223372036854775809": "-9.223372e+18", "0666": "438", "0o17": "15",
    "-0o17": "-15", "0b11": "3", "-0b11": "-3", "0B11": "3", "0X1F": "31", "+12": "12", "-0": "0", "-0.0": "-0",
    "08": "8", "0_8": "8", "1__0": "10", "_1": "_1", "1_": "1", "0x": "0x", "0x_1f": "31", "0x1_f": "31",
    "1_0.5": "10.5", ".inf": "+Inf", "-.inf": "-Inf", ".nan": "NaN", ".NaN": "NaN", "~": "", "null": "", "y": "true",
    "n": "false", "on": "true", "off": "false", "Yes": "true", "1:30": "1:30", "190:20:30": "190:20:30",
    "2001-01-01": "2001-01-01", "2001-12-14T21:59:43Z": "2001-12-14T21:59:43Z", "<<": "<<", "=": "=",
    "0777_": "511", "00": "0", "0o8": "0o8", "+.inf": "+Inf", ".": ".", "+.": "+.", "--": "--", "1e": "1e",
    "1e+": "1e+", "0e0": "0", "1.0e+3": "1000", ".1e1": "1", "-.5": "-0.5", "+.5": "0.5", "0.1_5": "0.15",
    "._5": "._5",
}  # fmt: skip


def write_arguments(words: list[str]) -> str:
    """Build a file whose hook has these arguments, verbatim."""
    return yaml_file(f"hooks: [{{hookName: prestart, path: /bin/true, args: [{', '.join(words)}]}}]")
