"""Warnings about images, each for the case it is about and for nothing else."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from gpu_oci_hook.container import image, lint
from gpu_oci_hook.files.rootfs import Rootfs
from gpu_oci_hook.model.machine import DriverFile

VERSION = "555.42.02"
MULTIARCH = "usr/lib/x86_64-linux-gnu"


def library(
    stem: str, soname: str = "1", glibc: str = "2.17", arch: str = "x86_64", needs: tuple[str, ...] = ()
) -> DriverFile:
    name = f"{stem}.so.{VERSION}"
    return DriverFile(
        kind="library", capability="compute", path=f"/l/{name}", source=f"/l/{name}", name=name,
        soname=f"{stem}.so.{soname}", glibc=glibc, arch=arch, needs=needs,
    )  # fmt: skip


FILES = [
    library("libcuda"),
    library("libnvidia-ml"),
    DriverFile(kind="binary", capability="utility", path="/usr/bin/nvidia-smi", source="/usr/bin/nvidia-smi",
               name="nvidia-smi", container_path="/usr/bin/nvidia-smi", arch="x86_64"),
]  # fmt: skip


def findings(
    container_root: Rootfs, files: list[DriverFile] | None = None, env: dict[str, str] | None = None
) -> list[str]:
    return lint.lint_image(
        container_root, image.inspect_image(container_root, "x86_64"), FILES if files is None else files, env or {}
    )


def test_a_clean_image_has_no_findings(container_root: Rootfs, debian_image: Path) -> None:
    (debian_image / MULTIARCH / "libc.so.6").write_bytes(b"\x7fELF GLIBC_2.2.5\0GLIBC_2.36\0GLIBC_PRIVATE\0")
    (debian_image / MULTIARCH / "libcudart.so.12.4.127").write_text("not the driver's")
    (debian_image / MULTIARCH / "libnvidia-container.so.1.17.0").write_text("not the driver's")
    assert findings(container_root, env={"LD_LIBRARY_PATH": "/usr/local/cuda/lib64"}) == []
    assert findings(container_root, files=[]) == []


def test_an_empty_root_has_no_findings(container_root: Rootfs) -> None:
    assert findings(container_root) == []


def test_leftovers_are_counted_and_named(container_root: Rootfs, debian_image: Path) -> None:
    for name in (f"{MULTIARCH}/libnvidia-ml.so.1", f"{MULTIARCH}/libcuda.so.418.56", "usr/bin/nvidia-smi"):
        (debian_image / name).write_bytes(b"")
    (text,) = findings(container_root)
    assert text == (
        "the image contains 3 driver files, probably committed from a GPU container: "
        f"/{MULTIARCH}/libcuda.so.418.56, /{MULTIARCH}/libnvidia-ml.so.1, /usr/bin/nvidia-smi. "
        "Remove them from the image"
    )


def test_what_the_bundle_mounts_is_no_leftover(container_root: Rootfs, debian_image: Path) -> None:
    (debian_image / "usr/bin/nvidia-smi").write_bytes(b"")
    found = image.inspect_image(container_root, "x86_64")
    assert (
        lint.lint_image(container_root, found, FILES, {}, ["/bin/nvidia-smi", "/usr/bin/nvidia-smi", "/nowhere"]) == []
    )
    assert len(lint.lint_image(container_root, found, FILES, {}, ["/usr/bin/other"])) == 1


def test_links_and_files_of_the_same_version_are_no_leftovers(container_root: Rootfs, debian_image: Path) -> None:
    (debian_image / MULTIARCH / f"libnvidia-ml.so.{VERSION}").write_text("the same")
    (debian_image / MULTIARCH / "libnvidia-ml.so.1").symlink_to(f"libnvidia-ml.so.{VERSION}")
    assert findings(container_root) == []


def test_a_libcuda_of_another_version_is_an_803_risk(container_root: Rootfs, debian_image: Path) -> None:
    (debian_image / MULTIARCH / "libcuda.so.450.80.02").write_text("x")
    texts = findings(container_root)
    assert len(texts) == 2 and "the image contains a driver file, probably" in texts[0]
    assert f"/{MULTIARCH}/libcuda.so.450.80.02 (driver 450.80.02) will fail" in texts[1]
    assert f"CUDA error 803, as the host has {VERSION}" in texts[1]


def test_several_libcudas_are_listed(container_root: Rootfs, debian_image: Path) -> None:
    compat = debian_image / "usr/local/cuda/compat"
    compat.mkdir(parents=True)
    for version in ("560.35.03", "535.183.06"):
        (compat / f"libcuda.so.{version}").write_text("x")
    texts = findings(container_root)
    assert any("ambiguous" in t and "560.35.03" in t and "535.183.06" in t for t in texts)
    assert any("2 libcudas" in t for t in texts)


def test_stubs_on_the_library_path_are_an_error_34_risk(container_root: Rootfs, debian_image: Path) -> None:
    (text,) = findings(container_root, env={"LD_LIBRARY_PATH": "/x:/usr/local/cuda/lib64/stubs:/stubsy"})
    assert "/usr/local/cuda/lib64/stubs" in text and "CUDA fails with error 34" in text


def test_stubs_are_harmless_until_the_loader_can_find_them(container_root: Rootfs, debian_image: Path) -> None:
    stubs = debian_image / "usr/local/cuda/lib64/stubs"
    stubs.mkdir(parents=True)
    (stubs / "libcuda.so").write_text("stub")
    assert findings(container_root) == []
    (stubs / "libcuda.so.1").symlink_to("libcuda.so")
    (debian_image / "etc/ld.so.cache").write_bytes(b"libcuda.so.1\0/usr/local/cuda/lib64/stubs/libcuda.so.1\0")
    texts = findings(container_root)
    assert len(texts) == 2 and all("CUDA fails with error 34" in t for t in texts)


def test_a_libc_too_old_is_named_for_each_library(container_root: Rootfs, debian_image: Path) -> None:
    (debian_image / MULTIARCH / "libc-2.31.so").write_bytes(b"GLIBC_2.4\0GLIBC_2.31\0GLIBC_2.9\0 GLIBC_2.99 no end")
    (debian_image / MULTIARCH / "libc.so.6").symlink_to("libc-2.31.so")
    files = [library("libcuda", glibc="2.34"), library("libnvidia-ml", glibc="2.31"),
             library("libx", glibc="2.34", arch="i386")]  # fmt: skip
    assert findings(container_root, files) == ["libcuda.so.1 needs GLIBC_2.34, image provides 2.31: will not load"]


def test_a_huge_or_missing_libc_says_nothing(container_root: Rootfs, debian_image: Path) -> None:
    files = [library("libcuda", glibc="2.34")]
    assert findings(container_root, files) == []
    with open(debian_image / MULTIARCH / "libc.so.6", "wb") as libc:
        libc.write(b"GLIBC_2.2\0")
        libc.truncate(1 << 30)
    assert findings(container_root, files) == []


def test_musl_needs_gcompat(container_root: Rootfs, image_dir: Path) -> None:
    (image_dir / "lib").mkdir()
    (image_dir / "lib/ld-musl-x86_64.so.1").write_text("x")
    texts = findings(container_root)
    assert texts[0] == "nvidia-smi is a glibc binary; needs gcompat" and len(texts) == 2
    (image_dir / "lib/libgcompat.so.0").write_text("x")
    assert findings(container_root) == []


def test_names_of_the_image_stay_on_one_line_and_lists_short(container_root: Rootfs, debian_image: Path) -> None:
    for number in range(30):
        (debian_image / MULTIARCH / f"libnvidia-{number}\n.so.1").write_bytes(b"")
    (text,) = findings(container_root)
    assert "\n" not in text and "30 driver files" in text and "and 20 more. Remove" in text


SYSTEM = ("libdl.so.2", "libpthread.so.0", "librt.so.1", "libm.so.6", "libc.so.6")


def give_libc(debian_image: Path, names: tuple[str, ...] = SYSTEM) -> None:
    for name in names:
        (debian_image / MULTIARCH / name).write_bytes(b"\x7fELF GLIBC_2.36\0")


def test_what_libcuda_and_nvml_need_must_be_in_the_image(container_root: Rootfs, debian_image: Path) -> None:
    files = [library("libcuda", needs=(*SYSTEM, "libnvidia-x.so.1")), library("libnvidia-ml", needs=SYSTEM)]
    give_libc(debian_image)
    assert findings(container_root, files) == []
    for name in ("libdl.so.2", "librt.so.1"):
        (debian_image / MULTIARCH / name).unlink()
    assert findings(container_root, files) == [
        "libcuda.so.1 will not load: libcuda.so.1 needs libdl.so.2, librt.so.1, not found in the image",
        "libnvidia-ml.so.1 will not load: libnvidia-ml.so.1 needs libdl.so.2, librt.so.1, not found in the image",
    ]


def test_what_a_needed_library_of_the_driver_needs_counts_too(container_root: Rootfs, debian_image: Path) -> None:
    give_libc(debian_image)
    files = [library("libcuda", needs=("libnvidia-x.so.1",)), library("libnvidia-x", needs=("libcrypto.so.3",))]
    (text,) = findings(container_root, files)
    assert text == "libcuda.so.1 will not load: libnvidia-x.so.1 needs libcrypto.so.3, not found in the image"
    (debian_image / MULTIARCH / "libcrypto.so.3").write_text("x")
    assert findings(container_root, files) == []


def test_graphics_without_its_loaders_is_named_once(container_root: Rootfs, debian_image: Path) -> None:
    give_libc(debian_image)
    icd = DriverFile(kind="config", capability="graphics", path="/x", source="/x", name="nvidia_icd.json")
    files = [library("libEGL_nvidia", "0"), library("libGLX_nvidia", "0"), icd]
    (text,) = findings(container_root, files)
    assert text.startswith("the image has no libEGL.so.1, libGL.so.1 and libvulkan.so.1, by which programs reach")
    for name in ("libEGL.so.1", "libGL.so.1"):
        (debian_image / MULTIARCH / name).write_text("x")
    (text,) = findings(container_root, files)
    assert text.startswith("the image has no libvulkan.so.1, by which") and "install it if" in text
    assert findings(container_root, [library("libcuda")]) == []


def make_elf(machine: int, bits: int = 64, *, big: bool = False) -> bytes:
    ident = b"\x7fELF" + bytes([bits // 32, 2 if big else 1, 1]) + bytes(9)
    return ident + struct.pack(">HH" if big else "<HH", 2, machine) + bytes(44)


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (make_elf(183), "aarch64"),
        (make_elf(40, 32), "armhf"),
        (make_elf(21), "ppc64le"),
        (make_elf(22, big=True), "s390x"),
        (make_elf(9999), "machine 9999 of the ELF specification"),
    ],
)
def test_an_image_for_another_architecture_is_named(
    container_root: Rootfs, debian_image: Path, data: bytes, name: str
) -> None:
    (debian_image / "usr/bin/dash").write_bytes(data)
    (debian_image / "usr/bin/sh").symlink_to("dash")
    (text,) = findings(container_root)
    assert text == (
        f"the image is for {name} (by its /bin/sh), and the driver's libraries are for x86_64: its programs cannot "
        "load them. Use an image for x86_64"
    )
    assert findings(container_root, files=[]) == []


@pytest.mark.parametrize("data", [make_elf(62), make_elf(3, 32), b"#!/bin/sh", b"", b"\x7fELF", b"\x7fELF" + bytes(14)])
def test_an_image_for_this_architecture_or_an_unknown_one_says_nothing(
    container_root: Rootfs, debian_image: Path, data: bytes
) -> None:
    (debian_image / "usr/bin/sh").write_bytes(data)
    assert findings(container_root) == []
