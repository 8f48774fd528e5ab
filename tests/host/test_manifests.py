"""Manifests: what they name, for which machine, and what of it the host lacks."""

from __future__ import annotations

import json

import pytest

from gpu_oci_hook.host.driver import manifests
from gpu_oci_hook.model.machine import DriverFile


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("nvidia_icd.json", '{"ICD": {"library_path": "libGLX_nvidia.so.0"}}', ("libGLX_nvidia.so.0",)),
        ("nvidia_layers.json", '{"layer": {"library_path": "a.so"}}', ("a.so",)),
        ("nvidia_layers.json", '{"layers": [{"library_path": "a.so"}, {"library_path": "b.so"}, 3]}', ("a.so", "b.so")),
        ("nvidia_layers.json", '{"layers": [{"library_path": "a.so"}, {"library_path": "a.so"}]}', ("a.so",)),
        ("nvidia.icd", "libnvidia-opencl.so.1\n", ("libnvidia-opencl.so.1",)),
        ("nvidia.icd", "  /usr/lib/libnvidia-opencl.so.1  \nsecond\n", ("/usr/lib/libnvidia-opencl.so.1",)),
        ("nvidia.icd", "\n", ()),
        ("x.json", '{"ICD": {"library_path": "a\\u0000b"}}', ()),
        ("x.json", json.dumps({"ICD": {"library_path": "a" * 5000}}), ()),
        ("x.json", '{"ICD": {"library_path": ["a"]}}', ()),
        ("x.json", "[" * 50000, ()),
        ("x.json", "\xff\xfe", ()),
    ],
)
def test_the_libraries_that_a_manifest_names(name: str, text: str, expected: tuple[str, ...]) -> None:
    assert manifests.parse_manifest_libraries(name, text.encode("latin-1")) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nvidia_icd.json", "x86_64"),
        ("nvidia_icd.x86_64.json", "x86_64"),
        ("nvidia_icd.i686.json", "i386"),
        ("nvidia_icd_i386.json", "i386"),
        ("nvidia_icd.aarch64.json", "aarch64"),
        ("nvidia-arm64.icd", "aarch64"),
        ("10_nvidia_wayland2.json", "x86_64"),
    ],
)
def test_the_architecture_is_in_the_name_or_the_machine_s(name: str, expected: str) -> None:
    assert manifests.manifest_architecture(name, "x86_64") == expected


def library(soname: str, *needs: str, arch: str = "x86_64") -> DriverFile:
    return DriverFile(
        kind="library",
        capability="graphics",
        path="/x",
        source="/x",
        name=soname,
        soname=soname,
        needs=needs,
        arch=arch,
    )


def manifest(name: str, *needs: str, arch: str = "x86_64") -> DriverFile:
    return DriverFile(
        kind="config",
        capability="graphics",
        path="/x",
        source="/x",
        name=name,
        needs=needs,
        arch=arch,
        container_path=f"/c/{name}",
    )


def lacking(*files: DriverFile) -> list[tuple[str, str]]:
    found = manifests.find_missing_dependencies(files, lambda soname: "nvidia" in soname)
    return [(name, soname) for _, name, soname in found]


def test_what_is_missing_is_found_through_any_number_of_libraries_and_in_circles() -> None:
    icd = manifest("nvidia_icd.x86_64.json", "libGLX_nvidia.so.0")
    first = library("libGLX_nvidia.so.0", "libnvidia-glcore.so.1", "libX11.so.6")
    second = library("libnvidia-glcore.so.1", "libnvidia-tls.so.1", "libGLX_nvidia.so.0")
    assert lacking(icd, first, second) == [("nvidia_icd", "libnvidia-tls.so.1")]
    assert lacking(icd, first, second, library("libnvidia-tls.so.1")) == []


def test_a_library_that_a_manifest_names_itself_is_always_the_driver_s() -> None:
    assert lacking(manifest("other.json", "libother.so.1")) == [("other", "libother.so.1")]
    assert lacking(manifest("nvidia.icd", "/usr/lib/libother.so.1")) == [("nvidia.icd", "libother.so.1")]


def test_a_library_for_other_programs_is_no_substitute() -> None:
    icd = manifest("nvidia_icd.json", "libGLX_nvidia.so.0")
    assert lacking(icd, library("libGLX_nvidia.so.0", arch="i386")) == [("nvidia_icd", "libGLX_nvidia.so.0")]
