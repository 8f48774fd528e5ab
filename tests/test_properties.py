"""Anything at all in config.json, in the machine's tables, in the config file and in the image.

The answer is an injected container, an untouched one or a Fault with one sentence; it comes soon; nothing is
written but in the bundle, below its root and in our own memory.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, assume, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from gpu_oci_hook import cli
from gpu_oci_hook.config import load
from gpu_oci_hook.config.keys import Config
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.files import read_regular
from gpu_oci_hook.files.read_regular import read_config_json
from gpu_oci_hook.formats.fastjson import parse_config_json
from gpu_oci_hook.reporting import failure
from gpu_oci_hook.simulate import host_tree
from support.bundles import (
    DEV,
    PROC,
    container_spec,
    host_config,
    inject_in_process,
    list_litter,
    make_bundle,
    snapshot_tree,
    write_spec,
)
from support.fixtures import isolate_state

SCHEMA = json.loads((Path(cli.__file__).parent / "explain.schema.json").read_text())
PATIENCE = 30
SLOW = {"deadline": None, "suppress_health_check": list(HealthCheck)}
GPU0 = "NVIDIA_VISIBLE_DEVICES=0"
ALL = "NVIDIA_DRIVER_CAPABILITIES=all"


# --- the guard ---------------------------------------------------------------------------------------


class Guard:
    """Stands before every call that changes a file system and asks where."""

    NAMES = ("open", "rename", "replace", "symlink", "link", "unlink", "mkdir", "rmdir", "chmod", "chown", "mknod",
             "mkfifo", "truncate", "utime")  # fmt: skip
    WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC

    def __init__(self, *allowed: Path) -> None:
        self.allowed = [os.path.realpath(path) for path in allowed]
        self.real = {name: getattr(os, name) for name in self.NAMES}

    def place(self, path: Any, directory: int | None) -> str:
        """Where a call really acts: its directory with every link followed, and the last name as it is."""
        path = os.fsdecode(path) if not isinstance(path, int) else os.readlink(f"/proc/self/fd/{path}")
        if directory is not None and directory >= 0 and not path.startswith("/"):
            path = f"{os.readlink(f'/proc/self/fd/{directory}')}/{path}"
        above, _, name = path.rstrip("/").rpartition("/")
        return f"{os.path.realpath(above or '/')}/{name}"

    def check(self, name: str, place: str) -> None:
        if not any(place == top or place.startswith(top + "/") for top in self.allowed):
            raise AssertionError(f"os.{name} outside of bundle, root and memory: {place}")

    def call(self, name: str) -> Callable[..., Any]:
        real = self.real[name]

        def guarded(*args: Any, **kwargs: Any) -> Any:
            # A file without a name (O_TMPFILE) changes nothing: it is how a directory is found to be writable.
            unnamed = name == "open" and args[1] & os.O_TMPFILE == os.O_TMPFILE
            if name != "open" or (args[1] & self.WRITING and not unnamed):
                first = args[1] if name in ("symlink",) else args[0]
                keys = ("src_dir_fd", "dst_dir_fd") if name in ("rename", "replace", "link") else ("dir_fd", "")
                self.check(name, self.place(first, kwargs.get(keys[0])))
                if name in ("rename", "replace", "link"):
                    self.check(name, self.place(args[1], kwargs.get(keys[1])))
            return real(*args, **kwargs)

        return guarded

    def __enter__(self) -> Guard:
        for name in self.NAMES:
            setattr(os, name, self.call(name))
        return self

    def __exit__(self, *_: object) -> None:
        for name, real in self.real.items():
            setattr(os, name, real)


def test_the_guard_sees_what_leads_out(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/link").symlink_to(tmp_path)
    fd = os.open(tmp_path, os.O_RDONLY)
    with Guard(tmp_path / "in"):
        os.mkdir(tmp_path / "in/x")
        for wrong in (
            lambda: os.mkdir(tmp_path / "y"),
            lambda: os.mkdir(tmp_path / "in/link/y"),
            lambda: os.symlink("x", "y", dir_fd=fd),
            lambda: os.rename("in", "y", src_dir_fd=fd, dst_dir_fd=fd),
            lambda: os.open("y", os.O_CREAT, dir_fd=fd),
        ):
            with pytest.raises(AssertionError, match="outside"):
                wrong()
    os.close(fd)
    assert sorted(os.listdir(tmp_path)) == ["in"]


@contextmanager
def soon() -> Iterator[None]:
    """Fails what takes longer than `PATIENCE`: nothing a container holds may keep an engine waiting."""

    def late(*_: object) -> None:
        raise AssertionError(f"not done after {PATIENCE} seconds")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(PATIENCE)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


# Another vendor's device with everything that a CDI file can bring.
CDI_FILE = {
    "cdiVersion": "1.1.0",
    "kind": "vendor.com/dev",
    "containerEdits": {"env": ["PATH=/x", "A=1"], "intelRdt": {"closID": "x"}},
    "devices": [
        {
            "name": "a",
            "containerEdits": {
                "deviceNodes": [{"path": "/dev/a", "type": "c", "major": 60}, {"path": "/dev/p", "type": "p"}],
                "netDevices": [{"hostInterfaceName": "eth9", "name": "eth0"}],
                "mounts": [{"hostPath": "/etc", "containerPath": "/usr/local/nvidia/lib64", "type": "bind"}],
                "hooks": [{"hookName": "createContainer", "path": "/bin/sh", "args": ["sh"]}],
                "additionalGids": [7],
            },
        }
    ],
}


class World:
    """A directory with a simulated host, a piece of the host that nobody may touch, and room for bundles."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.host = root / "host"
        host_tree.build_host(self.host, gpus=2)
        (self.host / "etc/cdi").mkdir()
        (self.host / "etc/cdi/all.json").write_text(json.dumps(CDI_FILE))
        self.victim = root / "victim"
        for name in ("lib64", "etc", "bin", "compat"):
            (self.victim / name).mkdir(parents=True)
        for name in ("lib64/libcuda.so.1", "etc/ld.so.cache", "bin/nvidia-smi", "compat/libcuda.so.999.1.1"):
            (self.victim / name).write_text("the host's\n")
        self.number = 0

    @contextmanager
    def place(self) -> Iterator[Path]:
        """A new directory for one bundle, gone afterwards."""
        place = Path(tempfile.mkdtemp(dir=self.root))
        try:
            yield place
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def start(self, made: Path, settings_: Config | None = None, *, stable: bool = True) -> dict[str, Any] | None:
        """One start under guard; the new config.json, None for a refusal. A second one changes nothing.

        Arguments:
            stable: not so where an image has links to names that we make: they lead elsewhere afterwards.
        """
        path = made / "config.json"
        before = path.read_bytes()
        victim = snapshot_tree(self.victim)
        own = settings_ or host_config(self.host)
        with Guard(made, self.root / "state"), soon():
            try:
                inject_in_process(made, own)
            except Fault as fault:
                assert path.read_bytes() == before
                text = failure.describe_error(fault)
                assert text
                assert text.isprintable()
                assert "no such file or directory" not in text.lower()
                result = None
            else:
                after = path.read_bytes()
                result = json.loads(after)
                try:
                    inject_in_process(made, own)
                except Fault:
                    assert not stable
                assert path.read_bytes() == after or not stable, "a second time changed something"
        assert snapshot_tree(self.victim) == victim, "the host was touched"
        assert not list_litter(made)
        return result


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    root = tmp_path_factory.mktemp("world")
    with pytest.MonkeyPatch.context() as patch:
        isolate_state(patch, root)
        yield World(root)


# --- config.json ---------------------------------------------------------------------------------------

WORDS = st.sampled_from(
    [
        GPU0, ALL, "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES=none", "NVIDIA_VISIBLE_DEVICES=void",
        "NVIDIA_VISIBLE_DEVICES=0-1", "NVIDIA_VISIBLE_DEVICES=GPU-", "NVIDIA_VISIBLE_DEVICES=0,,all, 1",
        "NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=0", "NVIDIA_VISIBLE_DEVICES=0:0", "NVIDIA_VISIBLE_DEVICES=999999999999",
        "NVIDIA_VISIBLE_DEVICES=0-99999999", "NVIDIA_VISIBLE_DEVICES=\ud800\n", "NVIDIA_VISIBLE_DEVICES",
        "CUDA_VERSION=11.8", "CUDA_VERSION=x", "NVIDIA_REQUIRE_CUDA=cuda>=12.4", "NVIDIA_REQUIRE_CUDA=cuda=>1",
        "NVIDIA_REQUIRE_X=brand=tesla arch>=7,driver<999", "NVIDIA_REQUIRE_CUDA=" + "cuda>1 " * 500,
        "NVIDIA_DRIVER_CAPABILITIES=", "NVIDIA_DRIVER_CAPABILITIES=video,display", "NVIDIA_DRIVER_CAPABILITIES=vidoe",
        "NVIDIA_VISIBLE_DEVICES=vendor.com/dev=a", "NVIDIA_VISIBLE_DEVICES=0,vendor.com/dev=a",
        "NVIDIA_VISIBLE_DEVICES=v/c=", "NVIDIA_VISIBLE_DEVICES=vendor.com/dev=b",
        "NVIDIA_DISABLE_REQUIRE=1", "LD_LIBRARY_PATH=/x:\ud800:", "PYTHONPATH=/evil", "LD_PRELOAD=/evil.so", "=", "",
    ]
)  # fmt: skip
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(min_value=-(1 << 70), max_value=1 << 70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | WORDS
    | st.sampled_from(["/proc", "/dev", "tmpfs", "bind", "/usr/local/nvidia/lib64", "rootfs", "/", "..", "user", "c"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=8,
)
MOUNT = st.fixed_dictionaries(
    {
        "destination": st.sampled_from(
            ["/proc", "/dev", "/run", "/usr", "/usr/local/nvidia", "/usr/local/nvidia/lib64", "/etc/ld.so.cache", "/",
             "/run/nvidia-container-devices/cdi/vendor.com/dev/a", "/run/nvidia-container-devices/cdi/nvidia.com/gpu=1",
             "/usr/bin/nvidia-smi", "/var/run/nvidia-container-devices/0", "/run/nvidia-container-devices/all", "rel",
             "/usr/lib/x86_64-linux-gnu/libcuda.so.1", "/a/../b//", "/loop/x", "\ud800", "/\0"]
        )
        | JSON,
        "type": st.sampled_from(["bind", "tmpfs", "proc", "devtmpfs"]) | JSON,
        "source": st.sampled_from(["/dev/null", "proc", "tmpfs", "/srv"]) | JSON,
    }
)  # fmt: skip


NOTES = st.sampled_from(
    ["cdi.k8s.io/x", "cdi.k8s.io/", "io.container.manager", "io.kubernetes.cri-o.Annotations", "io.podman.annotations."]
)
NAMES = ["vendor.com/dev=a", "vendor.com/dev=a,nvidia.com/gpu=0", "nvidia.com/gpu=all", "0", "libpod", '{"x": 1}']


@st.composite
def specs(draw: st.DrawFn) -> Any:
    """A config.json near a right one, with any part of it replaced by anything, left out or doubled."""
    made: Any = container_spec(GPU0, *draw(st.lists(WORDS, max_size=4)), mounts=draw(st.lists(MOUNT, max_size=5)))
    if draw(st.booleans()):
        made["annotations"] = draw(st.dictionaries(NOTES, st.sampled_from(NAMES) | JSON, max_size=4))
    for _ in range(draw(st.integers(0, 3))):
        inner, place = made, None
        for _ in range(draw(st.integers(1, 4))):
            if isinstance(inner, dict) and inner:
                key: Any = draw(st.sampled_from(sorted(inner)))
            elif isinstance(inner, list) and inner:
                key = draw(st.integers(0, len(inner) - 1))
            else:
                break
            place, inner = (inner, key), inner[key]
        if place is None:
            continue
        container, key = place
        if draw(st.booleans()):
            container[key] = draw(JSON)
        elif isinstance(container, list):
            container.append(container[key])
        else:
            container.pop(key)
    return made


def _inside(directory: Path, made: Any) -> bool:
    """Whether the root lies in the bundle: an engine's word for another place is taken, and this test has none."""
    path = made.get("root", {}).get("path") if isinstance(made.get("root"), dict) else None
    return not isinstance(path, str) or os.path.join(directory, path, "").startswith(f"{directory}/rootfs/")


@given(made=specs())
@examples(max_examples=250, **SLOW)
def test_any_config_json(world: World, made: Any) -> None:
    with world.place() as place:
        directory = make_bundle(place / "bundle", made)
        assume(_inside(directory, made))
        after = world.start(directory)
        if after is not None and isinstance(made, dict):
            assert set(made) <= set(after)


@given(data=st.data())
@examples(max_examples=200, **SLOW)
def test_any_bytes_in_config_json(world: World, data: st.DataObject) -> None:
    """The shim's own reading comes first: it takes the bytes for a request or not."""
    good = json.dumps(container_spec(GPU0, ALL, mounts=[PROC, DEV])).encode()
    text = mutated(data, good)
    with world.place() as place:
        directory = make_bundle(place / "bundle", {})
        (directory / "config.json").write_bytes(text)
        found = read_config_json(str(directory / "config.json"))
        assert found == text
        if read_regular.has_trigger(text, read_regular.TRIGGERS):
            world.start(directory)


def mutated(data: st.DataObject, good: bytes) -> bytes:
    """Bytes near the good ones: some changed, taken out, put in, or everything after a place gone."""
    text = bytearray(good)
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, max(0, len(text) - 1)))
        how = data.draw(st.sampled_from(["set", "set", "flip", "cut", "insert", "truncate", "double", "high"]))
        if how == "set" and text:
            text[at] = data.draw(st.integers(0, 255))
        elif how == "flip" and text:
            text[at] ^= 1 << data.draw(st.integers(0, 7))
        elif how == "cut":
            del text[at : at + data.draw(st.integers(1, 40))]
        elif how == "insert":
            text[at:at] = data.draw(st.binary(min_size=1, max_size=12))
        elif how == "double":
            text[at:at] = text[at : at + 64]
        elif how == "high":
            text[at : at + 4] = b"\xff\xff\xff\xff"
        elif data.draw(st.booleans()):
            del text[at:]
    return bytes(text)


@given(made=specs())
@examples(max_examples=60, **SLOW)
def test_explain_never_fails_without_a_sentence_and_its_json_is_valid(
    world: World, made: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with world.place() as place:
        directory = make_bundle(place / "bundle", made)
        before = snapshot_tree(directory)
        for form in ("json", "text", "diff"):
            capsys.readouterr()
            with Guard(), soon():
                status = cli.run_command_line(
                    ["explain", "-b", str(directory), "--root", str(world.host), "--format", form], "x"
                )
            printed = capsys.readouterr()
            assert status in (0, 1)
            assert "Traceback" not in printed.err
            assert "internal error" not in printed.err
            if form == "json" and printed.out:
                jsonschema.validate(json.loads(printed.out), SCHEMA)
            elif form == "text":
                assert printed.out or printed.err
        assert snapshot_tree(directory) == before


# --- the machine ----------------------------------------------------------------------------------------

TABLES = (
    "proc/devices",
    "proc/driver/nvidia/version",
    "proc/driver/nvidia/params",
    "proc/driver/nvidia/gpus/0000:07:00.0/information",
    "sys/module/nvidia/version",
)


@pytest.fixture(scope="module")
def broken(world: World) -> Path:
    """A host whose files the tests spoil, one after the other."""
    host_tree.build_host(world.root / "broken", gpus=2)
    return world.root / "broken"


@contextmanager
def spoilt(path: Path, content: bytes) -> Iterator[None]:
    real = path.resolve()
    good, mode = real.read_bytes(), real.stat().st_mode
    real.chmod(0o644)
    real.write_bytes(content)
    try:
        yield
    finally:
        real.write_bytes(good)
        real.chmod(stat.S_IMODE(mode))


def spoil(world: World, host: Path, name: str, data: st.DataObject) -> None:
    """Starts a container on a host with one file spoilt, with and without a memory of it."""
    path = host / name
    with spoilt(path, mutated(data, path.read_bytes())), world.place() as place:
        for number in range(2):
            config_json = container_spec(
                "NVIDIA_VISIBLE_DEVICES=all", ALL, "NVIDIA_REQUIRE_CUDA=cuda>=12.0", mounts=[PROC]
            )
            world.start(make_bundle(place / f"b{number}", config_json), host_config(host))
            shutil.rmtree(world.root / "state", ignore_errors=True)


@pytest.mark.parametrize("name", TABLES)
@given(data=st.data())
@examples(max_examples=60, **SLOW)
def test_any_table_of_the_kernels(world: World, broken: Path, name: str, data: st.DataObject) -> None:
    spoil(world, broken, name, data)


@pytest.mark.parametrize("name", ["etc/ld.so.cache", "usr/lib/x86_64-linux-gnu/libcuda.so.1"])
@given(data=st.data())
@examples(max_examples=60, **SLOW)
def test_any_loader_cache_and_any_library_on_the_host(
    world: World, broken: Path, name: str, data: st.DataObject
) -> None:
    spoil(world, broken, name, data)


@given(data=st.data())
@examples(max_examples=100, **SLOW)
def test_any_content_of_the_cache(world: World, data: st.DataObject) -> None:
    """The memory is ours alone, but a disk may damage it: that costs a search."""
    with world.place() as place:
        world.start(make_bundle(place / "first", container_spec(GPU0)))
        (path,) = [
            path for path in (world.root / "state").iterdir() if path.name.startswith("inventory") and path.suffix == ""
        ]
        good = path.read_bytes()
        path.write_bytes(mutated(data, good))
        try:
            world.start(make_bundle(place / "second", container_spec(GPU0)))
        finally:
            path.write_bytes(good)


@given(data=st.data())
@examples(max_examples=150, **SLOW)
def test_any_config_file(world: World, data: st.DataObject) -> None:
    good = (Path(__file__).parents[1] / "config/config.toml").read_bytes()
    good += f'\n[host]\nroot = "{world.host}"\nload-modules = false\n[inject]\ncuda-compat = "always"\n'.encode()
    path = world.root / "config.toml"
    path.write_bytes(mutated(data, good))
    try:
        found = load.load_config(str(path))
    except Fault as fault:
        assert failure.describe_error(fault).isprintable()
        return
    finally:
        path.unlink()
    found.load_modules, found.log_file = False, ""
    with world.place() as place:
        world.start(make_bundle(place / "bundle", container_spec(GPU0)), found)


# --- images -----------------------------------------------------------------------------------------------

PATHS = (
    "usr", "usr/lib", "usr/lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu/libcuda.so.1", "lib", "lib64", "usr/lib64",
    "usr/lib/x86_64-linux-gnu/libcuda.so", "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1", "usr/local",
    "usr/local/nvidia", "usr/local/nvidia/lib64", "usr/local/nvidia/lib", "usr/lib/gpu-oci-hook", "usr/bin",
    "usr/bin/nvidia-smi", "etc", "etc/ld.so.cache", "etc/ld.so.conf", "etc/ld.so.conf.d", "etc/alpine-release",
    "etc/ld.so.conf.d/00-gpu-oci-hook.conf", "etc/debian_version", "lib/ld-musl-x86_64.so.1", "lib/firmware",
    "etc/ld-musl-x86_64.path", "usr/local/cuda", "usr/local/cuda/compat", "usr/local/cuda/compat/libcuda.so.560.35.03",
    "usr/local/cuda/compat/libcuda.so.1", "run", "var", "var/run", "tmp", "tmp/nvidia-mps", "dev", "proc", "etc/vulkan",
    "etc/vulkan/icd.d", "etc/OpenCL/vendors/nvidia.icd", "lib64/ld-linux-x86-64.so.2", "loop", "usr/lib/gbm",
)  # fmt: skip


@st.composite
def images(draw: st.DrawFn) -> list[tuple[str, str, str]]:
    """What to make, in order: (path, kind, text)."""
    target = st.sampled_from(
        ["/", ".", "..", "/..", "../../../../../..", "VICTIM", "VICTIM/lib64", "VICTIM/etc/ld.so.cache", "/etc", "/usr",
         "/usr/lib", "usr", "/loop", "/proc/self/root", "/dev", "nowhere", "/nowhere/x", "x" * 300, "../" * 2000]
    ) | st.sampled_from(PATHS)  # fmt: skip
    kind = st.sampled_from(
        ["directory", "directory", "file", "empty", "link", "link", "link", "fifo", "socket", "device", "sparse",
         "cache", "locked"]
    )  # fmt: skip
    return draw(st.lists(st.tuples(st.sampled_from(PATHS), kind, target), max_size=14))


def make(rootfs: Path, path: str, kind: str, text: str, world: World) -> None:
    """Makes one thing in an image, where it can be made without leaving the image."""
    where = rootfs / path
    try:
        if not os.path.realpath(where.parent).startswith(str(rootfs)):
            return  # a link before it leads out: this test must not do what we forbid
        where.parent.mkdir(parents=True, exist_ok=True)
        if kind == "directory":
            where.mkdir()
        elif kind == "link":
            where.symlink_to(text.replace("VICTIM", str(world.victim)))
        elif kind == "fifo":
            os.mkfifo(where)
        elif kind in ("socket", "device"):
            os.mknod(where, (stat.S_IFSOCK if kind == "socket" else stat.S_IFCHR) | 0o666, os.makedev(1, 5))
        elif where.exists() or where.is_symlink():
            return
        elif kind == "sparse":
            with where.open("wb") as file:
                file.truncate(1 << 30)
        elif kind == "cache":
            where.write_bytes((world.host / "etc/ld.so.cache").read_bytes())
        else:
            where.write_bytes(b"" if kind == "empty" else os.fsencode(text))
            if kind == "locked":
                where.chmod(0)
    except OSError:
        pass


@given(image=images(), made=st.sampled_from([[], [PROC, DEV], [{**DEV, "destination": "/run"}]]), data=st.data())
@examples(max_examples=300, **SLOW)
def test_any_image(world: World, image: list[tuple[str, str, str]], made: list[Any], data: st.DataObject) -> None:
    with world.place() as place:
        rootfs = place / "bundle/rootfs"
        rootfs.mkdir(parents=True)
        for path, kind, text in image:
            make(rootfs, path, kind, text, world)
        write_spec(place / "bundle", container_spec("NVIDIA_VISIBLE_DEVICES=0", ALL, mounts=made))
        after = world.start(place / "bundle", stable=not any(kind == "link" for _, kind, _ in image))
        if after is not None:
            for mount in after["mounts"]:
                assert not mount["source"].startswith(str(rootfs)), "a path of the image became a mount's source"


@given(data=st.data())
@examples(max_examples=100, **SLOW)
def test_any_loader_cache_in_the_image(world: World, data: st.DataObject) -> None:
    good = (world.host / "etc/ld.so.cache").read_bytes()
    with world.place() as place:
        directory = make_bundle(place / "bundle", container_spec(GPU0))
        (directory / "rootfs/etc/ld.so.cache").write_bytes(mutated(data, good))
        assert world.start(directory) is not None


def test_nesting_as_deep_as_can_be(world: World) -> None:
    """Neither our own reading nor our own writing runs out of stack."""
    with world.place() as place:
        directory = make_bundle(place / "bundle", {})
        for depth in (100, 300, 500, 700, 900, 950, 980, 990, 1000, 5000, 100000):
            text = json.dumps(container_spec(GPU0))[:-1] + ',"odd":' + "[" * depth + "]" * depth + "}"
            (directory / "config.json").write_text(text)
            world.start(directory)
            for form in ("json", "diff", "text"):
                words = ["explain", "-b", str(directory), "--root", str(world.host), "--format", form]
                assert cli.run_command_line(words, "x") in (0, 1)


def test_the_parser_of_the_whole_way_takes_the_bytes_only(world: World) -> None:
    with pytest.raises(Fault):
        parse_config_json(b"[]", "x")
