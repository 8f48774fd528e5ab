"""Write the cached low-level runtimes in the two forms of their readers: the compiled launcher and this package.

The file is the records for `src/launcher/gpu-oci-runtime.c`, with their size in four bytes before them, and then
marshal's data. Records are texts that end with a NUL: format, version, and for each combination of configuration and
PATH its config file, PATH, signature of the config file, low-level runtime, signature of the runtime, number of trigger
words and the words.

Import budget: cold.
"""

from __future__ import annotations

import marshal
import os
import sys

from gpu_oci_hook import VERSION

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.shim.main import CachedRuntimes

FORMAT = "gpu-oci-launcher 1"
MAX_TRIGGERS = 64
SIZE_BYTES = 4


def encode_cache(build_stamp: tuple[str, int], entries: CachedRuntimes) -> bytes:
    """Return the content of the cache file."""
    records = encode_records(entries)
    return len(records).to_bytes(SIZE_BYTES, sys.byteorder) + records + marshal.dumps((build_stamp, entries))


def encode_records(entries: CachedRuntimes) -> bytes:
    """Return the records for the compiled launcher.

    An entry is left out, and Python decides about its calls, if containers of another low-level runtime may still live
    or the launcher has no room for its trigger words.
    """
    texts = [FORMAT.encode(), VERSION.encode()]
    for (config_path, search_path), entry in entries.items():
        config_signature, runtime, runtime_signature, _, triggers, earlier = entry
        if earlier or len(triggers) > MAX_TRIGGERS or not runtime_signature or b"\0" in b"".join(triggers):
            continue
        texts += [
            os.fsencode(config_path),
            b"" if search_path is None else b"=" + os.fsencode(search_path),
            _format_signature(config_signature),
            os.fsencode(runtime),
            _format_signature(runtime_signature),
            str(len(triggers)).encode(),
            *triggers,
        ]
    return b"".join(text + b"\0" for text in texts)


def _format_signature(signature: tuple[int, ...]) -> bytes:
    return " ".join(map(str, signature)).encode()
