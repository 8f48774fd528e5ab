"""Build tiny shared objects without a compiler, for simulated hosts and tests.

Import budget: cold.
"""

from __future__ import annotations

import os
import struct

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.formats.architectures import ARCHITECTURES, Architecture
from gpu_oci_hook.formats.elf import (
    DT_HASH,
    DT_NEEDED,
    DT_NULL,
    DT_SONAME,
    DT_STRSZ,
    DT_STRTAB,
    DT_SYMENT,
    DT_SYMTAB,
    DT_VERNEED,
    DT_VERNEEDNUM,
    DT_VERSYM,
    PT_DYNAMIC,
    PT_GNU_STACK,
    PT_LOAD,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def build_shared_object(
    *,
    soname: str,
    needed: Sequence[str] = (),
    arch: str = "x86_64",
    symbols: Sequence[str] = (),
    glibc: str = "",
) -> bytes:
    """Build a shared object of about a kilobyte that the real loader can load.

    Arguments:
        soname: its DT_SONAME, or "" for none.
        needed: its DT_NEEDED, in order.
        arch: "x86_64", "i386", "aarch64" or "armhf".
        symbols: functions that it exports. Each accepts any arguments and returns 0.
        glibc: a version such as "2.34" that it requires of libc.so.6, which is then added to needed, or "" for none.

    Raises:
        Fault: the architecture is unknown.
    """
    machine = ARCHITECTURES.get(arch)
    if machine is None:
        raise Fault(f"cannot build a library for {arch!r}", hint=f"Use one of {', '.join(ARCHITECTURES)}")
    return _SharedObjectBuilder(machine, soname, list(needed), list(symbols), glibc).build_file()


class _SharedObjectBuilder:
    """The builder of one file with two segments: headers, tables and code to read and run; a dynamic table to write."""

    def __init__(self, machine: Architecture, soname: str, needed: list[str], symbols: list[str], glibc: str) -> None:
        self.machine = machine
        self.is_64bit = machine.bits == 64
        self.word = "Q" if self.is_64bit else "I"
        self.soname = soname
        self.needed = needed
        self.symbols = symbols
        self.glibc = glibc
        if glibc and "libc.so.6" not in needed:
            self.needed = [*needed, "libc.so.6"]
        self.strings = bytearray(b"\0")

    def build_file(self) -> bytes:
        names = [self._add_string(s) for s in self.symbols]
        dynamic = [(DT_NEEDED, self._add_string(n)) for n in self.needed]
        if self.soname:
            dynamic.append((DT_SONAME, self._add_string(self.soname)))
        verneed = self._pack_verneed() if self.glibc else b""
        header_size, ph_size = (64, 56) if self.is_64bit else (52, 32)
        image = bytearray(header_size + 4 * ph_size)

        def append_aligned(data: bytes, align: int = 16) -> int:
            image.extend(bytes(-len(image) % align))
            image.extend(data)
            return len(image) - len(data)

        step = 16  # each symbol has a function of its own, so that no two have the same address
        code = append_aligned(b"".join(self.machine.return_zero_code.ljust(step, b"\0") for _ in names))
        # One bucket: a chain through all symbols. Symbol 0 is the null symbol.
        count = len(names) + 1
        chain = [*(range(2, count)), 0] if names else []
        table = struct.pack(f"<{3 + count}I", 1, count, 1 if names else 0, 0, *chain)
        dynamic.append((DT_HASH, append_aligned(table)))
        entry = 24 if self.is_64bit else 16
        exported = [self._pack_symbol(n, code + i * step) for i, n in enumerate(names)]
        dynamic.append((DT_SYMTAB, append_aligned(bytes(entry) + b"".join(exported))))
        dynamic.append((DT_SYMENT, entry))
        if verneed:
            # With a version table the loader requires a version number for each symbol.
            dynamic.append((DT_VERSYM, append_aligned(struct.pack(f"<{count}H", 0, *[1] * len(names)))))
            dynamic.append((DT_VERNEED, append_aligned(verneed)))
            dynamic.append((DT_VERNEEDNUM, 1))
        dynamic.append((DT_STRTAB, append_aligned(bytes(self.strings))))
        dynamic.append((DT_STRSZ, len(self.strings)))
        dynamic.append((DT_NULL, 0))
        end = len(image)
        at = append_aligned(b"".join(struct.pack("<" + 2 * self.word, tag, value) for tag, value in dynamic))
        size = len(image) - at
        # The loader writes into the dynamic table, so it is on a page of its own: one page higher in memory, without a
        # gap in the file.
        page = self.machine.max_page_size
        image[:header_size] = self._pack_header(header_size, ph_size)
        image[header_size : header_size + 4 * ph_size] = (
            self._pack_program_header(PT_LOAD, 5, 0, 0, end, page)
            + self._pack_program_header(PT_LOAD, 6, at, at + page, size, page)
            + self._pack_program_header(PT_DYNAMIC, 6, at, at + page, size, 8)
            + self._pack_program_header(PT_GNU_STACK, 6, 0, 0, 0, 16)
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
            *(3, self.machine.elf_machine, 1, 0, header_size, 0),
            *(self.machine.elf_flags, header_size, ph_size, 4, 0, 0, 0),
        )

    def _pack_program_header(self, kind: int, flags: int, offset: int, address: int, size: int, align: int) -> bytes:
        if self.is_64bit:
            return struct.pack("<IIQQQQQQ", kind, flags, offset, address, address, size, size, align)
        return struct.pack("<IIIIIIII", kind, offset, address, address, size, size, flags, align)

    def _pack_symbol(self, name: int, address: int) -> bytes:
        # 0x12 is a global function. Any section number but 0 (undefined) is valid, as there are no sections.
        if self.is_64bit:
            return struct.pack("<IBBHQQ", name, 0x12, 0, 1, address, len(self.machine.return_zero_code))
        return struct.pack("<IIIBBH", name, address, len(self.machine.return_zero_code), 0x12, 0, 1)

    def _pack_verneed(self) -> bytes:
        version = f"GLIBC_{self.glibc}"
        need = struct.pack("<HHIII", 1, 1, self._add_string("libc.so.6"), 16, 0)
        return need + struct.pack("<IHHII", _compute_sysv_hash(version), 0, 2, self._add_string(version), 0)


def _compute_sysv_hash(name: str) -> int:
    """Return the hash of the System V ABI, which version records have."""
    value = 0
    for char in os.fsencode(name):
        value = (value << 4) + char
        high = value & 0xF0000000
        value = (value ^ high >> 24) & ~high & 0xFFFFFFFF
    return value
