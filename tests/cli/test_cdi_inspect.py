"""`cdi list` and `cdi resolve`: what is there, what wins, what a name brings, and what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from gpu_oci_hook import cli
from gpu_oci_hook.simulate import host_tree
from support.command_line import Command, CommandResult
from support.spec_dirs import make_spec, write_host_file

SCHEMAS = Path(cli.__file__).parent


@pytest.fixture
def host(tmp_path: Path) -> Path:
    host_tree.build_host(tmp_path / "host", gpus=2, driver="555.42.02")
    return tmp_path / "host"


def document(answer: CommandResult, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(answer.out)
    schema = json.loads((SCHEMAS / f"{name}.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(found, schema)
    return found


def words(host: Path, *more: str) -> tuple[str, ...]:
    return ("--root", str(host), *more)


def test_list_of_a_host_without_files_says_where_it_looked(command: Command, host: Path) -> None:
    answer = command("cdi", "list", *words(host))
    assert answer.status == 0
    why = f"[host] root is {host}: engines of this machine read /etc/cdi, /var/run/cdi"
    there = [" (does not exist)" if not (host / path).is_dir() else "" for path in ("etc/cdi", "var/run/cdi")]
    assert f"looked in {host}/etc/cdi{there[0]}, {host}/var/run/cdi{there[1]} ({why})" in answer.out and any(there)
    assert document(command("cdi", "list", *words(host), "--format", "json"), "cdi-list")["devices"] == []


def test_list_tells_devices_winners_readers_and_problems(command: Command, host: Path) -> None:
    write_host_file(host, "etc/cdi/a.json", make_spec("a", "b"))
    write_host_file(host, "run/cdi/a.yaml", make_spec("a"))
    write_host_file(host, "etc/cdi/c.json", make_spec("b"))
    write_host_file(
        host, "etc/cdi/new.json", {**make_spec("n", kind="v.com/new", additionalGids=[4]), "cdiVersion": "0.7.0"}
    )
    mount = {"hostPath": "/none", "containerPath": "/x", "type": "bind"}
    write_host_file(host, "etc/cdi/old.json", make_spec("o", kind="v.com/old", mounts=[mount]))
    write_host_file(host, "etc/cdi/zz.json", "{")
    answer = command("cdi", "list", *words(host))
    assert answer.status == 0
    rows = {line.split()[0]: line for line in answer.out.splitlines() if line.strip()}
    assert f"{host}/var/run/cdi/a.yaml  overrides {host}/etc/cdi/a.json" in rows["vendor.com/dev=a"]
    assert "vendor.com/dev=b" not in rows
    assert "podman 5.1" in rows[f"{host}/etc/cdi/new.json"] and "podman 4.3" in rows[f"{host}/etc/cdi/a.json"]
    problems = answer.out.partition("problems")[2]
    assert (
        f"vendor.com/dev=b: error: conflict: not used, because {host}/etc/cdi/a.json and {host}/etc/cdi/c.json"
        in problems
    )
    assert f"/none is missing on the host below {host}" in problems
    assert "zz.json" in problems
    write_host_file(host, "etc/cdi/note.yml", "x")
    ignored = f"- {host}/etc/cdi/note.yml: info: is ignored by engines, which read only .json and .yaml. Rename it to "
    assert f"{ignored}note.yaml\n" in command("cdi", "list", *words(host)).out
    found = document(command("cdi", "list", *words(host), "--format", "json"), "cdi-list")
    quiet = command("cdi", "list", *words(host), "-q")
    assert (quiet.out, quiet.err) == ("v.com/new=n\nv.com/old=o\nvendor.com/dev=a\n", "")
    assert found["ignored"] == [f"{host}/etc/cdi/note.yml"]
    assert [one["name"] for one in found["devices"]] == ["v.com/new=n", "v.com/old=o", "vendor.com/dev=a"]
    assert found["devices"][2]["wins_over"] == [f"{host}/etc/cdi/a.json"]
    assert found["conflicts"][0]["name"] == "vendor.com/dev=b"
    assert {Path(one["path"]).name: one["valid"] for one in found["files"]} == {
        "a.json": True, "c.json": True, "new.json": True, "old.json": True, "zz.json": False, "a.yaml": True,
    }  # fmt: skip


def test_resolve_shows_the_edits_the_file_and_its_readers(command: Command, host: Path) -> None:
    write_host_file(host, "etc/cdi/a.json", {**make_spec("a"), "containerEdits": {"env": ["F=1"]}})
    answer = command("cdi", "resolve", *words(host), "vendor.com/dev=a")
    assert answer.status == 0
    lines = [line.split() for line in answer.out.splitlines()]
    assert ["env", "F=1"] in lines and ["env", "A=1"] in lines
    assert ["file", f"{host}/etc/cdi/a.json"] in lines
    (found,) = document(command("cdi", "resolve", *words(host), "--format", "json", "vendor.com/dev=a"), "cdi-resolve")[
        "names"
    ]
    assert found["resolved"] and found["cause"] is None
    assert found["edits"] == [
        {"where": "containerEdits", "containerEdits": {"env": ["F=1"]}},
        {"where": "devices[0].containerEdits", "containerEdits": {"env": ["A=1"]}},
    ]


def test_resolve_says_which_directory_wins(command: Command, host: Path) -> None:
    write_host_file(host, "etc/cdi/x.yaml", make_spec("0", kind="nvidia.com/gpu"))
    write_host_file(host, "run/cdi/x.yaml", make_spec("0", kind="nvidia.com/gpu"))
    answer = command("cdi", "resolve", *words(host), "nvidia.com/gpu=0")
    assert answer.status == 0
    assert "because its directory comes later" in answer.out


def test_resolve_of_an_unknown_name_fails_with_the_cause(command: Command, host: Path) -> None:
    write_host_file(host, "etc/cdi/a.json", make_spec("a", "all"))
    answer = command("cdi", "resolve", *words(host), "vendor.com/dev=0", "vendor.com/dev=a")
    assert answer.status == 1
    assert answer.err == ""
    assert "only vendor.com/dev=a, vendor.com/dev=all. Use one of them" in answer.out
    found = document(
        command("cdi", "resolve", *words(host), "--format", "json", "vendor.com/dev=0", "vendor.com/dev=a"),
        "cdi-resolve",
    )["names"]
    assert [one["resolved"] for one in found] == [False, True]
    assert found[0]["cause"]["code"] == "device"


def test_resolve_of_our_own_kind_tells_what_the_runtime_gives_without_a_file(command: Command, host: Path) -> None:
    answer = command("cdi", "resolve", *words(host), "nvidia.com/gpu=0")
    assert answer.status == 1, "other engines cannot resolve it"
    assert "gpu-oci-runtime resolves this name without a CDI file and injects GPU 0 (GPU-" in answer.out
    assert "gpu-oci-hook cdi generate" in answer.out
    answer = command("cdi", "resolve", *words(host), "nvidia.com/gpu=9")
    assert "needs no file" not in answer.out


def test_resolve_says_that_a_file_is_of_another_driver(command: Command, host: Path) -> None:
    library = "/usr/lib/x86_64-linux-gnu/libcuda.so.550.54.14"
    mounts = [{"hostPath": library, "containerPath": library, "options": ["ro", "nosuid", "nodev", "bind"]}]
    path = write_host_file(
        host, "etc/cdi/nvidia.yaml", {**make_spec("0", kind="nvidia.com/gpu"), "containerEdits": {"mounts": mounts}}
    )
    answer = command("cdi", "resolve", *words(host), "nvidia.com/gpu=0")
    assert answer.status == 1
    assert f"written for driver 550.54.14, and the host below {host} runs 555.42.02, 1 missing path" in answer.out
    assert f"gpu-oci-hook cdi generate --output {path}" in answer.out


def test_resolve_shows_a_node_that_cannot_be_given(command: Command, host: Path) -> None:
    write_host_file(host, "etc/cdi/a.json", make_spec("a", deviceNodes=[{"path": "/dev/none"}]))
    answer = command("cdi", "resolve", *words(host), "vendor.com/dev=a")
    assert answer.status == 1
    assert "1 missing path: /dev/none" in answer.out


def test_other_directories_can_be_named_and_are_not_looked_for_below_the_host_root(
    command: Command, host: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_host_file(tmp_path, "one/a.json", make_spec("a"))
    write_host_file(tmp_path, "two/a.json", make_spec("a"))
    more = ("--spec-dir", f"{tmp_path}/one", "--spec-dir", f"{tmp_path}/two")
    answer = command("cdi", "resolve", *words(host, *more), "vendor.com/dev=a")
    assert answer.status == 0
    assert "because its directory comes later" in answer.out
    monkeypatch.chdir(tmp_path)
    assert command("cdi", "resolve", *words(host, "--spec-dir", "one"), "vendor.com/dev=a").status == 0
    for place, problem in (("none", "no such directory"), ("file", "not a directory")):
        (tmp_path / "file").write_text("")
        for words_before in (("cdi", "list"), ("cdi", "resolve", "v.com/d=0")):
            answer = command(*words_before, *words(host, "--spec-dir", place))
            assert (answer.status, answer.err) == (1, f"gpu-oci-hook: --spec-dir {place}: {problem}\n")
    (tmp_path / "empty").mkdir()
    answer = command("cdi", "list", *words(host, "--spec-dir", "empty"))
    assert f"no CDI file defines a device; looked in {tmp_path}/empty\n" == answer.out
    # What the files name is still looked for on the host.
    mount = {"hostPath": "/etc/of-host", "containerPath": "/x", "options": ["bind"]}
    write_host_file(tmp_path, "one/a.json", make_spec("a", mounts=[mount]))
    assert "1 missing path" in command("cdi", "resolve", *words(host, *more[:2]), "vendor.com/dev=a").out
    write_host_file(host, "etc/of-host", "")
    assert command("cdi", "resolve", *words(host, *more[:2]), "vendor.com/dev=a").status == 0


def test_the_advice_for_a_simulated_host_names_a_place_where_engines_look(command: Command, host: Path) -> None:
    answer = command("cdi", "resolve", *words(host), "nvidia.com/gpu=0")
    assert "gpu-oci-hook cdi generate --output /etc/cdi/nvidia.yaml" in answer.out
    assert f"([host] root is {host}: engines of this machine read /etc/cdi, /var/run/cdi)" in answer.out


def test_resolve_of_a_file_that_does_not_fit_says_why_and_the_hint_and_stops(command: Command, host: Path) -> None:
    library = "/usr/lib/libnvidia-x.so.550.54.14"
    mounts = [{"hostPath": library, "containerPath": library, "options": ["bind"]}]
    write_host_file(host, "etc/cdi/nvidia.yaml", make_spec("0", kind="nvidia.com/gpu", mounts=mounts, env=["SECRET=1"]))
    answer = command("cdi", "resolve", *words(host), "nvidia.com/gpu=0")
    assert answer.status == 1
    lines = answer.out.splitlines()
    assert [line.split()[0] for line in lines] == ["nvidia.com/gpu=0", "file", "read", "cannot", "gpu-oci-runtime"]
    assert "written for driver 550.54.14" in lines[3] and "Regenerate it: gpu-oci-hook cdi generate" in lines[3]


def test_resolve_of_a_mount_that_no_runtime_makes_fails_with_the_missing_word_and_with_a_missing_path(
    command: Command, host: Path
) -> None:
    write_host_file(host, "etc/there", "")
    for path in ("/etc/there", "/none"):
        write_host_file(
            host, "etc/cdi/a.json", make_spec("a", mounts=[{"hostPath": path, "containerPath": "/x", "type": "bind"}])
        )
        answer = command("cdi", "resolve", *words(host), "vendor.com/dev=a")
        assert answer.status == 1
        assert ("has neither bind nor rbind" if path == "/etc/there" else "1 missing path: /none") in answer.out
    document(command("cdi", "resolve", *words(host), "--format", "json", "vendor.com/dev=a"), "cdi-resolve")


def test_resolve_shows_a_hook_in_a_short_line(command: Command, host: Path) -> None:
    write_host_file(host, "hook", "").chmod(0o755)
    args = ["hook", "hook", "create-container", *[word for number in range(60) for word in ("--link", f"a{number}::b")]]
    hooks = [
        {"hookName": "createContainer", "path": "/hook", "args": args},
        {"hookName": "poststop", "path": "/hook", "args": ["hook", "one"]},
    ]
    write_host_file(host, "etc/cdi/a.json", make_spec("a", hooks=hooks))
    answer = command("cdi", "resolve", *words(host), "vendor.com/dev=a")
    assert answer.status == 0
    assert f"createContainer: {host}/hook hook create-container with 120 arguments\n" in answer.out
    every = command("cdi", "resolve", *words(host), "vendor.com/dev=a", "-v")
    assert f"createContainer: {host}/hook {' '.join(args[1:])}\n" in every.out
    assert f"poststop: {host}/hook one\n" in answer.out
    said = command("cdi", "resolve", *words(host), "--format", "json", "vendor.com/dev=a")
    assert "a59::b" in said.out, "programs get all of it"


def test_list_tells_an_error_with_its_line_and_a_cause_once_as_validate_does(command: Command, host: Path) -> None:
    mounts = "".join(f"    - {{hostPath: /none{n}, containerPath: /x, options: [bind]}}\n" for n in range(9))
    text = f"cdiVersion: 0.5.0\nkind: v.com/dd\ndevices:\n- name: a\n  containerEdits:\n    mounts:\n{mounts}"
    first = write_host_file(host, "etc/cdi/a.yaml", text)
    second = write_host_file(host, "etc/cdi/b.yaml", f"{text}    newField: 1\n")
    for answer in (command("cdi", "list", *words(host)), command("cdi", "validate", *words(host), str(first.parent))):
        lines = [line.removeprefix("- ") for line in answer.out.splitlines() if "devices[0]" in line]
        missing = [line for line in lines if line.startswith(f"{first}:7: error: devices[0].containerEdits.mounts[0]")]
        assert len(missing) == 1 and f"/none0 is missing on the host below {host} (and 8 more paths). " in missing[0]
        assert any(line.startswith(f"{second}:16: error: devices[0].containerEdits.newField: ") for line in lines)


@pytest.mark.parametrize(
    ("name", "given"),
    [("nvidia.com/gpu=gpu1", "GPU 1 (GPU-"), ("nvidia.com/gpu=none", "the driver's files"), ("vendor.com/dev=0", "")],
)
def test_resolve_tells_what_needs_no_file(command: Command, host: Path, name: str, given: str) -> None:
    found = json.loads(command("cdi", "resolve", *words(host), "--format", "json", name).out)["names"][0]["in_memory"]
    assert (found or "").startswith(given) and bool(found) == bool(given)


def test_resolve_knows_mig_devices(command: Command, tmp_path: Path) -> None:
    host_tree.build_host(tmp_path / "host", gpus=1, driver="555.42.02", mig=["2g,1g"])
    out = command("cdi", "resolve", "--root", str(tmp_path / "host"), "nvidia.com/gpu=0:1", "nvidia.com/gpu=mig0:9").out
    assert "injects MIG device 0:1" in out
    assert "there is no MIG device 0:9. This host has the MIG devices 0:0 to 0:1" in out


def test_the_configuration_names_the_directories(command: Command, host: Path, tmp_path: Path) -> None:
    write_host_file(host, "opt/cdi/a.json", make_spec("a"))
    config = tmp_path / "config.toml"
    config.write_text(f'[host]\nroot = "{host}"\n[cdi]\nspec-dirs = ["/opt/cdi"]\n')
    assert "vendor.com/dev=a" in command("cdi", "list", "--config", str(config)).out


def test_names_and_files_with_odd_letters_do_not_reach_the_terminal(command: Command, host: Path) -> None:
    write_host_file(host, "etc/cdi/a\x1b[31m.json", "{")
    for answer in (
        command("cdi", "list", *words(host)),
        command("cdi", "resolve", *words(host), "vendor.com/dev=\x1b[31m"),
    ):
        assert "\x1b" not in answer.out + answer.err
