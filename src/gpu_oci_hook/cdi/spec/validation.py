"""Validate a CDI file: the table of all checks.

The checks are as strict as the reference library (container-device-interface 1.1.0, pkg/cdi). A problem is an error if
that library refuses the file because of it, so that none of its devices resolve. Problems that only the text of the
specification forbids are warnings.

How to add a finding:

- If a JSON schema can express it, change schema.json: `x-words` is the rule in words, `x-level` its level, `x-since`
  the version that has a field. `schema_check` makes the sentence, `versions` and `version_checks` follow.
- Otherwise write a function that takes the parsed file and yields violations (`make_violation`), in `content_checks`,
  and add it to SPEC_CHECKS.
- Add a case to tests/cdi/test_validation.py.

Checks against the host are in `cdi.registry.staleness`.

Import budget: cold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from gpu_oci_hook.cdi.resolved_edits import list_edits_by_path
from gpu_oci_hook.cdi.spec.content_checks import (
    check_annotations,
    check_device_names,
    check_file_modes,
    check_hook_environments,
    check_kind_length,
    check_mount_sources,
    check_net_devices,
)
from gpu_oci_hook.cdi.spec.finding import Finding, find_line_number
from gpu_oci_hook.cdi.spec.mount_options import ADD_RBIND_HINT, MISSING_BIND_TEXT, is_missing_bind_option
from gpu_oci_hook.cdi.spec.schema_check import Violation, find_schema_violations, load_full_schema, quote_value
from gpu_oci_hook.cdi.spec.version_checks import (
    check_changed_fields,
    check_declared_version,
    check_max_version,
)
from gpu_oci_hook.cdi.spec.versions import NEWEST_VERSION, OLDEST_VERSION, UNSUPPORTED_VERSIONS, find_minimum_version
from gpu_oci_hook.formats.oci import get_list


def check_schema(data: object) -> Iterator[Violation]:
    """Check everything that schema.json expresses."""
    for violation in find_schema_violations(data, load_full_schema()):
        yield _improve_message(violation, data)


SpecCheck = Callable[[object], Iterator[Violation]]

SPEC_CHECKS: tuple[SpecCheck, ...] = (
    check_schema,
    check_annotations,
    check_device_names,
    check_kind_length,
    check_net_devices,
    check_file_modes,
    check_mount_sources,
    check_hook_environments,
    check_declared_version,
    check_changed_fields,
)


def validate_spec(
    data: object,
    path: str,
    *,
    maximum: str = "",
    reader: str = "",
    rewrite_hint: str = "",
    line_numbers: Mapping[str, int] | None = None,
) -> list[Finding]:
    """Run all checks on a file; the findings are in the order of the file as far as lines are known.

    Arguments:
        data: the file as `reading.read_spec_file` returns it; not None.
        path: path of the file, for the findings.
        maximum: the newest CDI version that the engine in question reads; newer content is an error. "" for any.
        reader: the engine's name for the sentences; "" if only the maximum was named.
        rewrite_hint: the command that writes the file for that engine; it replaces the hints about the engine. "" if
            unknown.
        line_numbers: lines by JSON path (`SpecDocument.line_numbers`).
    """
    violations = [violation for check in SPEC_CHECKS for violation in check(data)]
    if maximum:
        for violation in check_max_version(data, maximum, reader):
            violations.append(violation._replace(hint=rewrite_hint) if rewrite_hint else violation)
    findings = [
        Finding(
            violation.level,
            path,
            violation.where,
            violation.text,
            violation.hint,
            find_line_number(line_numbers or {}, violation.where),
        )
        for violation in violations
    ]
    return sorted(dict.fromkeys(findings), key=lambda finding: finding.line)


def find_unmountable_mounts(data: object, path: str, *, line_numbers: Mapping[str, int] | None = None) -> list[Finding]:
    """Find the mounts that no runtime mounts, as errors.

    Not part of `validate_spec`: engines read the file, and its devices without such a mount work.
    """
    findings = []
    for json_path, edits in list_edits_by_path(data):
        for index, mount in enumerate(get_list(edits, "mounts")):
            if isinstance(mount, dict) and is_missing_bind_option(mount):
                where = f"{json_path}.mounts[{index}]"
                line = find_line_number(line_numbers or {}, where)
                findings.append(Finding("error", path, where, MISSING_BIND_TEXT, ADD_RBIND_HINT, line))
    return findings


def _improve_message(violation: Violation, data: object) -> Violation:
    """Return a violation of the schema with a better text or hint where the case is known."""
    if violation.where == "cdiVersion" and violation.keyword == "enum":
        version = str(data["cdiVersion"]) if isinstance(data, dict) else ""
        hint = f"Declare {find_minimum_version(data)[0]}, which is what the content needs"
        text = f"{quote_value(version)} is not a known version of CDI ({OLDEST_VERSION} to {NEWEST_VERSION})"
        if version.removeprefix("v") in UNSUPPORTED_VERSIONS:
            text = f"{quote_value(version)} is older than {OLDEST_VERSION}, the oldest version that engines accept"
        return violation._replace(text=text, hint=hint)
    if violation.where.endswith(".permissions") and '"none"' in violation.text:
        return violation._replace(text='"none" is not understood by engines that read CDI up to 1.1.0')
    if violation.where.endswith(".closID"):
        return violation._replace(hint="It names a directory of the resctrl file system")
    return violation
