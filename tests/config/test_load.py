"""config.toml: defaults, trust and complaints, and the two checks of a file against each other and jsonschema."""

from __future__ import annotations

import datetime
import json
import marshal
import os
import posix
import re
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_oci_hook.cli.launchers import find_interpreter
from gpu_oci_hook.config import check, descriptions, load, reference, rules, schema_findings, toml_document
from gpu_oci_hook.config.keys import CAPABILITIES, KEYS, USER_FILE_KEYS, Config
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.formats.toml_values import format_toml

ROOT = Path(__file__).parents[2]
SCHEMA_FILE = (ROOT / "src/gpu_oci_hook/config/config.schema.json").read_text()
SCHEMA = json.loads(SCHEMA_FILE)
DEFAULT_FILE = (ROOT / "config/config.toml").read_text()
ORACLE = jsonschema.Draft202012Validator(SCHEMA)


def plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def uncommented(text: str) -> str:
    """The default file with every default in force: "#key" is a default, "# text" is a comment."""
    return "\n".join(line[1:] if line[:1] == "#" and line[1:2].isalpha() else line for line in text.split("\n"))


# --- the files that follow from the rows -----------------------------------------------------------


UPDATE = "run .venv/bin/python scripts/update_config_files.py"


def test_every_key_is_read_by_some_code() -> None:
    """A key without an effect would be accepted and ignored."""
    package = ROOT / "src/gpu_oci_hook"
    code = "".join(p.read_text() for p in package.rglob("*.py") if p.parent != package / "config")
    unread = [
        f"[{table}] {key}"
        for table, key, _, _ in KEYS
        if not re.search(rf"\.{key.replace('-', '_')}\b", code) and f'"{key}"' not in code
    ]
    assert not unread, "no code reads them; see the steps in src/gpu_oci_hook/config/keys.py"


def test_every_key_has_a_meaning_and_every_meaning_a_key() -> None:
    assert list(descriptions.TABLE_DESCRIPTIONS) == list(rules.TABLES)
    keys = {key for _, key, _, _ in KEYS}
    assert set(descriptions.KEY_DESCRIPTIONS) == keys, "write it in src/gpu_oci_hook/config/descriptions.py"
    assert set(descriptions.USER_FILE_DESCRIPTIONS) == {key for key, _, _ in USER_FILE_KEYS}


def test_the_shipped_files_are_rendered_from_the_rows() -> None:
    assert reference.render_default_config() == DEFAULT_FILE, UPDATE
    assert reference.render_config_schema() == SCHEMA_FILE, UPDATE


def test_the_documentation_has_the_table_of_keys() -> None:
    page = (ROOT / "docs/configuration.md").read_text()
    assert reference.render_config_table() in page, UPDATE


def test_the_table_of_keys_has_a_row_per_key_with_default_values_and_meaning() -> None:
    table = reference.render_config_table()
    for name, key, default, _ in KEYS:
        section = table.partition(f"### `[{name}]`\n")[2].partition("\n### ")[0]
        (row,) = [line for line in section.split("\n") if line.startswith(f"| `{key}` |")]
        assert row.count(" | ") == 3 and f"| `{format_toml(default)}` |" in row
    for key, _, _ in USER_FILE_KEYS:
        assert f"\n| `{key}` |" in table.partition("### `[[inject.extra]]`")[2]


def test_the_schema_is_a_valid_schema_and_describes_everything() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    for table in SCHEMA["properties"].values():
        assert table["description"]
        for key in table["properties"].values():
            assert key["description"].endswith(".")


def test_schema_and_table_name_the_same_keys_and_defaults_in_the_same_order() -> None:
    from_schema = [
        (table, key, rule["default"])
        for table, content in SCHEMA["properties"].items()
        for key, rule in content["properties"].items()
    ]
    assert from_schema == [(table, key, plain(default)) for table, key, default, _ in KEYS], UPDATE


def test_the_schema_offers_the_same_words_as_the_table() -> None:
    for table, key, _, rule in KEYS:
        entry = SCHEMA["properties"][table]["properties"].get(key)
        assert entry is not None, UPDATE
        if isinstance(rule, tuple) and rule[0] == "list":
            assert entry["items"] == {"$ref": "#/$defs/capability"}
            assert tuple(SCHEMA["$defs"]["capability"]["enum"]) == rule[1:] == CAPABILITIES
        elif isinstance(rule, tuple):
            assert tuple(entry["enum"]) == rule


def test_the_default_file_says_nothing_and_its_commented_values_are_the_defaults() -> None:
    assert tomllib.loads(DEFAULT_FILE) == {table: {} for table in rules.TABLES}
    document = tomllib.loads(uncommented(DEFAULT_FILE))
    assert [(t, k) for t in document for k in document[t]] == [(t, k) for t, k, _, _ in KEYS], UPDATE
    assert document == {t: {k: plain(d) for owner, k, d, _ in KEYS if owner == t} for t in document}


def test_the_default_file_carries_the_schema_descriptions() -> None:
    words = " ".join(DEFAULT_FILE.replace("#", " ").replace('"', "").split())
    for table in SCHEMA["properties"].values():
        for key, rule in table["properties"].items():
            first = rule["description"].replace("`", "").split(":")[0].split(";")[0].removesuffix(".")
            assert first in words.replace("`", ""), key


def test_attribute_names_are_unique_over_all_tables() -> None:
    names = [key.replace("-", "_") for _, key, _, _ in KEYS]
    assert len(set(names)) == len(names)
    assert all(name in vars(Config) for name in names)


# --- values ----------------------------------------------------------------------------------------


def test_without_a_file_the_defaults_hold(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load, "DEFAULT_PATH", str(tmp_path / "none.toml"))
        loaded = load.load_config(str(tmp_path / "none.toml"))
    assert loaded.to_data() == Config().to_data()
    assert loaded.path == "" and loaded.low_level == ("runc", "crun") and loaded.missing_gpu == "fail"


def test_an_empty_file_and_the_default_file_mean_the_defaults() -> None:
    for text in ("", DEFAULT_FILE, uncommented(DEFAULT_FILE)):
        parsed = load.parse_config(text.encode(), "c.toml")
        assert parsed.to_data()[2:] == Config().to_data()[2:]
        assert parsed.warnings == ()


def test_what_the_file_says_holds_and_the_rest_stays_default() -> None:
    parsed = load.parse_config(b'[runtime]\nlow-level = ["/opt/crun"]\n[request]\nenv = "privileged"\n', "c.toml")
    assert parsed.low_level == ("/opt/crun",)
    assert parsed.env == "privileged"
    assert parsed.path == "c.toml"
    assert parsed.log_level == "info"


def test_every_toml_spelling_of_a_key_is_the_same_key() -> None:
    for text in (
        "[request]\nmissing-gpu = 'warn'",
        "request.missing-gpu = 'warn'",
        "request = { missing-gpu = 'warn' }",
        '["request"]\r\n"missing-gpu" = """warn"""\r\n',
    ):
        assert load.parse_config(text.encode(), "c").missing_gpu == "warn"


def test_a_config_survives_marshal() -> None:
    one = Config(path="/x", warnings=("w",), low_level=("youki",), sockets=False)
    again = Config.from_data(marshal.loads(marshal.dumps(one.to_data())))
    assert again is not None and again.to_data() == one.to_data()
    assert again.low_level == ("youki",) and again.sockets is False and again.path == "/x"


@pytest.mark.parametrize("data", [None, 3, (), ("",), Config().to_data()[:-1], [*Config().to_data()]])
def test_data_of_another_shape_is_no_config(data: object) -> None:
    assert Config.from_data(data) is None


def test_data_with_a_value_of_another_type_is_no_config() -> None:
    data = list(Config().to_data())
    for index in range(len(data)):
        changed = [*data]
        changed[index] = 7.5
        assert Config.from_data(tuple(changed)) is None


def test_a_config_takes_only_known_values() -> None:
    with pytest.raises(TypeError, match="no such keys: nope"):
        Config(nope=1)


def test_the_environment_names_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPU_OCI_HOOK_CONFIG", "/x/y.toml")
    assert load.find_config_path() == "/x/y.toml"
    monkeypatch.setenv("GPU_OCI_HOOK_CONFIG", "")
    assert load.find_config_path() == "/etc/gpu-oci-hook/config.toml"
    monkeypatch.delenv("GPU_OCI_HOOK_CONFIG")
    assert load.find_config_path() == "/etc/gpu-oci-hook/config.toml"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[host]\nroot = '/a'\nroot = '/b'\n", "c.toml:3:1: not TOML: the key root is set twice, first in line 2"),
        (
            "[cdi]\nspec-dirs = [\n'/a']\n  spec-dirs = [\n'/b'\n]\n",
            "c.toml:4:3: not TOML: the key spec-dirs is set twice",
        ),
        ("host = {root = '/a', root = '/b'}\n", "c.toml:1:33: not TOML: duplicate inline table key 'root'"),
        ("[host]\n[inject]\n[host]\n", "c.toml:3:1: not TOML: the table [host] is defined twice, first in line 1"),
    ],
)
def test_what_is_there_twice_is_said_to_be(text: str, said: str) -> None:
    with pytest.raises(Fault, match=re.escape(said)):
        load.parse_config(text.encode(), "c.toml")


def test_only_the_default_file_may_be_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "DEFAULT_PATH", str(tmp_path / "default.toml"))
    monkeypatch.delenv("GPU_OCI_HOOK_CONFIG", raising=False)
    assert load.load_config().to_data() == Config().to_data()
    with pytest.raises(Fault, match=r"/typo: no such file$"):
        load.load_config(str(tmp_path / "typo"))
    monkeypatch.setenv("GPU_OCI_HOOK_CONFIG", str(tmp_path / "typo"))
    with pytest.raises(Fault, match="GPU_OCI_HOOK_CONFIG names is missing"):
        load.load_config()


def test_taking_a_cached_config_loads_no_toml_parser() -> None:
    code = (
        "import sys; before = set(sys.modules)\n"
        "from gpu_oci_hook.config import load; load.DEFAULT_PATH = '/nonexistent/config.toml'\n"
        "from gpu_oci_hook.config.keys import Config\n"
        "assert Config.from_data(Config().to_data()); load.load_config(load.DEFAULT_PATH)\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    src = str(ROOT / "src")
    run = subprocess.run(
        [sys.executable, "-ISc", f"import sys; sys.path.append({src!r})\n{code}"],
        capture_output=True,
        text=True,
    )
    assert run.stderr == ""
    names = (
        "config",
        "config.keys",
        "config.load",
        "errors",
        "files",
        "files.read_regular",
        "files.state_dir",
        "files.trust",
    )
    ours = {"gpu_oci_hook", *[f"gpu_oci_hook.{name}" for name in names]}
    interpreter = {
        "__future__",
        "_collections_abc",
        "_stat",
        "errno",
        "genericpath",
        "os",
        "os.path",
        "posixpath",
        "stat",
    }
    assert set(run.stdout.split()) <= ours | interpreter


def test_loading_a_file_needs_no_library(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text("request.missing-gpu = 'warn'")
    path.chmod(0o644)
    code = (
        f"import sys; sys.path.append({str(ROOT / 'src')!r})\n"
        f"from gpu_oci_hook.config.load import load_config; print(load_config({str(path)!r}).missing_gpu)\n"
        "print(*{name.partition('.')[0] for name in sys.modules} & "
        "{'jsonschema', 'referencing', 'dataclasses', 'json'})"
    )
    run = subprocess.run([sys.executable, "-ISc", code], capture_output=True, text=True)
    assert (run.stdout, run.stderr) == ("warn\n\n", "")


# --- complaints ------------------------------------------------------------------------------------


def findings(text: str) -> list[str]:
    """What both checks say: the one of the shim, and the one of `config validate`, which uses jsonschema."""
    document, source = toml_document.parse_toml_document(text.encode(), "c.toml")
    found = check.check_config_document(document, source)
    assert sorted(schema_findings.find_schema_findings(document, source)) == sorted(found)
    return [f"{finding.line}: {finding}" for finding in found]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('[request]\nenv = "maybe"', '2: [request] env: "maybe" is not one of always, privileged, never'),
        (
            '[request]\nenv = "nevr"',
            '2: [request] env: "nevr" is not one of always, privileged, never (did you mean never?)',
        ),
        (
            "[request]\n\nvolume-mounts = 1",
            "3: [request] volume-mounts: must be true or false, not the number 1",
        ),
        ("host.root = 'x'", '1: [host] root: "x" is not an absolute path'),
        ("host.root = ''", '1: [host] root: "" is not an absolute path'),
        ('host.root = "/a\\u0000"', "1: [host] root: has a control character"),
        (
            "[runtime]\nlow-level = 'runc'",
            '2: [runtime] low-level: must be a list of strings, not the string "runc"',
        ),
        ("[runtime]\nlow-level = []", "2: [runtime] low-level: must name at least one program"),
        (
            "[runtime]\nlow-level = [\n 'runc',\n 'bin/crun']",
            '2: [runtime] low-level, item 2: "bin/crun" is not a program name or an absolute path',
        ),
        ("[cdi]\ndefault-kind = 'gpu'", '2: [cdi] default-kind: "gpu" is not a CDI kind (vendor/class)'),
        ("[cdi]\nspec-dirs = [1979-05-27]", "2: [cdi] spec-dirs, item 1: must be a string, not a date or time"),
        ("[cdi]\nannotation-prefixes = ['']", "2: [cdi] annotation-prefixes, item 1: must not be empty"),
        ("runtime = 3", "1: runtime: must be a table, not the number 3"),
        ("[[runtime]]", "1: runtime: must be a table, not a list"),
        ("runtime = true", "1: runtime: must be a table, not true"),
        (
            "[request]\nmissing-gpus = 'warn'",
            "2: [request] missing-gpus: unknown key; did you mean missing-gpu?",
        ),
        (
            "[request]\nlog-level = 'info'",
            "2: [request] log-level: unknown key here; it belongs in [runtime]",
        ),
        ("[host]\nlow_levl = 1", "2: [host] low_levl: unknown key; did you mean low-level in [runtime]?"),
        ("[host]\nzzz = 1", "2: [host] zzz: unknown key"),
        ("[requests]", "1: requests: unknown table; did you mean [request]?"),
        ("[qqq]", "1: qqq: unknown table; the tables are host, runtime, request, inject, cdi"),
        (
            "[inject]\nno-cgroups = true",
            "2: [inject] no-cgroups: unknown key: decided per container; remove it",
        ),
        ("no-cgroups = true", "1: no-cgroups: unknown key: decided per container; remove it"),
        ("disable-require = true", "1: disable-require: unknown key here; it belongs in [request]"),
        (
            '[nvidia-container-cli]\nno-cgroups = false\nldconfig = "@/sbin/ldconfig"',
            (
                "1: nvidia-container-cli: a table of the NVIDIA container toolkit's config; "
                "no-cgroups: decided per container; remove it; ldconfig: no ldconfig is run; remove it"
            ),
        ),
    ],
)
def test_a_complaint_names_line_key_and_hint(text: str, complaint: str) -> None:
    assert findings(text) == [complaint]


def test_tables_of_files_are_known_by_their_number() -> None:
    text = """
[inject]
remove = ["x"]
[[inject.extra]]
path = "/a"
[[inject.extra]]
pth = "/b"
kind = "fil"
[[inject.extra]]
path = "c"
required = "yes"
[[inject.extra]]
path = "/d"
kind = "library"
container = "/e"
"""
    assert findings(text) == [
        "6: [[inject.extra]] 2: path is missing (the file on the host)",
        "7: [[inject.extra]] 2: pth: unknown key; did you mean path?",
        (
            '8: [[inject.extra]] 2: kind: "fil" is not one of file, library, directory, socket, device'
            " (did you mean file?)"
        ),
        '10: [[inject.extra]] 3: path: "c" is not an absolute path',
        '11: [[inject.extra]] 3: required: must be true or false, not the string "yes"',
        "12: [[inject.extra]] 4: is a library, which is placed where the loader finds it; remove container",
    ]
    number = "2: [inject] extra: must be tables ([[inject.extra]]), not the number 3"
    assert findings("[inject]\nextra = 3") == [number]
    assert findings("[inject]\nextra = ['/a']") == ['2: [[inject.extra]] 1: must be a table, not the string "/a"']


def test_a_file_that_is_added_is_a_tuple_of_its_values_and_survives_marshal() -> None:
    parsed = load.parse_config(b'[[inject.extra]]\npath = "/a"\n[[inject.extra]]\npath = "/b"\nrequired = true\n', "c")
    assert parsed.extra == (("/a", "", "", "file", False), ("/b", "", "", "file", True))
    again = Config.from_data(marshal.loads(marshal.dumps(parsed.to_data())))
    assert again is not None and again.extra == parsed.extra


def test_findings_come_in_the_order_of_the_lines() -> None:
    text = "[cdi]\nx = 1\n[host]\nroot = 1\n[cdi.deep]\n[request]\nenv = 2\n"
    assert [line.split(":")[0] for line in findings(text)] == ["2", "4", "5", "7"]


def test_a_key_inside_a_multi_line_string_is_not_mistaken_for_the_key() -> None:
    text = '[runtime]\nlog-file = """\nlog-level = 3\n"""\nlog-level = 3\n'
    assert findings(text)[1].startswith("5: [runtime] log-level:")


def test_names_from_the_file_cannot_write_to_the_terminal() -> None:
    for text in ('"\\u001b[31m" = 1', '[request]\nenv = "\\u001b[31m"', '"a\\nb" = 1'):
        assert all(line.isprintable() for line in findings(text))


def test_an_unknown_key_is_a_warning_for_the_shim() -> None:
    parsed = load.parse_config(b"[request]\nmissing-gpu = 'warn'\nnewer-key = 1\n", "/etc/c.toml")
    assert parsed.missing_gpu == "warn"
    assert parsed.warnings == ("/etc/c.toml:3: [request] newer-key: unknown key",)


def test_a_wrong_type_stops_the_shim_with_one_sentence() -> None:
    with pytest.raises(Fault) as caught:
        load.parse_config(b"[request]\nenv = 1\nmissing-gpu = 2\nfoo = 3\n", "/etc/c.toml")
    assert str(caught.value) == (
        "/etc/c.toml:2: [request] env: must be a string, not the number 1 "
        "(1 more error; list them with: gpu-oci-hook config validate /etc/c.toml)"
    )


BAD = {
    b"[runtime\nlog-level = 'info'": (1, 9),
    b"[request]\nenv = always": (2, 7),
    b"env=always; export env\n": (1, 5),
    b"#!/bin/sh\ncurl -fsSL https://example.com | sh\n": (2, 6),
    b"[host]\nroot = '/\n": (2, 10),
    b"[host]\nroot = ": (2, 8),
    b"[host]\nroot = '/'\nroot = '/'\n": (3, 1),
    b"[host]\n[host]\n": (2, 1),
    b"[cdi]\nspec-dirs = ['/a' '/b']": (2, 19),
    b"[cdi]\nspec-dirs = ['/a',\n": (2, 19),
    b'{"host": 1}': (1, 1),
    b"a = 2024-13-45\n": (1, 9),
    b"[host]\r\n\troot == 1\r\n": (2, 8),
    b"<<<<<<< HEAD\n": (1, 1),
}


@pytest.mark.parametrize("data", BAD)
def test_text_that_is_not_toml_is_answered_with_line_column_and_caret(data: bytes) -> None:
    with pytest.raises(toml_document.TomlFault) as caught:
        load.parse_config(data, "/etc/c.toml")
    fault = caught.value
    assert (fault.line, fault.column) == BAD[data]
    assert str(fault).startswith(f"/etc/c.toml:{fault.line}:{fault.column}: not TOML: ")
    assert str(fault).isprintable()
    shown, caret = fault.format_caret().split("\n")
    assert caret.strip() == "^" and len(caret) <= len(shown) + 1
    source = data.decode().replace("\r\n", "\n").split("\n")[fault.line - 1].replace("\t", " ")
    assert shown == "  " + source
    assert caret.index("^") - 2 == fault.column - 1


def test_the_caret_of_a_very_long_line_stays_on_the_screen() -> None:
    with pytest.raises(toml_document.TomlFault) as caught:
        load.parse_config(b"a = '" + b"x" * 5000 + b"' nonsense " + b"y" * 5000, "c")
    shown, caret = caught.value.format_caret().split("\n")
    assert len(shown) <= 104
    assert shown[caret.index("^") :].startswith("nonsense")


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"\xef\xbb\xbf[host]", "starts with a byte order mark. Save it as UTF-8 without one"),
        (b"\xff\xfe[\0h\0", "is written in UTF-16. Save it as UTF-8"),
        (b"[host]\n#\0", "/etc/c.toml:2: the config file has a NUL byte"),
        (b"[host]\nroot = '/\xff'", "/etc/c.toml:2: the config file is not UTF-8"),
        (b"a = " + b"[" * 100_000, "too deeply nested"),
        (b"a = " + b"9" * 5000, "not TOML: exceeds the limit"),
    ],
)
def test_bytes_that_no_editor_should_write_are_answered_with_a_sentence(data: bytes, sentence: str) -> None:
    with pytest.raises(Fault) as caught:
        load.parse_config(data, "/etc/c.toml")
    assert sentence in str(caught.value)
    assert str(caught.value).startswith("/etc/c.toml:")


# --- which file may be believed --------------------------------------------------------------------

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="the rule holds for root only")


def refused(path: Path) -> str:
    with pytest.raises(Fault) as caught:
        load.load_config(str(path))
    return str(caught.value)


def test_a_fifo_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "c")
    start = time.monotonic()
    assert refused(tmp_path / "c").endswith("the config file is not a regular file")
    assert time.monotonic() - start < 5


def test_a_directory_and_a_device_are_refused(tmp_path: Path) -> None:
    assert "not a regular file" in refused(tmp_path)
    assert "not a regular file" in refused(Path("/dev/zero"))


def test_a_file_of_one_mebibyte_is_read_and_a_larger_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "c"
    path.write_bytes(b"#" * load.MAX_CONFIG_SIZE)
    path.chmod(0o644)
    assert load.load_config(str(path)).path == str(path)
    path.write_bytes(b"#" * (load.MAX_CONFIG_SIZE + 1))
    assert "larger than 1 MiB" in refused(path)


def test_a_path_with_a_nul_and_a_loop_are_refused_with_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "c").symlink_to("c")
    assert "symbolic links" in refused(tmp_path / "c")
    with pytest.raises(Fault, match="NUL"):
        load.load_config("/etc/\0")


def test_a_link_to_a_good_file_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("request.missing-gpu = 'warn'")
    (tmp_path / "real").chmod(0o600)
    (tmp_path / "c").symlink_to("real")
    assert load.load_config(str(tmp_path / "c")).missing_gpu == "warn"


@as_root
@pytest.mark.parametrize(
    ("uid", "gid", "mode", "why"),
    [
        (1000, 0, 0o644, "belongs to user 1000"),
        (0, 0, 0o646, "can be written by every user"),
        (0, 50, 0o664, "can be written by group 50"),
    ],
)
def test_root_refuses_a_file_that_others_could_have_written(
    tmp_path: Path, uid: int, gid: int, mode: int, why: str
) -> None:
    path = tmp_path / "c"
    path.write_text("")
    path.chmod(mode)
    os.chown(path, uid, gid)
    assert why in refused(path) and "Run: ch" in refused(path)


@as_root
@pytest.mark.parametrize("mode", [0o600, 0o644, 0o664])
def test_root_accepts_what_only_root_can_write(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "c"
    path.write_text("")
    os.chown(path, 0, 0)
    path.chmod(mode)
    assert load.load_config(str(path)).path == str(path)


def test_another_user_is_not_bound_by_that_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "c"
    path.write_text("")
    path.chmod(0o666)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert load.load_config(str(path)).path == str(path)


@as_root
def test_root_in_a_user_namespace_believes_the_machines_root(open_place: Path) -> None:
    path = open_place / "c"
    path.write_text("request.missing-gpu = 'warn'")
    path.chmod(0o644)
    code = (
        f"import os, sys; sys.path.append({str(open_place / 'code')!r})\n"
        "from gpu_oci_hook.config.load import load_config\n"
        f"print(os.geteuid(), os.stat({str(path)!r}).st_uid, load_config({str(path)!r}).missing_gpu)"
    )
    argv = ["setpriv", "--reuid=1000", "--regid=1000", "--clear-groups", "unshare", "-Ur"]
    run = subprocess.run([*argv, find_interpreter(), "-ISc", code], capture_output=True, text=True)
    assert run.stdout.split() == ["0", "65534", "warn"], run.stderr


def test_a_file_that_this_user_may_not_read_is_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "c"
    path.write_text("")

    def closed(*_: object, **__: object) -> int:
        raise PermissionError(13, "Permission denied")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(posix, "open", closed)
        text = refused(path)
    assert text == f"{path}: the config file cannot be read: this user may not read it"


# --- the oracle ------------------------------------------------------------------------------------

TEXT = st.text(st.characters(codec="utf-8"), max_size=6)
SCALAR = st.one_of(
    st.booleans(),
    st.integers(-5, 5),
    st.floats(),
    TEXT,
    st.datetimes(),
    st.just(datetime.time(1, 2)),
    st.sampled_from(["/", "/a", "a/b", "a", "", "\n", "/a\n", "/\x7f", "a/b\n", "a./b", "nvidia.com/gpu", "ä/b"]),
    st.sampled_from([*CAPABILITIES, "always", "never", "warn", "fail", "auto", "info", "runc"]),
)
FILES = st.lists(
    st.one_of(
        SCALAR,
        st.dictionaries(
            st.sampled_from([*(key for key, _, _ in USER_FILE_KEYS), "name"]),
            st.one_of(SCALAR, st.sampled_from(["file", "library", "/opt/x", "compute"])),
            max_size=4,
        ),
    ),
    max_size=3,
)
VALUE = st.one_of(FILES, SCALAR, st.lists(SCALAR, max_size=3), st.dictionaries(TEXT, SCALAR, max_size=2))


@st.composite
def documents(draw: st.DrawFn) -> dict[str, object]:
    document: dict[str, object] = draw(st.dictionaries(TEXT, VALUE, max_size=1))
    for table in draw(st.sets(st.sampled_from(rules.TABLES))):
        keys = [row[1] for row in KEYS if row[0] == table]
        content = draw(st.dictionaries(st.sampled_from([*keys, *(row[1] for row in KEYS)]), VALUE, max_size=4))
        document[table] = draw(st.one_of(st.just(content), st.just(content), VALUE))
    return document


def oracle(document: object) -> set[str]:
    """The paths that jsonschema complains about; an unknown key counts as its own path."""
    paths: set[str] = set()
    for error in ORACLE.iter_errors(document):
        path = [str(part) for part in error.absolute_path]
        if error.validator == "additionalProperties":
            known = error.schema["properties"]
            paths |= {".".join([*path, key]) for key in error.instance if key not in known}
        else:
            paths.add(".".join(path))
    return paths


@settings(max_examples=1500, deadline=None)
@given(documents())
def test_our_validator_and_jsonschema_complain_about_the_same_paths(document: dict[str, object]) -> None:
    found = check.check_config_document(document)
    assert {finding.key for finding in found} == oracle(document)
    assert sorted(schema_findings.find_schema_findings(document)) == sorted(found)


PIECES = st.sampled_from(
    [
        *uncommented(DEFAULT_FILE).split(),
        "\n",
        "[",
        "]",
        "=",
        '"',
        "'",
        '"""',
        "{",
        "}",
        ",",
        ".",
        "\\",
        "#",
        "\x00",
        "ÿ",
    ]
)


@settings(max_examples=600, deadline=None)
@given(st.one_of(st.binary(max_size=80), st.lists(PIECES, max_size=25).map(" ".join).map(str.encode)))
def test_no_bytes_cause_anything_but_a_config_or_a_sentence(data: bytes) -> None:
    try:
        load.parse_config(data, "c.toml")
    except Fault as fault:
        assert str(fault).startswith("c.toml:") and str(fault).isprintable()
        if isinstance(fault, toml_document.TomlFault):
            assert fault.format_caret().count("\n") == 1


@settings(max_examples=300, deadline=None)
@given(
    st.integers(0, len(uncommented(DEFAULT_FILE)) - 1),
    st.sampled_from(["", "[", "=", '"', "\n", "0", ".", "]]"]),
)
def test_a_slip_of_the_pen_in_the_default_file_is_found_or_harmless(place: int, slip: str) -> None:
    text = uncommented(DEFAULT_FILE)
    changed = text[:place] + slip + text[place + 1 :]
    try:
        parsed = load.parse_config(changed.encode(), "c.toml")
    except Fault as fault:
        assert re.match(r"c\.toml:\d+", str(fault))
    else:
        assert all(re.match(r"c\.toml:\d+: ", warning) for warning in parsed.warnings)


def test_line_numbers_of_a_large_file_are_found_in_reasonable_time() -> None:
    text = "[host]\n" + "\n".join(f"k{i} = {i}" for i in range(5000)) + "\n[x]\ny = '''" + "\nz = 1" * 5000 + "'''"
    start = time.monotonic()
    found = toml_document.find_key_lines(text)
    assert found["host", "k4999"] == 5001
    assert time.monotonic() - start < 20
