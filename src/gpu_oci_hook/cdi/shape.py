"""Values as Go's decoder takes them into the types of a CDI file, which is more forgiving than JSON looks.

A key counts in any case; a number or a word like `yes` becomes text where text belongs (in YAML only a person would
write that, in JSON too it works); null is nothing; 195.0 is 195. All of it was seen with podman 4.3, and all of it is
worth a word to the person who wrote the file.

Cost rule: cold.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpu_oci_hook.cdi import scalars
from gpu_oci_hook.cdi.finding import Level, join
from gpu_oci_hook.cdi.schema import Schema, resolved, whole

# 16 GPUs with 7 MIG instances each make some 10,000 values, 10 levels deep at most.
NODES = 100_000
DEPTH = 64


class TooMuch(Exception):
    """More values, or deeper ones, than any CDI file needs."""


class Shaper:
    """Shapes one document.

    Arguments:
        spelled: how words that are not text were spelled, by their JSON path.

    notes: what was changed that a person would not expect: level, path, text, cure.
    """

    def __init__(self, spelled: Mapping[str, str]) -> None:
        self.spelled = spelled
        self.notes: list[tuple[Level, str, str, str]] = []
        self.count = 0

    def value(self, tree: object) -> object:
        """A document in the shape of a CDI file.

        Raises:
            TooMuch: it has more values or levels than any.
        """
        return self._value(tree, whole(), "", 0)

    def _value(self, tree: object, rule: Schema, where: str, depth: int) -> object:
        self.count += 1
        if self.count > NODES:
            raise TooMuch(f"has more than {NODES} values: no CDI file needs so many")
        if depth > DEPTH:
            raise TooMuch(f"is nested deeper than {DEPTH} levels: no CDI file needs so many")
        rule = resolved(rule)
        if isinstance(tree, dict):
            return self._mapping(tree, rule, where, depth)
        if isinstance(tree, list):
            items = rule.get("items", {})
            return [self._value(one, items, join(where, index), depth + 1) for index, one in enumerate(tree)]
        return self._scalar(tree, rule, where)

    def _mapping(self, tree: dict[str, object], rule: Schema, where: str, depth: int) -> dict[str, object]:
        known: dict[str, Schema] = rule.get("properties", {})
        free = rule.get("additionalProperties")
        folded = {name.lower(): name for name in known}
        shaped: dict[str, object] = {}
        for key, value in tree.items():
            name = folded.get(key.lower(), key) if known else key
            here = join(where, key)
            if name != key:
                text = f"is read as {name}, since engines do not mind the case"
                self.notes.append(("warning", here, text, f"Write {name}"))
                if name in tree:
                    self.notes.append(("error", here, f"is there beside {name}", "Remove one of them"))
            below = known.get(name, free if isinstance(free, dict) else {})
            if value is None and (name in known):
                self.count += 1
                continue  # Go leaves what null is assigned to as it was
            shaped[name] = self._value(value, below, here, depth + 1)
        return shaped

    def _scalar(self, tree: object, rule: Schema, where: str) -> object:
        kind = rule.get("type", "string" if "enum" in rule else "")
        if kind == "string" and isinstance(tree, int | float | None):
            text = scalars.text_of(tree)
            spelled = self.spelled.get(where, text)
            if text != spelled:
                what = f'{spelled} without quotes is read as "{text}"'
                self.notes.append(("warning", where, what, "Put it in quotes"))
            return text
        if isinstance(tree, float) and tree.is_integer() and abs(tree) < 1e21:
            return int(tree)
        if tree is None and kind == "integer":
            return 0
        return tree
