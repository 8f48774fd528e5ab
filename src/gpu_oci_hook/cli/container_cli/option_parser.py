"""Parse a command line as GNU's argp does: long options that may be shortened, grouped letters, attached values.

`nvidia-container-cli` is written with argp, and scripts use all of that (facts: container-cli-options). No I/O.

Import budget: cold.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gpu_oci_hook.errors import Fault, clip_text, find_close_match


class Option(NamedTuple):
    """One option of a command.

    Attributes:
        name: the long name, without dashes.
        letter: the short name; "" without one.
        value: the name of its value in the help; "" for an option without a value.
        help: what it does, for the help.
        value_optional: the value may be missing; one that is there is attached (`--user=1000`).
    """

    name: str
    letter: str
    value: str
    help: str
    value_optional: bool = False


# What argp itself adds to every command.
COMMON_OPTIONS = (
    Option("help", "?", "", "Print this help."),
    Option("usage", "", "", "Print a short usage message."),
    Option("version", "V", "", "Print the version."),
)


class ParsedLine(NamedTuple):
    """A command line.

    Attributes:
        options: (long name, value) of each option in order; the value of an option without one is "".
        arguments: everything else.
    """

    options: list[tuple[str, str]]
    arguments: list[str]


class OptionFault(Fault):
    """A command line that no version of the command understands."""


def parse_command_line(words: Sequence[str], options: Sequence[Option], *, stop_at_argument: bool) -> ParsedLine:
    """Parse a command line.

    Arguments:
        stop_at_argument: the first argument ends the options, as a command does whose own options follow.

    Raises:
        OptionFault: an option is unknown or ambiguous, or its value is missing or not expected.
    """
    known = (*options, *COMMON_OPTIONS)
    parsed = ParsedLine([], [])
    remaining = list(words)
    while remaining:
        word = remaining.pop(0)
        if word == "--":
            parsed.arguments.extend(remaining)
            break
        if word.startswith("--"):
            parsed.options.append(_parse_long_option(word, remaining, known))
        elif word.startswith("-") and word != "-":
            parsed.options.extend(_parse_letters(word[1:], remaining, known))
        else:
            parsed.arguments.append(word)
            if stop_at_argument:
                parsed.arguments.extend(remaining)
                break
    return parsed


def _parse_long_option(word: str, remaining: list[str], known: Sequence[Option]) -> tuple[str, str]:
    """Parse `--NAME`, `--NAME=VALUE` or `--NAME VALUE`; the last one takes its value from the remaining words."""
    name, equals, value = word[2:].partition("=")
    option = _find_long_option(name, known)
    if equals:
        if not option.value:
            raise OptionFault(f"option --{option.name} takes no value")
        return option.name, value
    return option.name, _take_value(option, f"--{option.name}", remaining)


def _find_long_option(name: str, known: Sequence[Option]) -> Option:
    """Return the option of this name, or the only one whose name begins like this."""
    for option in known:
        if option.name == name:
            return option
    matches = [option for option in known if name and option.name.startswith(name)]
    if len(matches) == 1:
        return matches[0]
    shown = clip_text(f"--{name}")
    if matches:
        raise OptionFault(f"option {shown} is ambiguous: {', '.join(f'--{option.name}' for option in matches)}")
    near = find_close_match(name[:100], [option.name for option in known])
    raise OptionFault(f"unknown option {shown}", hint=f"Did you mean --{near}?" if near else "")


def _parse_letters(letters: str, remaining: list[str], known: Sequence[Option]) -> list[tuple[str, str]]:
    """Parse the letters after one dash; the first option with a value takes the other letters as its value."""
    found: list[tuple[str, str]] = []
    for position, letter in enumerate(letters):
        option = next((option for option in known if option.letter == letter), None)
        if option is None:
            raise OptionFault(f"unknown option -{letter}")
        attached = letters[position + 1 :]
        if option.value and attached:
            return [*found, (option.name, attached)]
        found.append((option.name, _take_value(option, f"-{letter}", remaining)))
    return found


def _take_value(option: Option, shown: str, remaining: list[str]) -> str:
    """Take the value of an option from the next word, if the option needs one."""
    if not option.value or option.value_optional:
        return ""
    if not remaining:
        raise OptionFault(f"option {shown} needs a value")
    return remaining.pop(0)
