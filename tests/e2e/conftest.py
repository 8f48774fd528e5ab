"""Fixtures of the end-to-end tests: one workspace, one simulated host, one installed runtime, each engine
started once.

GPU_OCI_HOOK_E2E=require turns every "this machine lacks ..." from a skip into a failure; scripts/test sets it
for root.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.e2e import engines, host, images, machine
from support.e2e.installed_machine import InstalledMachine
from support.e2e.matrix import MATRIX
from support.e2e.requirements import require_programs


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks every test below this directory."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.e2e)
            item.add_marker(pytest.mark.root)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints the matrix."""
    if MATRIX.rows:
        terminalreporter.section("engines")
        terminalreporter.write_line(MATRIX.table())


@pytest.fixture(scope="session")
def workspace() -> Iterator[Path]:
    """A directory that an unprivileged user can enter, with a short name for sockets; emptied of processes
    and mounts at the end.
    """
    require_programs("gcc", "busybox", "runc")
    remembered = Path("/run/gpu-oci-hook")
    before = set(remembered.glob("*"))
    directory = Path(tempfile.mkdtemp(prefix="gpu-oci-e2e-"))
    directory.chmod(0o755)
    yield directory
    machine.remove_tree(directory)
    machine.remove_cgroups(engines.CGROUP)
    # What the runtime remembers of simulated hosts, and why hooks failed there, is of no use to anybody.
    for path in {*remembered.glob("inventory-*"), *remembered.glob("hook.log*")} - before:
        path.unlink(missing_ok=True)


@pytest.fixture(scope="session")
def image(workspace: Path) -> Path:
    """The standard image's root file system."""
    return images.build_glibc_image(workspace / "image")


@pytest.fixture(scope="session")
def simulated(workspace: Path) -> host.SimulatedHost:
    """The simulated host with two GPUs."""
    return host.build_host(workspace / "host")


@pytest.fixture(scope="session")
def runtime(workspace: Path) -> host.InstalledRuntime:
    """The installed runtime."""
    directory = workspace / "runtime"
    directory.mkdir()
    return host.InstalledRuntime(directory)


@pytest.fixture(scope="session")
def runtime_for(runtime: host.InstalledRuntime, simulated: host.SimulatedHost) -> Callable[[str], Path]:
    """Low-level runtime's name -> the runtime under test above it."""
    return lambda low_level: runtime.wrapper(low_level, simulated.root)


@pytest.fixture(scope="session", params=engines.list_engines(), ids=lambda engine: engine.name.replace(" ", "-"))
def engine(
    request: pytest.FixtureRequest, workspace: Path, image: Path, runtime_for: Callable[[str], Path]
) -> Iterator[engines.Engine]:
    """Every engine in turn, started."""
    engine: engines.Engine = request.param
    require_programs(*engine.programs)
    directory = Path(tempfile.mkdtemp(prefix="e-", dir=workspace))
    directory.chmod(0o755)
    try:
        engine.start(engines.EngineHome(directory, image, runtime_for))
        yield engine
    finally:
        try:
            engine.stop()
        finally:
            machine.remove_tree(directory)


@pytest.fixture
def installed(
    workspace: Path, runtime: host.InstalledRuntime, simulated: host.SimulatedHost
) -> Iterator[InstalledMachine]:
    """The product, installed."""
    require_programs("containerd", "ctr", "dockerd", "docker", "podman", "runc", "unshare", "nsenter")
    directory = Path(tempfile.mkdtemp(prefix="installed-", dir=workspace))
    found = InstalledMachine(directory, runtime, simulated)
    yield found
    found.namespace.stop()
    machine.remove_tree(directory)
