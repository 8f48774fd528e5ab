"""README.md and docs/: what operators copy is what the project ships, links lead somewhere, facts are cited and
listed.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from gpu_oci_hook import cli
from gpu_oci_hook.config.keys import KEYS
from gpu_oci_hook.request.capabilities import KNOWN_CAPABILITIES
from gpu_oci_hook.simulate import host_tree

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
SNIPPETS = sorted(
    path
    for path in (ROOT / "packaging").rglob("*")
    if path.suffix in (".json", ".toml", ".conf") and path.parent.name != "systemd"
)
# What git ignores, and git itself.
IGNORED = {
    ".git",
    ".venv",
    ".mypy_cache",
    ".ruff_cache",
    ".pytest_cache",
    ".hypothesis",
    ".import_linter_cache",
    "__pycache__",
}
FACTS = ROOT / "docs/facts.md"
CITATION = re.compile(r"\(facts:\s+([a-z0-9,\s-]+)\)")
# Names of documents that are not in the repository, and codes of lists that are not.
DEAD_CITATION = re.compile(
    r"(ecosystem|toolkit) facts|field report|cases\.md|\bdesign [0-9]|"
    r"\(?\b[ADC][0-9]{1,2}-[0-9]{2}\b|\bR[0-9]{2}\b(?! \(release\))"
)


def read_sources() -> dict[Path, str]:
    """Every text file of the project, by path; without git, which a fresh machine does not have."""
    suffixes = ("", ".py", ".md", ".toml", ".json", ".conf", ".service", ".sh", ".in", ".c")
    sources = {}
    for directory, directories, names in os.walk(ROOT):
        directories[:] = [name for name in directories if name not in IGNORED and not name.endswith(".egg-info")]
        for name in names:
            path = Path(directory, name)
            if path.is_file() and not path.is_symlink() and path.suffix in suffixes:
                sources[path] = path.read_text(errors="replace")
    return sources


def find_anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", text, flags=re.S), re.M)
    return {re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_readme_begins_with_the_two_commands_and_is_short() -> None:
    text = (ROOT / "README.md").read_text()
    first = text.split("```")[1]
    assert "scripts/demo" in first and "scripts/test" in first
    for name in ("scripts/demo", "scripts/test"):
        assert (ROOT / name).stat().st_mode & 0o111
    assert len(text.splitlines()) <= 200


def test_the_readme_shows_what_list_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "README.md").read_text()
    sample = text.partition("$ gpu-oci-hook list\n")[2].partition("```")[0]
    host_tree.build_host(tmp_path, gpus=2)
    capsys.readouterr()
    assert cli.run_command_line(["list", "--root", str(tmp_path)]) == 0
    assert capsys.readouterr().out == sample


def test_the_readme_shows_lines_that_explain_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line with nothing but an ellipsis stands for any number of lines."""
    text = (ROOT / "README.md").read_text()
    command, _, sample = text.partition("$ gpu-oci-hook explain --env ")[2].partition("```")[0].partition("\n")
    host_tree.build_host(tmp_path, gpus=2)
    capsys.readouterr()
    assert cli.run_command_line(["explain", "--env", *command.split(), "--root", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    position = 0
    for number, part in enumerate(f"\n{sample}".split("\n…\n")):
        found = f"\n{printed}".find(f"{part}\n", position) if part else position
        assert found == 0 if number == 0 else found >= position, f"explain does not print, or not there:{part}"
        position = found + len(part)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_no_page_has_marks_of_a_merge(path: Path) -> None:
    assert not re.findall(r"^(?:<{7} |={7}$|>{7} ).*", path.read_text(), re.M)


@pytest.mark.parametrize("path", SNIPPETS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_page_shows_each_snippet_as_it_is(path: Path) -> None:
    language = "json" if path.suffix == ".json" else "toml"
    page = "hooks.md" if path.parent.name == "hooks.d" else "engines.md"
    assert f"```{language}\n{path.read_text()}```" in (ROOT / "docs" / page).read_text()


def test_the_pages_name_every_capability_every_table_and_only_real_keys() -> None:
    readme, contract = (ROOT / "README.md").read_text(), (ROOT / "docs/containers.md").read_text()
    for word in KNOWN_CAPABILITIES:
        assert f"`{word}`" in readme and f"`{word}`" in contract
    known = {(row[0], row[1]) for row in KEYS}
    for table in {table for table, _ in known}:
        assert f"`[{table}]`" in readme
    for page in PAGES:
        for table, key in re.findall(r"`\[(\w+)\] ([a-z-]+)", page.read_text()):
            assert (table, key) in known, f"{page.name}: [{table}] {key}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_has_no_dead_link_and_no_path_of_one_machine(page: Path) -> None:
    text = page.read_text()
    assert not re.search(r"/(home|root|work)/", text)
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if target.startswith("https://"):
            continue
        name, _, anchor = target.partition("#")
        other = (page.parent / name) if name else page
        assert other.exists(), target
        assert not anchor or anchor in find_anchors(other.read_text()), target


def test_every_cited_fact_is_listed_and_every_listed_fact_is_cited() -> None:
    cited: set[str] = set()
    for path, text in read_sources().items():
        if path not in (FACTS, Path(__file__)):
            for names in CITATION.findall(text):
                cited.update(name.strip() for name in names.split(","))
    cited.discard("name")  # the example in CONTRIBUTING.md
    listed = set(re.findall(r"^### ([a-z0-9-]+)$", FACTS.read_text(), re.M))
    assert cited == listed


def test_nothing_cites_what_is_not_in_the_repository() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {match.group(0)}"
        for path, text in read_sources().items()
        if path != Path(__file__) and path.name != "LICENSE"
        for match in DEAD_CITATION.finditer(text)
    ]
    assert not found, found


def test_no_file_of_the_package_has_the_name_of_another() -> None:
    names = [path.name for path in (ROOT / "src/gpu_oci_hook").rglob("*.py") if path.name != "__init__.py"]
    assert sorted(names) == sorted(set(names))
