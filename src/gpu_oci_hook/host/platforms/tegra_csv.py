"""Read JetPack's CSV lists of nodes and files, and resolve each line on this host (facts: jetpack-csv-lists).

A line is "TYPE, PATH", split at the first comma. A path may have the wildcards * ? [ ]. Types: dev (a character
device), dir (a directory), lib (a file), sym (a link). The chain of a link is reproduced in the container, and the file
at its end is mounted at its host path. No line is required to match.

Import budget: cold.
"""

from __future__ import annotations

import os
import stat
from fnmatch import fnmatchcase

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.files.trust import describe_foreign_access
from gpu_oci_hook.host.driver.catalogue import library_stem, load_catalogue
from gpu_oci_hook.host.driver.search import FileSearch
from gpu_oci_hook.host.platforms.platform import TEGRA_RELEASE_FILE
from gpu_oci_hook.host.root import MAX_LINKS, Host
from gpu_oci_hook.model.machine import DriverFile, Inventory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from gpu_oci_hook.model.machine import InventorySearchResult, StatSignature

    # File, line number, type, path, result ("matched" if a path exists), the paths that match. The result of a node is
    # "" until `check_device_line`.
    CsvLine = tuple[str, int, str, str, str, tuple[str, ...]]

STANDARD_LISTS = ("devices.csv", "drivers.csv", "l4t.csv")
LINE_TYPES = ("dev", "dir", "lib", "sym")
_WILDCARDS = frozenset("*?[")
_SIZE_LIMIT = 1 << 20
_MAX_PATHS = 4096  # directories that are listed for one line, and paths that one line may match


def search_csv_files(
    host: Host, driver: Host, directory: str, ignore_patterns: tuple[str, ...], *, all_lists: bool
) -> InventorySearchResult:
    """Search the files of the lists; return (stat signatures, inventory, (lines, links)).

    Arguments:
        host: the machine, which has the lists and the nodes.
        driver: the root with the files.
        directory: the directory of the lists.
        ignore_patterns: patterns of links that are ignored.
        all_lists: read all lists of the directory, not only STANDARD_LISTS (facts: csv-lists).
    """
    lists = _CsvSearch(host, driver, ignore_patterns)
    lists.host_search.find_directory(directory)
    names = [name for name in host.list_names(directory) if name.lower().endswith(".csv") and name.lower() != ".csv"]
    if not all_lists:
        names = [name for name in STANDARD_LISTS if name in names]
    if names and not lists.check_trust(directory, host.stat_path(directory)):
        names = []
    elif not names:
        searched = "*.csv" if all_lists else ", ".join(STANDARD_LISTS)
        lists.problems.append(
            f"no list of the board's nodes and files in {host.full_path(directory)}: searched for {searched}"
        )
    lists.search_report.append((directory, ", ".join(names) or "no list"))
    for name in names:
        lists.read_csv_file(f"{directory}/{name}")
    lists.add_release_file()
    trees = tuple([f"{path}/" for path, file in lists.files.items() if file.kind == "tree"])
    # A directory that is mounted as a whole contains its files already. Libraries are kept for their names.
    files = [
        file for path, file in lists.files.items() if not trees or file.kind == "library" or not path.startswith(trees)
    ]
    inventory = Inventory(
        version="",
        files=tuple(files),
        search_report=tuple(lists.search_report),
        problems=tuple(lists.problems),
    )
    signatures = (*lists.host_search.collect_stat_signatures(), *lists.uncacheable)
    if lists.driver_search is not lists.host_search:
        signatures = (*signatures, *lists.driver_search.collect_stat_signatures())
    links = tuple([(path, target, line) for path, (target, line) in lists.links.items()])
    return signatures, inventory.to_data(), (tuple(lists.lines), links)


def parse_csv_lines(text: str) -> list[tuple[int, str, str]]:
    """Return (number, type, path) of the lines that are not empty or comments. A line without comma has no path."""
    lines = []
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if line and not line.startswith("#"):
            kind, _, path = line.partition(",")
            lines.append((number, kind.strip(), path.strip()))
    return lines


def expand_wildcards(host: Host, pattern: str, on_directory: Callable[[str], object] = str) -> list[str]:
    """Return the paths that a pattern matches. A pattern without wildcards is returned even if it does not exist.

    Arguments:
        on_directory: called with each directory that the result depends on.

    Raises:
        Fault: the pattern matches far more paths than a board has.
    """
    if not _WILDCARDS & set(pattern):
        return [pattern]
    paths = [""]
    budget = _MAX_PATHS
    for part in pattern.strip("/").split("/"):
        if not _WILDCARDS & set(part):
            paths = [f"{path}/{part}" for path in paths]
            continue
        budget -= len(paths)
        if budget < 0:
            raise Fault(f"too many: it matches more than {_MAX_PATHS} paths")
        for path in paths:
            on_directory(path or "/")
        # As in a shell, a wildcard does not match names with a leading dot.
        paths = [
            f"{path}/{name}"
            for path in paths
            for name in host.list_names(path or "/")
            if fnmatchcase(name, part) and (not name.startswith(".") or part.startswith("."))
        ]
    if len(paths) > _MAX_PATHS:
        raise Fault(f"too many: it matches more than {_MAX_PATHS} paths")
    return paths


def check_device_line(host: Host, line: CsvLine) -> CsvLine:
    """Return a line about nodes with its result as of now."""
    file, number, kind, pattern, result, _ = line
    if result:
        return line
    paths = []
    has_wrong_type = False
    try:
        candidates = expand_wildcards(host, pattern)
    except Fault as fault:
        return file, number, kind, pattern, fault.what, ()
    for path in candidates:
        status = host.stat_path(path)
        if status is not None and stat.S_ISCHR(status.st_mode):
            paths.append(path)
        elif status is not None:
            has_wrong_type = True
    result = "matched" if paths else "wrong type: not a character device" if has_wrong_type else "missing"
    return file, number, kind, pattern, result, tuple(paths)


def is_ignored_link(path: str, patterns: tuple[str, ...]) -> bool:
    """Tell whether a path matches one of the patterns. A pattern "**/NAME" is compared with the last component."""
    name = path.rpartition("/")[2]
    return any(
        fnmatchcase(name, pattern[3:]) if pattern.startswith("**/") else _matches_path_pattern(path, pattern)
        for pattern in patterns
    )


def _normalize_path(path: str) -> str:
    """Return an absolute path without empty components and "."; ".." stays, because such a path is refused."""
    return "/" + "/".join([part for part in path.split("/") if part not in ("", ".")]) if path[:1] == "/" else path


def _matches_path_pattern(path: str, pattern: str) -> bool:
    """Tell whether a path matches a pattern whose wildcards match no slash."""
    a, b = path.split("/"), pattern.split("/")
    return len(a) == len(b) and all(fnmatchcase(x, y) for x, y in zip(a, b, strict=True))


class _CsvSearch:
    """The search for the files of one board's lists.

    Attributes:
        files: path to file.
        links: path to (target, line).
        lines, search_report, problems: the results for the user.
        uncacheable: signatures that never hold. They keep a result from being cached that depends on the owner or mode
            of a file, which a stat signature does not contain.
    """

    def __init__(self, host: Host, driver: Host, ignore_patterns: tuple[str, ...]) -> None:
        self.host = host
        self.driver = driver
        self.ignore_patterns = ignore_patterns
        self.host_search = FileSearch(host)
        self.driver_search = self.host_search if driver.root == host.root else FileSearch(driver)
        self.catalogue = load_catalogue().libraries
        self.files: dict[str, DriverFile] = {}
        self.links: dict[str, tuple[str, str]] = {}
        self.lines: list[CsvLine] = []
        self.search_report: list[tuple[str, str]] = []
        self.problems: list[str] = []
        self.uncacheable: list[StatSignature] = []

    def check_trust(self, path: str, status: os.stat_result | None) -> bool:
        """Tell whether only trusted users can write the path: the files of a list are mounted like configured ones."""
        problem = describe_foreign_access(status) if status is not None else ""
        if problem:
            self.problems.append(f"{self.host.full_path(path)} {problem}, so it is ignored")
            self.uncacheable.append((self.host.full_path(path), 0, 0, -1))
        return not problem

    def read_csv_file(self, file: str) -> None:
        """Read one list and resolve its lines."""
        hit = self.host_search.find_file(file)
        if isinstance(hit, str):
            self.problems.append(f"{self.host.full_path(file)} {hit}, so it is ignored")
            return
        self.host_search.watch_file(hit[0])
        if not self.check_trust(file, hit[1]):
            return
        try:
            text = os.fsdecode(self.host.read_file(file, _SIZE_LIMIT) or b"")
        except Fault as fault:
            self.problems.append(f"a list is ignored: {fault}")
            return
        counts: dict[str, int] = {}
        for number, kind, listed_path in parse_csv_lines(text):
            # Normalised, because the nodes of a discrete GPU are recognised by their paths.
            path = _normalize_path(listed_path)
            result, paths = self._resolve_line(f"{file.rpartition('/')[2]}:{number}", kind, path)
            self.lines.append((file, number, kind, path, result, tuple(paths)))
            summary = (result or "nodes, checked on every start").partition(":")[0]
            counts[summary] = counts.get(summary, 0) + 1
        report = ", ".join(f"{count} {summary}" for summary, count in counts.items())
        self.search_report.append((file, report or "no line"))

    def _resolve_line(self, line: str, kind: str, pattern: str) -> tuple[str, list[str]]:
        """Return the result of a line and the paths that match; ("", []) for a node.

        Arguments:
            line: file and number of the line, for people.
        """
        if kind not in LINE_TYPES:
            return f"unknown type: valid are {', '.join(LINE_TYPES)}", []
        if not pattern.startswith("/") or "\0" in pattern or ".." in pattern.split("/"):
            return ("not an absolute path without .." if pattern else "no path"), []
        if kind == "dev":
            return "", []
        paths: list[str] = []
        reasons: list[str] = []
        try:
            candidates = expand_wildcards(self.driver, pattern, self.driver_search.find_directory)
        except Fault as fault:
            return fault.what, []
        for path in candidates:
            reason = self._add_path(line, kind, path)
            (reasons if reason else paths).append(reason or path)
        if paths:
            return "matched", paths
        return (reasons[0] if reasons else "missing"), []

    def _add_path(self, line: str, kind: str, path: str) -> str:
        """Add a path to the files and links. Return "", or the reason why it is not added."""
        if kind == "sym" and is_ignored_link(path, self.ignore_patterns):
            return "ignored: [host] csv-ignore"
        self.driver_search.find_directory(path.rpartition("/")[0] or "/")  # so that a later change is noticed
        resolved = self.driver_search.resolve_path(path)
        status = self.driver.stat_path(resolved, follow=False) if resolved is not None else None
        if resolved is None or status is None:
            return "missing"
        is_directory = stat.S_ISDIR(status.st_mode)
        if resolved == "/":
            return "wrong type: the root directory"
        if kind == "dir" and not is_directory:
            return "wrong type: not a directory"
        if kind == "lib" and is_directory:
            return "wrong type: a directory"
        if not is_directory and not stat.S_ISREG(status.st_mode):
            return "wrong type: not a regular file"
        if not is_directory and status.st_size == 0:
            return "wrong type: an empty file"
        self._add_link_chain(line, path)
        if resolved not in self.files:
            self.files[resolved] = (
                self._build_driver_file("tree", line, resolved) if is_directory else self._build_file(line, resolved)
            )
        return ""

    def _is_link(self, path: str) -> bool:
        status = self.driver.stat_path(path, follow=False)
        return status is not None and stat.S_ISLNK(status.st_mode)

    def _add_link_chain(self, line: str, path: str) -> None:
        """Add every link from `path` to the file at its end, and one for a directory on the way that is a link."""
        for _ in range(MAX_LINKS):
            directory, _, name = path.rpartition("/")
            parent = self.driver.resolve_path(directory or "/") or directory
            path_in_parent = f"{parent.rstrip('/')}/{name}"
            if path_in_parent != path:
                self.links.setdefault(path, (path_in_parent, line))
                path = path_in_parent
            if not self._is_link(path):
                return
            target = os.readlink(self.driver.full_path(parent).rstrip("/") + f"/{name}")
            self.links.setdefault(path, (target, line))
            path = os.path.normpath(target if target.startswith("/") else f"{parent}/{target}")

    def _build_file(self, line: str, path: str) -> DriverFile:
        """Build the description of a file without links: a library, or any other file."""
        self.driver_search.watch_file(path)
        elf = self.driver_search.read_elf(path)
        name = path.rpartition("/")[2]
        if isinstance(elf, str) or ".so" not in name or not elf.arch:
            return self._build_driver_file("config", line, path)
        soname = elf.soname or name
        entry = self.catalogue.get(library_stem(soname))
        links = [link for link in (entry.links if entry else ()) if "/" not in link and link not in (name, soname)]
        file = self._build_driver_file("library", line, path)
        file.soname, file.links, file.arch = soname, tuple(links), elf.arch
        file.needs, file.glibc = tuple(elf.needed), elf.glibc
        return file

    def _build_driver_file(
        self, kind: str, found_in: str, path: str, *, root: Host | None = None, container_path: str = ""
    ) -> DriverFile:
        return DriverFile(
            kind=kind,
            capability="",
            path=path,
            source=(root or self.driver).full_path(path),
            name=(container_path or path).rpartition("/")[2],
            container_path=container_path or path,
            found_in=found_in,
        )

    def add_release_file(self) -> None:
        """Add the file with the board's release, which JetPack's programs read."""
        hit = self.host_search.find_file(TEGRA_RELEASE_FILE)
        if not isinstance(hit, str):
            self.host_search.watch_file(hit[0])
            self.files.setdefault(
                TEGRA_RELEASE_FILE,
                self._build_driver_file(
                    "config", TEGRA_RELEASE_FILE, hit[0], root=self.host, container_path=TEGRA_RELEASE_FILE
                ),
            )
