"""Find paths where users other than root could change what root runs.

Import budget: cold.
"""

from __future__ import annotations

import os
from pathlib import Path

from gpu_oci_hook.files.trust import describe_foreign_access

_MAX_SENTENCES = 5


def find_insecure_paths(paths: list[str]) -> list[str]:
    """Return one sentence per path that other users can change, parents and our package's files included."""
    problems: dict[str, str] = {}
    for name in paths:
        path = Path(name)
        for checked in (*reversed(path.parents), path, *_list_package_files(path)):
            problem = _describe_insecurity(checked, is_parent=checked in path.parents)
            if problem:
                problems.setdefault(str(checked), problem)
    sentences = [
        f"{path} {problem}: anyone who writes there runs code as root when a container starts"
        for path, problem in problems.items()
    ]
    more = len(sentences) - _MAX_SENTENCES
    return sentences[:_MAX_SENTENCES] + ([f"and {more} more such paths"] if more > 0 else [])


def _list_package_files(path: Path) -> list[Path]:
    if path.name != "gpu_oci_hook":
        return []
    return [Path(directory, name) for directory, _, names in os.walk(path) for name in ("", *names)]


def _describe_insecurity(path: Path, *, is_parent: bool) -> str:
    """Return how other users can change a path, "" if they cannot."""
    try:
        status = path.stat()
    except OSError:
        return ""
    return describe_foreign_access(status, sticky_parent=is_parent)
