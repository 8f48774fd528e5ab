"""The one file with the hot modules' code: taken when it is whole and fresh, passed over when it is anything else."""

from __future__ import annotations

import marshal
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import gpu_oci_hook
from gpu_oci_hook.shim import code_bundle
from test_imports import CREATE, INJECTION

PACKAGE = Path(gpu_oci_hook.__file__).resolve().parent
LOADERS = """
import sys
sys.path.insert(0, {source!r})
from gpu_oci_hook.shim import code_bundle
code_bundle.use_code_bundle()
from gpu_oci_hook.inject import pipeline
from gpu_oci_hook.host import root
for module in (pipeline, root, sys.modules["gpu_oci_hook.request"]):
    print(type(module.__spec__.loader).__name__, module.__name__, module.__package__, module.__file__)
"""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The package in a place of its own, with the file as `install` writes it."""
    place = tmp_path / "gpu_oci_hook"
    shutil.copytree(PACKAGE, place, ignore=shutil.ignore_patterns("__pycache__"))
    write = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
from gpu_oci_hook.shim import code_bundle
import os
os.makedirs(os.path.dirname(code_bundle.BUNDLE_PATH), exist_ok=True)
open(code_bundle.BUNDLE_PATH, "wb").write(code_bundle.build_code_bundle())
"""
    subprocess.run([sys.executable, "-I", "-c", write], check=True)
    return place


def data(copy: Path) -> Path:
    return copy / "__pycache__" / os.path.basename(code_bundle.BUNDLE_PATH)


def loaders(copy: Path) -> list[list[str]]:
    code = LOADERS.format(source=str(copy.parent))
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    return [line.split() for line in done.stdout.splitlines()]


def test_modules_come_from_the_file_and_look_like_any_others(copy: Path) -> None:
    assert loaders(copy) == [
        ["BundleFinder", "gpu_oci_hook.inject.pipeline", "gpu_oci_hook.inject", str(copy / "inject/pipeline.py")],
        ["BundleFinder", "gpu_oci_hook.host.root", "gpu_oci_hook.host", str(copy / "host/root.py")],
        ["BundleFinder", "gpu_oci_hook.request", "gpu_oci_hook.request", str(copy / "request/__init__.py")],
    ]


def test_a_source_that_has_changed_makes_the_file_stale(copy: Path) -> None:
    with open(copy / "plan/layout.py", "a") as file:
        file.write("# changed\n")
    assert {line[0] for line in loaders(copy)} == {"SourceFileLoader"}


def test_a_source_of_the_same_size_and_another_time_makes_it_stale_too(copy: Path) -> None:
    os.utime(copy / "plan/layout.py", ns=(1, 1))
    assert {line[0] for line in loaders(copy)} == {"SourceFileLoader"}


def test_a_source_that_is_gone_makes_it_stale(copy: Path) -> None:
    (copy / "host/optional/graphics.py").rename(copy / "host/elsewhere.py")
    assert {line[0] for line in loaders(copy)} == {"SourceFileLoader"}


@pytest.mark.parametrize(
    "content",
    [b"", b"no marshal at all", b"truncated",
     marshal.dumps((code_bundle.BUNDLE_STAMP, {"gpu_oci_hook.inject.pipeline": 1})),
     marshal.dumps(((code_bundle.BUNDLE_STAMP[0], 1), {})), marshal.dumps(7)],
)  # fmt: skip
def test_a_damaged_or_foreign_file_is_passed_over(copy: Path, content: bytes) -> None:
    marked = code_bundle._hash_data(content) + content
    for written in (data(copy).read_bytes()[:-100] if content == b"truncated" else marked, content):
        data(copy).write_bytes(written)
        assert {line[0] for line in loaders(copy)} == {"SourceFileLoader"}


@pytest.mark.parametrize("content", [b"", b"1234567", b"12345678"])
def test_a_file_of_a_few_bytes_is_passed_over(copy: Path, content: bytes) -> None:
    data(copy).write_bytes(content)
    assert {line[0] for line in loaders(copy)} == {"SourceFileLoader"}


def test_one_bit_that_has_turned_anywhere_makes_it_stale(copy: Path) -> None:
    whole = data(copy).read_bytes()
    dice = random.Random(7)
    for _ in range(25):
        at, bit = dice.randrange(len(whole)), dice.randrange(8)
        data(copy).write_bytes(whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :])
        assert {line[0] for line in loaders(copy)} == {"SourceFileLoader"}


def test_a_fifo_in_its_place_does_not_block(copy: Path) -> None:
    data(copy).unlink()
    os.mkfifo(data(copy))
    assert {line[0] for line in loaders(copy)} == {"SourceFileLoader"}


def test_without_the_file_everything_loads_as_ever(copy: Path) -> None:
    data(copy).unlink()
    assert {line[0] for line in loaders(copy)} == {"SourceFileLoader"}


def test_its_modules_are_those_of_a_container_with_every_capability() -> None:
    # What only some containers need.
    some = {"inject.requirements", "host.model_tables", "request.require_variables", "request.require_expressions"}
    some |= {"shim.code_bundle"}
    ours = {name.removeprefix("gpu_oci_hook.") for name in INJECTION - CREATE if name.startswith("gpu_oci_hook")}
    assert set(code_bundle.BUNDLED_MODULES) == ours - some
