"""Print what attach, detach and repair have done to a container.

Import budget: cold.
"""

from __future__ import annotations

from gpu_oci_hook.attach.operations import Result
from gpu_oci_hook.cli.printing import DATA_FORMS, print_data, print_line, print_note, print_progress, print_warning

_SUMMARIES = {
    "attached": "{container}: attached {gpus}",
    "present": "{container}: has {gpus} already; nothing was changed",
    "detached": "{container}: detached {gpus}",
    "absent": "{container}: nothing to detach",
    "repaired": "{container}: repaired; it has {gpus}",
    "complete": "{container}: nothing to repair; it has {gpus}",
    "none": "{container}: has no GPU",
}


def print_results(form: str, results: list[Result], failures: list[tuple[str, str]]) -> None:
    """Print the results of a command on containers.

    Arguments:
        form: the output format.
        failures: (container, reason) of those that could not be changed.
    """
    if form in DATA_FORMS:
        failed = [{"container": title, "reason": reason} for title, reason in failures]
        content = {"containers": [_build_result_data(result) for result in results], "failed": failed}
        print_data(form, "container-changes", content)
        return
    for result in results:
        _print_result(result)
    for title, reason in failures:
        print_warning(f"{title}: {reason}")


def _print_result(result: Result) -> None:
    """Print the changes, a summary, and what is to be known about it."""
    for change in result.changes:
        print_progress(f"  {change}")
    gpus = ", ".join(gpu.describe() for gpu in result.gpus) or "no GPU"
    print_line(_SUMMARIES[result.state].format(container=result.container, gpus=gpus))
    if result.state == "attached":
        print_note("New processes see the GPU and load its libraries, for example those of an exec into the container.")
        print_note(
            "Processes that run already can open its nodes too. They keep their environment, and the libraries that "
            "they have loaded or looked for in vain."
        )
    for holder in result.holders:
        print_warning(
            f"process {holder.pid} ({holder.command}) holds {', '.join(holder.devices)} open, "
            "and keeps it until it closes it or ends"
        )
    if result.missing:
        count = f"{len(result.missing)} parts of its plan are" if len(result.missing) > 1 else "a part of its plan is"
        print_warning(f"{count} gone, {result.missing[0]} among them. Run gpu-oci-hook repair {result.reference}")
    for note in result.notes:
        print_warning(note)


def _build_result_data(result: Result) -> dict[str, object]:
    """Build a result's part of the JSON form, which container-changes.schema.json describes."""
    return {
        "container": result.container,
        "reference": result.reference,
        "pid": result.pid,
        "state": result.state,
        "gpus": [{"index": gpu.name, "selector": gpu.selector, "model": gpu.model} for gpu in result.gpus],
        "changes": result.changes,
        "missing": result.missing,
        "holders": [
            {"pid": holder.pid, "command": holder.command, "devices": holder.devices} for holder in result.holders
        ],
        "warnings": result.notes,
    }
