"""Builds the simulated host: checks what was asked, makes the directory ours, and calls the parts.

Every write goes through Rootfs, so that no link in the tree (real layouts have absolute ones) can lead a write
out of it. Cost rule: none.
"""

from __future__ import annotations

import os
import platform
import re
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
from gpu_oci_hook.simulate.boards import BOARDS, Board
from gpu_oci_hook.simulate.feature_files import FEATURES, add_simulated_features
from gpu_oci_hook.simulate.kernel import KernelFiles, SimulatedGpu, build_simulated_gpus
from gpu_oci_hook.simulate.userland import Userland

_MARKER = ".gpu-oci-hook-simulate"
_MAX_GPUS = 128
_MAX_CHANNELS = 2048  # what the module is told by default (ImexChannelCount)
_VERSION_PATTERN = re.compile(r"[0-9]{1,4}(\.[0-9]{1,4}){1,3}", re.ASCII)


def _load_toml(name: str) -> dict[str, Any]:
    return tomllib.loads(resources.files(__package__).joinpath(name).read_text("utf-8"))


_LAYOUTS = _load_toml("layouts.toml")
DESKTOPS: tuple[str, ...] = tuple(_LAYOUTS)
LAYOUTS: tuple[str, ...] = (*DESKTOPS, *BOARDS)


@dataclass(frozen=True)
class SimulatedHost:
    """What was made.

    Attributes:
        directory: the host's root, as given.
        layout, driver, arch: as asked; arch is "x86_64" or "aarch64".
        driver_root: where the driver's files begin, inside the directory: "/" or "/run/nvidia/driver".
        library_directory: where the library files are, inside the driver root.
        loader_cache: the loader cache inside the driver root; "" when the layout has none or none was wanted.
        gpus: in the order of their index.
        libraries: SONAME to the path of the file, inside the driver root. libraries32: the same for the 32-bit ones.
        nodes: device nodes that were made.
        left_out: a sentence for each thing that could not be made, and why.
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
    """Makes a GPU host of files in a directory.

    Arguments:
        directory: where; made when missing. It must be empty, or a simulated host, which is then made anew.
        gpus: how many; the first two have each other's device minor, as index and minor differ on real hosts.
        driver: the driver's version.
        model: the GPUs' name.
        layout: one of LAYOUTS.
        loader_cache: write the loader cache that the layout has.
        arch: "x86_64" or "aarch64"; this machine's by default, so that the libraries load.
        mig: divides the GPUs into MIG devices: one word for all of them, or one for each, see `mig_instances.build_mig_devices`.
        imex: how many IMEX channels.
        features: of "gds", "mofed", "gdrcopy", "nvswitch": their nodes, modules and files.

    Raises Fault for a wrong argument, for a directory that holds something else, and when writing fails.
    """
    if layout not in LAYOUTS:
        raise Fault(f"there is no layout {layout!r}", hint=f"Known are {', '.join(LAYOUTS)}")
    if not _VERSION_PATTERN.fullmatch(driver):
        raise Fault(f"{driver!r} is no driver version", hint="Give one such as 550.163.01")
    if not 0 <= gpus <= _MAX_GPUS:
        raise Fault(f"cannot simulate {gpus} GPUs", hint=f"Give a number from 0 to {_MAX_GPUS}")
    if not 0 <= imex <= _MAX_CHANNELS:
        raise Fault(f"cannot simulate {imex} IMEX channels", hint=f"Give a number from 0 to {_MAX_CHANNELS}")
    for word in features:
        if word not in FEATURES:
            raise Fault(f"there is no feature {word!r}", hint=f"Known are {', '.join(FEATURES)}")
    if layout in BOARDS and (mig or imex or features):
        raise Fault(f"layout {layout} has neither MIG devices nor IMEX channels nor features")
    if not model.strip() or not model.isprintable() or len(model) > 200:
        raise Fault(f"{model!r} cannot be the name of a GPU")
    machine = arch or {"arm64": "aarch64"}.get(platform.machine(), platform.machine())
    if not arch and machine not in HOST_ARCHITECTURES:
        machine = "x86_64"
    if machine not in HOST_ARCHITECTURES:
        raise Fault(f"cannot simulate a machine of kind {arch!r}", hint=f"Known are {', '.join(HOST_ARCHITECTURES)}")
    root = Path(directory)
    try:
        _claim_directory(root)
        with Rootfs(str(root)) as files:
            if layout in BOARDS:
                board = Board(files, driver, machine)
                board.build_files(layout, gpus, model)
                return _describe_board(board, root, layout)
            cards = build_simulated_gpus(gpus, model, mig)
            return _build_desktop(
                files,
                root,
                _LAYOUTS[layout],
                cards,
                driver,
                layout,
                machine,
                (features, imex),
                loader_cache=loader_cache,
            )
    except OSError as error:
        reason = describe_os_error(error, writing=True)
        raise Fault(f"cannot make the simulated host: {reason}", where=str(error.filename or root)) from error


def _build_desktop(
    files: Rootfs,
    root: Path,
    layout_settings: dict[str, Any],
    gpus: tuple[SimulatedGpu, ...],
    driver: str,
    layout: str,
    arch: str,
    features_and_imex: tuple[tuple[str, ...], int],
    *,
    loader_cache: bool,
) -> SimulatedHost:
    module = KernelFiles(files, driver, arch, gpus)
    module.write_text_files(layout_settings.get("firmware-parameter", ""))
    module.write_drm_entries()
    module.make_device_nodes()
    add_simulated_features(module, *features_and_imex)
    driver_root = layout_settings.get("root", "/")
    if driver_root != "/":
        files.open_directory(driver_root)
        with Rootfs(str(root) + driver_root) as inner:
            made = Userland(inner, layout_settings, _load_toml("driver.toml"), driver, arch)
            made.build_files(loader_cache=loader_cache)
            left_out = [*module.left_out, *made.left_out]
    else:
        made = Userland(files, layout_settings, _load_toml("driver.toml"), driver, arch)
        made.build_files(loader_cache=loader_cache)
        left_out = [*module.left_out, *made.left_out]
    return SimulatedHost(
        directory=str(root),
        layout=layout,
        driver=driver,
        arch=arch,
        driver_root=driver_root,
        library_directory=made.get_directory("libraries"),
        loader_cache=made.loader_cache,
        gpus=gpus,
        libraries=made.libraries,
        libraries32=made.libraries32,
        nodes=tuple(module.made_nodes),
        left_out=tuple(left_out),
    )


def _describe_board(board: Board, root: Path, layout: str) -> SimulatedHost:
    return SimulatedHost(
        directory=str(root),
        layout=layout,
        driver=board.driver,
        arch=board.arch,
        driver_root="/",
        library_directory=board.directory,
        loader_cache=board.loader_cache,
        gpus=board.gpus,
        libraries=board.libraries,
        libraries32={},
        nodes=tuple(board.nodes),
        left_out=tuple(board.left_out),
    )


def _claim_directory(root: Path) -> None:
    """Makes the directory ours and empty but for the marker; refuses one that is somebody else's."""
    root.mkdir(parents=True, exist_ok=True)
    names = [entry.name for entry in os.scandir(root)]
    marker = root / _MARKER
    if names:
        status = marker.lstat() if _MARKER in names else None
        if status is None or not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise Fault(
                "the directory is not empty, and no simulated host of yours",
                where=str(root),
                hint="Name a new directory",
            )
    for name in names:
        if name == _MARKER:
            continue  # stays until the end: what is half removed must be known as ours
        path = root / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    marker.write_text("This directory was made by `gpu-oci-hook simulate`, which may empty it.\n")
    root.chmod(0o755)
