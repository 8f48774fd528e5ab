"""Requirement expressions (`NVIDIA_REQUIRE_*`): what an image demands of the driver and the GPUs; pure.

Grammar, as NVIDIA's images use it: a space means OR, a comma means AND and binds tighter, several variables
must all hold. A term is NAME OP VALUE with the names cuda, driver, arch (dotted numbers) and brand (a word)
and the operators = != < <= > >=. A term with another name counts for nothing, as in NVIDIA's own tools, and
is warned about. Cost rule: hot (every CUDA image has one), no imports of the library.
"""

from __future__ import annotations

from gpu_oci_hook.errors import Fault, clip_text

REQUIREMENT_PROPERTIES = ("cuda", "driver", "arch", "brand")
OPERATORS = ("<=", ">=", "!=", "=", "<", ">")

# CUDA images list some sixty alternatives; conmon quotes 8 KiB of an error.
_MAX_SHOWN_ALTERNATIVES = 6


class RequirementTerm:
    """NAME OP VALUE, with the text as written."""

    __slots__ = ("name", "operator", "text", "value")

    def __init__(self, name: str, operator: str, value: str, text: str) -> None:
        self.name = name
        self.operator = operator
        self.value = value
        self.text = text


class HostProperties:
    """What the host answers; each value is a tuple of words that it may go by, empty while unknown.

    `cuda_at_least` is the newest CUDA version that we know to be included when `cuda` itself is unknown: a
    driver newer than our table.
    """

    __slots__ = ("arch", "brand", "cuda", "cuda_at_least", "driver", "label")

    def __init__(
        self,
        label: str,
        *,
        cuda: str,
        cuda_at_least: str,
        driver: str,
        arch: str,
        brand: tuple[str, ...],
    ) -> None:
        self.label = label
        self.cuda = cuda
        self.cuda_at_least = cuda_at_least
        self.driver = driver
        self.arch = arch
        self.brand = brand

    def get_values(self, name: str) -> tuple[str, ...]:
        """The host's words for a property."""
        if name == "brand":
            return self.brand
        value = {"cuda": self.cuda, "driver": self.driver, "arch": self.arch}[name]
        return (value,) if value else ()


def parse_requirement(variable: str, expression: str, warnings: list[str]) -> list[list[RequirementTerm]]:
    """The alternatives of an expression, each a list of terms that must all hold.

    Raises:
        Fault: a syntax error, with its column (from 1).
    """
    alternatives = []
    strangers: list[str] = []
    column = 0
    for group in expression.split(" "):
        terms = []
        start = column
        for text in group.split(","):
            if text.strip():
                term = _parse_term(variable, expression, text, start)
                if term.name in REQUIREMENT_PROPERTIES:
                    terms.append(term)
                else:
                    strangers.append(term.text)
            start += len(text) + 1
        if terms:
            alternatives.append(terms)
        column += len(group) + 1
    if strangers:
        more = f" and {len(strangers) - 1} more" if len(strangers) > 1 else ""
        names = ", ".join(REQUIREMENT_PROPERTIES)
        warnings.append(
            f'{variable}: "{clip_text(strangers[0])}"{more} names no property that we know ({names}): not checked'
        )
    return alternatives


def _parse_term(variable: str, expression: str, text: str, start: int) -> RequirementTerm:
    at = 0
    while at < len(text) and text[at] not in "=!<>":
        at += 1
    end = at
    while end < len(text) and text[end] in "=!<>":
        end += 1
    name, operator, value = text[:at].strip().lower(), text[at:end], text[end:].strip()
    if not operator:
        raise _make_syntax_fault(variable, expression, start + len(text) + 1, f'"{clip_text(text)}" has no operator')
    if operator not in OPERATORS:
        raise _make_syntax_fault(variable, expression, start + at + 1, f'"{clip_text(operator)}" is no operator')
    if not name:
        raise _make_syntax_fault(variable, expression, start + 1, "a name is missing")
    if not value:
        raise _make_syntax_fault(variable, expression, start + end + 1, "a value is missing")
    if name not in REQUIREMENT_PROPERTIES:
        return RequirementTerm(name, operator, value, text.strip())
    if name == "brand":
        if operator not in ("=", "!="):
            raise _make_syntax_fault(
                variable, expression, start + at + 1, f'brand has no order, "{operator}" means nothing'
            )
    elif _parse_version_numbers(value) is None:
        raise _make_syntax_fault(variable, expression, start + end + 1, f'"{clip_text(value)}" is no version')
    return RequirementTerm(name, operator, value, text.strip())


def _make_syntax_fault(variable: str, expression: str, column: int, what: str) -> Fault:
    return Fault(
        f"cannot parse at column {column}: {what}",
        where=f"{variable}={expression}",
        hint="A term is NAME OP VALUE, such as cuda>=12.4; set NVIDIA_DISABLE_REQUIRE=1 to skip the check",
    )


def _parse_version_numbers(text: str) -> list[int] | None:
    parts = text.removeprefix("v").split(".")
    if len(parts) > 4 or not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        return None
    return [int(part) for part in parts]


def compare_versions(left: str, right: str) -> int:
    """-1, 0 or 1 for two dotted numbers; absent parts count as zero."""
    a, b = _parse_version_numbers(left) or [0], _parse_version_numbers(right) or [0]
    length = max(len(a), len(b))
    a += [0] * (length - len(a))
    b += [0] * (length - len(b))
    return (a > b) - (a < b)


def evaluate_term(term: RequirementTerm, values: HostProperties) -> bool | None:
    """Whether a term holds on the host; None when the host's value is not known."""
    words = values.get_values(term.name)
    if not words:
        if term.name == "cuda" and values.cuda_at_least and term.operator in (">", ">="):
            order = compare_versions(values.cuda_at_least, term.value)
            if order > 0 or (order == 0 and term.operator == ">="):
                return True
        return None
    if term.name == "brand":
        return (term.value.lower() in [word.lower() for word in words]) == (term.operator == "=")
    order = compare_versions(words[0], term.value)
    return {
        "=": order == 0,
        "!=": order != 0,
        "<": order < 0,
        "<=": order <= 0,
        ">": order > 0,
        ">=": order >= 0,
    }[term.operator]


def evaluate_requirements(
    requirements: tuple[tuple[str, str], ...], hosts: list[HostProperties], warnings: list[str]
) -> tuple[str, ...]:
    """Checks every requirement against every GPU's values.

    Returns:
        The names of properties that are unknown and decide the answer; empty when everything holds.

    Raises:
        Fault: one is not met; names the variable, the alternatives, the host's value for each term, and which
            alternative came nearest. Raised only when no unknown value could change the answer.
    """
    unknown: list[str] = []
    for variable, expression in requirements:
        alternatives = parse_requirement(variable, expression, warnings)
        if not alternatives:
            continue
        for values in hosts:
            answers = [[evaluate_term(term, values) for term in terms] for terms in alternatives]
            if any(all(answer is True for answer in group) for group in answers):
                continue
            open_terms = [
                term.name
                for terms, group in zip(alternatives, answers, strict=True)
                if False not in group
                for term, answer in zip(terms, group, strict=True)
                if answer is None
            ]
            if not open_terms:
                raise _make_unmet_fault(variable, alternatives, answers, values)
            unknown += [name for name in open_terms if name not in unknown]
    return tuple(unknown)


def make_unknown_property_fault(
    requirements: tuple[tuple[str, str], ...], hosts: list[HostProperties], properties: tuple[str, ...], reason: str
) -> Fault:
    """The failure when a value that decides the answer cannot be had."""
    for variable, expression in requirements:
        alternatives = parse_requirement(variable, expression, [])
        for values in hosts:
            answers = [[evaluate_term(term, values) for term in terms] for terms in alternatives]
            if alternatives and not any(all(answer is True for answer in group) for group in answers):
                fault = _make_unmet_fault(variable, alternatives, answers, values)
                return Fault(
                    f"{fault.what} (the host's {', '.join(properties)} is not known: {reason})",
                    where=fault.where,
                    hint=fault.hint,
                )
    raise AssertionError("asked about requirements that are met")


def _make_unmet_fault(
    variable: str, alternatives: list[list[RequirementTerm]], answers: list[list[bool | None]], values: HostProperties
) -> Fault:
    def misses(place: int) -> tuple[int, int]:
        return sum(answer is not True for answer in answers[place]), place

    ranked = sorted(range(len(alternatives)), key=misses)
    # The alternatives of an image can be of any length.
    shown = [clip_text(",".join(term.text for term in alternatives[place])) for place in ranked]
    names: list[str] = []
    for terms in alternatives:
        for term in terms:
            if term.name not in names:
                names.append(term.name)
    host = ", ".join(f"{name} {'/'.join(values.get_values(name)) or 'unknown'}" for name in names)
    failed = [
        term for term, answer in zip(alternatives[ranked[0]], answers[ranked[0]], strict=True) if answer is not True
    ]
    failing = clip_text(", ".join(term.text for term in failed))
    remedies: list[str] = []
    for term in failed:
        remedy = _suggest_remedy(term, values)
        if remedy not in remedies:
            remedies.append(remedy)
    cure = ", and ".join(remedies)
    text = " or ".join(f'"{part}"' for part in shown[:_MAX_SHOWN_ALTERNATIVES])
    if len(shown) > _MAX_SHOWN_ALTERNATIVES:
        text += f" or {len(shown) - _MAX_SHOWN_ALTERNATIVES} more"
    nearest = "" if len(shown) == 1 else f'; nearest is "{shown[0]}", where {failing} fails'
    return Fault(
        f"the requirement {text} is not met: {values.label} has {host}{nearest}",
        where=variable,
        hint=f"{cure[0].upper()}{cure[1:]}; NVIDIA_DISABLE_REQUIRE=1 skips the check",
    )


def _suggest_remedy(term: RequirementTerm, values: HostProperties) -> str:
    """What would make a failed term hold."""
    if term.name in ("arch", "brand"):
        return "choose another GPU or an image that is made for this one"
    if term.operator == "!=":
        return "use another driver or another image"
    words = values.get_values(term.name)
    if "<" in term.operator or (term.operator == "=" and words and compare_versions(words[0], term.value) > 0):
        return "use an older driver or a newer image"
    return "update the host's driver or use an image for an older CUDA"
