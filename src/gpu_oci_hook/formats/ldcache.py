"""The loader's cache, /etc/ld.so.cache: read, add libraries, write.

Knows the old format ("ld.so-1.7.0"), the old one with the new one behind it (glibc < 2.32) and the new one
("glibc-ld.so.cache1.1") with its extensions; always writes the new one, which every glibc since 2.2 reads.
Format facts: glibc's sysdeps/generic/dl-cache.h, and caches made by ldconfig 2.36.

Cost rule: on the hot path. One pass with no object per entry: a cache of 600 libraries is read, merged and
written in one to two milliseconds. glibc's comparison key is made only for entries that a binary search
touches. The bytes may come from a container's image: every offset is checked, sizes are bounded, and the only
exception is Fault.
"""

from __future__ import annotations

import os
import sys

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.formats.architectures import ARCHITECTURES

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
# Architecture numbers, as flags have them, whose characters are unsigned.
_UNSIGNED = {known.cache_flags & 0xFF00 for known in ARCHITECTURES.values() if known.unsigned_char}

# A cache of a large desktop has about 5000 entries. The bounds are for images that want us to work for hours.
_MAX_ENTRIES = 65536
_MAX_STRING_LENGTH = 4096
_MAX_TEXT_SIZE = 32 << 20


class CacheEntry:
    """One line of the cache.

    flags: type and architecture (see `Architecture`). name: what a program asks for, usually a SONAME. path: the file.
    osversion: least kernel version, unused by glibc >= 2.36. hwcap: legacy bits, or bit 62 (the file lies in
    a glibc-hwcaps directory) and in the low half the index of its name in Cache.hwcaps.
    """

    __slots__ = ("flags", "hwcap", "name", "osversion", "path")

    def __init__(self, flags: int, name: str, path: str, osversion: int = 0, hwcap: int = 0) -> None:
        self.flags = flags
        self.name = name
        self.path = path
        self.osversion = osversion
        self.hwcap = hwcap

    def __repr__(self) -> str:
        return f"Entry({self.flags:#x}, {self.name!r}, {self.path!r}, {self.osversion}, {self.hwcap:#x})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CacheEntry) and self._as_tuple() == other._as_tuple()

    def __hash__(self) -> int:
        return hash(self._as_tuple())

    def _as_tuple(self) -> tuple[int, str, str, int, int]:
        return self.flags, self.name, self.path, self.osversion, self.hwcap


class LoaderCache:
    """A parsed cache.

    rows: (flags, name, path, osversion, hwcap) in the file's order, strings as the bytes that the file holds.
    hwcaps: names of the glibc-hwcaps subdirectories. generator: which program wrote it, empty when not said.
    """

    __slots__ = ("generator", "hwcaps", "rows")

    def __init__(self, rows: list[CacheRow], hwcaps: list[str], generator: bytes) -> None:
        self.rows = rows
        self.hwcaps = hwcaps
        self.generator = generator

    @property
    def entries(self) -> list[CacheEntry]:
        """The rows as objects, strings decoded as os.fsdecode() does, so that odd names survive."""
        decode = os.fsdecode
        return [CacheEntry(f, decode(name), decode(path), osv, cap) for f, name, path, osv, cap in self.rows]


def parse_ld_cache(data: bytes) -> LoaderCache:
    """The cache in these bytes, of any of the three formats.

    Raises Fault when they are no cache of this machine's byte order, or an offset, size or string is out of
    bounds.
    """
    start = _find_new_header(data)
    if start < 0:
        return _parse_old_format(data)
    if len(data) - start < 48:
        raise _make_cache_fault("it ends within its header")
    if data[start + 28] & 3 not in (0, _ENDIAN[sys.byteorder]):
        raise _make_cache_fault("it is of another byte order or marked as invalid")
    count = int.from_bytes(data[start + 20 : start + 24], sys.byteorder)
    if count > _MAX_ENTRIES or count * 24 + 48 > len(data) - start:
        raise _make_cache_fault("it claims more entries than it holds")
    # Offsets count from the new header, so cut the old part off once instead of adding everywhere.
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
    """The cache with libraries added; the given one is not changed.

    Each new (name, path, flags) takes the place of all entries of that name and architecture, also of those
    for processor variants (glibc-hwcaps and legacy hwcaps), which the loader would prefer. Of two new ones
    with one name and architecture the first wins. Everything else keeps its place. Raises Fault for a string
    that no cache can hold.
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
        # Descending by (key, flags). A new entry is a regular one, so it goes behind what is equal so far.
        mine = _get_libcmp_key(row[1], keys, unsigned=unsigned)
        low, high = 0, len(rows)
        while low < high:
            middle = (low + high) >> 1
            other = rows[middle]
            theirs = _get_libcmp_key(other[1], keys, unsigned=unsigned)
            if theirs > mine or (theirs == mine and other[0] >= row[0]):
                low = middle + 1
            else:
                high = middle
        rows.insert(low, row)
    return LoaderCache(rows, cache.hwcaps, cache.generator)


def dump_ld_cache(cache: LoaderCache) -> bytes:
    """The cache as a file of the new format: entries in the order they have, strings, extensions."""
    rows = cache.rows
    base = 48 + 24 * len(rows)
    offsets: dict[bytes, int] = {}
    strings: list[bytes] = []
    words: list[int] = []
    end = base

    def place(text: bytes) -> int:
        nonlocal end
        offset = offsets.get(text)
        if offset is None:
            offset = offsets[text] = end
            strings.append(text)
            end += len(text) + 1
        return offset

    for flags, name, path, osversion, hwcap in rows:
        value = place(path)
        # A name that is its path's last part needs no string of its own (glibc >= 2.33 does the same).
        key = value + len(path) - len(name) if path.endswith(name) else place(name)
        words += (flags, key, value, osversion, hwcap & 0xFFFFFFFF, hwcap >> 32)
    hwcaps = [place(os.fsencode(name)) for name in cache.hwcaps]
    text = b"\0".join(strings) + b"\0" if strings else b""
    if sys.byteorder == "big":
        words[4::6], words[5::6] = words[5::6], words[4::6]
    sections = []
    if cache.generator:
        sections.append((_GENERATOR_TAG, cache.generator))
    if hwcaps:
        sections.append((_HWCAPS_TAG, _pack_words(hwcaps)))
    tail = b""
    extension = 0
    if sections:
        extension = (end + 3) & ~3
        place_at = extension + 8 + 16 * len(sections)
        directory = [_EXTENSION_MAGIC, len(sections)]
        bodies = b""
        for tag, body in sections:
            directory += (tag, 0, place_at + len(bodies), len(body))
            bodies += body + bytes(-len(body) % 4)
        tail = bytes(extension - end) + _pack_words(directory) + bodies
    order = bytes([_ENDIAN[sys.byteorder], 0, 0, 0])
    header = _MAGIC + _pack_words([len(rows), len(text)]) + order + _pack_words([extension, 0, 0, 0])
    return header + _pack_words(words) + text + tail


def make_libcmp_key(name: str | bytes, *, unsigned: bool = False) -> LibcmpKey:
    """A key that sorts names as glibc's _dl_cache_libcmp() does (ascending; the cache is sorted descending).

    Runs of digits compare as numbers and are greater than any other character; other characters compare as
    C's char, which is signed on x86 and unsigned on ARM (`unsigned`). Equal keys do not mean equal names ("a01"
    and "a1").
    """
    if isinstance(name, str):
        name = os.fsencode(name)
    key: list[int] = []
    number = -1
    for char in name:
        if 48 <= char <= 57:
            # glibc adds up in an int. That a long run overflows is its business; ours is to stay bounded.
            number = (number * 10 if number > 0 else 0) + char - 48 & 0xFFFFFFFF
            continue
        if number >= 0:
            key.append(number + 256)
            number = -1
        key.append(char if char < 128 or unsigned else char - 256)
    if number >= 0:
        key.append(number + 256)
    key.append(0)
    return tuple(key)


def _get_libcmp_key(name: bytes, known: dict[bytes, LibcmpKey], *, unsigned: bool) -> LibcmpKey:
    key = known.get(name)
    if key is None:
        key = known[name] = make_libcmp_key(name, unsigned=unsigned)
    return key


class _StringReader:
    """Takes strings out of a cache by offset, within bounds for each and for all together."""

    __slots__ = ("data", "left")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.left = _MAX_TEXT_SIZE

    def read_strings(self, offsets: list[int]) -> list[bytes]:
        data, left = self.data, self.left
        find: Callable[[bytes, int, int], int] = data.find
        taken: list[bytes] = []
        for offset in offsets:
            end = find(b"\0", offset, offset + _MAX_STRING_LENGTH)
            left -= end - offset
            if end < 0 or left < 0:
                raise _make_cache_fault("it has a string that does not end, or too many of them")
            taken.append(data[offset:end])
        self.left = left
        return taken


def _find_new_header(data: bytes) -> int:
    """Where the new format's header begins: 0, or behind the old entries, or -1 when there is none."""
    if data.startswith(_MAGIC):
        return 0
    if data.startswith(NEW_MAGIC):
        raise _make_cache_fault("it is of a version that is not known here")
    if not data.startswith(_OLD_MAGIC) or len(data) < 16:
        raise _make_cache_fault("it does not begin as one")
    end = 16 + 12 * int.from_bytes(data[12:16], sys.byteorder)
    if end > len(data):
        raise _make_cache_fault("it claims more entries than it holds")
    # The new header is aligned for its 64-bit member: to 8, or to 4 where the ABI says so (i386).
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
    """Names of the glibc-hwcaps subdirectories and the generator, where the file has extensions.

    Their offsets count from the start of the file, also where an old part precedes the new header, while those
    of the names' strings count from the new header (as ldconfig 2.36 -c compat writes it).
    """
    hwcaps: list[str] = []
    generator = b""
    if not offset:
        return hwcaps, generator
    if offset % 4 or offset + 8 > len(data):
        raise _make_cache_fault("its extensions lie out of bounds")
    magic, count = memoryview(data)[offset : offset + 8].cast("I")
    if magic != _EXTENSION_MAGIC or count > 64 or offset + 8 + 16 * count > len(data):
        raise _make_cache_fault("its extensions are damaged")
    sections = memoryview(data)[offset + 8 : offset + 8 + 16 * count].cast("I").tolist()
    for tag, place, size in zip(sections[0::4], sections[2::4], sections[3::4], strict=True):
        if place + size > len(data) or size > 65536:
            raise _make_cache_fault("an extension lies out of bounds")
        if tag == _GENERATOR_TAG:
            generator = data[place : place + size]
        elif tag == _HWCAPS_TAG and size % 4 == 0:
            numbers = memoryview(data)[place : place + size].cast("I").tolist()
            hwcaps = [os.fsdecode(name) for name in strings.read_strings(numbers)]
    return hwcaps, generator


def _encode_string(text: str) -> bytes:
    try:
        data = os.fsencode(text)
    except UnicodeError:
        data = b""
    if not data or b"\0" in data or len(data) >= _MAX_STRING_LENGTH:
        raise Fault(f"the loader's cache cannot hold the name {text[:80]!r}")
    return data


def _pack_words(numbers: list[int]) -> bytes:
    """32-bit words in this machine's order, without importing struct."""
    buffer = bytearray(4 * len(numbers))
    view = memoryview(buffer).cast("I")
    for index, number in enumerate(numbers):
        view[index] = number
    return bytes(buffer)


def _make_cache_fault(why: str) -> Fault:
    return Fault(f"this is no usable cache of the dynamic loader: {why}")
