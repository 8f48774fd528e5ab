"""JetPack's CSV lists of nodes and files: what each line says, and what of it is there.

A line is "TYPE, PATH", split at the first comma; a path may have the wildcards * ? [ ]. Types: dev (a character
device), dir (a directory), lib (a file), sym (a link). Of links the chain is made anew in the container, and the file
at its end comes along, at the path that it has here. Nothing is required. Facts: container toolkit 3.15. Cost rule:
cold; only when something has changed, but `check_device_line` on each start on such a board.
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

    # File, number of the line, type, path, what became of it ("matched" if anything), the paths that it stands for.
    CsvLine = tuple[str, int, str, str, str, tuple[str, ...]]

STANDARD_LISTS = ("devices.csv", "drivers.csv", "l4t.csv")
LINE_TYPES = ("dev", "dir", "lib", "sym")
_WILDCARDS = frozenset("*?[")
_SIZE_LIMIT = 1 << 20
_MAX_PATHS = 4096  # directories that one line may make us list, and paths that it may stand for


def search_csv_files(
    host: Host, driver: Host, directory: str, ignore_patterns: tuple[str, ...], *, all_lists: bool
) -> InventorySearchResult:
    """The files of the lists: (witnesses, inventory, (lines, links)).

    Arguments:
        host: the machine, which has the lists and the nodes. driver: the root that has the files.
        directory: of the lists. ignore_patterns: patterns of links that are left out.
        all_lists: all lists of the directory, not the three that every JetPack has.
    """
    lists = _CsvSearch(host, driver, ignore_patterns)
    lists.host_search.find_directory(directory)
    wanted = [name for name in host.list_names(directory) if name.lower().endswith(".csv") and name.lower() != ".csv"]
    if not all_lists:
        wanted = [name for name in STANDARD_LISTS if name in wanted]
    if wanted and not lists.check_trust(directory, host.stat_path(directory)):
        wanted = []
    elif not wanted:
        looked = "*.csv" if all_lists else ", ".join(STANDARD_LISTS)
        lists.problems.append(
            f"no list of the board's nodes and files in {host.full_path(directory)}: looked for {looked}"
        )
    lists.search_report.append((directory, ", ".join(wanted) or "no list"))
    for name in wanted:
        lists.read_csv_file(f"{directory}/{name}")
    lists.add_release_file()
    trees = tuple([f"{path}/" for path, file in lists.files.items() if file.kind == "tree"])
    # Of what lies in a directory that goes in as a whole, only libraries have to be known by name.
    files = [
        file for path, file in lists.files.items() if not trees or file.kind == "library" or not path.startswith(trees)
    ]
    inventory = Inventory(
        version="",
        files=tuple(files),
        search_report=tuple(lists.search_report),
        problems=tuple(lists.problems),
    )
    witnesses = (*lists.host_search.collect_stat_signatures(), *lists.uncacheable)
    if lists.driver_search is not lists.host_search:
        witnesses = (*witnesses, *lists.driver_search.collect_stat_signatures())
    links = tuple([(path, target, where) for path, (target, where) in lists.links.items()])
    return witnesses, inventory.to_data(), (tuple(lists.lines), links)


def parse_csv_lines(text: str) -> list[tuple[int, str, str]]:
    """(number, type, path) of the lines that say anything; the path is empty where there is no comma."""
    found = []
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if line and not line.startswith("#"):
            kind, _, path = line.partition(",")
            found.append((number, kind.strip(), path.strip()))
    return found


def expand_wildcards(host: Host, pattern: str, on_directory: Callable[[str], object] = str) -> list[str]:
    """The paths that a pattern stands for: itself when it has no wildcard, whether it exists or not.

    Arguments:
        on_directory: is told each directory that the answer depends on.

    Raises:
        Fault: it stands for far more than a board has.
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
            raise Fault(f"too many: it stands for more than {_MAX_PATHS} paths")
        for path in paths:
            on_directory(path or "/")
        # As in a shell, a wildcard stands for no name with a dot in front.
        paths = [
            f"{path}/{name}"
            for path in paths
            for name in host.list_names(path or "/")
            if fnmatchcase(name, part) and (not name.startswith(".") or part.startswith("."))
        ]
    if len(paths) > _MAX_PATHS:
        raise Fault(f"too many: it stands for more than {_MAX_PATHS} paths")
    return paths


def check_device_line(host: Host, line: CsvLine) -> CsvLine:
    """A line about nodes, with what is there now."""
    file, number, kind, pattern, what, _ = line
    if what:
        return line
    paths = []
    wrong = 0
    try:
        there = expand_wildcards(host, pattern)
    except Fault as fault:
        return file, number, kind, pattern, fault.what, ()
    for path in there:
        status = host.stat_path(path)
        if status is not None and stat.S_ISCHR(status.st_mode):
            paths.append(path)
        else:
            wrong += status is not None
    what = "matched" if paths else "wrong kind: no character device" if wrong else "missing"
    return file, number, kind, pattern, what, tuple(paths)


def is_ignored_link(path: str, patterns: tuple[str, ...]) -> bool:
    """Whether one of the patterns has a path: a whole one, or after "**/" one for the last name."""
    name = path.rpartition("/")[2]
    return any(
        fnmatchcase(name, pattern[3:]) if pattern.startswith("**/") else _matches_path_pattern(path, pattern)
        for pattern in patterns
    )


def _normalize_path(path: str) -> str:
    """An absolute path without doubled slashes and single dots; ".." stays, and is refused."""
    return "/" + "/".join([part for part in path.split("/") if part not in ("", ".")]) if path[:1] == "/" else path


def _matches_path_pattern(path: str, pattern: str) -> bool:
    """A wildcard never stands for a slash."""
    a, b = path.split("/"), pattern.split("/")
    return len(a) == len(b) and all(fnmatchcase(x, y) for x, y in zip(a, b, strict=True))


class _CsvSearch:
    """The lists of one board.

    files: path to file. links: path to (target, line). lines, search_report, problems: the report. uncacheable: keeps the answer
    from being remembered: another owner or mode is no change that a witness sees.
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
        """Whether nobody but root can write there: what a list names is mounted, as if the configuration named it."""
        what = describe_foreign_access(status) if status is not None else ""
        if what:
            self.problems.append(f"{self.host.full_path(path)} {what}, so it counts for nothing")
            self.uncacheable.append((self.host.full_path(path), 0, 0, -1))
        return not what

    def read_csv_file(self, file: str) -> None:
        """One list."""
        hit = self.host_search.find_file(file)
        if isinstance(hit, str):
            self.problems.append(f"{self.host.full_path(file)} {hit}, so it counts for nothing")
            return
        self.host_search.watch_file(hit[0])
        if not self.check_trust(file, hit[1]):
            return
        try:
            text = os.fsdecode(self.host.read_file(file, _SIZE_LIMIT) or b"")
        except Fault as fault:
            self.problems.append(f"a list counts for nothing: {fault}")
            return
        counts: dict[str, int] = {}
        for number, kind, said in parse_csv_lines(text):
            # One path has one spelling: the nodes of a discrete GPU are told by theirs.
            path = _normalize_path(said)
            what, paths = self._resolve_line(f"{file.rpartition('/')[2]}:{number}", kind, path)
            self.lines.append((file, number, kind, path, what, tuple(paths)))
            word = (what or "nodes, looked at every time").partition(":")[0]
            counts[word] = counts.get(word, 0) + 1
        self.search_report.append((file, ", ".join(f"{count} {word}" for word, count in counts.items()) or "no line"))

    def _resolve_line(self, where: str, kind: str, pattern: str) -> tuple[str, list[str]]:
        if kind not in LINE_TYPES:
            return f"unknown type: known are {', '.join(LINE_TYPES)}", []
        if not pattern.startswith("/") or "\0" in pattern or ".." in pattern.split("/"):
            return ("no absolute path" if pattern else "no path"), []
        if kind == "dev":
            return "", []
        paths: list[str] = []
        reasons: list[str] = []
        try:
            there = expand_wildcards(self.driver, pattern, self.driver_search.find_directory)
        except Fault as fault:
            return fault.what, []
        for path in there:
            reason = self._add_path(where, kind, path)
            (reasons if reason else paths).append(reason or path)
        if paths:
            return "matched", paths
        return (reasons[0] if reasons else "missing"), []

    def _add_path(self, where: str, kind: str, path: str) -> str:
        """Takes what is there into the files and links; why not, "" when it did."""
        if kind == "sym" and is_ignored_link(path, self.ignore_patterns):
            return "ignored: [host] csv-ignore"
        self.driver_search.find_directory(path.rpartition("/")[0] or "/")  # what appears or goes there later counts
        real = self.driver_search.resolve_path(path)
        if real is None:
            return "missing"
        status = self.driver.stat_path(real, follow=False)
        if status is None:
            return "missing"
        folder = stat.S_ISDIR(status.st_mode)
        if real == "/":
            return "wrong kind: the root directory"
        if kind == "dir" and not folder:
            return "wrong kind: no directory"
        if kind == "lib" and folder:
            return "wrong kind: a directory"
        if not folder and not stat.S_ISREG(status.st_mode):
            return "wrong kind: no regular file"
        if not folder and status.st_size == 0:
            return "wrong kind: an empty file"
        self._add_link_chain(where, path)
        if real not in self.files:
            self.files[real] = self._build_driver_file("tree", where, real) if folder else self._build_file(where, real)
        return ""

    def _is_link(self, path: str) -> bool:
        status = self.driver.stat_path(path, follow=False)
        return status is not None and stat.S_ISLNK(status.st_mode)

    def _add_link_chain(self, where: str, path: str) -> None:
        """Every link from `path` to the file at its end; one more where a directory on the way is a link."""
        for _ in range(MAX_LINKS):
            above, _, name = path.rpartition("/")
            parent = self.driver.resolve_path(above or "/") or above
            real = f"{parent.rstrip('/')}/{name}"
            if real != path:
                self.links.setdefault(path, (real, where))
                path = real
            if not self._is_link(path):
                return
            target = os.readlink(self.driver.full_path(parent).rstrip("/") + f"/{name}")
            self.links.setdefault(path, (target, where))
            path = os.path.normpath(target if target.startswith("/") else f"{parent}/{target}")

    def _build_file(self, where: str, real: str) -> DriverFile:
        self.driver_search.watch_file(real)
        facts = self.driver_search.read_elf(real)
        name = real.rpartition("/")[2]
        if isinstance(facts, str) or ".so" not in name or not facts.arch:
            return self._build_driver_file("config", where, real)
        soname = facts.soname or name
        entry = self.catalogue.get(library_stem(soname))
        links = [link for link in (entry.links if entry else ()) if "/" not in link and link not in (name, soname)]
        made = self._build_driver_file("library", where, real)
        made.soname, made.links, made.arch = soname, tuple(links), facts.arch
        made.needs, made.glibc = tuple(facts.needed), facts.glibc
        return made

    def _build_driver_file(
        self, kind: str, where: str, real: str, *, root: Host | None = None, container_path: str = ""
    ) -> DriverFile:
        return DriverFile(
            kind=kind,
            capability="",
            path=real,
            source=(root or self.driver).full_path(real),
            name=(container_path or real).rpartition("/")[2],
            container_path=container_path or real,
            found_in=where,
        )

    def add_release_file(self) -> None:
        """The board's release, which programs of JetPack ask for."""
        hit = self.host_search.find_file(TEGRA_RELEASE_FILE)
        if not isinstance(hit, str):
            self.host_search.watch_file(hit[0])
            self.files.setdefault(
                TEGRA_RELEASE_FILE,
                self._build_driver_file(
                    "config", TEGRA_RELEASE_FILE, hit[0], root=self.host, container_path=TEGRA_RELEASE_FILE
                ),
            )
