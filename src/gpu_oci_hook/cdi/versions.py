"""CDI's versions: which there are, which one a file needs and why, and which one an engine reads.

Facts: the specification's SPEC.md and specs-go/version.go; what brought a field stands in schema.json (`x-since`),
which engine reads what in engines.toml.

Cost rule: cold.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib import resources
from typing import NamedTuple

from gpu_oci_hook.cdi.finding import join
from gpu_oci_hook.cdi.rules import compiled
from gpu_oci_hook.cdi.schema import Schema, number, resolved, whole
from gpu_oci_hook.errors import Fault, clipped, nearest

# From the oldest to the newest.
KNOWN: tuple[str, ...] = tuple(one for one in whole()["properties"]["cdiVersion"]["enum"] if one[0] != "v")
OLDEST, NEWEST = KNOWN[0], KNOWN[-1]

# Versions that there were, and that the reference library knows and never accepts: less than OLDEST nobody needs.
BYGONE = ("0.1.0", "0.2.0")


class Feature(NamedTuple):
    """Something in a file that an older version of CDI lacks. version: that brought it. where: its JSON path.
    words: what it is, such as "additionalGids" or "a dot in the class".
    """

    version: str
    where: str
    words: str


def features(spec: object) -> list[Feature]:
    """Everything in a file that needs more than the oldest version, in the order of the file.

    Arguments:
        spec: the file as parsed, right or wrong.
    """
    return list(_features(spec, whole(), ""))


def needed(spec: object) -> tuple[str, str]:
    """The least version that a file must declare, and what in it needs that: its JSON path and what it is.

    Of several reasons the first in the file counts; a file that needs nothing special needs the oldest version, for
    no reason ("").
    """
    found = features(spec)
    version = max((one.version for one in found), key=number, default=OLDEST)
    first = next((one for one in found if one.version == version), None)
    return version, f"{first.where}: {first.words}" if first else ""


def greater(one: str, other: str) -> bool:
    """Whether a version is newer than another; a leading "v" does not count."""
    return number(one) > number(other)


def _features(value: object, rule: Schema, where: str) -> Iterator[Feature]:
    rule = resolved(rule)
    if isinstance(value, str):
        for one in rule.get("x-features", ()):
            if compiled(one["pattern"]).search(value):
                yield Feature(one["since"], where, one["words"])
    elif isinstance(value, list) and "items" in rule:
        for index, below in enumerate(value):
            yield from _features(below, rule["items"], join(where, index))
    elif isinstance(value, dict):
        for key, below in value.items():
            property_ = rule.get("properties", {}).get(key)
            if property_ is not None:
                here = join(where, key)
                if "x-since" in property_ and counts(below, property_):
                    yield Feature(property_["x-since"], here, key)
                yield from _features(below, property_, here)


def counts(value: object, rule: Schema) -> bool:
    """Whether a property with this value is used: the reference library does not count empty ones."""
    if value is None:
        return False
    return bool(value) or bool(rule.get("x-empty-counts")) or not isinstance(value, str | list | dict | bool)


@cache
def engines() -> dict[str, dict[str, str]]:
    """Engine -> its version -> greatest CDI version, oldest first; not to be changed."""
    text = resources.files("gpu_oci_hook.cdi").joinpath("engines.toml").read_text(encoding="utf-8")
    table: dict[str, dict[str, str]] = tomllib.loads(text)
    return {name: dict(sorted(rows.items(), key=lambda row: number(row[0]))) for name, rows in table.items()}


def greatest(target: str) -> str:
    """The greatest CDI version that an engine reads.

    Arguments:
        target: engine and version, "docker-25", "containerd-1.7.16"; of the versions in engines.toml the nearest that
            is not newer counts.

    Raises:
        Fault: no such engine, or one that reads no CDI files yet.
    """
    name, _, version = target.lower().partition("-")
    if name == "cri" and version.startswith("o-"):  # CRI-O's own spelling
        name, version = "crio", version.removeprefix("o-")
    rows = engines().get(name)
    if rows is None or not re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,4}){0,2}", version):
        near = nearest(name, list(engines())) or "docker"
        cure = f"Say one of {', '.join(engines())} and a version, such as {near}-{next(iter(engines()[near]))}"
        raise Fault(f"no engine is called {clipped(target)!r}", cure=cure)
    read = ""
    for from_, greatest_ in rows.items():
        if number(from_) <= number(version):
            read = greatest_
    if not read:
        first = next(iter(rows))
        raise Fault(f"{name} {version} reads no CDI files", cure=f"{name} does from version {first} on")
    return read


def readers(version: str) -> list[str]:
    """The engines that read a CDI version, each with the first version that does: "docker 26.1"."""
    found = []
    for name, rows in engines().items():
        first = next((row for row, read in rows.items() if not greater(version, read)), None)
        if first:
            found.append(f"{name} {first}")
    return found


def refusers(version: str) -> list[str]:
    """The engines that read CDI, but not this version, each with the first version that does: "docker before 26.1"."""
    found = []
    for name, rows in engines().items():
        first = next((row for row, read in rows.items() if not greater(version, read)), None)
        if first is None:
            found.append(f"every {name}")
        elif first != next(iter(rows)):
            found.append(f"{name} before {first}")
    return found


def known(text: str, where: str) -> str:
    """A version of CDI that somebody names, without a leading "v".

    Arguments:
        where: who names it, for the sentence.

    Raises:
        Fault: it is none.
    """
    version = text.removeprefix("v")
    if version in KNOWN:
        return version
    near = f"{version}.0" if f"{version}.0" in KNOWN else nearest(version[:100], KNOWN)
    hint = f'. Did you mean "{near}"?' if near else ""
    raise Fault(f'"{clipped(text)}" is no version of CDI', where=where, cure=f"Known are {', '.join(KNOWN)}{hint}")
