"""`gpu-oci-hook cdi list`: show CDI devices, the files that define them, and problems.

Import budget: cold.
"""

from __future__ import annotations

import click

from gpu_oci_hook.cdi.registry.spec_dirs import locate_spec_dir
from gpu_oci_hook.cdi.registry.unresolved_query import describe_searched_dirs
from gpu_oci_hook.cdi.spec.finding import Finding
from gpu_oci_hook.cdi.spec.versions import find_minimum_version
from gpu_oci_hook.cli.cdi_file_report import build_ignored_finding, list_ignored_files
from gpu_oci_hook.cli.cdi_inspection import (
    CdiInspection,
    list_spec_readers,
    read_declared_version,
    spec_location_options,
)
from gpu_oci_hook.cli.common_options import QUIET, format_option, verbose_option
from gpu_oci_hook.cli.findings_report import finding_to_json, print_findings
from gpu_oci_hook.cli.printing import DATA_FORMS, print_data, print_heading, print_line, print_table


@click.command("list")
@format_option()
@click.option("-q", "--quiet", is_flag=True, help="Print only the names of the devices, and no warnings.")
@verbose_option("Print every finding, not only the first one of each cause.")
@spec_location_options
def list_cdi_devices(
    form: str, quiet: bool, verbose: bool, config_path: str, root: str, directories: tuple[str, ...]
) -> None:
    """List every CDI device, the file that defines it, the engines that read that file, and problems."""
    click.get_current_context().meta[QUIET] = quiet
    inspection = CdiInspection(config_path, root, directories)
    if form in DATA_FORMS:
        print_data(form, "cdi-list", _build_listing(inspection))
    elif quiet:
        for name in sorted(inspection.scan.winners):
            print_line(name)
    else:
        _print_devices(inspection)
        _print_files(inspection)
        _print_problems(inspection, every_finding=verbose)


def _build_listing(inspection: CdiInspection) -> dict[str, object]:
    """Build the JSON form, which cdi-list.schema.json describes."""
    scan = inspection.scan
    return {
        "directories": [
            {"path": scan.host.full_path(directory), "there": bool(locate_spec_dir(scan.host, directory))}
            for directory in scan.directories
        ],
        "devices": [
            {"name": name, "file": file.path, "wins_over": [other.path for other in scan.shadowed.get(name, [])]}
            for name, (file, _) in sorted(scan.winners.items())
        ],
        "conflicts": [
            {"name": name, "files": [file.path for file in files]} for name, files in sorted(scan.conflicts.items())
        ],
        "files": [
            {
                "path": file.path,
                "valid": file.data is not None,
                "kind": file.kind or None,
                "devices": file.devices,
                "declares": read_declared_version(file),
                "needs": find_minimum_version(file.unchecked_data)[0] if file.unchecked_data is not None else None,
                "readers": list_spec_readers(file),
                "findings": [finding_to_json(finding) for finding in inspection.collect_findings(file)],
            }
            for file in scan.files
        ],
        "ignored": _list_ignored_paths(inspection),
        "problems": [{"path": problem.file, "text": problem.text, "cure": problem.hint} for problem in scan.problems],
    }


def _list_ignored_paths(inspection: CdiInspection) -> list[str]:
    """List the files in the spec directories that engines do not read, because of their names."""
    host = inspection.scan.host
    return [
        f"{host.full_path(directory)}/{name}"
        for directory in inspection.scan.directories
        if (local_directory := locate_spec_dir(host, directory))
        for name in list_ignored_files(local_directory)
    ]


def _print_devices(inspection: CdiInspection) -> None:
    scan = inspection.scan
    if not scan.winners:
        print_line(f"no CDI file defines a device; looked in {describe_searched_dirs(scan)}")
        return
    rows = []
    for name, (file, _) in sorted(scan.winners.items()):
        shadowed = ", ".join(other.path for other in scan.shadowed.get(name, []))
        rows.append((name, file.path, f"overrides {shadowed}" if shadowed else ""))
    print_table(("device", "file", ""), rows)


def _print_files(inspection: CdiInspection) -> None:
    files = inspection.scan.files
    if not files:
        return
    print_heading("files")
    print_table(
        ("file", "kind", "devices", "CDI", "read by (first version)"),
        [
            (
                file.path,
                file.kind,
                str(len(file.devices)),
                read_declared_version(file) or "",
                ", ".join(list_spec_readers(file)) or "-",
            )
            for file in files
        ],
    )


def _print_problems(inspection: CdiInspection, *, every_finding: bool) -> None:
    problems = [*inspection.scan.problems]
    for name, files in sorted(inspection.scan.conflicts.items()):
        text = f"conflict: not used, because {' and '.join(file.path for file in files)} define it"
        problems.append(Finding("error", name, "", text))
    for file in inspection.scan.files:
        findings = inspection.collect_findings(file)
        problems += [finding for finding in findings if every_finding or finding.level != "info"]
    problems += [build_ignored_finding(path, "info") for path in _list_ignored_paths(inspection)]
    if problems:
        print_heading("problems")
        print_findings(problems, prefix="- ", every_finding=every_finding)
