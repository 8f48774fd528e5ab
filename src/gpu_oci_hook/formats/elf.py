"""Shared objects: the few facts that matter about one, and a tiny one made without a compiler.

Reading goes through the program headers and the dynamic segment, as the loader does, never through section
headers (stripped files have none). Format facts: the ELF gABI, and glibc's dl-version.c for what the loader
insists on.

Cost rule: off the hot path, but on that of the first start after boot and of a hook (neither dataclasses nor typing);
reading is bounded whatever the file claims: about 200 KiB and a few hundred reads.
"""

from __future__ import annotations

import os
import struct

from gpu_oci_hook.errors import Fault, describe_os_error
from gpu_oci_hook.formats.architectures import ARCHITECTURES, Architecture

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_MAX_HEADERS = 128
_MAX_DYNAMIC_SIZE = 64 << 10
_MAX_VERSIONS_SIZE = 64 << 10
_MAX_NEEDED = 512
_MAX_NAME_LENGTH = 1024
_WINDOW_SIZE = 8 << 10

_PT_LOAD, _PT_DYNAMIC, _PT_GNU_STACK = 1, 2, 0x6474E551
_DT_NULL, _DT_NEEDED, _DT_HASH, _DT_STRTAB, _DT_SYMTAB = 0, 1, 4, 5, 6
_DT_STRSZ, _DT_SYMENT, _DT_SONAME = 10, 11, 14
_DT_VERSYM, _DT_VERNEED, _DT_VERNEEDNUM = 0x6FFFFFF0, 0x6FFFFFFE, 0x6FFFFFFF


_ARCH_BY_MACHINE = {(known.bits, known.elf_machine): name for name, known in ARCHITECTURES.items()}


class SharedObject:
    """What a shared object says of itself.

    soname: its DT_SONAME, or "". needed: its DT_NEEDED, in order. arch: "x86_64", "i386", "aarch64", "armhf",
    or "" for any other. bits: 32 or 64. glibc: the highest GLIBC_ version that it asks for ("2.34"), or "".
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
    """The facts of the shared object or program in these bytes, or behind this file descriptor (by pread).

    Raises Fault when it is no ELF file, is damaged, or cannot be read. A statically linked program is fine:
    it needs nothing.
    """
    file = _ElfFile(source)
    ident = file.read_exactly(0, 16)
    if ident[:4] != b"\x7fELF" or ident[4] not in (1, 2) or ident[5] not in (1, 2):
        raise _make_elf_fault("it does not begin as one")
    bits = 32 * ident[4]
    order = "<" if ident[5] == 1 else ">"
    wide = bits == 64
    shape = struct.Struct(order + ("HHIQQQIHHHHHH" if wide else "HHIIIIIHHHHHH"))
    header = shape.unpack(file.read_exactly(16, shape.size))
    kind, machine, phoff, phentsize, phnum = header[0], header[1], header[4], header[8], header[9]
    if kind not in (2, 3):
        raise _make_elf_fault("it is neither a shared object nor a program")
    # Big-endian files are told apart here only to say that they are none of ours.
    arch = _ARCH_BY_MACHINE.get((bits, machine), "") if order == "<" else ""
    shape = struct.Struct(order + ("IIQQQQQQ" if wide else "IIIIIIII"))
    if phnum > _MAX_HEADERS or (phnum and phentsize != shape.size):
        raise _make_elf_fault("its program headers are damaged")
    loads: list[tuple[int, int, int]] = []
    dynamic: tuple[int, int] | None = None
    for fields in shape.iter_unpack(file.read_exactly(phoff, phnum * shape.size)):
        if wide:
            segment, _, offset, address, _, size, _, _ = fields
        else:
            segment, offset, address, _, size, _, _, _ = fields
        if segment == _PT_LOAD:
            loads.append((address, offset, size))
        elif segment == _PT_DYNAMIC and dynamic is None:
            dynamic = (offset, size)
    if dynamic is None:
        return SharedObject("", (), arch, bits, "")
    return _read_dynamic_segment(file, _SegmentMap(loads), dynamic, order, arch, bits)


def build_shared_object(
    *,
    soname: str,
    needed: Sequence[str] = (),
    arch: str = "x86_64",
    symbols: Sequence[str] = (),
    glibc: str = "",
) -> bytes:
    """A shared object of about a kilobyte that the real loader opens.

    Arguments:
        soname: its DT_SONAME; "" for none.
        needed: its DT_NEEDED, in order.
        arch: "x86_64", "i386", "aarch64" or "armhf".
        symbols: functions that it exports; each takes anything and returns 0.
        glibc: a version such as "2.34" that it demands of libc.so.6 (then added to needed); "" for none.

    Raises Fault for an architecture that is not one of these.
    """
    machine = ARCHITECTURES.get(arch)
    if machine is None:
        raise Fault(f"cannot make a library for {arch!r}", hint=f"Known are {', '.join(ARCHITECTURES)}")
    return _SharedObjectBuilder(machine, soname, list(needed), list(symbols), glibc).build_file()


class _ElfFile:
    """Bytes or a file descriptor, read piece by piece; a piece that is not all there is a Fault."""

    def __init__(self, source: int | bytes) -> None:
        self.source = source
        self.start = 0
        self.window = b""

    def read_up_to(self, offset: int, size: int) -> bytes:
        if offset < 0 or offset >= 1 << 62:
            return b""
        if isinstance(self.source, bytes):
            return self.source[offset : offset + size]
        try:
            # The facts lie close together; a window saves ten of the twelve reads that a library takes.
            inside = offset - self.start
            if inside >= 0 and inside + size <= len(self.window):
                return self.window[inside : inside + size]
            if size > _WINDOW_SIZE:
                return os.pread(self.source, size, offset)
            self.start, self.window = offset, os.pread(self.source, _WINDOW_SIZE, offset)
            return self.window[:size]
        except OSError as error:
            raise Fault(f"cannot read a library: {describe_os_error(error)}") from error

    def read_exactly(self, offset: int, size: int) -> bytes:
        piece = self.read_up_to(offset, size)
        if len(piece) != size:
            raise _make_elf_fault("it ends too early")
        return piece


class _SegmentMap:
    """Addresses of the loaded image to offsets in the file."""

    def __init__(self, loads: list[tuple[int, int, int]]) -> None:
        self.loads = loads

    def to_file_offset(self, address: int) -> int:
        for start, offset, size in self.loads:
            if start <= address < start + size:
                return address - start + offset
        raise _make_elf_fault("it points outside of its segments")


def _read_dynamic_segment(
    file: _ElfFile, segments: _SegmentMap, dynamic: tuple[int, int], order: str, arch: str, bits: int
) -> SharedObject:
    pair = struct.Struct(order + ("qQ" if bits == 64 else "iI"))
    data = file.read_up_to(dynamic[0], min(dynamic[1], _MAX_DYNAMIC_SIZE))
    needed: list[int] = []
    single: dict[int, int] = {}
    for tag, value in pair.iter_unpack(data[: len(data) // pair.size * pair.size]):
        if tag == _DT_NULL:
            break
        if tag == _DT_NEEDED:
            needed.append(value)
        else:
            single[tag] = value
    if len(needed) > _MAX_NEEDED:
        raise _make_elf_fault("it needs too many libraries")
    if _DT_STRTAB not in single:
        if needed or _DT_SONAME in single:
            raise _make_elf_fault("it has names but no table of them")
        return SharedObject("", (), arch, bits, "")
    strings = segments.to_file_offset(single[_DT_STRTAB])
    length = single.get(_DT_STRSZ, 0)

    def name(at: int) -> str:
        piece = file.read_up_to(strings + at, min(_MAX_NAME_LENGTH, length - at)) if at < length else b""
        end = piece.find(b"\0")
        if end < 0:
            raise _make_elf_fault("one of its names does not end")
        return os.fsdecode(piece[:end])

    soname = name(single[_DT_SONAME]) if _DT_SONAME in single else ""
    glibc = ""
    if _DT_VERNEED in single:
        data = file.read_up_to(segments.to_file_offset(single[_DT_VERNEED]), _MAX_VERSIONS_SIZE)
        versions = [_parse_glibc_version(name(at)) for at in _list_version_offsets(data, order)]
        glibc = ".".join(str(n) for n in max(versions, default=()))
    return SharedObject(soname, tuple(name(at) for at in needed), arch, bits, glibc)


def _list_version_offsets(data: bytes, order: str) -> list[int]:
    """String offsets of all versions in a DT_VERNEED table, whose records have 16 bytes in either class."""
    found: list[int] = []
    at = 0
    while at + 16 <= len(data) and len(found) < _MAX_NEEDED:
        count, aux, following = struct.unpack_from(order + "xxHxxxxII", data, at)
        inner = at + aux
        for _ in range(min(count, _MAX_NEEDED - len(found))):
            if inner + 16 > len(data):
                raise _make_elf_fault("its table of versions is damaged")
            text, step = struct.unpack_from(order + "xxxxxxxxII", data, inner)
            found.append(text)
            if not step:
                break
            inner += step
        if not following:
            return found
        at += following
    raise _make_elf_fault("its table of versions does not end")


def _parse_glibc_version(version: str) -> tuple[int, ...]:
    """ "GLIBC_2.34" as (2, 34); anything else (GLIBC_PRIVATE, GLIBC_ABI_..., CXXABI_...) as ()."""
    if not version.startswith("GLIBC_") or not version.isascii():
        return ()
    parts = version[6:].split(".")
    return tuple(int(p) for p in parts) if all(p.isdigit() and len(p) < 6 for p in parts) else ()


class _SharedObjectBuilder:
    """Lays out one file: a segment to read and run (headers, tables, code), one to write (dynamic table)."""

    def __init__(self, machine: Architecture, soname: str, needed: list[str], symbols: list[str], glibc: str) -> None:
        self.machine = machine
        self.wide = machine.bits == 64
        self.word = "Q" if self.wide else "I"
        self.soname = soname
        self.needed = needed
        self.symbols = symbols
        self.glibc = glibc
        if glibc and "libc.so.6" not in needed:
            self.needed = [*needed, "libc.so.6"]
        self.strings = bytearray(b"\0")

    def build_file(self) -> bytes:
        names = [self._add_string(s) for s in self.symbols]
        dynamic = [(_DT_NEEDED, self._add_string(n)) for n in self.needed]
        if self.soname:
            dynamic.append((_DT_SONAME, self._add_string(self.soname)))
        verneed = self._pack_verneed() if self.glibc else b""
        header_size, ph_size = (64, 56) if self.wide else (52, 32)
        image = bytearray(header_size + 4 * ph_size)

        def place(data: bytes, align: int = 16) -> int:
            image.extend(bytes(-len(image) % align))
            image.extend(data)
            return len(image) - len(data)

        step = 16  # one function each, so that no two symbols have one address
        code = place(b"".join(self.machine.return_zero_code.ljust(step, b"\0") for _ in names))
        # One bucket: a chain through all symbols. Symbol 0 is the null symbol.
        count = len(names) + 1
        chain = [*(range(2, count)), 0] if names else []
        table = struct.pack(f"<{3 + count}I", 1, count, 1 if names else 0, 0, *chain)
        dynamic.append((_DT_HASH, place(table)))
        entry = 24 if self.wide else 16
        exported = [self._pack_symbol(n, code + i * step) for i, n in enumerate(names)]
        dynamic.append((_DT_SYMTAB, place(bytes(entry) + b"".join(exported))))
        dynamic.append((_DT_SYMENT, entry))
        if verneed:
            # The loader wants a version number for each symbol as soon as it meets a table of versions.
            dynamic.append((_DT_VERSYM, place(struct.pack(f"<{count}H", 0, *[1] * len(names)))))
            dynamic.append((_DT_VERNEED, place(verneed)))
            dynamic.append((_DT_VERNEEDNUM, 1))
        dynamic.append((_DT_STRTAB, place(bytes(self.strings))))
        dynamic.append((_DT_STRSZ, len(self.strings)))
        dynamic.append((_DT_NULL, 0))
        end = len(image)
        at = place(b"".join(struct.pack("<" + 2 * self.word, tag, value) for tag, value in dynamic))
        size = len(image) - at
        # The loader writes into the dynamic table, so it gets a page of its own: one page up in memory, no
        # gap in the file.
        page = self.machine.max_page_size
        image[:header_size] = self._pack_header(header_size, ph_size)
        image[header_size : header_size + 4 * ph_size] = (
            self._pack_program_header(_PT_LOAD, 5, 0, 0, end, page)
            + self._pack_program_header(_PT_LOAD, 6, at, at + page, size, page)
            + self._pack_program_header(_PT_DYNAMIC, 6, at, at + page, size, 8)
            + self._pack_program_header(_PT_GNU_STACK, 6, 0, 0, 0, 16)
        )
        return bytes(image)

    def _add_string(self, text: str) -> int:
        self.strings += os.fsencode(text) + b"\0"
        return len(self.strings) - len(os.fsencode(text)) - 1

    def _pack_header(self, header_size: int, ph_size: int) -> bytes:
        ident = b"\x7fELF" + bytes([self.machine.bits // 32, 1, 1]) + bytes(9)
        w = self.word
        return ident + struct.pack(
            f"<HHI{w}{w}{w}IHHHHHH",
            *(
                3,
                self.machine.elf_machine,
                1,
                0,
                header_size,
                0,
                self.machine.elf_flags,
                header_size,
                ph_size,
                4,
                0,
                0,
                0,
            ),
        )

    def _pack_program_header(self, kind: int, flags: int, offset: int, address: int, size: int, align: int) -> bytes:
        if self.wide:
            return struct.pack("<IIQQQQQQ", kind, flags, offset, address, address, size, size, align)
        return struct.pack("<IIIIIIII", kind, offset, address, address, size, size, flags, align)

    def _pack_symbol(self, name: int, address: int) -> bytes:
        # Global function (0x12); any section number but 0 (undefined) will do, as there are no sections.
        if self.wide:
            return struct.pack("<IBBHQQ", name, 0x12, 0, 1, address, len(self.machine.return_zero_code))
        return struct.pack("<IIIBBH", name, address, len(self.machine.return_zero_code), 0x12, 0, 1)

    def _pack_verneed(self) -> bytes:
        version = f"GLIBC_{self.glibc}"
        need = struct.pack("<HHIII", 1, 1, self._add_string("libc.so.6"), 16, 0)
        return need + struct.pack("<IHHII", _compute_sysv_hash(version), 0, 2, self._add_string(version), 0)


def _compute_sysv_hash(name: str) -> int:
    """The hash function of the System V ABI, which version records carry."""
    value = 0
    for char in os.fsencode(name):
        value = (value << 4) + char
        high = value & 0xF0000000
        value = (value ^ high >> 24) & ~high & 0xFFFFFFFF
    return value


def _make_elf_fault(why: str) -> Fault:
    return Fault(f"this is no usable shared object: {why}")
