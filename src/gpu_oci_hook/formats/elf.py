"""Read SONAME, dependencies, architecture and glibc version of a shared object.

Like the loader it reads the program headers and the dynamic segment, not the section headers, which stripped files
lack. Whatever the file claims, it reads at most about 200 KiB in a few hundred reads. The format is that of the ELF
gABI, and of glibc's dl-version.c for version records.

Import budget: cold.
"""

from __future__ import annotations

import os
import struct

from gpu_oci_hook.errors import Fault, describe_os_error
from gpu_oci_hook.formats.architectures import ARCHITECTURES

_MAX_HEADERS = 128
_MAX_DYNAMIC_SIZE = 64 << 10
_MAX_VERSIONS_SIZE = 64 << 10
_MAX_NEEDED = 512
_MAX_NAME_LENGTH = 1024
_WINDOW_SIZE = 8 << 10

PT_LOAD, PT_DYNAMIC, PT_GNU_STACK = 1, 2, 0x6474E551
DT_NULL, DT_NEEDED, DT_HASH, DT_STRTAB, DT_SYMTAB = 0, 1, 4, 5, 6
DT_STRSZ, DT_SYMENT, DT_SONAME = 10, 11, 14
DT_VERSYM, DT_VERNEED, DT_VERNEEDNUM = 0x6FFFFFF0, 0x6FFFFFFE, 0x6FFFFFFF

_ARCH_BY_MACHINE = {(architecture.bits, architecture.elf_machine): name for name, architecture in ARCHITECTURES.items()}


class SharedObject:
    """The properties of a shared object.

    Attributes:
        soname: its DT_SONAME, or "".
        needed: its DT_NEEDED, in order.
        arch: "x86_64", "i386", "aarch64", "armhf", or "" for any other architecture.
        bits: 32 or 64.
        glibc: the highest GLIBC_ version that it requires ("2.34"), or "".
    """

    __slots__ = ("arch", "bits", "glibc", "needed", "soname")

    def __init__(self, soname: str, needed: tuple[str, ...], arch: str, bits: int, glibc: str) -> None:
        self.soname = soname
        self.needed = needed
        self.arch = arch
        self.bits = bits
        self.glibc = glibc

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SharedObject) and all(getattr(self, n) == getattr(other, n) for n in self.__slots__)

    __hash__ = None  # type: ignore[assignment]


def read_shared_object(source: int | bytes) -> SharedObject:
    """Read a shared object or program. A statically linked program has no SONAME and no dependencies.

    Arguments:
        source: the file's bytes, or a descriptor, whose offset does not matter and stays unchanged.

    Raises:
        Fault: it is not an ELF file, is damaged, or cannot be read.
    """
    file = _ElfFile(source)
    ident = file.read_exactly(0, 16)
    if ident[:4] != b"\x7fELF" or ident[4] not in (1, 2) or ident[5] not in (1, 2):
        raise _make_elf_fault("it does not begin with an ELF header")
    bits = 32 * ident[4]
    order = "<" if ident[5] == 1 else ">"
    is_64bit = bits == 64
    layout = struct.Struct(order + ("HHIQQQIHHHHHH" if is_64bit else "HHIIIIIHHHHHH"))
    header = layout.unpack(file.read_exactly(16, layout.size))
    kind, machine, phoff, phentsize, phnum = header[0], header[1], header[4], header[8], header[9]
    if kind not in (2, 3):
        raise _make_elf_fault("it is neither a shared object nor a program")
    # Big-endian files are parsed only to report that no architecture of ours has them.
    arch = _ARCH_BY_MACHINE.get((bits, machine), "") if order == "<" else ""
    layout = struct.Struct(order + ("IIQQQQQQ" if is_64bit else "IIIIIIII"))
    if phnum > _MAX_HEADERS or (phnum and phentsize != layout.size):
        raise _make_elf_fault("its program headers are damaged")
    loads: list[tuple[int, int, int]] = []
    dynamic: tuple[int, int] | None = None
    for fields in layout.iter_unpack(file.read_exactly(phoff, phnum * layout.size)):
        if is_64bit:
            segment, _, offset, address, _, size, _, _ = fields
        else:
            segment, offset, address, _, size, _, _, _ = fields
        if segment == PT_LOAD:
            loads.append((address, offset, size))
        elif segment == PT_DYNAMIC and dynamic is None:
            dynamic = (offset, size)
    if dynamic is None:
        return SharedObject("", (), arch, bits, "")
    return _read_dynamic_segment(file, _SegmentMap(loads), dynamic, order, arch, bits)


class _ElfFile:
    """Bytes or a file descriptor, read in pieces."""

    def __init__(self, source: int | bytes) -> None:
        self.source = source
        self.start = 0
        self.window = b""

    def read_up_to(self, offset: int, size: int) -> bytes:
        """Return these bytes, or fewer where the file ends."""
        if offset < 0 or offset >= 1 << 62:
            return b""
        if isinstance(self.source, bytes):
            return self.source[offset : offset + size]
        try:
            # The headers are close together: a window saves ten of the twelve reads of a library.
            position = offset - self.start
            if position >= 0 and position + size <= len(self.window):
                return self.window[position : position + size]
            if size > _WINDOW_SIZE:
                return os.pread(self.source, size, offset)
            self.start, self.window = offset, os.pread(self.source, _WINDOW_SIZE, offset)
            return self.window[:size]
        except OSError as error:
            raise Fault(f"cannot read a library: {describe_os_error(error)}") from error

    def read_exactly(self, offset: int, size: int) -> bytes:
        """Return these bytes.

        Raises:
            Fault: the file ends before.
        """
        piece = self.read_up_to(offset, size)
        if len(piece) != size:
            raise _make_elf_fault("it ends too early")
        return piece


class _SegmentMap:
    """The map from addresses of the loaded image to offsets in the file."""

    def __init__(self, loads: list[tuple[int, int, int]]) -> None:
        self.loads = loads

    def to_file_offset(self, address: int) -> int:
        """Return the file offset of an address.

        Raises:
            Fault: no segment has it.
        """
        for start, offset, size in self.loads:
            if start <= address < start + size:
                return address - start + offset
        raise _make_elf_fault("an address is outside of its segments")


def _read_dynamic_segment(
    file: _ElfFile, segments: _SegmentMap, dynamic: tuple[int, int], order: str, arch: str, bits: int
) -> SharedObject:
    pair = struct.Struct(order + ("qQ" if bits == 64 else "iI"))
    data = file.read_up_to(dynamic[0], min(dynamic[1], _MAX_DYNAMIC_SIZE))
    needed: list[int] = []
    single: dict[int, int] = {}
    for tag, value in pair.iter_unpack(data[: len(data) // pair.size * pair.size]):
        if tag == DT_NULL:
            break
        if tag == DT_NEEDED:
            needed.append(value)
        else:
            single[tag] = value
    if len(needed) > _MAX_NEEDED:
        raise _make_elf_fault("it needs too many libraries")
    if DT_STRTAB not in single:
        if needed or DT_SONAME in single:
            raise _make_elf_fault("it has names but no string table")
        return SharedObject("", (), arch, bits, "")
    strings = segments.to_file_offset(single[DT_STRTAB])
    length = single.get(DT_STRSZ, 0)

    def read_name(at: int) -> str:
        piece = file.read_up_to(strings + at, min(_MAX_NAME_LENGTH, length - at)) if at < length else b""
        end = piece.find(b"\0")
        if end < 0:
            raise _make_elf_fault("a name has no end")
        return os.fsdecode(piece[:end])

    soname = read_name(single[DT_SONAME]) if DT_SONAME in single else ""
    glibc = ""
    if DT_VERNEED in single:
        data = file.read_up_to(segments.to_file_offset(single[DT_VERNEED]), _MAX_VERSIONS_SIZE)
        versions = [_parse_glibc_version(read_name(at)) for at in _list_version_offsets(data, order)]
        glibc = ".".join(str(n) for n in max(versions, default=()))
    return SharedObject(soname, tuple(read_name(at) for at in needed), arch, bits, glibc)


def _list_version_offsets(data: bytes, order: str) -> list[int]:
    """Return the string offsets of all versions in a DT_VERNEED table, whose records have 16 bytes in both classes."""
    offsets: list[int] = []
    at = 0
    while at + 16 <= len(data) and len(offsets) < _MAX_NEEDED:
        count, aux, following = struct.unpack_from(order + "xxHxxxxII", data, at)
        entry = at + aux
        for _ in range(min(count, _MAX_NEEDED - len(offsets))):
            if entry + 16 > len(data):
                raise _make_elf_fault("its version table is damaged")
            name, step = struct.unpack_from(order + "xxxxxxxxII", data, entry)
            offsets.append(name)
            if not step:
                break
            entry += step
        if not following:
            return offsets
        at += following
    raise _make_elf_fault("its version table has no end")


def _parse_glibc_version(version: str) -> tuple[int, ...]:
    """Return "GLIBC_2.34" as (2, 34), everything else (GLIBC_PRIVATE, GLIBC_ABI_..., CXXABI_...) as ()."""
    if not version.startswith("GLIBC_") or not version.isascii():
        return ()
    parts = version[6:].split(".")
    return tuple(int(p) for p in parts) if all(p.isdigit() and len(p) < 6 for p in parts) else ()


def _make_elf_fault(reason: str) -> Fault:
    return Fault(f"this is not a usable shared object: {reason}")
