"""Define the architectures: everything that differs between machines is in the one table ARCHITECTURES.

Import budget: GPU container.
"""

from __future__ import annotations


class Architecture:
    """The properties of one architecture's files, and the directories that distributions use for them.

    Attributes:
        name: our name; of a 64-bit architecture also the name in `uname -m` and of musl.
        triple: Debian's multiarch name.
        arch32: the architecture of the 32-bit programs that such a machine runs, or "" for a 32-bit one.
        loader: glibc's program interpreter (the psABI supplements).
        cache_flags: of its libraries in the loader cache: FLAG_ELF_LIBC6 (3), and glibc's number in the second byte.
        unsigned_char: whether C's char is unsigned, which decides the order of names in the loader cache.
        bits: 32 or 64.
        elf_machine: e_machine of its ELF files.
        elf_flags: e_flags of its ELF files.
        max_page_size: the largest page size of its kernels.
        return_zero_code: machine code of a function that returns 0.
        toolkit_targets: directories of a CUDA toolkit for it, below /usr/local/cuda/targets.
        aliases: its names in file names of vendors.
    """

    __slots__ = (
        "aliases",
        "arch32",
        "bits",
        "cache_flags",
        "elf_flags",
        "elf_machine",
        "loader",
        "max_page_size",
        "name",
        "return_zero_code",
        "toolkit_targets",
        "triple",
        "unsigned_char",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        triple: str,
        *,
        loader: str,
        cache_flags: int,
        bits: int,
        elf_machine: int,
        return_zero_code: str,
        arch32: str = "",
        unsigned_char: bool = False,
        elf_flags: int = 0,
        max_page_size: int = 0x1000,
        toolkit_targets: tuple[str, ...] = (),
        aliases: tuple[str, ...] = (),
    ) -> None:
        self.name = name
        self.triple = triple
        self.arch32 = arch32
        self.loader = loader
        self.cache_flags = cache_flags
        self.unsigned_char = unsigned_char
        self.bits = bits
        self.elf_machine = elf_machine
        self.elf_flags = elf_flags
        self.max_page_size = max_page_size
        self.return_zero_code = bytes.fromhex(return_zero_code)
        self.toolkit_targets = toolkit_targets
        self.aliases = (name, *aliases)


ARCHITECTURES = {
    architecture.name: architecture
    for architecture in (
        Architecture(
            "x86_64", "x86_64-linux-gnu", arch32="i386", loader="/lib64/ld-linux-x86-64.so.2", cache_flags=0x303,
            bits=64, elf_machine=62, return_zero_code="31c0c3", toolkit_targets=("x86_64-linux",), aliases=("amd64",),
        ),
        Architecture(
            "i386", "i386-linux-gnu", loader="/lib/ld-linux.so.2", cache_flags=0x003,
            bits=32, elf_machine=3, return_zero_code="31c0c3", aliases=("i686", "i586", "x86"),
        ),
        Architecture(
            "aarch64", "aarch64-linux-gnu", arch32="armhf", loader="/lib/ld-linux-aarch64.so.1", cache_flags=0xA03,
            unsigned_char=True, bits=64, elf_machine=183, max_page_size=0x10000, return_zero_code="00008052c0035fd6",
            toolkit_targets=("sbsa-linux", "aarch64-linux"), aliases=("arm64",),
        ),
        # EABI 5 with floats in registers: the loader recognises armhf by these flags.
        Architecture(
            "armhf", "arm-linux-gnueabihf", loader="/lib/ld-linux-armhf.so.3", cache_flags=0x903,
            unsigned_char=True, bits=32, elf_machine=40, elf_flags=0x05000400, max_page_size=0x10000,
            return_zero_code="0000a0e31eff2fe1", aliases=("armv7l", "armv7hl", "arm"),
        ),
    )
}  # fmt: skip
# Of hosts.
HOST_ARCHITECTURES = tuple([architecture.name for architecture in ARCHITECTURES.values() if architecture.arch32])
# Of 32-bit libraries, which containers get together with those of the host's architecture.
ARCHITECTURES_32BIT = tuple([architecture.name for architecture in ARCHITECTURES.values() if not architecture.arch32])


def musl_path_file(arch: str) -> str:
    """Return the path of the file that lists musl's library directories (musl: ldso/dynlink.c)."""
    return f"/etc/ld-musl-{arch}.path"


def musl_loader_path(arch: str) -> str:
    """Return the path of musl's program interpreter, which is also its C library."""
    return f"/lib/ld-musl-{arch}.so.1"
