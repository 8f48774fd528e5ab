"""The files with our modules' code: used while they are undamaged and fresh, ignored otherwise."""

from __future__ import annotations

import json
import marshal
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import gpu_oci_hook
from gpu_oci_hook.cli import code_bundle_builder
from gpu_oci_hook.container.rootfs_edits import GENERATED_DIR
from gpu_oci_hook.files import code_bundle
from gpu_oci_hook.simulate import host_tree
from support import cdi_edits
from support.bundles import container_spec, make_bundle
from test_imports import CREATE, INJECTION, QUICK_HOOK

PACKAGE = Path(gpu_oci_hook.__file__).resolve().parent
LOADERS = """
import sys
sys.path.insert(0, {source!r})
from gpu_oci_hook.files import code_bundle
code_bundle.use_code_bundle()
from gpu_oci_hook.inject import pipeline
from gpu_oci_hook.host import root
if {other}:
    from gpu_oci_hook.cdi import translate
    modules = [translate, sys.modules["gpu_oci_hook.cdi"]]
else:
    modules = [pipeline, root, sys.modules["gpu_oci_hook.request"]]
for module in modules:
    print(type(module.__spec__.loader).__name__, module.__name__, module.__package__, module.__file__)
"""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The package in a place of its own, with the files as `install` writes them."""
    place = tmp_path / "gpu_oci_hook"
    shutil.copytree(PACKAGE, place, ignore=shutil.ignore_patterns("__pycache__"))
    write = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
from gpu_oci_hook.cli.code_bundle_builder import build_code_bundles
import os
for path, content in build_code_bundles().items():
    os.makedirs(os.path.dirname(path), exist_ok=True)
    open(path, "wb").write(content)
"""
    subprocess.run([sys.executable, "-I", "-c", write], check=True)
    return place


def data(copy: Path, path: str = code_bundle.BUNDLE_PATH) -> Path:
    return copy / "__pycache__" / os.path.basename(path)


def loaders(copy: Path, *, other: bool = False) -> list[list[str]]:
    """Import modules of the first file, or of the other one, and list how each was loaded."""
    code = LOADERS.format(source=str(copy.parent), other=other)
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    return [line.split() for line in done.stdout.splitlines()]


def test_modules_come_from_the_file_and_look_like_any_others(copy: Path) -> None:
    assert loaders(copy) == [
        ["BundleFinder", "gpu_oci_hook.inject.pipeline", "gpu_oci_hook.inject", str(copy / "inject/pipeline.py")],
        ["BundleFinder", "gpu_oci_hook.host.root", "gpu_oci_hook.host", str(copy / "host/root.py")],
        ["BundleFinder", "gpu_oci_hook.request", "gpu_oci_hook.request", str(copy / "request/__init__.py")],
    ]


LOADED_AT_ONCE = """
import sys
sys.path.insert(0, {source!r})
from gpu_oci_hook.files import code_bundle
code_bundle.use_code_bundle(load_modules=True)
loaded = {{name for name in sys.modules if name.startswith("gpu_oci_hook.")}}
for name in ("inject.pipeline", "request", "host.root"):
    module = sys.modules.get("gpu_oci_hook." + name)
    if module is not None:
        parent, _, leaf = module.__name__.rpartition(".")
        assert getattr(sys.modules[parent], leaf) is module
        print(module.__name__, module.__package__, module.__file__, *getattr(module, "__path__", ()))
from gpu_oci_hook.inject import pipeline
import gpu_oci_hook.plan.links
print("later", *sorted({{name for name in sys.modules if name.startswith("gpu_oci_hook.")}} - loaded))
"""


def load_at_once(copy: Path) -> list[str]:
    code = LOADED_AT_ONCE.format(source=str(copy.parent))
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_what_every_start_imports_is_loaded_at_once(copy: Path) -> None:
    assert load_at_once(copy) == [
        f"gpu_oci_hook.inject.pipeline gpu_oci_hook.inject {copy}/inject/pipeline.py",
        f"gpu_oci_hook.request gpu_oci_hook.request {copy}/request/__init__.py {copy}/request",
        f"gpu_oci_hook.host.root gpu_oci_hook.host {copy}/host/root.py",
        "later gpu_oci_hook.plan.links",
    ]


def test_with_a_stale_file_nothing_is_loaded_at_once(copy: Path) -> None:
    with open(copy / "plan/layout.py", "a") as file:
        file.write("# changed\n")
    (later,) = load_at_once(copy)
    assert later.startswith("later ") and "gpu_oci_hook.inject.pipeline" in later.split()


def test_a_source_that_has_changed_makes_the_file_stale(copy: Path) -> None:
    with open(copy / "plan/layout.py", "a") as file:
        file.write("# changed\n")
    assert {line[0] for line in loaders(copy)} == {"SourceFileLoader"}


def test_the_other_modules_come_from_the_second_file(copy: Path) -> None:
    assert loaders(copy, other=True) == [
        ["BundleFinder", "gpu_oci_hook.cdi.translate", "gpu_oci_hook.cdi", str(copy / "cdi/translate.py")],
        ["BundleFinder", "gpu_oci_hook.cdi", "gpu_oci_hook.cdi", str(copy / "cdi/__init__.py")],
    ]


def test_of_the_second_file_a_changed_module_is_loaded_from_its_source(copy: Path) -> None:
    with open(copy / "cdi/translate.py", "a") as file:
        file.write("# changed\n")
    assert [line[0] for line in loaders(copy, other=True)] == ["SourceFileLoader", "BundleFinder"]


def _pack_index(index: bytes) -> bytes:
    return code_bundle.hash_data(index) + len(index).to_bytes(4, "little") + index


@pytest.mark.parametrize(
    "damage",
    [
        "missing",
        "a FIFO",
        "a byte of the index turned",
        "another build",
        "an index of another shape",
        "cut behind the index",
    ],
)
def test_a_damaged_second_file_is_ignored(copy: Path, damage: str) -> None:
    path = data(copy, code_bundle.OTHER_BUNDLE_PATH)
    content = path.read_bytes()
    path.unlink()
    if damage == "a FIFO":
        os.mkfifo(path)
    elif damage == "a byte of the index turned":
        path.write_bytes(content[:1000] + bytes([content[1000] ^ 1]) + content[1001:])
    elif damage == "another build":
        path.write_bytes(_pack_index(marshal.dumps(((code_bundle.BUNDLE_STAMP[0], 1), {}))))
    elif damage == "an index of another shape":
        path.write_bytes(_pack_index(marshal.dumps((code_bundle.BUNDLE_STAMP, 7))))
    elif damage == "cut behind the index":
        size = int.from_bytes(content[8:12], "little")
        path.write_bytes(content[: 12 + size])
    assert {line[0] for line in loaders(copy, other=True)} == {"SourceFileLoader"}


def test_the_files_have_every_module_that_the_shim_and_our_hooks_can_load(copy: Path) -> None:
    names = set(marshal.loads(data(copy).read_bytes()[8:])[1])
    names |= set(marshal.loads(data(copy, code_bundle.HOOK_BUNDLE_PATH).read_bytes()[8:])[1])
    names |= set(marshal.loads(data(copy, code_bundle.OTHER_BUNDLE_PATH).read_bytes()[12:])[1])
    sources = {path.relative_to(copy).with_suffix("") for path in copy.rglob("*.py")}
    rooms = {path for path in sources if path.parts[0] not in ("cli", "generate", "simulate")}
    expected = {".".join(("gpu_oci_hook", *path.parts)).removesuffix(".__init__") for path in rooms}
    assert names == expected - {"gpu_oci_hook"}


def test_every_module_loads_from_the_files(copy: Path) -> None:
    code = f"""
import importlib, sys
sys.path.insert(0, {str(copy.parent)!r})
from gpu_oci_hook.files import code_bundle
code_bundle.use_code_bundle(code_bundle.HOOK_BUNDLE_PATH)
finder = sys.meta_path[0]
finder.find_spec("gpu_oci_hook.none")
for name in (*finder._entries, *finder._index):
    module = importlib.import_module(name)
    loader = type(module.__spec__.loader).__name__
    assert loader == "BundleFinder" or name in {{"gpu_oci_hook.files", "gpu_oci_hook.files.read_regular",
        "gpu_oci_hook.shim", "gpu_oci_hook.files.code_bundle"}}, (name, loader)
print(len(finder._entries) + len(finder._index))
"""
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) > 100


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
    marked = code_bundle.hash_data(content) + content
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
    some |= {"files.code_bundle"}
    ours = {name.removeprefix("gpu_oci_hook.") for name in INJECTION - CREATE if name.startswith("gpu_oci_hook")}
    assert set(code_bundle_builder.BUNDLED_MODULES) == ours - some


def test_the_modules_of_a_precreate_hook_are_in_the_two_files_that_are_read_as_a_whole(tmp_path: Path) -> None:
    host = tmp_path / "host"
    host_tree.build_host(host, gpus=1)
    config = tmp_path / "config.toml"
    config.write_text(f'[host]\nroot = "{host}"\nload-modules = false\n')
    bundle = make_bundle(tmp_path / "bundle", container_spec("NVIDIA_VISIBLE_DEVICES=0"))
    spec = json.loads((bundle / "config.json").read_text())
    spec["root"]["path"] = str(bundle / "rootfs")
    dump = tmp_path / "modules"
    prelude = f"""
import os
def leave(status):
    open({str(dump)!r}, "w").write(" ".join(sys.modules))
    end(status)
end, os._exit = os._exit, leave
"""
    program = cdi_edits.write_hook_launcher(tmp_path / "gpu-oci-hook", prelude)
    env = {"PATH": "/usr/bin:/bin", "GPU_OCI_HOOK_CONFIG": str(config)}
    for _ in range(2):  # the first one fills the caches
        time.sleep(0.15)  # what was written this very moment is not cached
        shutil.rmtree(bundle / GENERATED_DIR, ignore_errors=True)
        done = cdi_edits.call_hook(program, ["precreate"], json.dumps(spec), env=env)
        assert (done.returncode, done.stderr) == (0, "")
    loaded = {
        name.removeprefix("gpu_oci_hook.") for name in dump.read_text().split() if name.startswith("gpu_oci_hook.")
    }
    before = {name.removeprefix("gpu_oci_hook.") for name in QUICK_HOOK} | {"files.code_bundle"}
    bundled = {*code_bundle_builder.BUNDLED_MODULES, *code_bundle_builder.HOOK_MODULES}
    assert "hook.precreate_hook" in loaded
    assert loaded - before <= bundled
    assert not set(code_bundle_builder.BUNDLED_MODULES) & set(code_bundle_builder.HOOK_MODULES)


def test_a_damaged_file_of_the_hooks_costs_time_only(copy: Path) -> None:
    path = data(copy, code_bundle.HOOK_BUNDLE_PATH)
    content = bytearray(path.read_bytes())
    code = f"""
import sys
sys.path.insert(0, {str(copy.parent)!r})
from gpu_oci_hook.files import code_bundle
code_bundle.use_code_bundle(code_bundle.HOOK_BUNDLE_PATH)
from gpu_oci_hook.hook import prestart_hook
print(type(prestart_hook.__spec__.loader).__name__)
"""

    def find_loader() -> str:
        return subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True).stdout

    assert find_loader() == "BundleFinder\n"
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    assert find_loader() == "SourceFileLoader\n"
