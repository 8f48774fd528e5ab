"""What is learnt about an image."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpu_oci_hook.container.image import Image, inspect_image
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.files.rootfs import Rootfs
from gpu_oci_hook.formats.driver_version import is_driver_version


def make(image_dir: Path, *entries: str) -> None:
    """Entries: "dir/", "file", "link -> text"."""
    for entry in entries:
        name, arrow, text = entry.partition(" -> ")
        path = image_dir / name.rstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        if arrow:
            path.symlink_to(text)
        elif name.endswith("/"):
            path.mkdir(exist_ok=True, parents=True)
        else:
            path.write_text("x")


def look(image_dir: Path, *entries: str, arch: str = "x86_64") -> Image:
    make(image_dir, *entries)
    with Rootfs(str(image_dir)) as container_root:
        return inspect_image(container_root, arch)


@pytest.mark.parametrize(
    ("entries", "arch", "libc", "directory", "directory32"),
    [
        (["etc/debian_version", "etc/ld.so.conf.d/", "usr/lib/x86_64-linux-gnu/"], "x86_64",
         "glibc", "/usr/lib/x86_64-linux-gnu", "/usr/lib/i386-linux-gnu"),
        (["usr/lib/aarch64-linux-gnu/"], "aarch64",
         "glibc", "/usr/lib/aarch64-linux-gnu", "/usr/lib/arm-linux-gnueabihf"),
        (["usr/lib64/ld-linux-x86-64.so.2", "lib64 -> usr/lib64", "usr/lib/"], "x86_64",
         "glibc", "/usr/lib64", "/usr/lib"),
        (["usr/lib/ld-linux-x86-64.so.2", "usr/lib64 -> lib", "lib64 -> usr/lib", "usr/lib32/"], "x86_64",
         "glibc", "/usr/lib", "/usr/lib32"),
        (["usr/lib/ld-linux-x86-64.so.2", "usr/lib64 -> lib", "lib64 -> usr/lib"], "x86_64",
         "glibc", "/usr/lib", "/usr/lib32"),
        (["lib/ld-musl-x86_64.so.1", "etc/alpine-release", "usr/lib/"], "x86_64",
         "musl", "/usr/lib", "/usr/lib32"),
        (["lib/ld-musl-x86_64.so.1", "etc/alpine-release", "lib64/ld-linux-x86-64.so.2"], "x86_64",
         "musl", "/usr/lib", "/usr/lib32"),
        (["lib/ld-musl-aarch64.so.1"], "aarch64", "musl", "/usr/lib", "/usr/lib32"),
        (["lib -> usr/lib", "usr/lib/ld-musl-x86_64.so.1", "usr/lib/x86_64-linux-gnu/libc.so.6"], "x86_64",
         "glibc", "/usr/lib/x86_64-linux-gnu", "/usr/lib/i386-linux-gnu"),
        (["bin/static"], "x86_64", "none", "/usr/lib64", "/usr/lib32"),
        (["usr/lib64/"], "riscv64", "none", "/usr/lib64", "/usr/lib64"),
        (["usr -> system", "system/lib64/", "etc/ld.so.cache"], "x86_64",
         "glibc", "/system/lib64", "/system/lib32"),
        (["usr/lib64", "etc/ld.so.conf"], "x86_64", "glibc", "/usr/local/nvidia/lib64", "/usr/lib32"),
        (["etc/ld.so.conf", "usr/lib64 -> lib64", "usr/lib32 -> /usr/lib32"], "x86_64",
         "glibc", "/usr/local/nvidia/lib64", "/usr/local/nvidia/lib"),
    ],
    ids=["debian", "debian arm", "fedora", "arch multilib", "arch", "alpine", "alpine gcompat", "void musl",
         "debian with musl", "static", "other machine", "linked usr", "file in the way", "loops in the way"],
)  # fmt: skip
def test_libc_and_library_directories(
    image_dir: Path, entries: list[str], arch: str, libc: str, directory: str, directory32: str
) -> None:
    image = look(image_dir, *entries, arch=arch)
    assert (image.libc, image.library_dir, image.library_dir32) == (libc, directory, directory32)


def test_an_escaping_multiarch_directory_is_no_directory(image_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "escape").mkdir()
    image = look(
        image_dir, "etc/ld.so.conf", f"usr/lib/x86_64-linux-gnu -> /../../../../..{tmp_path}/escape", "usr/lib64/"
    )
    assert image.library_dir == "/usr/lib64"


def test_no_place_for_libraries_is_a_fault(image_dir: Path) -> None:
    with pytest.raises(Fault, match="/usr/local/nvidia/lib64"):
        look(image_dir, "usr")


def test_the_loaders_files(image_dir: Path) -> None:
    image = look(image_dir, "lib/ld-musl-x86_64.so.1", "etc/")
    assert (image.ld_cache, image.ld_cache_unreadable, image.ld_conf, image.musl_path_content) == (
        None,
        False,
        "",
        None,
    )
    (image_dir / "etc/ld-musl-x86_64.path").write_bytes(b"/lib\n/\xff\n")
    image = look(image_dir, "etc/real", "etc/ld.so.cache -> real", "etc/ld.so.conf")
    assert (image.ld_cache, image.ld_cache_unreadable) == (b"x", False)
    assert image.musl_path_content is not None and os.fsencode(image.musl_path_content) == b"/lib\n/\xff\n"


def test_a_cache_that_is_a_directory_or_dangling_is_odd(image_dir: Path) -> None:
    image = look(image_dir, "etc/ld.so.cache/")
    assert image.ld_cache is None and image.ld_cache_unreadable
    (image_dir / "etc/ld.so.cache").rmdir()
    image = look(image_dir, "etc/ld.so.cache -> nowhere")
    assert image.ld_cache is None and image.ld_cache_unreadable


def test_compat_is_found_through_links_of_alternatives(image_dir: Path) -> None:
    image = look(
        image_dir,
        "usr/local/cuda -> /etc/alternatives/cuda",
        "etc/alternatives/cuda -> /usr/local/cuda-12.4",
        "usr/local/cuda-12.4/compat/libcuda.so.560.35.03",
        "usr/local/cuda-12.4/compat/libcuda.so.1 -> libcuda.so.560.35.03",
        "usr/local/cuda-12.4/compat/libnvidia-ptxjitcompiler.so.1",
        "usr/local/cuda-12.4/compat/readme",
    )
    assert image.compat_libcudas == (("/usr/local/cuda-12.4/compat/libcuda.so.560.35.03", "560.35.03"),)
    assert image.compat_dir == "/usr/local/cuda-12.4/compat"
    assert image.compat_names == ("libcuda.so.1", "libcuda.so.560.35.03", "libnvidia-ptxjitcompiler.so.1")


def test_compat_takes_full_regular_files_of_real_versions_newest_first(image_dir: Path) -> None:
    compat = "usr/local/cuda/compat"
    (image_dir / compat).mkdir(parents=True)
    (image_dir / compat / "libcuda.so.570.1").write_bytes(b"")
    image = look(
        image_dir, f"{compat}/libcuda.so.1.1", f"{compat}/libcuda.so.99.1", f"{compat}/libcuda.so.535.183.06",
        f"{compat}/libcuda.so.560.35.03", f"{compat}/libcuda.so.580.1/", f"{compat}/libcuda.so.590.1 -> x",
    )  # fmt: skip
    assert [version for _, version in image.compat_libcudas] == ["560.35.03", "535.183.06"]


def test_driver_versions_are_told_from_other_numbers() -> None:
    for text in ("560.35.03", "535.183", "418.56"):
        assert is_driver_version(text)
    for text in ("1", "1.1", "560", "560.", "560.a", "560.35.03.1", "", "۵۶۰.1", "5600.1"):
        assert not is_driver_version(text)


def test_looking_leaves_no_trace(image_dir: Path) -> None:
    make(image_dir, "etc/debian_version", "usr/lib/x86_64-linux-gnu/")
    before = {path: path.lstat().st_mtime_ns for path in [image_dir, *image_dir.rglob("*")]}
    look(image_dir)
    assert {path: path.lstat().st_mtime_ns for path in [image_dir, *image_dir.rglob("*")]} == before
