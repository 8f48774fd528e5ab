"""Build a simulated host: check the arguments, claim the directory, and write all its parts.

Every write goes through `Rootfs`, because real layouts have absolute links, which could lead a write out of the tree.

Import budget: cold.
"""

from __future__ import annotations

import os
import platform
import shutil
import stat
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from gpu_oci_hook.errors import Fault, describe_os_error
from gpu_oci_hook.files.rootfs import Rootfs
from gpu_oci_hook.formats.architectures import HOST_ARCHITECTURES
from gpu_oci_hook.formats.driver_version import is_driver_version
from gpu_oci_hook.formats.program_names import SIMULATED_HOST_MARKER
from gpu_oci_hook.simulate.boards import BOARD_LAYOUTS, Board
from gpu_oci_hook.simulate.feature_files import FEATURES, add_simulated_features
from gpu_oci_hook.simulate.kernel import KernelFiles, SimulatedGpu, build_simulated_gpus
from gpu_oci_hook.simulate.special_files import SpecialFiles
from gpu_oci_hook.simulate.userland import Userland

_MAX_GPUS = 128
_MAX_CHANNELS = 2048  # the module's default (ImexChannelCount)


def _load_toml(name: str) -> dict[str, Any]:
    return tomllib.loads(resources.files(__package__).joinpath(name).read_text("utf-8"))


_LAYOUT_TABLES = _load_toml("layouts.toml")
DESKTOP_LAYOUTS: tuple[str, ...] = tuple(_LAYOUT_TABLES)
LAYOUTS: tuple[str, ...] = (*DESKTOP_LAYOUTS, *BOARD_LAYOUTS)


@dataclass(frozen=True)
class SimulatedHost:
    """The host that was built.

    Attributes:
        directory: the host's root, as given.
        layout, driver: as given.
        arch: "x86_64" or "aarch64".
        driver_root: the root of the driver's files inside the directory: "/" or "/run/nvidia/driver".
        library_directory: directory of the library files, inside the driver root.
        loader_cache: the loader cache inside the driver root; "" if the layout has none or none was wanted.
        gpus: in the order of their index.
        libraries: SONAME to the path of the file, inside the driver root. libraries32: the same for 32-bit libraries.
        nodes: device nodes that were created.
        left_out: one sentence for each reason why something could not be created.
    """

    directory: str
    layout: str
    driver: str
    arch: str
    driver_root: str
    library_directory: str
    loader_cache: str
    gpus: tuple[SimulatedGpu, ...]
    libraries: dict[str, str]
    libraries32: dict[str, str]
    nodes: tuple[str, ...]
    left_out: tuple[str, ...]


def build_host(
    directory: str | os.PathLike[str],
    *,
    gpus: int = 1,
    driver: str = "550.163.01",
    model: str = "NVIDIA A100-SXM4-40GB",
    layout: str = "debian",
    loader_cache: bool = True,
    arch: str = "",
    mig: Sequence[str] = (),
    imex: int = 0,
    features: tuple[str, ...] = (),
) -> SimulatedHost:
    """Build a GPU host made of files in a directory.

    Arguments:
        directory: the host's root, created if missing. It must be empty or a simulated host, which is then replaced.
        gpus: number of GPUs. The first two have each other's device minor, because index and minor differ on real
            hosts too.
        driver: the driver's version.
        model: the GPUs' name.
        layout: one of LAYOUTS.
        loader_cache: write the layout's loader cache.
        arch: "x86_64" or "aarch64". The default is this machine's, so that the libraries load.
        mig: the MIG devices of the GPUs, see `mig_instances.build_mig_devices`.
        imex: number of IMEX channels.
        features: any of FEATURES: their nodes, modules and files are added.

    Raises:
        Fault: an argument is invalid, the directory contains other files, or writing fails.
    """
    machine = arch or _choose_architecture()
    check_arguments(layout, driver, gpus, model, machine, mig, imex, features)
    root = Path(directory)
    try:
        _claim_directory(root)
        with Rootfs(str(root)) as files:
            special_files = SpecialFiles(files)
            if layout in BOARD_LAYOUTS:
                return _build_board(special_files, root, layout, gpus, driver, model, machine)
            simulated_gpus = build_simulated_gpus(gpus, model, mig)
            module = KernelFiles(special_files, driver, machine, simulated_gpus)
            module.write_text_files(_LAYOUT_TABLES[layout].get("firmware-parameter", ""))
            module.write_drm_entries()
            module.make_device_nodes()
            add_simulated_features(special_files, features, imex)
            return _build_desktop(module, root, layout, loader_cache=loader_cache)
    except OSError as error:
        reason = describe_os_error(error, writing=True)
        raise Fault(f"cannot create the simulated host: {reason}", where=str(error.filename or root)) from error


def _choose_architecture() -> str:
    """Return this machine's architecture, or x86_64 if no host of this machine's kind can be simulated."""
    machine = {"arm64": "aarch64"}.get(platform.machine(), platform.machine())
    return machine if machine in HOST_ARCHITECTURES else "x86_64"


def check_arguments(
    layout: str,
    driver: str,
    gpus: int,
    model: str,
    arch: str,
    mig: Sequence[str],
    imex: int,
    features: tuple[str, ...],
) -> None:
    """Check the arguments of `build_host` that are right or wrong whatever the machine.

    Raises:
        Fault: one of them is invalid.
    """
    if layout not in LAYOUTS:
        raise Fault(f"unknown layout {layout!r}", hint=f"Use one of {', '.join(LAYOUTS)}")
    if not is_driver_version(driver):
        raise Fault(f"invalid driver version {driver!r}", hint="Give a version such as 550.163.01")
    if not 0 <= gpus <= _MAX_GPUS:
        raise Fault(f"cannot simulate {gpus} GPUs", hint=f"Give a number from 0 to {_MAX_GPUS}")
    if not 0 <= imex <= _MAX_CHANNELS:
        raise Fault(f"cannot simulate {imex} IMEX channels", hint=f"Give a number from 0 to {_MAX_CHANNELS}")
    for feature in features:
        if feature not in FEATURES:
            raise Fault(f'unknown optional device "{feature}"', hint=f"Use any of {', '.join(FEATURES)}")
    if layout in BOARD_LAYOUTS and (mig or imex or features):
        raise Fault(
            f"layout {layout} has no MIG devices, IMEX channels or optional devices",
            hint="Omit them, or choose another layout",
        )
    if not model.strip() or not model.isprintable() or len(model) > 200:
        raise Fault(f"{model!r} cannot be the name of a GPU", hint="Give at most 200 printable characters")
    if arch and arch not in HOST_ARCHITECTURES:
        raise Fault(
            f"cannot simulate a machine of architecture {arch!r}", hint=f"Use one of {', '.join(HOST_ARCHITECTURES)}"
        )
    if layout not in BOARD_LAYOUTS:
        build_simulated_gpus(gpus, model, mig)


def _build_desktop(module: KernelFiles, root: Path, layout: str, *, loader_cache: bool) -> SimulatedHost:
    """Install the driver of a desktop or server, whose kernel files are already written."""
    table = _LAYOUT_TABLES[layout]
    driver_root: str = table.get("root", "/")
    left_out = module.special_files.left_out
    if driver_root == "/":
        userland = _install_userland(module.special_files, table, module, loader_cache=loader_cache)
    else:
        module.files.open_directory(driver_root)
        with Rootfs(str(root) + driver_root) as driver_files:
            driver_special_files = SpecialFiles(driver_files)
            userland = _install_userland(driver_special_files, table, module, loader_cache=loader_cache)
        left_out += driver_special_files.left_out
    return SimulatedHost(
        directory=str(root),
        layout=layout,
        driver=module.driver,
        arch=module.arch,
        driver_root=driver_root,
        library_directory=userland.get_directory("libraries"),
        loader_cache=userland.loader_cache,
        gpus=module.gpus,
        libraries=userland.libraries,
        libraries32=userland.libraries32,
        nodes=tuple(module.special_files.nodes),
        left_out=tuple(left_out),
    )


def _install_userland(
    special_files: SpecialFiles, table: dict[str, Any], module: KernelFiles, *, loader_cache: bool
) -> Userland:
    userland = Userland(special_files, table, _load_toml("driver.toml"), module.driver, module.arch)
    userland.build_files(loader_cache=loader_cache)
    return userland


def _build_board(
    special_files: SpecialFiles, root: Path, layout: str, gpus: int, driver: str, model: str, arch: str
) -> SimulatedHost:
    """Build a WSL or a Jetson."""
    board = Board(special_files, driver, arch)
    board.build_files(layout, gpus, model)
    return SimulatedHost(
        directory=str(root),
        layout=layout,
        driver=driver,
        arch=arch,
        driver_root="/",
        library_directory=board.directory,
        loader_cache=board.loader_cache,
        gpus=board.gpus,
        libraries=board.libraries,
        libraries32={},
        nodes=tuple(special_files.nodes),
        left_out=tuple(special_files.left_out),
    )


def _claim_directory(root: Path) -> None:
    """Create or empty the directory and put the marker file into it.

    Raises:
        Fault: it is a file, or a directory with files that `simulate` did not create for this user.
    """
    if root.exists() and not root.is_dir():
        raise Fault(
            "cannot create the simulated host: it is a file",
            where=str(root),
            hint="Name a directory that is empty or does not exist yet",
        )
    root.mkdir(parents=True, exist_ok=True)
    names = [entry.name for entry in os.scandir(root)]
    marker = root / SIMULATED_HOST_MARKER
    if names:
        status = marker.lstat() if SIMULATED_HOST_MARKER in names else None
        if status is None or not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise Fault(
                "the directory is not empty and was not created by `gpu-oci-hook simulate` for this user",
                where=str(root),
                hint="Choose another directory",
            )
    for name in names:
        if name == SIMULATED_HOST_MARKER:
            continue  # stays until the end, so that a half-removed host is still recognised
        path = root / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    marker.write_text("This directory was made by `gpu-oci-hook simulate`, which may empty it.\n")
    root.chmod(0o755)
