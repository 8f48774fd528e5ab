"""Shared objects: ours are opened by the real loader, and no file at all brings the reader down."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.formats import elf, elf_builder

ARCHES = ("x86_64", "i386", "aarch64", "armhf")
HERE = platform.machine()
SAMPLE = elf_builder.build_shared_object(
    soname="libcuda.so.1", needed=["libm.so.6", "libdl.so.2"], symbols=["cuInit"], glibc="2.14"
)
LOAD = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
for name in sys.argv[2:]:
    assert getattr(library, name)(0) == 0, name
print("loaded")
"""


def load(path: Path, *symbols: str) -> subprocess.CompletedProcess[str]:
    """Opens a library in a process of its own: a bad one could take the test down with it."""
    command = [sys.executable, "-I", "-c", LOAD, str(path), *symbols]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("arch", ARCHES)
def test_what_was_written_is_read_back(arch: str) -> None:
    data = elf_builder.build_shared_object(
        soname="libx.so.2", needed=["liba.so.1", "libc.so.6"], arch=arch, symbols=["f"], glibc="2.34"
    )
    bits = 64 if arch in ("x86_64", "aarch64") else 32
    assert elf.read_shared_object(data) == elf.SharedObject("libx.so.2", ("liba.so.1", "libc.so.6"), arch, bits, "2.34")


def test_a_demand_on_glibc_brings_libc_into_needed() -> None:
    assert elf.read_shared_object(SAMPLE).needed == ("libm.so.6", "libdl.so.2", "libc.so.6")
    assert elf.read_shared_object(elf_builder.build_shared_object(soname="libx.so.1")) == elf.SharedObject(
        "libx.so.1", (), "x86_64", 64, ""
    )


def test_a_library_may_have_no_soname() -> None:
    assert elf.read_shared_object(elf_builder.build_shared_object(soname="", needed=["libc.so.6"])).soname == ""


def test_a_file_descriptor_is_read_without_moving_it(tmp_path: Path) -> None:
    path = tmp_path / "lib.so"
    path.write_bytes(SAMPLE)
    with path.open("rb") as file:
        assert elf.read_shared_object(file.fileno()) == elf.read_shared_object(SAMPLE)
        assert file.tell() == 0


@pytest.mark.skipif(HERE not in ("x86_64", "aarch64"), reason="libraries of this machine's own kind only")
@pytest.mark.parametrize("glibc", ["", "2.17"])
def test_the_real_loader_opens_it_and_its_functions_return_zero(tmp_path: Path, glibc: str) -> None:
    path = tmp_path / "libcuda.so.1"
    symbols = ["cuInit", "cuDriverGetVersion", "nvmlInit_v2"]
    path.write_bytes(
        elf_builder.build_shared_object(
            soname=path.name, needed=["libc.so.6", "libm.so.6"], arch=HERE, symbols=symbols, glibc=glibc
        )
    )
    done = load(path, *symbols)
    assert done.stdout == "loaded\n", done.stderr


@pytest.mark.skipif(HERE not in ("x86_64", "aarch64"), reason="libraries of this machine's own kind only")
def test_the_real_loader_refuses_a_glibc_that_is_too_old_by_name(tmp_path: Path) -> None:
    path = tmp_path / "libnew.so.1"
    path.write_bytes(elf_builder.build_shared_object(soname=path.name, arch=HERE, glibc="2.999"))
    assert "version `GLIBC_2.999' not found" in load(path).stderr


@pytest.mark.skipif(HERE not in ("x86_64", "aarch64"), reason="libraries of this machine's own kind only")
def test_the_real_loader_follows_needed_and_names_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "liba.so.1"
    path.write_bytes(elf_builder.build_shared_object(soname=path.name, needed=["libmissing-here.so.7"], arch=HERE))
    assert "libmissing-here.so.7" in load(path).stderr


@pytest.mark.parametrize("arch", ARCHES)
def test_readelf_reads_the_dynamic_table_without_a_complaint(tmp_path: Path, arch: str) -> None:
    path = tmp_path / "libx.so"
    path.write_bytes(
        elf_builder.build_shared_object(
            soname="libx.so.1", needed=["liby.so.2"], arch=arch, symbols=["f"], glibc="2.34"
        )
    )
    done = subprocess.run(["readelf", "-d", "-l", path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert "Library soname: [libx.so.1]" in done.stdout
    assert "Shared library: [liby.so.2]" in done.stdout
    assert "Warning" not in done.stderr and "Error" not in done.stderr
    stack = next(line for line in done.stdout.splitlines() if "GNU_STACK" in line)
    following = done.stdout[done.stdout.index(stack) :].splitlines()[1 if arch in ("x86_64", "aarch64") else 0]
    assert "RW" in following and "E" not in following.replace("GNU_STACK", "")


def test_libraries_of_this_system_are_read_as_readelf_reads_them() -> None:
    paths = sorted(Path("/usr/lib").glob("*-linux-gnu/lib*.so.*"))[:40]
    assert paths
    for path in paths:
        with path.open("rb") as file:
            library = elf.read_shared_object(file.fileno())
        text = subprocess.run(["readelf", "-d", path], capture_output=True, text=True, timeout=60).stdout
        needed = [line.split("[")[1].rstrip("]") for line in text.splitlines() if "(NEEDED)" in line]
        assert list(library.needed) == needed, path
        assert f"soname: [{library.soname}]" in text or not library.soname, path


def test_the_highest_glibc_version_is_found_in_a_real_program() -> None:
    program = sys.executable
    text = subprocess.run(["readelf", "-V", program], capture_output=True, text=True, timeout=60).stdout
    versions = {w[6:] for w in text.split() if w.startswith("GLIBC_2.")}
    if not versions:
        program, versions = "/bin/ls", {"2.34"}
    data = Path(program).read_bytes()
    assert elf.read_shared_object(data).glibc == max(versions, key=lambda v: [int(n) for n in v.split(".")])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x7fELF",
        b"\x7fELF" + bytes(60),
        b"#!/bin/sh\n",
        b"\x7fELF\x02\x01" + b"\xff" * 200,
        SAMPLE[:100],
    ],
)
def test_what_is_no_library_is_a_fault(data: bytes) -> None:
    with pytest.raises(Fault, match="not a usable shared object"):
        elf.read_shared_object(data)


def test_a_table_of_versions_that_goes_round_in_circles_ends() -> None:
    at = SAMPLE.index((16).to_bytes(4, "little") + bytes(4), 300)  # vn_aux 16, vn_next 0
    looped = bytearray(SAMPLE)
    looped[at - 6 : at - 4] = b"\xff\xff"  # vn_cnt
    looped[at + 8 + 12 : at + 8 + 16] = (0).to_bytes(4, "little")
    assert elf.read_shared_object(bytes(looped)).glibc == "2.14"
    looped[at + 4 : at + 8] = (2**32 - 16).to_bytes(4, "little")
    with pytest.raises(Fault):
        elf.read_shared_object(bytes(looped))


def test_a_pipe_and_a_directory_are_faults(tmp_path: Path) -> None:
    ends = os.pipe()
    directory = os.open(tmp_path, os.O_RDONLY)
    try:
        for fd in (ends[0], directory):
            with pytest.raises(Fault):
                elf.read_shared_object(fd)
    finally:
        for fd in (*ends, directory):
            os.close(fd)


def test_a_library_for_an_unknown_machine_cannot_be_made() -> None:
    with pytest.raises(Fault, match="vax"):
        elf_builder.build_shared_object(soname="libx.so", arch="vax")


@given(st.binary(max_size=2000), st.sampled_from([b"", b"\x7fELF\x02\x01\x01", b"\x7fELF\x01\x02\x01"]))
def test_random_bytes_raise_nothing_but_a_fault(data: bytes, start: bytes) -> None:
    try:
        elf.read_shared_object(start + data)
    except Fault:
        pass


@given(
    st.sampled_from(ARCHES),
    st.lists(st.tuples(st.integers(0, 1023), st.binary(min_size=1, max_size=8)), min_size=1, max_size=6),
)
def test_mutated_libraries_raise_nothing_but_a_fault(arch: str, changes: list[tuple[int, bytes]]) -> None:
    data = bytearray(
        elf_builder.build_shared_object(soname="liba.so.1", needed=["libb.so", "libc.so.6"], arch=arch, glibc="2.34")
    )
    for at, piece in changes:
        at %= len(data)
        data[at : at + len(piece)] = piece
    try:
        library = elf.read_shared_object(bytes(data))
    except Fault:
        return
    assert len(library.soname) < 1024 and len(library.needed) <= 512


@given(
    st.text("abc.-_+0123456789", min_size=1, max_size=40),
    st.lists(st.text("xyz.so12", max_size=20), max_size=9),
)
def test_any_names_are_read_back(soname: str, needed: list[str]) -> None:
    library = elf.read_shared_object(elf_builder.build_shared_object(soname=soname, needed=needed, symbols=needed))
    assert (library.soname, library.needed) == (soname, tuple(needed))
