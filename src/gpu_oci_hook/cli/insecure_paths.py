"""Find paths where users other than root could change what root runs, and paths that other users cannot use.

Import budget: cold.
"""

from __future__ import annotations

import os
import stat
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


def find_unreachable_paths(paths: list[str]) -> list[str]:
    """Return one sentence per directory or file that keeps other users from running what is at or below the paths.

    Rootless engines start the launchers as their own users.
    """
    problems: dict[Path, str] = {}
    for name in paths:
        path = Path(name)
        for checked in (*reversed(path.parents), path):
            try:
                mode = checked.stat().st_mode
            except OSError:
                break
            needed = 0o001 if checked in path.parents else 0o005
            if mode & needed != needed:
                problems.setdefault(checked, f"has mode {stat.S_IMODE(mode):04o}, so other users cannot run {path}")
                break
    return [
        f"{path} {problem}: containers of rootless engines of other users will not start. Install launchers, "
        "Python packages and interpreter where every user can read them"
        for path, problem in problems.items()
    ][:1]


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
