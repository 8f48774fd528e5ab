"""What tests of every room share."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_oci_hook.files import state_dir

pytest_plugins = ["support.command_line", "support.rootfs_fixtures"]


@pytest.fixture
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A memory of the test's own and an empty configuration: it leaves nothing in /run, and reads nothing of this
    machine's. The directory of the memory, which is not there yet.
    """
    monkeypatch.setattr(state_dir, "DIRECTORY", str(tmp_path / "state"))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    (tmp_path / "config.toml").touch(0o644)
    monkeypatch.setenv("GPU_OCI_HOOK_CONFIG", str(tmp_path / "config.toml"))
    return tmp_path / "state"
