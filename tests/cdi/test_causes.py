"""Why a name is unresolvable: the nine causes of R09, each with another answer, and what lies between them."""

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

from gpu_oci_hook.cdi import causes
from gpu_oci_hook.cdi.scan import Scan
from gpu_oci_hook.config import Config
from gpu_oci_hook.host.root import Host

from .tree import DIRECTORIES, put, spec

NAME = "nvidia.com/gpu=0"
GPU = "nvidia.com/gpu"


def asked(root: Path, name: str = NAME, directories: tuple[str, ...] = DIRECTORIES) -> causes.Cause:
    """The cause, with the host's root taken out of its words."""
    scan = Scan(Host(str(root)), directories)
    assert name not in scan.winners, "it resolves"
    found = causes.find(name, scan, Config())
    words = [text.replace(str(root), "") for text in (found.text, found.cure)]
    return causes.Cause(found.code, tuple(path.replace(str(root), "") for path in found.files), *words)


def unknown_field(root: Path) -> None:
    put(root, "etc/cdi/x.json", spec("0", kind=GPU, env=["A=1"], newField=1))


def newer_field(root: Path) -> None:
    put(root, "etc/cdi/x.json", spec("0", kind=GPU, env=["A=1"], additionalGids=[44]))


def no_edits(root: Path) -> None:
    data = spec("0", kind=GPU)
    del data["devices"][0]["containerEdits"]
    put(root, "etc/cdi/x.json", data)


def empty_edits(root: Path) -> None:
    put(root, "etc/cdi/x.yaml", f"cdiVersion: 0.5.0\nkind: {GPU}\ndevices: [{{name: '0', containerEdits: {{}}}}]\n")


def conflict(root: Path) -> None:
    put(root, "etc/cdi/x.json", spec("0", kind=GPU))
    put(root, "etc/cdi/y.json", spec("0", kind=GPU))


def conflict_below(root: Path) -> None:
    conflict(root)
    put(root, "var/run/cdi/z.json", spec("0", kind=GPU))


def suffix(root: Path) -> None:
    put(root, "etc/cdi/nvidia.yml", spec("0", kind=GPU))


def copy_kept(root: Path) -> None:
    put(root, "etc/cdi/nvidia.yaml.bak", spec("0", kind=GPU))


def only_all(root: Path) -> None:
    put(root, "etc/cdi/nvidia.json", spec("all", kind=GPU))


def only_uuids(root: Path) -> None:
    put(root, "etc/cdi/nvidia.json", spec("GPU-1111", "GPU-2222", kind=GPU))


def other_kind(root: Path) -> None:
    put(root, "etc/cdi/m.json", spec("0", kind="management.nvidia.com/gpu"))


def not_scanned(root: Path) -> None:
    put(root, "run/cdi/nvidia.json", spec("0", kind=GPU))
    (root / "var/run").mkdir(parents=True)


def subdirectory(root: Path) -> None:
    put(root, "etc/cdi/gpus/nvidia.json", spec("0", kind=GPU))


def linked_directory(root: Path) -> None:
    put(root, "opt/cdi/nvidia.json", spec("0", kind=GPU))
    (root / "etc").mkdir()
    (root / "etc/cdi").symlink_to("/opt/cdi")


def broken(root: Path) -> None:
    put(root, "etc/cdi/nvidia.yaml", "cdiVersion: [")


def nothing(root: Path) -> None:
    put(root, "etc/cdi/x.json", spec("a", kind="vendor.com/dev", env=["A=1"]))


# What is there, the word of the cause, what the sentence has.
CASES: list[tuple[Callable[[Path], None], str, list[str]]] = [
    (unknown_field, "invalid", ["/etc/cdi/x.json", "devices[0].containerEdits.newField"]),  # (b)
    (newer_field, "invalid", ["additionalGids: field needs >= 0.7.0", "podman 5.1", "docker 26.1"]),  # (b)
    (no_edits, "no-edits", ["/etc/cdi/x.json", "device 0 has no containerEdits: invalid"]),  # (c)
    (empty_edits, "no-edits", ["device 0 has no containerEdits: invalid"]),  # (c)
    (conflict, "conflict", ["/etc/cdi/x.json and /etc/cdi/y.json", "conflict: none used"]),  # (d)
    (conflict_below, "conflict", ["conflict: none used, nor /var/run/cdi/z.json"]),  # (d)
    (suffix, "suffix", ["/etc/cdi/nvidia.yml", "ignored: only .json and .yaml are read", "nvidia.yaml"]),  # (f)
    (copy_kept, "suffix", ["/etc/cdi/nvidia.yaml.bak", "mv"]),  # (f)
    (only_all, "device", ["only nvidia.com/gpu=all", "Ask for nvidia.com/gpu=all"]),  # (g)
    (only_uuids, "device", ["nvidia.com/gpu=GPU-1111, nvidia.com/gpu=GPU-2222"]),
    (other_kind, "kind", ["of the kind nvidia.com/gpu", "management.nvidia.com/gpu=0"]),  # (h)
    (not_scanned, "directory", ["/run/cdi/nvidia.json", "directory not scanned", "/var/run is no link to /run"]),  # (i)
    (subdirectory, "directory", ["/etc/cdi/gpus/nvidia.json", "directory not scanned"]),
    (linked_directory, "directory", ["directory not scanned", "it is a link"]),
    (broken, "invalid", ["/etc/cdi/nvidia.yaml", "may define it"]),
    (nothing, "undefined", ["no CDI file defines it", "/etc/cdi, /var/run/cdi", "gpu-oci-hook cdi generate"]),
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
        assert word in f"{found.text}. {found.cure}"
    assert found.cure
    assert "\n" not in found.text + found.cure


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
from gpu_oci_hook.cdi import causes
from gpu_oci_hook.cdi.scan import Scan
from gpu_oci_hook.config import Config
from gpu_oci_hook.host.root import Host
scan = Scan(Host(sys.argv[1]), ("/etc/cdi", "/var/run/cdi"))
os_setuid = __import__("os").setuid
print(json.dumps(causes.find(sys.argv[2], scan, Config())))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root can become another user")
@pytest.mark.parametrize("what", ["file", "directory"])
def test_what_this_user_may_not_read_is_told_so(shared: Path, what: str) -> None:  # (a)
    path = put(shared, "etc/cdi/nvidia.yaml", spec("0", kind=GPU))
    put(shared, "var/run/cdi/other.json", spec("all", kind=GPU))
    (path if what == "file" else path.parent).chmod(0o600 if what == "file" else 0o700)
    # Our code may lie where that user cannot go: it is imported first.
    code = LOOK.replace("scan =", "__import__('os').setuid(4807)\nscan =", 1)
    done = subprocess.run(
        [sys.executable, "-c", code, shared, NAME], capture_output=True, text=True, check=True, cwd="/"
    )
    code, files, text, cure = json.loads(done.stdout)
    assert code == "unreadable"
    assert files == [str(path if what == "file" else path.parent)]
    if what == "file":
        assert "exists, not readable by you (mode 0600, of user 0; you are user 4807)" in text
    assert cure.startswith("Run: chmod")


def test_a_later_directory_that_wins_is_no_fault(tmp_path: Path) -> None:  # (e), as `cdi resolve` tells it
    first = put(tmp_path, "etc/cdi/x.json", spec("0", kind=GPU))
    second = put(tmp_path, "var/run/cdi/x.json", spec("0", kind=GPU))
    scan = Scan(Host(str(tmp_path)), DIRECTORIES)
    assert scan.winners[NAME][0].path == str(second)
    assert [file.path for file in scan.shadowed[NAME]] == [str(first)]


@pytest.mark.parametrize("name", ["nvidia.com/gpu", "gpu=0", "/etc/x=0", "nvidia.com/gpu=", "a/b=ü"])
def test_what_is_no_name_is_told_so(tmp_path: Path, name: str) -> None:
    assert asked(tmp_path, name).code == "name"


def test_a_mistyped_device_has_its_neighbour_named(tmp_path: Path) -> None:
    put(tmp_path, "etc/cdi/x.json", spec("left", "right"))
    assert asked(tmp_path, "vendor.com/dev=rihgt").cure == "Ask for vendor.com/dev=right"


def test_hundreds_of_devices_are_not_all_told(tmp_path: Path) -> None:
    put(tmp_path, "etc/cdi/x.json", spec(*(f"d{number}" for number in range(500))))
    found = asked(tmp_path, "vendor.com/dev=none")
    assert "and 492 more" in found.text
    assert len(found.text) < 500


def test_no_cause_says_what_engines_take_for_something_else(tmp_path: Path) -> None:
    for place, (made, _, _) in enumerate(CASES):
        root = tmp_path / str(place)
        root.mkdir()
        made(root)
        found = asked(root)
        words = f"{found.text} {found.cure}".lower()
        assert "no such file" not in words
        assert "executable file not found" not in words
        assert "permission denied" not in words
