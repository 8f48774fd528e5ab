"""File formats, pure: bytes in, data out; nothing here opens a file. And the one table of architectures.

Everything that differs between the machines is in ARCHITECTURES; nobody keeps a second list. Cost rule: importing
the package imports nothing; each format is one module that stands alone.
"""

from __future__ import annotations


class Architecture:
    """What files of one architecture look like, and where distributions put them.

    Attributes:
        name: as we call it; for a 64-bit one also what `uname -m` and musl call it.
        triple: Debian's multiarch name.
        small: the architecture of the 32-bit programs that such a machine runs; "" for a 32-bit one.
        loader: glibc's program interpreter (the psABI supplements).
        flags: of its libraries in the loader's cache: FLAG_ELF_LIBC6 (3), and glibc's number in the second byte.
        unsigned: C's char is, which decides the order of names in the loader's cache.
        bits: 32 or 64. machine, elf_flags: e_machine and e_flags of its ELF files.
        page: the largest page that such a kernel may have. code: a function that returns 0.
        toolkit: directories of a CUDA toolkit for it, below /usr/local/cuda/targets.
        names: what vendors put into the names of files for it.
    """

    __slots__ = (
        "bits", "code", "elf_flags", "flags", "loader", "machine",
        "name", "names", "page", "small", "toolkit", "triple", "unsigned",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        triple: str,
        *,
        loader: str,
        flags: int,
        bits: int,
        machine: int,
        code: str,
        small: str = "",
        unsigned: bool = False,
        elf_flags: int = 0,
        page: int = 0x1000,
        toolkit: tuple[str, ...] = (),
        names: tuple[str, ...] = (),
    ) -> None:
        self.name = name
        self.triple = triple
        self.small = small
        self.loader = loader
        self.flags = flags
        self.unsigned = unsigned
        self.bits = bits
        self.machine = machine
        self.elf_flags = elf_flags
        self.page = page
        self.code = bytes.fromhex(code)
        self.toolkit = toolkit
        self.names = (name, *names)


ARCHITECTURES = {
    known.name: known
    for known in (
        Architecture(
            "x86_64", "x86_64-linux-gnu", small="i386", loader="/lib64/ld-linux-x86-64.so.2", flags=0x303,
            bits=64, machine=62, code="31c0c3", toolkit=("x86_64-linux",), names=("amd64",),
        ),
        Architecture(
            "i386", "i386-linux-gnu", loader="/lib/ld-linux.so.2", flags=0x003,
            bits=32, machine=3, code="31c0c3", names=("i686", "i586", "x86"),
        ),
        Architecture(
            "aarch64", "aarch64-linux-gnu", small="armhf", loader="/lib/ld-linux-aarch64.so.1", flags=0xA03,
            unsigned=True, bits=64, machine=183, page=0x10000, code="00008052c0035fd6",
            toolkit=("sbsa-linux", "aarch64-linux"), names=("arm64",),
        ),
        # EABI 5 with floats in registers, which is what makes it armhf for the loader.
        Architecture(
            "armhf", "arm-linux-gnueabihf", loader="/lib/ld-linux-armhf.so.3", flags=0x903,
            unsigned=True, bits=32, machine=40, elf_flags=0x05000400, page=0x10000, code="0000a0e31eff2fe1",
            names=("armv7l", "armv7hl", "arm"),
        ),
    )
}  # fmt: skip
# What a host can be.
MACHINES = tuple([known.name for known in ARCHITECTURES.values() if known.small])
# Of libraries that ride along with another architecture's.
SMALL = tuple([known.name for known in ARCHITECTURES.values() if not known.small])


def musl_path_file(arch: str) -> str:
    """The file that names musl's library directories (musl: ldso/dynlink.c)."""
    return f"/etc/ld-musl-{arch}.path"


def musl_loader(arch: str) -> str:
    """musl's program interpreter, which is its C library too."""
    return f"/lib/ld-musl-{arch}.so.1"
