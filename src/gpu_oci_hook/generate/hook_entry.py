"""Build the hook of a generated CDI file: our own program with everything that it has to do as arguments.

Import budget: cold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_oci_hook.cdi.own_kinds import GPU_MODE, ContentOptions
from gpu_oci_hook.config.keys import Config
from gpu_oci_hook.formats.program_names import HOOK_COMMAND
from gpu_oci_hook.hook.arguments import HookArguments
from gpu_oci_hook.model.edits import DEFAULT_HOOK_ENV

if TYPE_CHECKING:
    from gpu_oci_hook.generate.content import ContainerEdits, SpecContent
    from gpu_oci_hook.generate.host_facts import HostFacts


def build_hook_entry(hook_path: str, arguments: HookArguments) -> ContainerEdits:
    """Build the `hooks` entry of a file."""
    return {
        "hookName": "createContainer",
        "path": hook_path,
        "args": [*HOOK_COMMAND, *arguments.to_command_line()],
        "env": list(DEFAULT_HOOK_ENV),
    }


def build_hook_arguments(
    content: SpecContent, facts: HostFacts, config: Config, options: ContentOptions
) -> HookArguments:
    """Build the arguments of the hook.

    Arguments:
        content: content of the file that every device needs.
    """
    platform = facts.platform
    arguments = content.to_hook_arguments()
    arguments.driver_version = facts.driver_version
    arguments.cuda_compat = config.cuda_compat if "compute" in facts.implied_by else "never"
    if platform is not None:
        directories, arguments.board_cuda = platform.get_cuda_compat(facts.gpus)
        arguments.board_compat = list(directories)
    arguments.root = config.root
    arguments.requirements = not config.disable_require
    arguments.log = options.hook_log or config.log_file
    if options.mode == GPU_MODE and (platform is None or platform.needs_desktop_driver(facts.gpus)):
        arguments.hide_device_files = config.hide_device_files
        arguments.egl_profile = arguments.drm_links = "graphics" in facts.implied_by
    return arguments
