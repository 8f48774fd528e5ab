"""One table of architectures, and no second list anywhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import gpu_oci_hook
from gpu_oci_hook.formats import elf, elf_builder, ldcache
from gpu_oci_hook.formats.architectures import (
    ARCHITECTURES,
    ARCHITECTURES_32BIT,
    HOST_ARCHITECTURES,
    musl_loader_path,
    musl_path_file,
)

PACKAGE = Path(gpu_oci_hook.__file__).parent


def test_every_machine_has_a_32_bit_sister_that_is_in_the_table() -> None:
    assert HOST_ARCHITECTURES == ("x86_64", "aarch64")
    assert {ARCHITECTURES[name].arch32 for name in HOST_ARCHITECTURES} == set(ARCHITECTURES_32BIT) == {"i386", "armhf"}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_library_of_each_architecture_is_read_as_one(name: str) -> None:
    found = elf.read_shared_object(elf_builder.build_shared_object(soname="libx.so.1", arch=name))
    assert (found.arch, found.bits) == (name, ARCHITECTURES[name].bits)


def test_the_numbers_are_those_of_glibc_and_of_the_psabi() -> None:
    # glibc: sysdeps/generic/ldconfig.h; elf.h
    known = {name: (a.cache_flags, a.elf_machine, a.loader, a.triple) for name, a in ARCHITECTURES.items()}
    assert known == {
        "x86_64": (0x0303, 62, "/lib64/ld-linux-x86-64.so.2", "x86_64-linux-gnu"),
        "i386": (0x0003, 3, "/lib/ld-linux.so.2", "i386-linux-gnu"),
        "aarch64": (0x0A03, 183, "/lib/ld-linux-aarch64.so.1", "aarch64-linux-gnu"),
        "armhf": (0x0903, 40, "/lib/ld-linux-armhf.so.3", "arm-linux-gnueabihf"),
    }
    assert musl_path_file("aarch64") == "/etc/ld-musl-aarch64.path"
    assert musl_loader_path("aarch64") == "/lib/ld-musl-aarch64.so.1"


def test_characters_of_a_cache_for_arm_are_unsigned() -> None:
    """A name with such a character sorts behind letters on ARM, and before them on x86."""
    names = [("libé.so", "/a/libé.so"), ("liba.so", "/a/liba.so")]
    for arch, first in (("x86_64", "liba.so"), ("aarch64", "libé.so")):
        made = ldcache.merge_ld_cache(None, [(name, path, ARCHITECTURES[arch].cache_flags) for name, path in names])
        assert made.entries[0].name == first


def test_no_other_module_has_a_list_of_its_own() -> None:
    """A triple, a loader or a flag of the cache stands in the table alone; prose may name them."""
    word = re.compile(r'"[^"\n]*(-linux-gnu|ld-linux|ld-musl|linux-gnueabihf|0x303|0xA03)[^"\n]*"|\b(armhf|i386)"')
    others = [path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "formats/architectures.py"]
    for path in others:
        code = re.sub(r'""".*?"""', "", path.read_text(), flags=re.S)
        code = "\n".join(line.partition("  #")[0] for line in code.splitlines() if not line.lstrip().startswith("#"))
        assert not word.search(code), f"{path}: {word.search(code)}"
