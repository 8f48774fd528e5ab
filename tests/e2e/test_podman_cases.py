"""Odd CDI files and a real engine: podman does with each what tests/support/podman_cases.py says that it does.

podman makes a container's config.json and calls a runtime that keeps it and refuses: nothing runs. What it scans,
/etc/cdi, is a tmpfs in a private mount namespace.
"""

from __future__ import annotations

import json
import random
import shlex
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gpu_oci_hook.cdi.spec import reading, validation
from gpu_oci_hook.formats import cdi_names
from support.e2e import machine
from support.e2e.podman_pairs import podman_version
from support.e2e.requirements import require_programs
from support.podman_cases import CASES, SCALARS, Case, write_arguments, yaml_file
from support.spec_mutations import mutate_spec, mutate_text
from support.valid_specs import SPECS_BY_VERSION, with_change

Ask = Callable[[Case], "dict[str, Any] | None"]


@pytest.fixture(scope="module")
def version() -> str:
    """podman's version."""
    require_programs("podman")
    return podman_version()


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory, version: str) -> Iterator[Ask]:
    """Gives podman a file and asks for a device of it: the config.json that it makes, or None when it refuses."""
    require_programs("podman", "unshare", "nsenter")
    home = tmp_path_factory.mktemp("podman-cdi")
    (home / "root/dev").mkdir(parents=True)
    (home / "containers.conf").write_text("[engine]\n[containers]\n")
    kept, specs = home / "config.json", home / "specs"
    specs.mkdir()
    runtime = home / "keeping"
    runtime.write_text(machine.KEEPING_RUNTIME.format(target=shlex.quote(str(kept))))
    runtime.chmod(0o755)
    holder = machine.MountNamespace(machine.private_cdi_script(home, specs))
    holder.start()

    def answer(case: Case) -> dict[str, Any] | None:
        for path in specs.iterdir():
            path.unlink()
        kept.unlink(missing_ok=True)
        (specs / case.file).write_bytes(case.text if isinstance(case.text, bytes) else case.text.encode())
        flags = ["--root", f"{home}/data", "--runroot", f"{home}/run", "--tmpdir", f"{home}/tmp"]
        flags += ["--cgroup-manager", "cgroupfs", "--events-backend", "file", "--runtime", str(runtime)]
        words = ["run", "--rm", "--network", "none", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"]
        words += ["--device", case.device, "--rootfs", f"{home}/root", "/x"]
        env = {"PATH": machine.DIRECTORIES, "HOME": str(home), "CONTAINERS_CONF": f"{home}/containers.conf"}
        done = machine.run_command([*holder.enter, machine.find_program("podman"), *flags, *words], env=env, cwd=home)
        assert done.status != 0
        if not kept.exists():
            assert any(word in done.text for word in ("unresolvable CDI", "panic", "stat ")), done.text
            assert "failed to stat" not in done.text, "the file asks for a node that this machine lacks"
            return None
        loaded: dict[str, Any] = json.loads(kept.read_text())
        return loaded

    yield answer
    holder.stop()


@pytest.mark.parametrize("name", CASES)
def test_podman_does_with_each_odd_file_what_the_table_says(ask: Ask, version: str, name: str) -> None:
    assert (ask(CASES[name]) is not None) == CASES[name].is_read_by(version)


def test_podman_reads_words_without_quotes_as_the_table_says(ask: Ask) -> None:
    config = ask(Case(write_arguments(list(SCALARS)), True))
    assert config is not None
    assert config["hooks"]["prestart"][0]["args"] == list(SCALARS.values())


def test_what_podman_takes_from_a_hard_file_is_what_we_read(ask: Ask) -> None:
    text = yaml_file(
        "env: &env [A=b, 'C=d e', \"F=\\u00e9\\tg\"]\n"
        "    <<:\n      hooks:\n"
        "      - {HookName: prestart, path: /bin/true, args: [a, null, 3, yes, 0x1f], env: *env, timeout: 2.0}\n"
        "    mounts:\n    - {hostPath: /a, containerPath: '/b', options: [ro, 1], type: ~}",
        name="0666",
        more="containerEdits:\n  env: [X=1]\n  deviceNodes:\n"
        "  - {path: /dev/null, type: c, major: 1e0, minor: 3, fileMode: 0666}\n",
    )
    config = ask(Case(text, True, device="vendor.com/class=438"))
    data = reading.parse_spec(text.encode(), "x.yaml").data
    assert config is not None and isinstance(data, dict)
    device = data["devices"][0]
    assert device["name"] == "438"
    edits, common = device["containerEdits"], data["containerEdits"]
    assert [one for one in config["process"]["env"] if one[:1] in "ACFX" and one[1] == "="] == [
        *common["env"],
        *edits["env"],
    ]
    hook = {key: value for key, value in edits["hooks"][0].items() if key != "hookName"}
    assert config["hooks"]["prestart"] == [hook]
    mounts = [one for one in config["mounts"] if one["destination"] == "/b"]
    assert mounts == [{"destination": "/b", "source": "/a", "options": edits["mounts"][0]["options"]}]
    nodes = [one for one in config["linux"]["devices"] if one["path"] == "/dev/null"]
    assert nodes == [common["deviceNodes"][0]]


def test_a_file_with_a_field_of_0_7_0_is_refused_and_validate_says_so_before(ask: Ask) -> None:
    text = yaml_file("env: [A=b]\n    additionalGids: [44]")
    data = reading.parse_spec(text.encode(), "x.yaml").data
    found = validation.validate_spec(data, "x.yaml", maximum="0.5.0", reader="podman 4.3")
    assert [one.where for one in found] == ["devices[0].containerEdits.additionalGids"] * 2
    assert "podman 4.3 refuses the whole file" in found[1].text
    assert ask(Case(text, False)) is None


def errors(case: Case) -> list[str]:
    """Why podman 4.3 will refuse the file, in our opinion."""
    document = reading.parse_spec(case.text if isinstance(case.text, bytes) else case.text.encode(), case.file)
    found = list(document.findings)
    if document.data is not None:
        found += validation.validate_spec(document.data, case.file, maximum="0.5.0", reader="podman 4.3")
    return [str(one) for one in found if one.level == "error"]


def device_of(text: str, file: str) -> str:
    """The first device of a file, by the name that we read; any other where there is none."""
    data: Any = reading.parse_spec(text.encode(), file).data
    try:
        name = f"{data['kind']}={data['devices'][0]['name']}"
    except (TypeError, KeyError, IndexError):
        name = ""
    # A part of one letter makes podman crash: that is in the table.
    return (
        name
        if cdi_names.parse_qualified_name(name)
        and all(len(part) > 1 for part in cdi_names.parse_qualified_name(name) or ())
        else "vendor.com/class=dev"
    )


def test_podman_and_we_agree_on_yaml_with_small_changes(ask: Ask) -> None:
    chance = random.Random(1)
    start = yaml_file(
        "env: [A=b, 'c=d', \"e=\\tf\"]\n    mounts:\n    - hostPath: /a # b\n      containerPath: |\n       /x\n"
        "      options: [ro]\n    hooks: [{hookName: prestart, path: /x, timeout: 3}]",
        more="containerEdits: {deviceNodes: [{path: /dev/null, type: c, major: 1, minor: 3, permissions: rw}]}\n",
    )
    read = 0
    for _ in range(80):
        text = mutate_text(start, chance, 1)
        case = Case(text, True, device=device_of(text, "x.yaml"))
        answer = ask(case) is not None
        assert answer == (not errors(case)), (text, errors(case))
        read += answer
    assert 5 < read < 70


def test_podman_and_we_agree_on_files_with_odd_values(ask: Ask) -> None:
    chance = random.Random(2)
    node = {"path": "/dev/null", "type": "c", "major": 1, "minor": 3}  # one that needs nothing of the host
    small = SPECS_BY_VERSION["0.4.0"]
    start = with_change(SPECS_BY_VERSION["0.4.0"], "devices", 0, "containerEdits", "deviceNodes", to=[node]) | {
        "cdiVersion": "0.5.0"
    }
    read = 0
    for _ in range(80):
        text = json.dumps(mutate_spec(chance.choice([start, small]), chance, 1), ensure_ascii=False)
        case = Case(text, True, device=device_of(text, "x.json"), file="x.json")
        # The differences on purpose: see support/podman_cases.
        said = [one for one in errors(case) if not any(word in one for word in ("NUL", "-1 is not", "declares 0.4.0"))]
        answer = ask(case) is not None
        assert answer == (not said), (text, said)
        read += answer
    assert read > 5
