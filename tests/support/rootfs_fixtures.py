"""Fixtures for tests of container roots: an image, a held root, and a host that nothing may change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_oci_hook.files.rootfs import Rootfs
from support.bundles import snapshot_tree


@pytest.fixture
def image_dir(tmp_path: Path) -> Path:
    """An empty image: the directory on the host that becomes a container's root."""
    directory = tmp_path / "rootfs"
    directory.mkdir()
    return directory


@pytest.fixture
def container_root(image_dir: Path) -> Iterator[Rootfs]:
    """The image as the code under test holds it."""
    with Rootfs(str(image_dir)) as root:
        yield root


@pytest.fixture
def debian_image(image_dir: Path) -> Path:
    """The image with Debian's directories, as far as the loader needs them."""
    for name in ("usr/lib/x86_64-linux-gnu", "usr/lib64", "usr/bin", "etc/ld.so.conf.d"):
        (image_dir / name).mkdir(parents=True)
    for name in ("lib", "lib64", "bin"):
        (image_dir / name).symlink_to(f"usr/{name}")
    (image_dir / "etc/debian_version").write_text("12.0\n")
    (image_dir / "etc/ld.so.conf").write_text("include /etc/ld.so.conf.d/*.conf\n")
    return image_dir


@pytest.fixture
def untouched_host(tmp_path: Path) -> Iterator[Path]:
    """A directory outside the image with every name that we write; the test fails when anything in it changes."""
    host = tmp_path / "host"
    for name in ("lib", "bin", "ld.so.conf.d", "libcuda.so.1.d", "compat"):
        (host / name).mkdir(parents=True)
    for name in ("ld.so.cache", "ld.so.conf", "ld-musl-x86_64.path", "ld.so.conf.d/00-gpu-oci-hook.conf",
                 "lib/libcuda.so.1", "lib/libc.so.6", "bin/nvidia-smi", "compat/libcuda.so.999.1"):  # fmt: skip
        (host / name).write_text("host's secret\n")
    before = snapshot_tree(host, temporaries=True)
    yield host
    assert snapshot_tree(host, temporaries=True) == before, "a file of the host was changed"
