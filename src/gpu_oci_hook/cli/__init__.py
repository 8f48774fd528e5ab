"""The command line's entry point: every failure ends as one line on stderr, never as a traceback.

Cost rule: nothing but `sys` and our errors before `app` is imported, so that a missing library is a sentence too, and
so that a hook, which a runtime calls in every start, costs no more than it must.
"""

from __future__ import annotations

import sys

from gpu_oci_hook.errors import Fault, describe_os_error, make_printable
from gpu_oci_hook.formats.program_names import NVIDIA_CDI_HOOK, NVIDIA_CTK, NVIDIA_PRESTART_HOOK, get_program_name

# Exit statuses: 0 done, 1 it cannot be done (the line says why), 2 the command line is wrong (click's own).
EXIT_FAILURE = 1


def main(arguments: list[str] | None = None) -> None:
    """Runs `gpu-oci-hook`; does not come back.

    Arguments:
        arguments: the words after the program's name; default: the process's own.
    """
    words = sys.argv[1:] if arguments is None else arguments
    hook_words = _extract_hook_arguments(words, sys.argv[0])
    if hook_words is not None:
        from gpu_oci_hook.hook.cdi_hook import run_hook_and_exit

        run_hook_and_exit(hook_words)
    sys.exit(run_command_line(words, sys.argv[0]))


def run_command_line(arguments: list[str], program_name: str = "gpu-oci-hook") -> int:
    """Runs one command and answers its exit status.

    Arguments:
        arguments: the words after the program's name.
        program_name: the program's name, as it was called.
    """
    hook_words = _extract_hook_arguments(arguments, program_name)
    if hook_words is not None:
        from gpu_oci_hook.hook.cdi_hook import run_hook

        return run_hook(hook_words)
    return _flush_stdout(_run_click(arguments, program_name))


def _extract_hook_arguments(arguments: list[str], name: str) -> list[str] | None:
    """A hook's name and its flags, if the command line is a hook's."""
    called = get_program_name(name)
    if called == NVIDIA_CDI_HOOK:
        return arguments
    if called == NVIDIA_CTK:
        # its own flags may come before the word
        at = next((place for place, word in enumerate(arguments) if not word.startswith("-")), len(arguments))
        return [*arguments[:at], *arguments[at + 1 :]] if arguments[at : at + 1] == ["hook"] else None
    if arguments[:1] != ["hook"] or arguments[-1] in ("-h", "--help"):  # a person asks, no runtime does
        return None
    return arguments[1:]


def _run_click(arguments: list[str], name: str) -> int:
    try:
        called = get_program_name(name)
        if called == NVIDIA_CTK:
            raise Fault(
                f"{called}: gpu-oci-hook stands in for its hooks alone (nvidia-ctk hook NAME)",
                hint="Its other commands have their like in gpu-oci-hook --help",
            )
        if called == NVIDIA_PRESTART_HOOK:
            raise Fault(
                f"{called}: gpu-oci-hook injects GPUs as a runtime, not as a hook, so this container would get none",
                hint="Start it with gpu-oci-runtime: docker run --runtime gpu-oci, or "
                '"default-runtime": "gpu-oci" in /etc/docker/daemon.json',
            )
        if sys.stdout is None:
            raise Fault("standard output is closed: there is nowhere to answer")
        try:
            from gpu_oci_hook.cli.root_command import root_command
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("gpu_oci_hook"):
                raise
            raise Fault(
                f"the command line needs the Python package {error.name}", hint="Install it for this Python"
            ) from error
        root_command.main(args=arguments, prog_name="gpu-oci-hook")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else EXIT_FAILURE if end.code else 0
    except Exception as error:
        _print_error(error)
        return EXIT_FAILURE
    return 0


def _print_error(error: Exception) -> None:
    """One line on stderr; a place in a file of ours when it is a mistake of ours."""
    if isinstance(error, Fault):
        text = str(error)
    elif isinstance(error, OSError):
        text = f"{error.filename}: {describe_os_error(error)}" if error.filename else describe_os_error(error)
    else:
        import traceback

        frames = traceback.extract_tb(error.__traceback__)
        place = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
        text = f"a mistake in gpu-oci-hook itself: {type(error).__name__}: {error}{place}"
    if sys.stderr is None:
        return  # closed: nobody wants to hear it
    print(f"gpu-oci-hook: {make_printable(text)}", file=sys.stderr)
    caret = getattr(error, "caret", None)
    if caret is not None:
        print(caret(), file=sys.stderr)


def _flush_stdout(status: int) -> int:
    """Writes what is still to be written: what stdout does not take would else be the interpreter's complaint.

    Answers 1 when it takes no more; a reader that has gone (`| head`) is no reason for a sentence, and one is enough.
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
            _print_error(error)
        return EXIT_FAILURE
    return status
