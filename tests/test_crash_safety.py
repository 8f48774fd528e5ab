"""Killed at any moment, out of space, many at once: config.json is the old one or the new one, the next try works."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import gpu_oci_hook
from gpu_oci_hook.config.keys import Config
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.files import state_dir
from gpu_oci_hook.files.rootfs import Rootfs
from gpu_oci_hook.inject import gather
from support.bundles import (
    DEV,
    PROC,
    Shim,
    Spec,
    container_spec,
    host_config,
    inject_in_process,
    list_litter,
    make_bundle,
    make_debian_rootfs,
    read_spec,
    skip_or_fail,
    snapshot_tree,
    write_spec,
)
from support.fixtures import SharedHost

pytestmark = pytest.mark.usefixtures("isolated_state")

GPU0 = "NVIDIA_VISIBLE_DEVICES=0"
ALL = "NVIDIA_DRIVER_CAPABILITIES=all"

# Whatever changes a file system; `open` only when it makes something.
CHANGES = ("open", "write", "rename", "symlink", "unlink", "mkdir", "rmdir", "chmod", "fchmod", "chown", "fchown")


@pytest.fixture(scope="module")
def host(shared_host: SharedHost) -> Path:
    return shared_host(gpus=2)


# --- kill -9 ----------------------------------------------------------------------------------------


def patch(at: int, *, half: bool) -> Callable[[], int]:
    """Makes this process kill itself at the `at`-th change, a write after half of its bytes; counts the changes."""
    count = 0

    def wrap(name: str) -> None:
        real = getattr(os, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            if name == "open" and not args[1] & os.O_CREAT:
                return real(*args, **kwargs)
            count += 1
            if count == at:
                try:
                    if half and name == "write":
                        real(args[0], bytes(args[1])[: len(args[1]) // 2])
                    elif half:
                        real(*args, **kwargs)
                finally:
                    os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **kwargs)

        setattr(os, name, call)

    for name in CHANGES:
        wrap(name)
    return lambda: count


def child(work: Callable[[], None]) -> int:
    """Does the work in a child of this process: -9 when it was killed, else its exit status."""
    pid = os.fork()
    if pid == 0:
        status = 3
        try:
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def leftovers(rootfs: Path) -> None:
    """What an image from a committed GPU container has in our way."""
    libraries = rootfs / "usr/lib/x86_64-linux-gnu"
    (libraries / "libcuda.so.1").mkdir()
    (libraries / "libcuda.so.1/x").touch()
    (libraries / "libnvidia-ml.so.1").touch()
    (libraries / "libcuda.so").symlink_to("/nowhere")
    os.mkfifo(rootfs / "usr/bin/nvidia-smi")
    (rootfs / "etc/ld.so.cache").write_bytes(b"rubbish")


class Case:
    """One kind of start: the bundle, and how the process sees the machine."""

    def __init__(self, config: Spec, *, writable: bool = True, params: bool = False, cold: bool = True) -> None:
        self.config = config
        self.writable = writable
        self.params = params
        self.cold = cold

    def make(self, root: Path) -> Path:
        """The bundle and the memory as they are before the start."""
        for name in ("bundle", "state"):
            shutil.rmtree(root / name, ignore_errors=True)
        made = make_bundle(root / "bundle", self.config)
        leftovers(made / "rootfs")
        return made

    def go(self, made: Path, config: Config, params: bytes) -> None:
        """One start, in a process of its own."""
        state_dir.DIRECTORY = str(made.parent / "state")
        if not self.writable:
            Rootfs.is_writable = lambda _: False  # type: ignore[method-assign]
        gather._read_visible_params = lambda _: params if self.params else None
        inject_in_process(made, config)


CASES = {
    "plain": Case(container_spec(GPU0)),
    "everything": Case(container_spec("NVIDIA_VISIBLE_DEVICES=all", ALL, mounts=[PROC, DEV]), cold=False),
    "a subset": Case(container_spec(GPU0, mounts=[PROC]), params=True, cold=False),
    "read-only": Case(container_spec(GPU0, mounts=[PROC, DEV]), writable=False, params=True, cold=False),
}


@pytest.mark.parametrize("half", [False, True], ids=["before", "amid"])
@pytest.mark.parametrize("name", CASES)
def test_killed_at_every_step_config_json_is_whole_and_the_next_try_comes_to_the_same_end(
    name: str, half: bool, tmp_path: Path, host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[name]
    config = host_config(host)
    params = (host / "proc/driver/nvidia/params").read_bytes()
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)

    made = case.make(tmp_path)
    old = (made / "config.json").read_bytes()
    assert child(lambda: case.go(made, config, params)) == 0
    new = (made / "config.json").read_bytes()
    assert json.loads(new) != json.loads(old)
    end = snapshot_tree(made, times=False)
    memory = tmp_path / "memory"
    shutil.copytree(tmp_path / "state", memory, symlinks=True)

    steps = 0
    states = set()
    while True:
        steps += 1
        case.make(tmp_path)
        if not case.cold:
            shutil.copytree(memory, tmp_path / "state", symlinks=True)

        def work(at: int = steps) -> None:
            patch(at, half=half)
            case.go(made, config, params)

        status = child(work)
        found = (made / "config.json").read_bytes()
        assert found in (old, new), f"step {steps}: config.json is neither the old nor the new one"
        states.add(found == new)
        assert child(lambda: case.go(made, config, params)) == 0, f"the try after step {steps} failed"
        assert (made / "config.json").read_bytes() == new, f"the try after step {steps} came to another end"
        assert snapshot_tree(made, times=False) == end, f"the try after step {steps} left another tree"
        assert not list_litter(made)
        if status == 0:
            break
        assert status == -signal.SIGKILL
    assert steps >= 15, "the steps are no longer counted"
    assert states == {False, True}


# --- full disks --------------------------------------------------------------------------------------


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Callable[[str, str], Path]]:
    """Makes small file systems; needs root."""
    made: list[Path] = []
    if os.geteuid() != 0:
        skip_or_fail("a full disk needs root, for a small tmpfs")

    def mount(name: str, options: str) -> Path:
        place = tmp_path / name
        place.mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "small", place], check=True)
        made.append(place)
        return place

    yield mount
    for place in reversed(made):
        subprocess.run(["umount", "-l", place], check=True)


def fill(place: Path, *, keep: int = 0) -> Path:
    """Fills a file system up to `keep` bytes; the file that does it."""
    filler = place / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            pass
        if keep:
            file.truncate(file.tell() - keep)
    return filler


def full(directory: Path, config: Config) -> str:
    """The sentence of a start that finds no space; config.json stays, no temporary file does."""
    before = (directory / "config.json").read_bytes()
    with pytest.raises(Fault) as caught:
        inject_in_process(directory, config)
    assert (directory / "config.json").read_bytes() == before
    assert not list_litter(directory)
    text = str(caught.value)
    assert "the disk is full" in text
    assert "no space left" not in text.lower()
    return text


@pytest.mark.parametrize("keep", [0, 4096, 8192])
def test_a_full_disk_under_the_bundle(keep: int, small: Any, tmp_path: Path, host: Path) -> None:
    config_json = container_spec("NVIDIA_VISIBLE_DEVICES=all", ALL, root={"path": str(tmp_path / "rootfs")})
    make_debian_rootfs(tmp_path / "rootfs")
    place = small("bundle", "size=128k")
    write_spec(place, config_json)
    filler = fill(place, keep=keep)
    assert str(place / "config.json") in full(place, host_config(host))
    filler.unlink()
    after = inject_in_process(place, host_config(host))
    assert after["linux"]["devices"]
    assert sorted(os.listdir(place)) == ["config.json", "gpu-oci-hook"]


def test_a_full_disk_under_the_bundles_generated_files(
    small: Any, tmp_path: Path, host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = (host / "proc/driver/nvidia/params").read_bytes()
    monkeypatch.setattr(gather, "_read_visible_params", lambda _: params)
    make_debian_rootfs(tmp_path / "rootfs")
    place = small("bundle", "size=128k")
    write_spec(place, container_spec(GPU0, mounts=[PROC], root={"path": str(tmp_path / "rootfs")}))
    filler = fill(place)
    assert "gpu-oci-hook/proc-driver-nvidia-params" in full(place, host_config(host))
    filler.unlink()
    inject_in_process(place, host_config(host))
    assert sorted(os.listdir(place / "gpu-oci-hook")) == ["injected.json", "proc-driver-nvidia-params"]


@pytest.mark.parametrize("options", ["mode=755,size=256k", "mode=755,size=256k,nr_inodes=40"])
def test_a_full_disk_under_the_root_file_system(options: str, small: Any, tmp_path: Path, host: Path) -> None:
    config_json = container_spec(GPU0, ALL, mounts=[PROC])
    whole = make_bundle(tmp_path / "whole", config_json)
    inject_in_process(whole, host_config(host))
    rootfs = small("bundle/rootfs", options)
    make_debian_rootfs(rootfs)
    made = make_bundle(tmp_path / "bundle", config_json)
    if "nr_inodes" in options:
        number = 0
        try:
            while True:
                (rootfs / f"filler{number}").touch()
                number += 1
        except OSError:
            pass
    else:
        fill(rootfs)
    full(made, host_config(host))
    for name in os.listdir(rootfs):
        if name.startswith("filler"):
            (rootfs / name).unlink()
    assert not [name for _, _, names in os.walk(rootfs) for name in names if name.startswith(".gpu-oci-hook-")]
    after = inject_in_process(made, host_config(host))
    assert after == read_spec(whole)
    assert snapshot_tree(rootfs, times=False) == snapshot_tree(whole / "rootfs", times=False)


def test_a_full_disk_under_the_state_directory(small: Any, tmp_path: Path, host: Path) -> None:
    """What cannot be remembered is learnt again; only the libraries' directory has to be made somewhere."""
    place = small("state", "mode=755,size=64k,nr_inodes=2000")
    filler = fill(place)
    made = make_bundle(tmp_path / "bundle", container_spec(GPU0))
    inject_in_process(made, host_config(host))  # links and empty files need no space on this file system
    filler.unlink()
    assert not [name for name in os.listdir(place) if name.startswith(".")]
    other = make_bundle(tmp_path / "other", container_spec(GPU0))
    assert inject_in_process(other, host_config(host)) == read_spec(made)


@pytest.mark.parametrize("options", ["mode=755,size=64k,nr_inodes=10", "mode=755,ro"])
def test_where_the_state_directory_takes_nothing_the_libraries_directory_is_in_the_bundle(
    options: str, small: Any, tmp_path: Path, host: Path
) -> None:
    place = small("state", options)
    made = make_bundle(tmp_path / "bundle", container_spec(GPU0, ALL))
    after = inject_in_process(made, host_config(host))
    (source,) = [mount["source"] for mount in after["mounts"] if mount["destination"] == "/usr/local/nvidia/lib64"]
    assert source.startswith(f"{made}/gpu-oci-hook/libraries-")
    assert (Path(source) / "libcuda.so.1").is_symlink()
    assert not [name for name in os.listdir(place) if name.startswith("libraries")]
    assert inject_in_process(made, host_config(host)) == after


# --- many at once --------------------------------------------------------------------------------------

SHIM = """
import os, sys
sys.path.append({source!r})
from gpu_oci_hook.files import state_dir
state_dir.DIRECTORY = {state!r}
from gpu_oci_hook.host.driver import discovery
search = discovery.discover_driver_files
def counted(*args):
    fd = os.open({counter!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(fd, b"x")
    os.close(fd)
    return search(*args)
discovery.discover_driver_files = counted
from gpu_oci_hook.shim.main import main
main()
"""
MANY = 64


def test_64_creates_at_once_with_an_empty_cache_search_once_and_agree(tmp_path: Path, host: Path) -> None:
    script = tmp_path / "shim"
    script.write_text(
        SHIM.format(
            source=str(Path(gpu_oci_hook.__file__).parents[1]),
            state=str(tmp_path / "state"),
            counter=str(tmp_path / "counter"),
        )
    )
    config = tmp_path / "config.toml"
    config.write_text(f'[host]\nroot = "{host}"\nload-modules = false\n[runtime]\nlow-level = ["/bin/true"]\n')
    bundles = [
        make_bundle(tmp_path / f"b{number:02}", container_spec(GPU0, ALL, mounts=[PROC])) for number in range(MANY)
    ]
    shims = [
        subprocess.Popen(
            [sys.executable, "-IS", script, "create", "--bundle", made, "id"],
            env={"GPU_OCI_HOOK_CONFIG": str(config), "PATH": "/usr/bin:/bin"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for made in bundles
    ]
    said = [shim.communicate(timeout=120)[0] for shim in shims]
    assert [shim.returncode for shim in shims] == [0] * MANY, said
    assert said == [b""] * MANY
    assert (tmp_path / "counter").read_text() == "x", "the driver's files were searched more than once"
    first = (bundles[0] / "config.json").read_text()
    tree = snapshot_tree(bundles[0] / "rootfs", times=False)
    for made in bundles:
        assert (made / "config.json").read_text().replace(str(made), str(bundles[0])) == first
        assert snapshot_tree(made / "rootfs", times=False) == tree
        assert sorted(os.listdir(made)) == ["config.json", "gpu-oci-hook", "rootfs"]
        assert not [name for _, _, names in os.walk(made) for name in names if "gpu-oci-hook-" in name]
    names = os.listdir(tmp_path / "state")
    assert not [name for name in names if name.startswith(".")]
    kinds = {name.partition("-")[0].partition(".")[0] for name in names}
    assert kinds == {"inventory", "libraries", "runtime", "used"}
    assert len([name for name in names if name.startswith("libraries")]) == 2, "one for 64 bits, one for 32"


def test_two_starts_of_one_bundle_at_once_both_succeed(tmp_path: Path, host: Path) -> None:
    """GPU_OCI_HOOK_RACE_ROUNDS sets the number of rounds."""
    shim = Shim(tmp_path, host)
    made = make_bundle(tmp_path / "bundle", container_spec(GPU0, ALL))
    config = (made / "config.json").read_bytes()
    assert shim.create(made).returncode == 0
    expected = read_spec(made)
    for number in range(int(os.environ.get("GPU_OCI_HOOK_RACE_ROUNDS", "10"))):
        shutil.rmtree(made / "gpu-oci-hook", ignore_errors=True)
        (made / "config.json").write_bytes(config)
        starts = [
            subprocess.Popen([shim.path, "create", "--bundle", made, "id"], env=shim.env, stderr=subprocess.PIPE)
            for _ in range(2)
        ]
        assert [(start.communicate()[1], start.returncode) for start in starts] == [(b"", 0)] * 2, number
        assert read_spec(made) == expected
        assert list_litter(made) == []
