"""Load the configuration for a prestart or precreate hook, and cache it for `hook.quick_answer` and the next call.

Import budget: cold.
"""

from __future__ import annotations

import marshal
import time

from gpu_oci_hook.config.keys import Config
from gpu_oci_hook.files import state_dir
from gpu_oci_hook.hook.quick_answer import BUILD_STAMP, CACHE_NAME, find_cached_config, load_cached_configs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.formats.oci import Object

_MAX_CACHED_CONFIGS = 16
# A file that changes again within a tick of the kernel's clock can keep its stat signature.
_SETTLE_TIME_NS = 100_000_000


def load_hook_config(spec: Object) -> Config | None:
    """Return the configuration; None for a container without a request, which starts even if the file is faulty.

    Raises:
        Fault: see `inject.pipeline.load_config_for_request`.
    """
    path = state_dir.get_environment_variable("GPU_OCI_HOOK_CONFIG") or state_dir.DEFAULT_CONFIG_PATH
    cached = find_cached_config(path)
    config = Config.from_data(cached[2]) if cached is not None else None
    if config is not None:
        return config
    from gpu_oci_hook.inject.pipeline import load_config_for_request

    signature = state_dir.get_file_signature(path)
    config = load_config_for_request(spec)
    if config is not None and signature:
        _cache_config(path, signature, config)
    return config


def _cache_config(path: str, signature: tuple[int, ...], config: Config) -> None:
    """Cache a configuration, unless its file has changed this very moment."""
    from gpu_oci_hook.config.load import list_request_words

    if abs(time.time_ns() - signature[-1]) < _SETTLE_TIME_NS:
        return
    entries = load_cached_configs()
    entries.pop(path, None)
    entries[path] = signature, list_request_words(config), config.to_data()
    while len(entries) > _MAX_CACHED_CONFIGS:
        del entries[next(iter(entries))]
    state_dir.write_state(CACHE_NAME, marshal.dumps((BUILD_STAMP, entries)))
