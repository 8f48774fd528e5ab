"""Why a name is unresolvable: each cause has an answer of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_oci_hook import cli
from gpu_oci_hook.cdi.registry import unresolved, unresolved_query
from gpu_oci_hook.cdi.registry.own_devices import OwnDevices
from gpu_oci_hook.cdi.registry.scan import SpecScan
from gpu_oci_hook.config.keys import Config
from gpu_oci_hook.host.root import Host
from gpu_oci_hook.simulate import host_tree
from support.fake_cache import FakeCache
from support.spec_dirs import DIRECTORIES, make_spec, write_host_file

NAME = "nvidia.com/gpu=0"
GPU = "nvidia.com/gpu"


SCHEMA = json.loads((Path(cli.__file__).parent / "cdi-resolve.schema.json").read_text())


def find_cause_codes(schema: object) -> list[str]:
    """The values that the schema allows for the code of a cause."""
    if isinstance(schema, dict):
        code = schema.get("code")
        if isinstance(code, dict) and "enum" in code:
            return list(code["enum"])
        return [found for value in schema.values() for found in find_cause_codes(value)]
    return [found for value in schema for found in find_cause_codes(value)] if isinstance(schema, list) else []


CAUSE_CODES = find_cause_codes(SCHEMA)


def asked(root: Path, name: str = NAME, directories: tuple[str, ...] = DIRECTORIES) -> unresolved_query.UnresolvedCause:
    """The cause, with the host's root taken out of its words."""
    scan = SpecScan(Host(str(root)), directories)
    assert name not in scan.winners, "it resolves"
    found = unresolved.find_unresolved_cause(
        name, scan, Config(), OwnDevices(scan.host, Config(), FakeCache(lockable=False))
    )
    assert found.code in CAUSE_CODES, f'add "{found.code}" to cause.code in cli/cdi-resolve.schema.json'
    words = [text.replace(str(root), "") for text in (found.text, found.hint)]
    return unresolved_query.UnresolvedCause(
        found.code, tuple(path.replace(str(root), "") for path in found.files), *words
    )


def unknown_field(root: Path) -> None:
    write_host_file(root, "etc/cdi/x.json", make_spec("0", kind=GPU, env=["A=1"], newField=1))


def newer_field(root: Path) -> None:
    write_host_file(root, "etc/cdi/x.json", make_spec("0", kind=GPU, env=["A=1"], additionalGids=[44]))


def no_edits(root: Path) -> None:
    data = make_spec("0", kind=GPU)
    del data["devices"][0]["containerEdits"]
    write_host_file(root, "etc/cdi/x.json", data)


def empty_edits(root: Path) -> None:
    write_host_file(
        root, "etc/cdi/x.yaml", f"cdiVersion: 0.5.0\nkind: {GPU}\ndevices: [{{name: '0', containerEdits: {{}}}}]\n"
    )


def conflict(root: Path) -> None:
    write_host_file(root, "etc/cdi/x.json", make_spec("0", kind=GPU))
    write_host_file(root, "etc/cdi/y.json", make_spec("0", kind=GPU))


def conflict_below(root: Path) -> None:
    conflict(root)
    write_host_file(root, "var/run/cdi/z.json", make_spec("0", kind=GPU))


def suffix(root: Path) -> None:
    write_host_file(root, "etc/cdi/nvidia.yml", make_spec("0", kind=GPU))


def copy_kept(root: Path) -> None:
    write_host_file(root, "etc/cdi/nvidia.yaml.bak", make_spec("0", kind=GPU))


def only_all(root: Path) -> None:
    write_host_file(root, "etc/cdi/nvidia.json", make_spec("all", kind=GPU))


def only_uuids(root: Path) -> None:
    write_host_file(root, "etc/cdi/nvidia.json", make_spec("GPU-1111", "GPU-2222", kind=GPU))


def other_kind(root: Path) -> None:
    write_host_file(root, "etc/cdi/m.json", make_spec("0", kind="management.nvidia.com/gpu"))


def not_scanned(root: Path) -> None:
    write_host_file(root, "run/cdi/nvidia.json", make_spec("0", kind=GPU))
    (root / "var/run").mkdir(parents=True)


def subdirectory(root: Path) -> None:
    write_host_file(root, "etc/cdi/gpus/nvidia.json", make_spec("0", kind=GPU))


def linked_directory(root: Path) -> None:
    write_host_file(root, "opt/cdi/nvidia.json", make_spec("0", kind=GPU))
    (root / "etc").mkdir()
    (root / "etc/cdi").symlink_to("/opt/cdi")


def broken(root: Path) -> None:
    write_host_file(root, "etc/cdi/nvidia.yaml", "cdiVersion: [")


def nothing(root: Path) -> None:
    write_host_file(root, "etc/cdi/x.json", make_spec("a", kind="vendor.com/dev", env=["A=1"]))


# What is there, the word of the cause, what the sentence has.
CASES: list[tuple[Callable[[Path], None], str, list[str]]] = [
    (unknown_field, "invalid", ["/etc/cdi/x.json", "devices[0].containerEdits.newField"]),  # (b)
    (newer_field, "invalid", ["additionalGids: this field needs CDI 0.7.0", "podman 5.1", "docker 26.1"]),  # (b)
    (no_edits, "no-edits", ["/etc/cdi/x.json", "device 0 has no containerEdits, which makes"]),  # (c)
    (empty_edits, "no-edits", ["device 0 has no containerEdits, which makes"]),  # (c)
    (conflict, "conflict", ["/etc/cdi/x.json and /etc/cdi/y.json", "so neither is used"]),  # (d)
    (conflict_below, "conflict", ["so neither is used, nor /var/run/cdi/z.json"]),  # (d)
    (suffix, "suffix", ["/etc/cdi/nvidia.yml", "ignored: only .json and .yaml are read", "nvidia.yaml"]),  # (f)
    (copy_kept, "suffix", ["/etc/cdi/nvidia.yaml.bak", "mv"]),  # (f)
    (only_all, "device", ["only nvidia.com/gpu=all", "Use nvidia.com/gpu=all"]),  # (g)
    (only_uuids, "device", ["nvidia.com/gpu=GPU-1111, nvidia.com/gpu=GPU-2222"]),
    (other_kind, "kind", ["of the kind nvidia.com/gpu", "management.nvidia.com/gpu=0"]),  # (h)
    (
        not_scanned,
        "directory",
        ["/run/cdi/nvidia.json", "directory not scanned", "/var/run is not a link to /run"],
    ),  # (i)
    (subdirectory, "directory", ["/etc/cdi/gpus/nvidia.json", "directory not scanned"]),
    (linked_directory, "directory", ["directory not scanned", "it is a symbolic link"]),
    (broken, "invalid", ["/etc/cdi/nvidia.yaml", "may define it"]),
    (
        nothing,
        "undefined",
        ["no CDI file defines it", "/etc/cdi, /var/run/cdi (does not exist)", "This host has no GPU"],
    ),
    (lambda root: None, "undefined", ["no CDI file defines it"]),
]


@pytest.mark.parametrize(("made", "code", "words"), CASES, ids=[case[0].__name__ for case in CASES])
def test_each_cause_has_an_answer_of_its_own(
    tmp_path: Path, made: Callable[[Path], None], code: str, words: list[str]
) -> None:
    made(tmp_path)
    found = asked(tmp_path)
    assert found.code == code
    for word in words:
        assert word in f"{found.text}. {found.hint}"
    assert found.hint
    assert "\n" not in found.text + found.hint


def test_no_two_of_the_causes_are_told_alike(tmp_path: Path) -> None:
    told = {}
    for place, (made, _, _) in enumerate(CASES[:-1]):
        root = tmp_path / str(place)
        root.mkdir()
        made(root)
        told[asked(root).text] = made
    assert len(told) == len(CASES) - 1


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory that other users can enter."""
    directory = Path(tempfile.mkdtemp(prefix="cdi-causes-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


LOOK = """
import json, sys
from gpu_oci_hook.files import state_dir
from gpu_oci_hook.cdi.registry.own_devices import OwnDevices
from gpu_oci_hook.cdi.registry.scan import SpecScan
from gpu_oci_hook.cdi.registry.unresolved import find_unresolved_cause
from gpu_oci_hook.config.keys import Config
from gpu_oci_hook.host.root import Host
scan = SpecScan(Host(sys.argv[1]), ("/etc/cdi", "/var/run/cdi"))
os_setuid = __import__("os").setuid
own_devices = OwnDevices(scan.host, Config(), state_dir.StateCache())
print(json.dumps(find_unresolved_cause(sys.argv[2], scan, Config(), own_devices)))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root can become another user")
@pytest.mark.parametrize("what", ["file", "directory"])
def test_what_this_user_may_not_read_is_told_so(shared: Path, what: str) -> None:  # (a)
    path = write_host_file(shared, "etc/cdi/nvidia.yaml", make_spec("0", kind=GPU))
    write_host_file(shared, "var/run/cdi/other.json", make_spec("all", kind=GPU))
    (path if what == "file" else path.parent).chmod(0o600 if what == "file" else 0o700)
    # Our code may lie where that user cannot go: it is imported first.
    code = LOOK.replace("scan =", "__import__('os').setuid(4807)\nscan =", 1)
    done = subprocess.run(
        [sys.executable, "-c", code, shared, NAME], capture_output=True, text=True, check=True, cwd="/"
    )
    code, files, text, hint = json.loads(done.stdout)
    assert code == "unreadable"
    assert files == [str(path if what == "file" else path.parent)]
    if what == "file":
        assert "exists, but user 4807 cannot read it (mode 0600, owned by user 0)" in text
    assert hint.startswith("Run: chmod")


def test_a_later_directory_that_wins_is_no_fault(tmp_path: Path) -> None:  # (e), as `cdi resolve` tells it
    first = write_host_file(tmp_path, "etc/cdi/x.json", make_spec("0", kind=GPU))
    second = write_host_file(tmp_path, "var/run/cdi/x.json", make_spec("0", kind=GPU))
    scan = SpecScan(Host(str(tmp_path)), DIRECTORIES)
    assert scan.winners[NAME][0].path == str(second)
    assert [file.path for file in scan.shadowed[NAME]] == [str(first)]


@pytest.mark.parametrize("name", ["nvidia.com/gpu", "gpu=0", "/etc/x=0", "nvidia.com/gpu=", "a/b=ü"])
def test_what_is_no_name_is_told_so(tmp_path: Path, name: str) -> None:
    assert asked(tmp_path, name).code == "name"


def test_a_mistyped_device_has_its_neighbour_named(tmp_path: Path) -> None:
    write_host_file(tmp_path, "etc/cdi/x.json", make_spec("left", "right"))
    assert asked(tmp_path, "vendor.com/dev=rihgt").hint == "Use vendor.com/dev=right"


def test_hundreds_of_devices_are_not_all_told(tmp_path: Path) -> None:
    write_host_file(tmp_path, "etc/cdi/x.json", make_spec(*(f"d{number}" for number in range(500))))
    found = asked(tmp_path, "vendor.com/dev=none")
    assert "and 492 more" in found.text
    assert len(found.text) < 500


def with_gpus(root: Path) -> Path:
    host_tree.build_host(root / "host", gpus=4, driver="555.42.02")
    return root / "host"


def test_who_wanted_one_gpu_that_is_not_there_is_told_which_are_and_never_to_take_all(tmp_path: Path) -> None:
    """Whatever the files have."""
    host = with_gpus(tmp_path)
    for devices in ([], ["all"], ["0", "1", "2", "3", "all"]):
        if devices:
            write_host_file(host, "etc/cdi/nvidia.yaml", make_spec(*devices, kind=GPU))
        found = asked(host, "nvidia.com/gpu=9")
        assert found.code == ("device" if devices else "absent")
        assert found.text.endswith(", and there is no GPU 9")
        assert found.hint == "This host has GPUs 0 to 3; see gpu-oci-hook list"


def test_a_word_that_names_no_gpu_is_no_reason_to_write_a_file(tmp_path: Path) -> None:
    found = asked(with_gpus(tmp_path), "nvidia.com/gpu=al")
    assert found.text == 'no CDI file defines it, and there is no GPU "al"'
    assert 'Did you mean "all"?' in found.hint and "generate" not in found.hint


@pytest.mark.parametrize(("device", "there"), [("gpu0", "0"), ("0", "gpu0"), ("gpu0", "GPU-44b97862")])
def test_another_name_of_the_same_gpu_is_proposed(tmp_path: Path, device: str, there: str) -> None:
    host = with_gpus(tmp_path)
    gpu = OwnDevices(Host(str(host)), Config(), FakeCache(lockable=False)).gpus[0]
    there = gpu.uuid if there.startswith("GPU-") else there
    write_host_file(host, "etc/cdi/nvidia.yaml", make_spec("all", "3", there, kind=GPU))
    assert asked(host, f"nvidia.com/gpu={device}").hint == f"Use nvidia.com/gpu={there}"


def test_a_file_of_ours_that_lacks_a_gpu_of_this_machine_is_to_be_regenerated(tmp_path: Path) -> None:
    host = with_gpus(tmp_path)
    write_host_file(host, "etc/cdi/nvidia.yaml", make_spec("0", "1", "all", kind=GPU))
    found = asked(host, "nvidia.com/gpu=3")
    assert found.hint == "Regenerate it: gpu-oci-hook cdi generate --output /etc/cdi/nvidia.yaml"
    write_host_file(host, "etc/cdi/nvidia.yaml", make_spec("0", "1", kind=GPU))
    assert asked(host, "nvidia.com/gpu=all").hint == found.hint
    write_host_file(
        host, "etc/cdi/nvidia.yaml", f"# gpu-oci-hook hook create-container\n{json.dumps(make_spec('0', kind=GPU))}"
    )
    wanted = "Regenerate it: gpu-oci-hook cdi refresh --device all,none --output /etc/cdi/nvidia.yaml"
    assert asked(host, "nvidia.com/gpu=1").hint == wanted


def test_where_only_all_is_defined_it_is_listed_and_proposed(tmp_path: Path) -> None:
    host = with_gpus(tmp_path)
    write_host_file(host, "etc/cdi/nvidia.yaml", make_spec("all", kind=GPU))
    found = asked(host)
    assert "only nvidia.com/gpu=all" in found.text
    assert found.hint.startswith("Use nvidia.com/gpu=all for all devices. For 0 alone regenerate it: ")


def test_a_number_is_no_mistyped_other_number(tmp_path: Path) -> None:
    write_host_file(tmp_path, "etc/cdi/x.json", make_spec("0", "1", "all"))
    assert asked(tmp_path, "vendor.com/dev=10").hint == "Use one of them"


def test_a_device_called_yes_without_quotes_is_told_with_its_line(tmp_path: Path) -> None:
    write_host_file(
        tmp_path, "etc/cdi/a.yaml",
        "cdiVersion: 0.5.0\nkind: acme.com/nic\ndevices:\n- name: a\n  containerEdits: {env: [A=1]}\n"
        "- name: yes\n  containerEdits: {env: [A=1]}\n",
    )  # fmt: skip
    found = asked(tmp_path, "acme.com/nic=yes")
    assert found.text == (
        '/etc/cdi/a.yaml:6: devices[1].name: yes without quotes is read as "true", so the device is called that'
    )
    assert found.hint == "Put it in quotes"


@pytest.mark.parametrize("file", [(), ("0", "all")])
def test_the_management_device_needs_no_file_here_and_one_of_its_own_elsewhere(
    tmp_path: Path, file: tuple[str, ...]
) -> None:
    host = with_gpus(tmp_path)
    if file:
        write_host_file(host, "etc/cdi/nvidia-management.yaml", make_spec(*file, kind=GPU))
    found = asked(host, "management.nvidia.com/gpu=all")
    name = "management.nvidia.com-gpu.yaml" if file else "nvidia-management.yaml"  # nothing is replaced
    assert f"gpu-oci-hook cdi generate --mode management --output /etc/cdi/{name}" in found.hint
    assert found.hint.endswith("gpu-oci-runtime resolves this name without a CDI file")
    assert asked(host, "management.nvidia.com/gpu=0").hint == "Use management.nvidia.com/gpu=all"


def test_kinds_that_our_generator_writes_have_their_mode_told(tmp_path: Path) -> None:
    found = asked(with_gpus(tmp_path), "nvidia.com/gds=all")
    assert "gpu-oci-hook cdi generate --mode gds --output /etc/cdi/nvidia-gds.yaml" in found.hint


def test_the_runtimes_own_kind_is_not_for_engines(tmp_path: Path) -> None:
    host = with_gpus(tmp_path)
    found = asked(host, "runtime.nvidia.com/gpu=0")
    assert "engines need nvidia.com/gpu=0" in found.text
    assert "gpu-oci-hook cdi generate --output /etc/cdi/nvidia.yaml" in found.hint
    write_host_file(host, "etc/cdi/nvidia.yaml", make_spec("0", kind=GPU))
    assert asked(host, "runtime.nvidia.com/gpu=0").hint == ("Use nvidia.com/gpu=0, which /etc/cdi/nvidia.yaml defines")
    assert "there is no GPU 9" in asked(host, "runtime.nvidia.com/gpu=9").text


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("nvidia.com/gup=0", "nvidia.com/gpu=0"),
        ("nvida.com/gpu=all", "nvidia.com/gpu=all"),
        ("vendor.com/devv=a", "vendor.com/dev=a"),
        ("intel.com/gpu=0", ""),
        ("amd.com/gpu=0", ""),
        ("acme.com/gpu=0", ""),
        ("vendor.com/net=a", ""),
    ],
)
def test_a_mistyped_kind_has_the_right_one_told_and_another_vendors_is_none(
    tmp_path: Path, name: str, meant: str
) -> None:
    write_host_file(tmp_path, "etc/cdi/x.json", make_spec("a"))
    found = asked(tmp_path, name)
    assert ("Did you mean" in found.hint) == bool(meant)
    assert not meant or found.hint == f"Did you mean {meant}?"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("nvidia.com/gpu", "Use nvidia.com/gpu=0"),
        ("acme.com/nic", "Use acme.com/nic=DEVICE"),
        ("0", "Use vendor/class=device, such as nvidia.com/gpu=0"),
        ("all", "Use vendor/class=device, such as nvidia.com/gpu=all"),
        ("bad name", "Use vendor/class=device, such as nvidia.com/gpu=0"),
    ],
)
def test_what_is_no_name_is_told_the_name_that_it_may_be(tmp_path: Path, name: str, hint: str) -> None:
    assert asked(tmp_path, name).hint == hint


def test_without_any_directory_there_is_an_answer_too(tmp_path: Path) -> None:
    found = asked(with_gpus(tmp_path), NAME, ())
    assert "looked in no directory" in found.text and "--output /etc/cdi/nvidia.yaml" in found.hint


def test_the_shims_error_has_the_same_hint(tmp_path: Path) -> None:
    found = unresolved.make_unresolved_fault("nvidia.com/gup=0", "here", 0, Host(str(with_gpus(tmp_path))), Config())
    assert found.what.startswith("CDI device nvidia.com/gup=0 is unresolvable: no file defines devices of the kind")
    assert found.hint == "Did you mean nvidia.com/gpu=0?"


def test_no_cause_says_what_engines_take_for_something_else(tmp_path: Path) -> None:
    for place, (made, _, _) in enumerate(CASES):
        root = tmp_path / str(place)
        root.mkdir()
        made(root)
        found = asked(root)
        words = f"{found.text} {found.hint}".lower()
        assert "no such file" not in words
        assert "executable file not found" not in words
        assert "permission denied" not in words
