"""CDI files read as engines read them; whatever else a file is, it is a finding with a line."""

from __future__ import annotations

import json
import os
import random
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_oci_hook.cdi.spec import go_decoding, reading, validation, yaml_tree
from gpu_oci_hook.cdi.spec.finding import Finding, find_line_number
from gpu_oci_hook.formats import json_lines
from gpu_oci_hook.formats.json_lines import join_json_path
from support import podman_cases
from support.podman_cases import CASES
from support.spec_mutations import mutate_text
from support.valid_specs import FULL_SPEC, SPECS_BY_VERSION, minimal_spec

NOBODY = 65534


def parsed(text: str | bytes, file: str = "x.yaml") -> reading.SpecDocument:
    return reading.parse_spec(text if isinstance(text, bytes) else text.encode(), file)


def errors(findings: list[Finding]) -> list[str]:
    return [f"{one.line}: {one.text}" for one in findings if one.level == "error"]


def refusal(text: str | bytes, file: str = "x.yaml") -> str:
    """The one error of a file that cannot be read."""
    document = parsed(text, file)
    assert document.data is None
    (said,) = errors(document.findings)
    return said


# --- as a real engine -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_a_file_is_free_of_errors_if_podman_reads_it_but_for_listed_differences(name: str) -> None:
    case = CASES[name]
    document = parsed(case.text, case.file)
    found = list(document.findings)
    if document.data is not None:
        found += validation.validate_spec(document.data, case.file, maximum="0.5.0", line_numbers=document.line_numbers)
        kind, _, device = case.device.partition("=")
        spec: Any = document.data
        named = [one.get("name") for one in spec["devices"]] if isinstance(spec, dict) and "devices" in spec else []
        assert errors(found) or (spec["kind"] == kind and device in named)
    expected = case.engine if case.ours is None else case.ours
    assert (not errors(found)) == expected, found


def test_each_listed_difference_is_one_and_has_a_reason() -> None:
    for case in CASES.values():
        assert (case.ours is None) == (not case.why)
        assert case.ours is not case.engine


@pytest.mark.parametrize("name", CASES)
def test_what_engines_read_differently_than_it_looks_has_a_finding(name: str) -> None:
    case = CASES[name]
    document = parsed(case.text, case.file)
    if name in ("y as a name", "an octal number as a name", "two documents", "UTF-16", "another case of a key",
                "YAML in a JSON file", "JSON after a byte order mark", "JSON with an escaped pair",
                "JSON with an escaped slash", "an unknown tag of a list", "1.0 as a name"):  # fmt: skip
        assert [one.level for one in document.findings] == ["warning"]
    elif case.engine and case.ours is None and name not in ("yes as a name", "an unknown tag of a word",
            "something that is no YAML after the first document"):  # fmt: skip
        assert document.findings == []


@pytest.mark.parametrize("spec", [*SPECS_BY_VERSION.values(), FULL_SPEC])
@pytest.mark.parametrize("indent", [None, 1, "\t"])
def test_json_and_yaml_are_the_same(spec: dict[str, Any], indent: int | str | None) -> None:
    text = json.dumps(spec, indent=indent)
    for document in (parsed(text, "x.json"), parsed(text, "x.yaml"), parsed(yaml.safe_dump(spec, sort_keys=False))):
        assert document.data == spec
        assert document.findings == []


# --- lines ------------------------------------------------------------------------------------------


def paths(value: object, where: str = "") -> list[str]:
    below: list[tuple[str | int, object]] = []
    if isinstance(value, dict):
        below = list(value.items())
    elif isinstance(value, list):
        below = list(enumerate(value))
    return [where, *(path for key, one in below for path in paths(one, join_json_path(where, key)))]


@pytest.mark.parametrize("file", ["x.json", "x.yaml"])
def test_every_value_has_a_line(file: str) -> None:
    document = parsed(json.dumps(FULL_SPEC, indent=1), file)
    assert sorted(document.line_numbers) == sorted(paths(FULL_SPEC))
    text = json.dumps(FULL_SPEC, indent=1).split("\n")
    for path, line in document.line_numbers.items():
        key = path.rpartition(".")[2]
        if key.isalpha():
            assert f'"{key}"' in text[line - 1], path
    assert (
        "hostInterfaceName"
        in text[document.line_numbers["devices[0].containerEdits.netDevices[0].hostInterfaceName"] - 1]
    )


def test_json_and_yaml_have_the_same_lines() -> None:
    for indent in (1, None, 4):
        text = json.dumps(FULL_SPEC, indent=indent)
        assert parsed(text, "x.json").line_numbers == yaml_tree.parse_yaml_document(text, "x").line_numbers


def test_the_line_of_something_unknown_is_that_of_what_is_around_it() -> None:
    lines = {"": 1, "devices": 3, "devices[0]": 4, 'annotations["a.b/c"]': 9}
    assert find_line_number(lines, "devices[0].containerEdits.mounts[1].hostPath") == 4
    assert find_line_number(lines, "devices[1]") == 3
    assert find_line_number(lines, "kind") == 1
    assert find_line_number({}, "kind") == 0


def test_a_path_names_odd_keys_in_quotes() -> None:
    assert join_json_path("", "devices") == "devices"
    assert join_json_path("a", "b_c") == "a.b_c"
    assert join_json_path("annotations", 'a"b\\c/d.e') == 'annotations["a\\"b\\\\c/d.e"]'


# --- what is wrong ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "file", "said"),
    [
        ("", "x.yaml", "0: is empty"),
        ("", "x.json", "0: is empty"),
        ("# nothing\n", "x.yaml", "0: is empty"),
        ("---\n...\n", "x.yaml", "0: is empty"),
        ("null", "x.json", "0: is empty"),
        ("kind: a\nkind: b\n", "x.yaml", "2: is present twice, first on line 1: engines refuse the file"),
        ('{"kind": "a",\n"kind": "b"}', "x.json", "2: is present twice: engines refuse the file"),
        ("a:\n\t- b\n", "x.yaml", "2: not YAML: a tab in the indentation"),
        ("a: b\n\tc: d\n", "x.yaml", "2: not YAML: a tab in the indentation"),
        ("a: [b\n", "x.yaml", "2: not YAML: "),
        ("a: b: c\n", "x.yaml", "1: not YAML: mapping values are not allowed"),
        ('{"a": 1,\n "b" 2}', "x.json", "2: not JSON: expecting ':' delimiter"),
        ('{"a": 1', "x.json", "1: not JSON: expecting ',' delimiter"),
        ("a: \0\n", "x.yaml", "1: has a character that YAML, and so engines, do not allow (U+0000)"),
        ('{"a":\n"\x7f"}', "x.json", "2: has a character that YAML, and so engines, do not allow (U+007F)"),
        (b"a: b\n# \xff\n", "x.yaml", "2: is not UTF-8"),
        (b"\xff\xfea", "x.yaml", "1: is not UTF-16"),
        ("a: *b\n", "x.yaml", "1: the alias *b names no anchor"),
        ("a: &b [*b]\n", "x.yaml", "1: the anchor &b contains itself"),
        ("<<: 1\n", "x.yaml", "1: << needs a mapping, or a list of mappings"),
        ("? [a]\n: b\n", "x.yaml", "1: a key is a list or a mapping"),
        ("&a [a]: b\n", "x.yaml", "1: a key is a list or a mapping"),
        ("a: &a [b]\n*a : b\n", "x.yaml", "2: a key is not text"),
        ("~: b\n", "x.yaml", "1: a key is null"),
        ("a: !!int b\n", "x.yaml", "1: 'b' is tagged !!int that is not a value of this type"),
        (
            "a: {b: c?d}\n",
            "x.yaml",
            "1: not YAML for engines: a question mark in a word between brackets",
        ),
        ("%YAML 1.2\n---\na: b\n", "x.yaml", "1: declares a version of YAML that engines do not read"),
        ("kind: a\nKIND: b\n", "x.yaml", "2: is also present as kind"),
    ],
)
def test_what_cannot_be_read_is_an_error_with_its_line(text: str | bytes, file: str, said: str) -> None:
    assert refusal(text, file).startswith(said)


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ("kind: yes\n", 'yes without quotes is read as "true"', "Put it in quotes"),
        ("kind: 0666\n", '0666 without quotes is read as "438"', "Put it in quotes"),
        ("Kind: a\n", "is read as kind, since engines ignore the case", "Write kind"),
        ("kind: !foo a\n", "the tag !foo is ignored by engines", "Remove it"),
        ("a: b\n--- {}\n", "has more than one YAML document: engines read the first and ignore the rest", ""),
        ("\ufeffa: b\n", "starts with a byte order mark, which not every program reads", ""),
    ],
)
def test_what_engines_read_otherwise_than_people_is_a_warning(text: str, said: str, hint: str) -> None:
    document = parsed(text)
    (found,) = document.findings
    assert (found.level, found.text) == ("warning", said)
    assert found.hint.startswith(hint)
    assert document.data is not None


def test_a_backslash_before_a_slash_is_no_escaped_slash() -> None:
    assert parsed(json.dumps(minimal_spec(env=["A=\\/", "B=\\\\"])), "x.json").findings == []


# --- bounds -----------------------------------------------------------------------------------------

BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 30)
)
HOSTILE: dict[str, tuple[str, bytes, str]] = {
    "a YAML bomb": ("x.yaml", BOMB.encode(), "aliases repeat the values that they name"),
    "a YAML bomb of merges": (
        "x.yaml",
        ("a: &a0 {k: x}\n" + "".join(f"a{n}: &a{n} {{<<: {{l: *a{n - 1}}}, m: *a{n - 1}}}\n" for n in range(40)))
        .replace("a0: &a0 {<<: {l: *a-1}, m: *a-1}", "b: c")
        .encode(),
        "aliases repeat the values that they name",
    ),
    "a chain of anchors": (
        "x.yaml",
        ("a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 5000))).encode(),
        "nested deeper than 64 levels",
    ),
    "100,000 open lists": ("x.yaml", b"[" * 100_000, "nested deeper than 64 levels"),
    "100,000 open lists in JSON": ("x.json", b"[" * 100_000, "nested deeper than 64 levels"),
    "100,000 closed lists in JSON": ("x.json", b"[" * 100_000 + b"]" * 100_000, "nested deeper than 64 levels"),
    "65 levels in JSON": ("x.json", b'{"a":' * 65 + b"1" + b"}" * 65, "nested deeper than 64 levels"),
    "open mappings": ("x.yaml", b"a: {" * 100_000, ""),
    "deep indentation": ("x.yaml", b"".join(b" " * n + b"a:\n" for n in range(2000)), "nested deeper than 64 levels"),
    "dashes": ("x.yaml", b"- " * 1_000_000, "nested deeper than 64 levels"),
    "a million values": ("x.yaml", b"a: [" + b"1," * 1_000_000 + b"]", "has more than 100000 values"),
    "a million values in JSON": ("x.json", b"[" + b"1," * 1_000_000 + b"1]", "has more than 100000 values"),
    "a million mappings in JSON": ("x.json", b"[" + b"{}," * 1_000_000 + b"1]", "has more than 100000 values"),
    "a long word": ("x.yaml", b"a: " + b"x" * 4_000_000, ""),
    "a long number": ("x.yaml", b"cdiVersion: " + b"1" * 4_000_000, ""),
    "a long number in JSON": ("x.json", b'{"cdiVersion": ' + b"1" * 4_000_000 + b"}", ""),
    "a long key": ("x.json", b'{"' + b"k" * 4_000_000 + b'": 1}', ""),
    "a long name": ("x.json", json.dumps(minimal_spec() | {"kind": "v" * 1_000_000 + "/c!"}).encode(), ""),
    "a long annotation key": (
        "x.json",
        json.dumps(minimal_spec() | {"annotations": {"a." * 500_000: "b"}}).encode(),
        "",
    ),
    "100 MB": ("x.yaml", b"#" * 100_000_000, "is larger than 4 MiB"),
    "100 MB of JSON": ("x.json", b'{"a":"' + b"x" * 100_000_000 + b'"}', "is larger than 4 MiB"),
    "4 MiB of comments": ("x.yaml", b"#\n" * 2_000_000, "is empty"),
    "4 MB of quotes": ("x.yaml", b"'" * 4_000_000, ""),
    "4 MB of colons": ("x.yaml", b":" * 4_000_000, ""),
    "4 MB of question marks": ("x.yaml", b"? " * 2_000_000, ""),
    "4 MB of line feeds in quotes": ("x.yaml", b'"' + b"\n" * 4_000_000 + b'"', ""),
    "4 MB of anchors": ("x.yaml", b"&a " * 1_300_000, ""),
    "4 MB of backslashes": ("x.json", b'{"a":"' + b"\\" * 4_000_000 + b'"}', ""),
    "many keys twice": ("x.json", b"{" + b'"a":1,' * 90_000 + b'"a":1}', "is present twice"),
    "many unknown fields": ("x.json", json.dumps({f"k{n}": n for n in range(90_000)}).encode(), ""),
}

CHILD = """
import resource, sys, time
resource.setrlimit(resource.RLIMIT_AS, (700 << 20, 700 << 20))
resource.setrlimit(resource.RLIMIT_CPU, (20, 20))
if "--plain" in sys.argv:
    import yaml
    del yaml.CSafeLoader
from gpu_oci_hook.cdi.spec import reading, validation
document = reading.read_spec_file(sys.argv[1])
found = list(document.findings)
if document.data is not None:
    found += validation.validate_spec(
        document.data, sys.argv[1], maximum="0.5.0", line_numbers=document.line_numbers
    )
# Not ru_maxrss, which remembers the process that started this one.
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM:"))
print(max(len(str(one)) for one in found), int(peak.split()[1]) >> 10)
print(*[one.text for one in found if one.level == "error"][:20], sep="\\n")
"""


@pytest.mark.parametrize("parser", ["libyaml", "plain"])
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_a_finding_in_bounded_memory_and_time(tmp_path: Path, name: str, parser: str) -> None:
    file, data, said = HOSTILE[name]
    (tmp_path / file).write_bytes(data)
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path / file), f"--{parser}"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stderr == "" and done.returncode == 0
    first, *texts = done.stdout.splitlines()
    longest, memory = map(int, first.split())
    assert longest < 3500
    assert memory < 450, "MiB"
    assert any(said in text for text in texts), texts


def test_the_bound_of_values_leaves_room_for_the_largest_machine() -> None:
    node = {"path": "/dev/nvidia-caps/nvidia-cap123", "hostPath": "/dev/x", "permissions": "rw"}
    devices = [{"name": f"{n}", "containerEdits": {"deviceNodes": [node] * 6}} for n in range(16 * 7 * 2 + 34)]
    mounts = [{"hostPath": f"/l/{n}", "containerPath": f"/l/{n}", "options": ["ro", "nosuid"]} for n in range(300)]
    spec = minimal_spec("0.5.0") | {"devices": devices, "containerEdits": {"mounts": mounts}}
    for text, file in ((json.dumps(spec, indent=2), "x.json"), (yaml.safe_dump(spec), "x.yaml")):
        document = parsed(text, file)
        assert document.data == spec and document.findings == []
    assert 5 * len(paths(spec)) < go_decoding.MAX_VALUES


# --- with libyaml and without -----------------------------------------------------------------------


def outcome(text: str) -> object:
    try:
        result = yaml_tree.parse_yaml_document(text, "x")
    except yaml_tree.InvalidYamlError as broken:
        return "YAML" if "not YAML" in broken.finding.text else broken.finding
    return (repr(result.data), result.line_numbers, result.spellings, result.findings)


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Reads with PyYAML's own parser."""

    def read(text: str) -> object:
        with monkeypatch.context() as patch:
            patch.delattr(yaml, "CSafeLoader")
            return outcome(text)

    assert hasattr(yaml, "CSafeLoader"), "this test is of no use with a PyYAML without libyaml"
    return read


@pytest.mark.parametrize("name", CASES)
def test_an_odd_file_is_the_same_without_libyaml(plain: Any, name: str) -> None:
    text = CASES[name].text
    if isinstance(text, str) and not reading._FORBIDDEN_CHARACTER.search(text):
        assert plain(text.removeprefix("\ufeff")) == outcome(text.removeprefix("\ufeff"))


def test_mutations_of_a_file_are_the_same_without_libyaml(plain: Any) -> None:
    chance = random.Random(4)
    start = podman_cases.yaml_file(
        "env: [A=b, 'c d', \"e\\tf\"]\n    mounts:\n    - hostPath: /a # b\n      containerPath: |\n       x"
    )
    for _ in range(1500):
        text = mutate_text(start, chance)
        assert plain(text) == outcome(text), text


# --- files ------------------------------------------------------------------------------------------


def test_a_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "real.txt").write_text(json.dumps(minimal_spec()))
    (tmp_path / "x.json").symlink_to("real.txt")
    document = reading.read_spec_file(str(tmp_path / "x.json"))
    assert (document.data, document.findings) == (minimal_spec(), [])


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("missing", "cannot be read: it is missing"),
        ("directory", "is a directory, not a regular file"),
        ("fifo", "is not a regular file"),
        ("socket", "cannot be read: "),
        ("device", "is not a regular file"),
        ("loop", "cannot be read: its symbolic links go round in a circle"),
        ("file as directory", "cannot be read: a part of the path is not a directory"),
        ("long name", "cannot be read: the name is too long"),
        ("nul", "has a NUL character in its name"),
    ],
)
def test_what_is_no_file_is_a_finding_at_once(tmp_path: Path, kind: str, said: str) -> None:
    path = str(tmp_path / "x.yaml")
    match kind:
        case "directory":
            os.mkdir(path)
        case "fifo":
            os.mkfifo(path)
        case "socket":
            os.mknod(path, stat.S_IFSOCK | 0o600)
        case "device":
            os.symlink("/dev/zero", path)
        case "loop":
            os.symlink("x.yaml", path)
        case "file as directory":
            Path(path).write_text("")
            path += "/y.yaml"
        case "long name":
            path = str(tmp_path / ("x" * 300))
        case "nul":
            path = "/a\0b.yaml"
    document = reading.read_spec_file(path)
    assert document.data is None
    (found,) = document.findings
    assert (found.level, found.file) == ("error", path)
    assert found.text.startswith(said)


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: needs root to be somebody else")
@pytest.mark.root
def test_a_file_of_roots_alone_is_there_and_not_readable_by_others(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    file = tmp_path / "x.yaml"
    file.write_text(yaml.safe_dump(minimal_spec()))
    file.chmod(0o600)
    for above in file.parents:
        if above.is_relative_to("/tmp/") and above.stat().st_uid == os.geteuid() and above != Path("/tmp"):
            above.chmod(above.stat().st_mode | 0o011)
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        found = reading.read_spec_file(str(file)).findings
        right = [str(one) for one in found] == [
            (
                f"{file}: error: cannot be read: this user may not read it. "
                f"Make it readable for every user: chmod 0644 {file}"
            )
        ]
        os._exit(0 if right else 1)
    assert os.waitpid(child, 0)[1] == 0


# --- the finding itself -----------------------------------------------------------------------------


def test_a_finding_is_one_line_whatever_its_parts_hold() -> None:
    finding = Finding("warning", "/x/\n.yaml", "a\x1b[31m", "b\nc" * 5000, "d", 7)
    text = str(finding)
    assert text.isprintable() and len(text) < 3000
    assert text.startswith("/x/\\n.yaml:7: warning: a\\x1b[31m: b\\nc")
    assert str(Finding("error", "f", "", "is wrong")) == "f: error: is wrong"


def test_the_scanner_of_json_lines_finds_keys_that_are_there_twice() -> None:
    lines, twice = json_lines.map_json_line_numbers(
        '{"a": {"b": 1, "b": {"c": "}"}},\n"d": [[1, 2],\n{"b": "\\"", "b": []}]}'
    )
    assert twice == ["a.b", "d[1].b"]
    assert lines["d[1].b"] == 3 and lines["d[0][1]"] == 2 and lines["a.b.c"] == 1
