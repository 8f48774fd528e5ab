"""The entry point of `gpu-oci-hook`: every failure ends as one line on stderr, never as a traceback.

Import budget: pass-through.
"""

# A hook that has nothing to do ends in `hook.quick_answer`. So everything else is imported where it is used, and
# `from __future__ import annotations` would be one more file to load.

import sys

from gpu_oci_hook.hook.quick_answer import answer_hook_call

TYPE_CHECKING = False
if TYPE_CHECKING:
    import click

# docs/commands.md has the table of exit statuses. usage_errors.EXIT_USAGE is the one for a wrong command line.
EXIT_FAILURE = 1
EXIT_INTERRUPTED = 130


def main(arguments: list[str] | None = None) -> None:
    """Run `gpu-oci-hook` and exit.

    Arguments:
        arguments: the command line without the program; default: that of the process.
    """
    stdin = None
    if arguments is None:
        arguments = sys.argv[1:]
        try:
            stdin = answer_hook_call(sys.argv[0], arguments)
        except Exception as error:
            from gpu_oci_hook.hook.cdi_hook import report_hook_failure

            report_hook_failure(error)
            sys.exit(EXIT_FAILURE)
    if stdin is not None:
        from gpu_oci_hook.files.code_bundle import HOOK_BUNDLE_PATH, use_code_bundle

        use_code_bundle(HOOK_BUNDLE_PATH, load_modules=True)
    hook_arguments = _extract_hook_arguments(arguments, sys.argv[0])
    if hook_arguments is not None:
        # Container runtimes call the hook at every container start, so click is not imported for it.
        from gpu_oci_hook.hook.cdi_hook import run_hook_and_exit

        run_hook_and_exit(hook_arguments, stdin)
    sys.exit(run_command_line(arguments, sys.argv[0]))


def run_command_line(arguments: list[str], program: str = "gpu-oci-hook") -> int:
    """Run one command and return its exit status.

    Arguments:
        arguments: the command line without the program.
        program: the program as it was called.
    """
    hook_arguments = _extract_hook_arguments(arguments, program)
    if hook_arguments is not None:
        from gpu_oci_hook.hook.cdi_hook import run_hook

        return run_hook(hook_arguments)
    from gpu_oci_hook.formats.program_names import NVIDIA_CONTAINER_CLI, get_program_name

    if get_program_name(program) == NVIDIA_CONTAINER_CLI:
        from gpu_oci_hook.cli.container_cli.run_command import run_container_cli

        return _flush_stdout(run_container_cli(arguments))
    return _flush_stdout(_run_click(arguments, program))


def _extract_hook_arguments(arguments: list[str], program: str) -> list[str] | None:
    """Return a hook's name and flags, None if the command line calls no hook."""
    from gpu_oci_hook.formats.program_names import (
        NVIDIA_CDI_HOOK,
        NVIDIA_CONTAINER_CLI,
        NVIDIA_CTK,
        NVIDIA_PRESTART_HOOKS,
        PRECREATE,
        PRESTART,
        get_program_name,
    )

    name = get_program_name(program)
    if name == NVIDIA_CDI_HOOK:
        return arguments
    if name == NVIDIA_CONTAINER_CLI:
        return None
    if name in NVIDIA_PRESTART_HOOKS:
        return [PRESTART, *arguments]
    if name == NVIDIA_CTK:
        # nvidia-ctk takes flags of its own before the command
        command = next((i for i, argument in enumerate(arguments) if not argument.startswith("-")), len(arguments))
        is_hook = arguments[command : command + 1] == ["hook"]
        return [*arguments[:command], *arguments[command + 1 :]] if is_hook else None
    if arguments == [PRESTART]:  # a file of hooks.d may name our program in place of NVIDIA's
        return [PRESTART, PRESTART]
    if arguments == [PRECREATE]:
        return arguments
    if arguments[:1] != ["hook"] or arguments[-1] in ("-h", "--help"):  # runtimes never ask for help
        return None
    return arguments[1:]


def _run_click(arguments: list[str], program: str) -> int:
    from gpu_oci_hook.errors import Fault
    from gpu_oci_hook.formats.program_names import get_program_name

    try:
        _refuse_other_toolkit_names(get_program_name(program))
        if sys.stdout is None:
            raise Fault("standard output is closed, so there is nowhere to print to")
        from gpu_oci_hook.cli.root_command import root_command

        return _run_root_command(root_command, arguments)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else EXIT_FAILURE if end.code else 0
    except Exception as error:
        _print_error(_explain_missing_package(error))
        return EXIT_FAILURE


def _run_root_command(root_command: "click.Command", arguments: list[str]) -> int:
    """Run a command and return its exit status. A wrong command line is one line of ours and how to get help."""
    import click

    from gpu_oci_hook.cli.usage_errors import EXIT_USAGE, UsageFault, describe_usage_error, is_failed_echo

    try:
        status = root_command.main(args=arguments, prog_name="gpu-oci-hook", standalone_mode=False)
    except click.ClickException as error:
        problem, see = describe_usage_error(error)
        _print_stderr(f"gpu-oci-hook: {problem}", see)
        return EXIT_USAGE
    except UsageFault as fault:
        _print_stderr(f"gpu-oci-hook: {fault}", fault.help_command)
        return EXIT_USAGE
    except click.Abort:  # interrupted
        return EXIT_INTERRUPTED
    except OSError as error:
        if not is_failed_echo(error):
            raise
        from gpu_oci_hook.reporting.failure import make_output_fault

        raise make_output_fault(error) from error
    return status if isinstance(status, int) else 0


def _explain_missing_package(error: Exception) -> Exception:
    """Return a fault for a Python package that is not installed, other errors unchanged."""
    if not isinstance(error, ModuleNotFoundError) or (error.name or "").startswith("gpu_oci_hook"):
        return error
    from gpu_oci_hook.errors import Fault

    return Fault(f"the command line needs the Python package {error.name}", hint="Install it for this Python")


def _refuse_other_toolkit_names(name: str) -> None:
    """Refuse to run as a program of NVIDIA's toolkit that gpu-oci-hook does not replace.

    Raises:
        Fault: the name is one of these programs'.
    """
    from gpu_oci_hook.errors import Fault
    from gpu_oci_hook.formats.program_names import NVIDIA_CTK

    if name == NVIDIA_CTK:
        raise Fault(
            f"{name}: gpu-oci-hook replaces only its hooks (nvidia-ctk hook NAME)",
            hint="See gpu-oci-hook --help for equivalents of its other commands",
        )


def _print_error(error: Exception) -> None:
    """Print one line on stderr, and the caret below a syntax error of the config file."""
    from gpu_oci_hook.reporting.failure import describe_error

    format_caret = getattr(error, "format_caret", None)
    _print_stderr(f"gpu-oci-hook: {describe_error(error)}", format_caret() if format_caret is not None else "")


def _print_stderr(*lines: str) -> None:
    try:
        for line in lines:
            if line and sys.stderr is not None:
                print(line, file=sys.stderr, flush=True)
    except OSError:
        sys.stderr = None  # the exit status has to tell, and the interpreter would try again at exit and end with 120


def _flush_stdout(status: int) -> int:
    """Flush standard output and return the exit status, 1 if the output cannot be written.

    Without this the interpreter itself would complain at exit. A broken pipe (`| head`) is not reported, and neither
    is a second failure.
    """
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        import os

        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.close(null)
        if status == 0 and not isinstance(error, BrokenPipeError):
            from gpu_oci_hook.reporting.failure import make_output_fault

            _print_error(make_output_fault(error))
        return EXIT_FAILURE
    return status
