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

from gpu_oci_hook.container.rootfs import Rootfs
from gpu_oci_hook.errors import Fault, words
from gpu_oci_hook.formats import MACHINES
from gpu_oci_hook.simulate import boards, kernel, userland
from gpu_oci_hook.simulate import features as besides

_MARKER = ".gpu-oci-hook-simulate"
_MOST_GPUS = 128
_MOST_CHANNELS = 2048  # what the module is told by default (ImexChannelCount)
_VERSION = re.compile(r"[0-9]{1,4}(\.[0-9]{1,4}){1,3}", re.ASCII)


def _table(name: str) -> dict[str, Any]:
    return tomllib.loads(resources.files(__package__).joinpath(name).read_text("utf-8"))


_LAYOUTS = _table("layouts.toml")
DESKTOPS: tuple[str, ...] = tuple(_LAYOUTS)
LAYOUTS: tuple[str, ...] = (*DESKTOPS, *boards.BOARDS)


@dataclass(frozen=True)
class Report:
    """What was made.

    Attributes:
        directory: the host's root, as given.
        layout, driver, arch: as asked; arch is "x86_64" or "aarch64".
        driver_root: where the driver's files begin, inside the directory: "/" or "/run/nvidia/driver".
        library_directory: where the library files are, inside the driver root.
        cache: the loader cache inside the driver root; "" when the layout has none or none was wanted.
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
    cache: str
    gpus: tuple[kernel.Gpu, ...]
    libraries: dict[str, str]
    libraries32: dict[str, str]
    nodes: tuple[str, ...]
    left_out: tuple[str, ...]


def build(
    directory: str | os.PathLike[str],
    *,
    gpus: int = 1,
    driver: str = "550.163.01",
    model: str = "NVIDIA A100-SXM4-40GB",
    layout: str = "debian",
    cache: bool = True,
    arch: str = "",
    mig: Sequence[str] = (),
    imex: int = 0,
    features: tuple[str, ...] = (),
) -> Report:
    """Makes a GPU host of files in a directory.

    Arguments:
        directory: where; made when missing. It must be empty, or a simulated host, which is then made anew.
        gpus: how many; the first two have each other's device minor, as index and minor differ on real hosts.
        driver: the driver's version.
        model: the GPUs' name.
        layout: one of LAYOUTS.
        cache: write the loader cache that the layout has.
        arch: "x86_64" or "aarch64"; this machine's by default, so that the libraries load.
        mig: divides the GPUs into MIG devices: one word for all of them, or one for each, see `mig.instances`.
        imex: how many IMEX channels.
        features: of "gds", "mofed", "gdrcopy", "nvswitch": their nodes, modules and files.

    Raises Fault for a wrong argument, for a directory that holds something else, and when writing fails.
    """
    if layout not in LAYOUTS:
        raise Fault(f"there is no layout {layout!r}", cure=f"Known are {', '.join(LAYOUTS)}")
    if not _VERSION.fullmatch(driver):
        raise Fault(f"{driver!r} is no driver version", cure="Give one such as 550.163.01")
    if not 0 <= gpus <= _MOST_GPUS:
        raise Fault(f"cannot simulate {gpus} GPUs", cure=f"Give a number from 0 to {_MOST_GPUS}")
    if not 0 <= imex <= _MOST_CHANNELS:
        raise Fault(f"cannot simulate {imex} IMEX channels", cure=f"Give a number from 0 to {_MOST_CHANNELS}")
    for word in features:
        if word not in besides.FEATURES:
            raise Fault(f"there is no feature {word!r}", cure=f"Known are {', '.join(besides.FEATURES)}")
    if layout in boards.BOARDS and (mig or imex or features):
        raise Fault(f"layout {layout} has neither MIG devices nor IMEX channels nor features")
    if not model.strip() or not model.isprintable() or len(model) > 200:
        raise Fault(f"{model!r} cannot be the name of a GPU")
    machine = arch or {"arm64": "aarch64"}.get(platform.machine(), platform.machine())
    if not arch and machine not in MACHINES:
        machine = "x86_64"
    if machine not in MACHINES:
        raise Fault(f"cannot simulate a machine of kind {arch!r}", cure=f"Known are {', '.join(MACHINES)}")
    root = Path(directory)
    try:
        _claim(root)
        with Rootfs(str(root)) as files:
            if layout in boards.BOARDS:
                board = boards.Board(files, driver, machine)
                board.build(layout, gpus, model)
                return _report(board, root, layout)
            cards = kernel.gpus(gpus, model, mig)
            return _fill(files, root, _LAYOUTS[layout], cards, driver, layout, machine, (features, imex), cache=cache)
    except OSError as error:
        reason = words(error, writing=True)
        raise Fault(f"cannot make the simulated host: {reason}", where=str(error.filename or root)) from error


def _fill(
    files: Rootfs,
    root: Path,
    settings: dict[str, Any],
    cards: tuple[kernel.Gpu, ...],
    driver: str,
    layout: str,
    arch: str,
    more: tuple[tuple[str, ...], int],
    *,
    cache: bool,
) -> Report:
    module = kernel.Module(files, driver, arch, cards)
    module.tables(settings.get("firmware-parameter", ""))
    module.drm()
    module.nodes()
    besides.add(module, *more)
    driver_root = settings.get("root", "/")
    if driver_root != "/":
        files.directory(driver_root)
        with Rootfs(str(root) + driver_root) as inner:
            made = userland.Userland(inner, settings, _table("driver.toml"), driver, arch)
            made.build(cache=cache)
            left_out = [*module.left_out, *made.left_out]
    else:
        made = userland.Userland(files, settings, _table("driver.toml"), driver, arch)
        made.build(cache=cache)
        left_out = [*module.left_out, *made.left_out]
    return Report(
        directory=str(root),
        layout=layout,
        driver=driver,
        arch=arch,
        driver_root=driver_root,
        library_directory=made.place("libraries"),
        cache=made.cache,
        gpus=cards,
        libraries=made.libraries,
        libraries32=made.libraries32,
        nodes=tuple(module.made),
        left_out=tuple(left_out),
    )


def _report(board: boards.Board, root: Path, layout: str) -> Report:
    return Report(
        directory=str(root),
        layout=layout,
        driver=board.driver,
        arch=board.arch,
        driver_root="/",
        library_directory=board.directory,
        cache=board.cache,
        gpus=board.cards,
        libraries=board.libraries,
        libraries32={},
        nodes=tuple(board.nodes),
        left_out=tuple(board.left_out),
    )


def _claim(root: Path) -> None:
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
                cure="Name a new directory",
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
