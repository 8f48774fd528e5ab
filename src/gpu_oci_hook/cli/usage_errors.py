"""Word the errors of click about a wrong command line as our faults are worded.

Import budget: cold.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import click

from gpu_oci_hook.errors import Fault, clip_text, find_close_match, make_printable

EXIT_USAGE = 2


class UsageFault(Fault):
    """A value of the command line that is wrong on every host.

    Arguments:
        what, where, hint: see `Fault`.
    """

    def __init__(self, what: str, *, where: str = "", hint: str = "") -> None:
        super().__init__(what, where=where, hint=hint)
        self.help_command = _name_help_command(click.get_current_context(silent=True))


@contextmanager
def raise_usage_faults(where: str = "") -> Iterator[None]:
    """Turn faults into usage faults. Also a decorator.

    Arguments:
        where: the option, for faults that do not name it.
    """
    try:
        yield
    except Fault as fault:
        raise UsageFault(fault.what, where=fault.where or where, hint=fault.hint) from fault


def _name_help_command(context: click.Context | None) -> str:
    return f"See '{context.command_path} --help'" if context is not None else ""


def describe_usage_error(error: click.ClickException) -> tuple[str, str]:
    """Return what is wrong with a command line, with a suggestion if there is one, and how to get help or "".

    The texts of click differ between its versions, so those of the common mistakes are our own.
    """
    context = getattr(error, "ctx", None)
    return make_printable(clip_text(_describe_problem(error, context), 2000)), _name_help_command(context)


def is_failed_echo(error: BaseException) -> bool:
    """Tell whether an error comes from click's own printing, as that of --help and --version."""
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code is click.echo.__code__:
            return True
        trace = trace.tb_next
    return False


def _describe_problem(error: click.ClickException, context: click.Context | None) -> str:
    if isinstance(error, click.NoSuchOption):
        return f"unknown option {error.option_name}{_suggest_option(error.option_name, context)}"
    if isinstance(error, click.BadOptionUsage):
        return _describe_option_usage(error)
    if isinstance(error, click.MissingParameter) and error.param is not None:
        noun = "argument" if isinstance(error.param, click.Argument) else "option"
        return f"missing {noun} {_name_parameter(error.param)}"
    if isinstance(error, click.BadParameter):
        return _describe_bad_value(error)
    extra = re.match(r"Got unexpected extra arguments? \((.*)\)$", error.message, re.DOTALL)
    return f"unexpected argument {extra[1]}" if extra else _to_fault_style(error.message)


def _describe_option_usage(error: click.BadOptionUsage) -> str:
    if "requires an argument" in error.message:
        return f"option {error.option_name} needs a value"
    if "does not take a value" in error.message:
        return f"option {error.option_name} takes no value"
    return _to_fault_style(error.message)


def _describe_bad_value(error: click.BadParameter) -> str:
    hint = error.param_hint
    if isinstance(hint, str):
        name = hint.replace("'", "")
    else:
        name = " ".join(hint).replace("'", "") if hint else _name_parameter(error.param) if error.param else ""
    text = _describe_rejected_value(error)
    return f"{name}: {text}" if name else text


def _describe_rejected_value(error: click.BadParameter) -> str:
    """Quote the value that an option rejects, and say which ones it takes."""
    expected, suggestion = "", ""
    value = re.match(r"(['\"]?)(.*?)\1 is not (?:one of|a valid|in the range) ", error.message, re.DOTALL)
    kind = error.param.type if error.param is not None else None
    if value is not None and isinstance(kind, click.Choice):
        choices = tuple(map(str, kind.choices))
        close = find_close_match(value[2], choices)
        expected, suggestion = f"one of {', '.join(choices)}", f". Did you mean {close}?" if close else ""
    elif isinstance(kind, (click.IntRange, click.FloatRange)):
        expected = _describe_range(kind)
    if value is None or not expected:
        return _to_fault_style(error.message)
    return f'"{clip_text(value[2])}" is not {expected}{suggestion}'


def _describe_range(kind: click.IntRange | click.FloatRange) -> str:
    noun = "a whole number" if isinstance(kind, click.IntRange) else "a number"
    if kind.max is None:
        return f"{noun} of at least {kind.min}"
    return f"{noun} from {kind.min} to {kind.max}"


def _name_parameter(param: click.Parameter) -> str:
    """Return the long names of an option, or an argument as the usage line has it."""
    if isinstance(param, click.Argument):
        return str(param.metavar or param.human_readable_name)
    return "/".join([name for name in param.opts if name.startswith("--")] or param.opts)


def _suggest_option(name: str, context: click.Context | None) -> str:
    """Return the option that a mistyped one most likely means, as a sentence; "" when none is similar."""
    if context is None or not name.startswith("--"):
        return ""
    params = context.command.get_params(context)
    known = [option for param in params for option in (*param.opts, *param.secondary_opts) if option.startswith("--")]
    close = find_close_match(name, known)
    return f". Did you mean {close}?" if close else ""


def _to_fault_style(message: str) -> str:
    text = message.strip().removesuffix(".")
    return text[:1].lower() + text[1:] if text[1:2].islower() else text
