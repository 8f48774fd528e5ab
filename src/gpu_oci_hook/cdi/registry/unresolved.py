"""Find out why a CDI device is unresolvable: the table of causes, in the order in which they are checked.

Engines report "unresolvable CDI devices" for every cause (facts: engines-say-unresolvable). Here the first check that
finds a cause answers.

How to add a cause: write a function that takes a `CdiNameQuery` and returns an `UnresolvedCause`, or None if the cause
does not apply. Put it into `unresolved_files` if it reads CDI files, into `unresolved_names` if it compares names.
Add it to CAUSE_CHECKS, the surer causes first, and add a case to tests/cdi/test_unresolved.py. Reuse a `code` if one
fits; a new one also goes into `cause.code` of cli/cdi-resolve.schema.json. A hint never advises
`all` to a container that asked for one device, unless no file has anything else.

Import budget: cold.
"""

from __future__ import annotations

from collections.abc import Callable

from gpu_oci_hook.cdi.registry.own_devices import OwnDevices
from gpu_oci_hook.cdi.registry.scan import SpecScan
from gpu_oci_hook.cdi.registry.unresolved_files import (
    check_conflict,
    check_empty_device,
    check_ignored_suffix,
    check_invalid_file,
    check_unparsable_file,
    check_unquoted_name,
    check_unreadable_file,
    check_unscanned_directory,
)
from gpu_oci_hook.cdi.registry.unresolved_names import (
    check_absent_hardware,
    check_generated_kind,
    check_missing_device,
    check_mistyped_kind,
    check_name_syntax,
    check_other_kind,
    check_runtime_kind,
    describe_undefined_name,
)
from gpu_oci_hook.cdi.registry.unresolved_query import CdiNameQuery, UnresolvedCause
from gpu_oci_hook.config.keys import Config
from gpu_oci_hook.errors import Fault, clip_text
from gpu_oci_hook.files import state_dir
from gpu_oci_hook.host.root import Host

CauseCheck = Callable[[CdiNameQuery], UnresolvedCause | None]

# The surest cause first.
CAUSE_CHECKS: tuple[CauseCheck, ...] = (
    check_name_syntax,
    check_conflict,
    check_empty_device,
    check_invalid_file,
    check_ignored_suffix,
    check_unscanned_directory,
    check_unreadable_file,
    check_unparsable_file,
    check_unquoted_name,
    check_missing_device,
    check_absent_hardware,
    check_mistyped_kind,
    check_runtime_kind,
    check_generated_kind,
    check_other_kind,
    describe_undefined_name,  # always answers
)


def find_unresolved_cause(name: str, scan: SpecScan, config: Config, own_devices: OwnDevices) -> UnresolvedCause:
    """Find the cause why no file resolves a name."""
    query = CdiNameQuery(name, scan, config, own_devices)
    return next(cause for check in CAUSE_CHECKS if (cause := check(query)) is not None)


def make_unresolved_fault(name: str, origin: str, other_count: int, host: Host, config: Config) -> Fault:
    """Build the error for a container's engine about an unresolvable name.

    Arguments:
        origin: where the name was requested.
        other_count: number of other names of the container that are not resolved.
    """
    cause = find_unresolved_cause(
        name, SpecScan(host, config.spec_dirs), config, OwnDevices(host, config, state_dir.StateCache())
    )
    others = f" ({other_count} more {'is' if other_count == 1 else 'are'} not resolved either)" if other_count else ""
    return Fault(f"CDI device {clip_text(name)} is unresolvable{others}: {cause.text}", where=origin, hint=cause.hint)
