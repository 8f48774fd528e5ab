"""Fixtures for tests of every room: state of the test's own, and simulated hosts."""

from __future__ import annotations

import gc
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import gpu_oci_hook
from gpu_oci_hook.files import state_dir
from gpu_oci_hook.simulate import host_tree
from support.bundles import snapshot_tree

SharedHost = Callable[..., Path]


def isolate_state(patch: pytest.MonkeyPatch, directory: Path) -> Path:
    """Point the state directory and the configuration below a directory; return the state directory, not created yet.

    Nothing is left in /run, and nothing is read of this machine's configuration and environment.
    """
    config = directory / "config.toml"
    config.touch(0o644)
    patch.setattr(state_dir, "DIRECTORY", str(directory / "state"))
    patch.setenv("GPU_OCI_HOOK_CONFIG", str(config))
    patch.delenv("XDG_RUNTIME_DIR", raising=False)
    patch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    return directory / "state"


@pytest.fixture
def isolated_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state directory and an empty configuration of the test's own, below its tmp_path."""
    return isolate_state(monkeypatch, tmp_path)


@pytest.fixture(scope="module")
def isolated_module_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The same for all tests of a module, so that each host is searched once."""
    with pytest.MonkeyPatch.context() as patch:
        yield isolate_state(patch, tmp_path_factory.mktemp("isolated"))


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A directory that other users can enter, with a copy of our code in `code`: the checkout may be closed to them."""
    path = Path(tempfile.mkdtemp(prefix="gpu-oci-hook-test-"))
    path.chmod(0o755)
    shutil.copytree(Path(gpu_oci_hook.__file__).parent, path / "code/gpu_oci_hook")
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="session")
def shared_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedHost]:
    """Build a simulated host with these options of `build_host`, once in a session. No test may change it.

    A test that changes its host builds one below its own tmp_path.
    """
    hosts: dict[str, Path] = {}
    snapshots: dict[Path, dict[str, tuple[object, ...]]] = {}

    def build(**options: Any) -> Path:
        key = repr(sorted(options.items()))
        if key not in hosts:
            hosts[key] = tmp_path_factory.mktemp("shared-host")
            host_tree.build_host(hosts[key], **options)
            snapshots[hosts[key]] = snapshot_tree(hosts[key], temporaries=True)
        return hosts[key]

    yield build
    for directory, before in snapshots.items():
        assert snapshot_tree(directory, temporaries=True) == before, f"a test changed the shared host {directory}"


@pytest.fixture(autouse=True)
def garbage_collection() -> Iterator[None]:
    """Switch the collector on again: our short programs switch it off, and tests run some of them in this process.

    Directories that are held open refer to each other, so without it each of them would keep its descriptor.
    """
    yield
    gc.enable()
