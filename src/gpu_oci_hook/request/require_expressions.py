"""Parse and evaluate requirement expressions (`NVIDIA_REQUIRE_*`) of an image on the driver and the GPUs.

The grammar is that of NVIDIA's images: a space means OR, a comma means AND and binds tighter, and all variables must
hold. A term is NAME OP VALUE with the names cuda, driver, arch (dotted numbers) and brand (a name), and the operators
= != < <= > >=. A term with another name is ignored with a warning, as in NVIDIA's own tools.

No I/O.

Import budget: GPU container.
"""

from __future__ import annotations

from gpu_oci_hook.errors import Fault, clip_text

REQUIREMENT_PROPERTIES = ("cuda", "driver", "arch", "brand")
OPERATORS = ("<=", ">=", "!=", "=", "<", ">")

# CUDA images list some sixty alternatives; conmon quotes 8 KiB of an error.
_MAX_SHOWN_ALTERNATIVES = 6


class RequirementTerm:
    """One term, NAME OP VALUE, with its original text."""

    __slots__ = ("name", "operator", "text", "value")

    def __init__(self, name: str, operator: str, value: str, text: str) -> None:
        self.name = name
        self.operator = operator
        self.value = value
        self.text = text


class HostProperties:
    """The host's values for the properties in expressions; "" or an empty tuple while unknown.

    Attributes:
        label: the GPU's name in messages.
        cuda: the newest CUDA version that the driver supports.
        cuda_at_least: a lower bound of `cuda`, for a driver that is newer than our table.
        driver, arch: dotted versions of the driver and of the GPU's compute capability.
        brand: every name of the GPU's brand.
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
        """Return the host's values for a property, none while unknown."""
        if name == "brand":
            return self.brand
        value = {"cuda": self.cuda, "driver": self.driver, "arch": self.arch}[name]
        return (value,) if value else ()


def parse_requirement(variable: str, expression: str, warnings: list[str]) -> list[list[RequirementTerm]]:
    """Parse an expression into alternatives, each a list of terms that must all hold.

    Arguments:
        warnings: gets a warning about unknown properties.

    Raises:
        Fault: a syntax error, with its column (from 1).
    """
    alternatives = []
    unknown_terms: list[str] = []
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
                    unknown_terms.append(term.text)
            start += len(text) + 1
        if terms:
            alternatives.append(terms)
        column += len(group) + 1
    if unknown_terms:
        more = f" and {len(unknown_terms) - 1} more" if len(unknown_terms) > 1 else ""
        names = ", ".join(REQUIREMENT_PROPERTIES)
        warnings.append(
            f'{variable}: "{clip_text(unknown_terms[0])}"{more} has no known property ({names}): not checked'
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
        raise _make_syntax_fault(variable, expression, start + at + 1, f'"{clip_text(operator)}" is not an operator')
    if not name:
        raise _make_syntax_fault(variable, expression, start + 1, "the name is missing")
    if not value:
        raise _make_syntax_fault(variable, expression, start + end + 1, "the value is missing")
    if name not in REQUIREMENT_PROPERTIES:
        return RequirementTerm(name, operator, value, text.strip())
    if name == "brand":
        if operator not in ("=", "!="):
            raise _make_syntax_fault(
                variable, expression, start + at + 1, f'brand has no order; use = or != and not "{operator}"'
            )
    elif _parse_version_numbers(value) is None:
        raise _make_syntax_fault(variable, expression, start + end + 1, f'"{clip_text(value)}" is not a version')
    return RequirementTerm(name, operator, value, text.strip())


def _make_syntax_fault(variable: str, expression: str, column: int, problem: str) -> Fault:
    return Fault(
        f"cannot parse at column {column}: {problem}",
        where=f"{variable}={expression}",
        hint="Use terms NAME OP VALUE, such as cuda>=12.4, or set NVIDIA_DISABLE_REQUIRE=1 to skip the check",
    )


def _parse_version_numbers(text: str) -> list[int] | None:
    parts = text.removeprefix("v").split(".")
    if len(parts) > 4 or not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        return None
    return [int(part) for part in parts]


def compare_versions(left: str, right: str) -> int:
    """Return -1, 0 or 1 as the left dotted version is older, equal or newer; absent parts count as zero."""
    left_numbers, right_numbers = _parse_version_numbers(left) or [0], _parse_version_numbers(right) or [0]
    length = max(len(left_numbers), len(right_numbers))
    left_numbers += [0] * (length - len(left_numbers))
    right_numbers += [0] * (length - len(right_numbers))
    return (left_numbers > right_numbers) - (left_numbers < right_numbers)


def evaluate_term(term: RequirementTerm, values: HostProperties) -> bool | None:
    """Tell whether a term holds on the host; None when the host's value is unknown."""
    host_values = values.get_values(term.name)
    if not host_values:
        if term.name == "cuda" and values.cuda_at_least and term.operator in (">", ">="):
            order = compare_versions(values.cuda_at_least, term.value)
            if order > 0 or (order == 0 and term.operator == ">="):
                return True
        return None
    if term.name == "brand":
        return (term.value.lower() in [brand.lower() for brand in host_values]) == (term.operator == "=")
    order = compare_versions(host_values[0], term.value)
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
    """Check every requirement against every GPU's values.

    Returns:
        The names of unknown properties that decide the result; empty when every requirement holds.

    Raises:
        Fault: a requirement is not met; names the variable, the alternatives, the host's value for each term, and the
            nearest alternative. Raised only when no unknown value could change the result.
    """
    unknown: list[str] = []
    for variable, expression in requirements:
        alternatives = parse_requirement(variable, expression, warnings)
        if not alternatives:
            continue
        for values in hosts:
            results = _evaluate_alternatives(alternatives, values)
            if _has_met_alternative(results):
                continue
            undecided = [
                term.name
                for terms, term_results in zip(alternatives, results, strict=True)
                if False not in term_results
                for term, result in zip(terms, term_results, strict=True)
                if result is None
            ]
            if not undecided:
                raise _make_unmet_fault(variable, alternatives, results, values)
            unknown += [name for name in undecided if name not in unknown]
    return tuple(unknown)


def _evaluate_alternatives(
    alternatives: list[list[RequirementTerm]], values: HostProperties
) -> list[list[bool | None]]:
    return [[evaluate_term(term, values) for term in terms] for terms in alternatives]


def _has_met_alternative(results: list[list[bool | None]]) -> bool:
    return any(all(result is True for result in term_results) for term_results in results)


def make_unknown_property_fault(
    requirements: tuple[tuple[str, str], ...], hosts: list[HostProperties], properties: tuple[str, ...], reason: str
) -> Fault:
    """Return the fault for requirements whose result depends on unknown properties.

    Arguments:
        properties: the unknown properties. reason: why they are unknown.
    """
    for variable, expression in requirements:
        alternatives = parse_requirement(variable, expression, [])
        for values in hosts:
            results = _evaluate_alternatives(alternatives, values)
            if alternatives and not _has_met_alternative(results):
                fault = _make_unmet_fault(variable, alternatives, results, values)
                return Fault(
                    f"{fault.what} (the host's {', '.join(properties)} is not known: {reason})",
                    where=fault.where,
                    hint=fault.hint,
                )
    raise AssertionError("every requirement is met")


def _make_unmet_fault(
    variable: str, alternatives: list[list[RequirementTerm]], results: list[list[bool | None]], values: HostProperties
) -> Fault:
    failure_counts = [sum(result is not True for result in term_results) for term_results in results]
    ranked = sorted(range(len(alternatives)), key=lambda index: (failure_counts[index], index))
    nearest = ranked[0]
    failed = [term for term, result in zip(alternatives[nearest], results[nearest], strict=True) if result is not True]
    # An image's alternatives can be of any length.
    texts = [clip_text(",".join(term.text for term in alternatives[index])) for index in ranked]
    shown = " or ".join(f'"{text}"' for text in texts[:_MAX_SHOWN_ALTERNATIVES])
    if len(texts) > _MAX_SHOWN_ALTERNATIVES:
        shown += f" or {len(texts) - _MAX_SHOWN_ALTERNATIVES} more"
    if len(texts) > 1:
        failing = clip_text(", ".join(term.text for term in failed))
        comparison = f'; nearest is "{texts[0]}", where {failing} fails'
    else:
        comparison = ""
    remedies = ", and ".join(dict.fromkeys(_suggest_remedy(term, values) for term in failed))
    return Fault(
        f"the requirement {shown} is not met: {values.label} has {_describe_host(alternatives, values)}{comparison}",
        where=variable,
        hint=f"{remedies[0].upper()}{remedies[1:]}; NVIDIA_DISABLE_REQUIRE=1 skips the check",
    )


def _describe_host(alternatives: list[list[RequirementTerm]], values: HostProperties) -> str:
    """Return the host's values for the properties in an expression."""
    names = dict.fromkeys(term.name for terms in alternatives for term in terms)
    return ", ".join(f"{name} {'/'.join(values.get_values(name)) or 'unknown'}" for name in names)


def _suggest_remedy(term: RequirementTerm, values: HostProperties) -> str:
    """Return a change that would make a failed term hold."""
    if term.name in ("arch", "brand"):
        return "choose another GPU or an image that is made for this one"
    if term.operator == "!=":
        return "use another driver or another image"
    host_values = values.get_values(term.name)
    is_too_new = term.operator == "=" and host_values and compare_versions(host_values[0], term.value) > 0
    if "<" in term.operator or is_too_new:
        return "use an older driver or a newer image"
    return "update the host's driver or use an image for an older CUDA"
