"""Recognise createContainer hooks without an environment, which the image can fill.

runc up to 1.2 runs such a hook with the variables of the container's process, so an image that sets LD_PRELOAD has its
own library loaded by a program that runs as root on the host, CVE-2025-23266 (facts: hook-without-env). Other hooks
run in the runtime's own environment, or inside the container.

Import budget: cold.
"""

from __future__ import annotations

from gpu_oci_hook.errors import clip_text
from gpu_oci_hook.formats.oci import get_list, get_member
from gpu_oci_hook.model.edits import DEFAULT_HOOK_ENV

STAGE = "createContainer"
NO_ENV_TEXT = (
    "has no env: runc up to 1.2 runs it with the image's variables, and with LD_PRELOAD an image has its own library "
    "run as root on the host (CVE-2025-23266)"
)
ADD_ENV_HINT = f'Add one to the hook, such as "env": ["{DEFAULT_HOOK_ENV[0]}"]'


def takes_image_environment(hook: object) -> bool:
    """Tell whether a createContainer hook has no environment of its own."""
    return not get_list(hook, "env")


def lint_hook_environments(spec: object) -> list[str]:
    """List a warning for each such hook of a config.json."""
    warnings = []
    for index, hook in enumerate(get_list(spec, "hooks", STAGE)):
        if takes_image_environment(hook):
            program = clip_text(str(get_member(hook, "path")))
            warnings.append(f"hooks.{STAGE}[{index}], {program}, {NO_ENV_TEXT}. {ADD_ENV_HINT}")
    return warnings
