"""Parse and write the loader cache, /etc/ld.so.cache, and add libraries to it.

It parses the old format ("ld.so-1.7.0"), the old one followed by the new one (glibc < 2.32) and the new one
("glibc-ld.so.cache1.1") with its extensions. It always writes the new one, which every glibc since 2.2 reads. The
formats are those of glibc's sysdeps/generic/dl-cache.h and of caches written by ldconfig 2.36.

The bytes may come from an image: every offset is checked, sizes are bounded, and Fault is the only exception.

Import budget: GPU container.
"""

from __future__ import annotations

import os
import sys

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.formats.architectures import ARCHITECTURES

# One pass, without an object for each entry: a cache of 600 libraries is parsed, merged and written in one to two
# milliseconds. glibc's comparison key is computed only for the entries that the binary search compares.

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    CacheRow = tuple[int, bytes, bytes, int, int]
    LibcmpKey = tuple[int, ...]

NEW_MAGIC = b"glibc-ld.so.cache"
_MAGIC = NEW_MAGIC + b"1.1"
_OLD_MAGIC = b"ld.so-1.7.0"
_EXTENSION_MAGIC = 0xEAA42174
_GENERATOR_TAG, _HWCAPS_TAG = 0, 1
_ENDIAN = {"little": 2, "big": 3}
_DIGITS_TO_ZERO = bytes.maketrans(b"123456789", b"000000000")
# The architecture numbers in flags whose C char is unsigned.
_UNSIGNED = {arch.cache_flags & 0xFF00 for arch in ARCHITECTURES.values() if arch.unsigned_char}

# A cache of a large desktop has about 5000 entries. The bounds keep a hostile image from taking hours.
_MAX_ENTRIES = 65536
_MAX_STRING_LENGTH = 4096
_MAX_TEXT_SIZE = 32 << 20


class CacheEntry:
    """One entry of the cache.

    Arguments:
        flags: type and architecture: see `Architecture`.
        name: the name that programs request, usually a SONAME.
        path: of the file.
        osversion: the least kernel version; glibc 2.36 and later ignore it.
        hwcap: legacy bits, or bit 62 for a file in a glibc-hwcaps directory, with the index of the directory's name in
            `LoaderCache.hwcaps` in the low half.
    """

    __slots__ = ("flags", "hwcap", "name", "osversion", "path")

    def __init__(self, flags: int, name: str, path: str, osversion: int = 0, hwcap: int = 0) -> None:
        self.flags = flags
        self.name = name
        self.path = path
        self.osversion = osversion
        self.hwcap = hwcap

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CacheEntry) and self._as_tuple() == other._as_tuple()

    def __hash__(self) -> int:
        return hash(self._as_tuple())

    def _as_tuple(self) -> tuple[int, str, str, int, int]:
        return self.flags, self.name, self.path, self.osversion, self.hwcap


class LoaderCache:
    """A parsed cache.

    Arguments:
        rows: (flags, name, path, osversion, hwcap) in the file's order, strings as the file's bytes.
        hwcaps: names of the glibc-hwcaps subdirectories.
        generator: the program that wrote it; empty when the file does not name it.
    """

    __slots__ = ("generator", "hwcaps", "rows")

    def __init__(self, rows: list[CacheRow], hwcaps: list[str], generator: bytes) -> None:
        self.rows = rows
        self.hwcaps = hwcaps
        self.generator = generator

    @property
    def entries(self) -> list[CacheEntry]:
        """Rows as objects, strings decoded as os.fsdecode() does, so that invalid UTF-8 is preserved."""
        decode = os.fsdecode
        return [CacheEntry(f, decode(name), decode(path), osv, cap) for f, name, path, osv, cap in self.rows]


def parse_ld_cache(data: bytes) -> LoaderCache:
    """Parse a cache of any of the three formats.

    Raises:
        Fault: it is not a cache of this machine's byte order, or an offset, size or string is out of bounds.
    """
    start = _find_new_header(data)
    if start < 0:
        return _parse_old_format(data)
    if len(data) - start < 48:
        raise _make_cache_fault("it ends within its header")
    if data[start + 28] & 3 not in (0, _ENDIAN[sys.byteorder]):
        raise _make_cache_fault("it has another byte order or is marked as invalid")
    count = int.from_bytes(data[start + 20 : start + 24], sys.byteorder)
    if count > _MAX_ENTRIES or count * 24 + 48 > len(data) - start:
        raise _make_cache_fault("it claims more entries than it has")
    # Offsets are relative to the new header, so the old part is cut off once.
    body = data[start:] if start else data
    words = memoryview(body)[48 : 48 + count * 24].cast("I").tolist()
    strings = _StringReader(body)
    names = strings.read_strings(words[1::6])
    paths = strings.read_strings(words[2::6])
    low, high = words[4::6], words[5::6]
    if sys.byteorder == "big":
        low, high = high, low
    hwcap = [a | b << 32 for a, b in zip(low, high, strict=True)] if any(high) else low
    rows = list(zip(words[0::6], names, paths, words[3::6], hwcap, strict=True))
    hwcaps, generator = _parse_extensions(data, int.from_bytes(body[32:36], sys.byteorder), strings)
    return LoaderCache(rows, hwcaps, generator)


def merge_ld_cache(cache: LoaderCache | None, libraries: Iterable[tuple[str, str, int]]) -> LoaderCache:
    """Return the cache with libraries added; the original is not changed.

    A new library replaces all entries of its name and architecture, also those for processor variants (glibc-hwcaps and
    legacy hwcaps), which the loader would prefer. Of two new ones with the same name and architecture the first is
    used. All other entries keep their order.

    Arguments:
        libraries: (name, path, flags).

    Raises:
        Fault: a cache cannot contain a string.
    """
    added: dict[tuple[bytes, int], CacheRow] = {}
    for name, path, flags in libraries:
        row = (flags, _encode_string(name), _encode_string(path), 0, 0)
        added.setdefault((row[1], flags & 0xFF01), row)
    if cache is None:
        cache = LoaderCache([], [], b"gpu-oci-hook")
    names = {name for name, _ in added}
    rows = [r for r in cache.rows if r[1] not in names or (r[1], r[0] & 0xFF01) not in added]
    keys: dict[bytes, LibcmpKey] = {}
    unsigned = any(flags & 0xFF00 in _UNSIGNED for _, flags in added)
    for row in added.values():
        # Descending by (key, flags). A new entry has no hwcap, so it follows the equal ones.
        key = _get_libcmp_key(row[1], keys, unsigned=unsigned)
        low, high = 0, len(rows)
        while low < high:
            middle = (low + high) >> 1
            other = rows[middle]
            other_key = _get_libcmp_key(other[1], keys, unsigned=unsigned)
            if other_key > key or (other_key == key and other[0] >= row[0]):
                low = middle + 1
            else:
                high = middle
        rows.insert(low, row)
    return LoaderCache(rows, cache.hwcaps, cache.generator)


def dump_ld_cache(cache: LoaderCache) -> bytes:
    """Return the cache as a file of the new format: entries in their order, strings, extensions."""
    rows = cache.rows
    base = 48 + 24 * len(rows)
    offsets: dict[bytes, int] = {}
    strings: list[bytes] = []
    words: list[int] = []
    end = base

    def add_string(text: bytes) -> int:
        nonlocal end
        offset = offsets.get(text)
        if offset is None:
            offset = offsets[text] = end
            strings.append(text)
            end += len(text) + 1
        return offset

    for flags, name, path, osversion, hwcap in rows:
        value = add_string(path)
        # A name that is the end of its path needs no string of its own (glibc >= 2.33 does the same).
        key = value + len(path) - len(name) if path.endswith(name) else add_string(name)
        words += (flags, key, value, osversion, hwcap & 0xFFFFFFFF, hwcap >> 32)
    hwcaps = [add_string(os.fsencode(name)) for name in cache.hwcaps]
    text = b"\0".join(strings) + b"\0" if strings else b""
    if sys.byteorder == "big":
        words[4::6], words[5::6] = words[5::6], words[4::6]
    sections = []
    if cache.generator:
        sections.append((_GENERATOR_TAG, cache.generator))
    if hwcaps:
        sections.append((_HWCAPS_TAG, _pack_words(hwcaps)))
    tail, extension = b"", 0
    if sections:
        extension = (end + 3) & ~3
        body_offset = extension + 8 + 16 * len(sections)
        directory = [_EXTENSION_MAGIC, len(sections)]
        bodies = b""
        for tag, body in sections:
            directory += (tag, 0, body_offset + len(bodies), len(body))
            bodies += body + bytes(-len(body) % 4)
        tail = bytes(extension - end) + _pack_words(directory) + bodies
    order = bytes([_ENDIAN[sys.byteorder], 0, 0, 0])
    header = _MAGIC + _pack_words([len(rows), len(text)]) + order + _pack_words([extension, 0, 0, 0])
    return header + _pack_words(words) + text + tail


def make_libcmp_key(name: str | bytes, *, unsigned: bool = False) -> LibcmpKey:
    """Return the key that sorts names as glibc's _dl_cache_libcmp() does (ascending; the cache is sorted descending).

    Runs of digits compare as numbers and are greater than all other characters. Different names can have equal keys
    ("a01" and "a1").

    Arguments:
        unsigned: compare characters as an unsigned C char, as on ARM; on x86 it is signed.
    """
    if isinstance(name, str):
        name = os.fsencode(name)
    key: list[int] = []
    number, at = -1, 0  # each digit ends a part, so that the other characters are taken in runs
    for part in name.translate(_DIGITS_TO_ZERO).split(b"0"):
        if part:
            if number >= 0:
                key.append(number + 256)
                number = -1
            key += part if unsigned or part.isascii() else [char if char < 128 else char - 256 for char in part]
            at += len(part)
        if at < len(name):
            # glibc's int overflows on a long run; here the mask keeps the number bounded.
            number = (number * 10 if number > 0 else 0) + name[at] - 48 & 0xFFFFFFFF
            at += 1
    return (*key, number + 256, 0) if number >= 0 else (*key, 0)


def _get_libcmp_key(name: bytes, keys: dict[bytes, LibcmpKey], *, unsigned: bool) -> LibcmpKey:
    """Return a name's key from the cache `keys`, to which it is added when it is missing."""
    key = keys.get(name)
    if key is None:
        key = keys[name] = make_libcmp_key(name, unsigned=unsigned)
    return key


class _StringReader:
    """A reader of a cache's strings, with a limit for each of them and for all together."""

    __slots__ = ("data", "left")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.left = _MAX_TEXT_SIZE

    def read_strings(self, offsets: list[int]) -> list[bytes]:
        """Return the strings at these offsets; raise Fault when one has no end or a limit is exceeded."""
        data, left = self.data, self.left
        find: Callable[[bytes, int, int], int] = data.find
        strings: list[bytes] = []
        for offset in offsets:
            end = find(b"\0", offset, offset + _MAX_STRING_LENGTH)
            left -= end - offset
            if end < 0 or left < 0:
                raise _make_cache_fault("a string has no end, or the strings are too long")
            strings.append(data[offset:end])
        self.left = left
        return strings


def _find_new_header(data: bytes) -> int:
    """Return the offset of the new format's header: 0, or after the old entries, or -1 when there is none."""
    if data.startswith(_MAGIC):
        return 0
    if data.startswith(NEW_MAGIC):
        raise _make_cache_fault("its version is unknown")
    if not data.startswith(_OLD_MAGIC) or len(data) < 16:
        raise _make_cache_fault("it does not begin with a cache header")
    end = 16 + 12 * int.from_bytes(data[12:16], sys.byteorder)
    if end > len(data):
        raise _make_cache_fault("it claims more entries than it has")
    # The new header is aligned for its 64-bit member: to 8, or to 4 in the ABI of i386.
    for start in ((end + 7) & ~7, (end + 3) & ~3):
        if data.startswith(_MAGIC, start):
            return start
    return -1


def _parse_old_format(data: bytes) -> LoaderCache:
    count = int.from_bytes(data[12:16], sys.byteorder)
    if count > _MAX_ENTRIES:
        raise _make_cache_fault("it claims too many entries")
    words = memoryview(data)[16 : 16 + 12 * count].cast("I").tolist()
    strings = _StringReader(data[16 + 12 * count :])
    names, paths = strings.read_strings(words[1::3]), strings.read_strings(words[2::3])
    return LoaderCache([(f, n, p, 0, 0) for f, n, p in zip(words[0::3], names, paths, strict=True)], [], b"")


def _parse_extensions(data: bytes, offset: int, strings: _StringReader) -> tuple[list[str], bytes]:
    """Return the names of the glibc-hwcaps subdirectories and the generator, as far as the file has these extensions.

    Offsets of extensions are relative to the start of the file, those of names to the new header (ldconfig 2.36).
    """
    hwcaps: list[str] = []
    generator = b""
    if not offset:
        return hwcaps, generator
    if offset % 4 or offset + 8 > len(data):
        raise _make_cache_fault("its extensions are out of bounds")
    magic, count = memoryview(data)[offset : offset + 8].cast("I")
    if magic != _EXTENSION_MAGIC or count > 64 or offset + 8 + 16 * count > len(data):
        raise _make_cache_fault("its extensions are damaged")
    sections = memoryview(data)[offset + 8 : offset + 8 + 16 * count].cast("I").tolist()
    for tag, start, size in zip(sections[0::4], sections[2::4], sections[3::4], strict=True):
        if start + size > len(data) or size > 65536:
            raise _make_cache_fault("an extension is out of bounds")
        if tag == _GENERATOR_TAG:
            generator = data[start : start + size]
        elif tag == _HWCAPS_TAG and size % 4 == 0:
            numbers = memoryview(data)[start : start + size].cast("I").tolist()
            hwcaps = [os.fsdecode(name) for name in strings.read_strings(numbers)]
    return hwcaps, generator


def _encode_string(text: str) -> bytes:
    try:
        data = os.fsencode(text)
    except UnicodeError:
        data = b""
    if not data or b"\0" in data or len(data) >= _MAX_STRING_LENGTH:
        raise Fault(f"the loader cache cannot contain the name {text[:80]!r}")
    return data


def _pack_words(numbers: list[int]) -> bytes:
    """Return 32-bit words in this machine's byte order, without importing struct."""
    buffer = bytearray(4 * len(numbers))
    view = memoryview(buffer).cast("I")
    for index, number in enumerate(numbers):
        view[index] = number
    return bytes(buffer)


def _make_cache_fault(reason: str) -> Fault:
    return Fault(f"this is not a usable cache of the dynamic loader: {reason}")
