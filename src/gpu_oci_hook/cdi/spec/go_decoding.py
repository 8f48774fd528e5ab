"""Values as Go's decoder takes them into the types of a CDI file, which is more forgiving than JSON looks.

A key counts in any case; a number or a word like `yes` becomes text where text belongs (in YAML only a person would
write that, in JSON too it works); null is nothing; 195.0 is 195. All of it was seen with podman 4.3, and all of it is
worth a word to the person who wrote the file.

Cost rule: cold.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpu_oci_hook.cdi.spec.finding import Level
from gpu_oci_hook.cdi.spec.schema_check import Schema, load_full_schema, resolve_schema_ref
from gpu_oci_hook.formats.json_lines import join_json_path
from gpu_oci_hook.formats.yaml_scalars import format_scalar

# 16 GPUs with 7 MIG instances each make some 10,000 values, 10 levels deep at most.
MAX_VALUES = 100_000
MAX_DEPTH = 64


class SpecTooLargeError(Exception):
    """More values, or deeper ones, than any CDI file needs."""


class GoDecoder:
    """Shapes one document.

    Arguments:
        spellings: how words that are not text were spelled, by their JSON path.

    notes: what was changed that a person would not expect: level, path, text, cure.
    """

    def __init__(self, spellings: Mapping[str, str]) -> None:
        self.spellings = spellings
        self.notes: list[tuple[Level, str, str, str]] = []
        self.value_count = 0

    def decode_document(self, document: object) -> object:
        """A document in the shape of a CDI file.

        Raises:
            TooMuch: it has more values or levels than any.
        """
        return self._decode_value(document, load_full_schema(), "", 0)

    def _decode_value(self, value: object, rule: Schema, where: str, depth: int) -> object:
        self.value_count += 1
        if self.value_count > MAX_VALUES:
            raise SpecTooLargeError(f"has more than {MAX_VALUES} values: no CDI file needs so many")
        if depth > MAX_DEPTH:
            raise SpecTooLargeError(f"is nested deeper than {MAX_DEPTH} levels: no CDI file needs so many")
        rule = resolve_schema_ref(rule)
        if isinstance(value, dict):
            return self._decode_mapping(value, rule, where, depth)
        if isinstance(value, list):
            items = rule.get("items", {})
            return [
                self._decode_value(one, items, join_json_path(where, index), depth + 1)
                for index, one in enumerate(value)
            ]
        return self._decode_scalar(value, rule, where)

    def _decode_mapping(self, tree: dict[str, object], rule: Schema, where: str, depth: int) -> dict[str, object]:
        known: dict[str, Schema] = rule.get("properties", {})
        free = rule.get("additionalProperties")
        folded = {name.lower(): name for name in known}
        shaped: dict[str, object] = {}
        for key, value in tree.items():
            name = folded.get(key.lower(), key) if known else key
            here = join_json_path(where, key)
            if name != key:
                text = f"is read as {name}, since engines do not mind the case"
                self.notes.append(("warning", here, text, f"Write {name}"))
                if name in tree:
                    self.notes.append(("error", here, f"is there beside {name}", "Remove one of them"))
            below = known.get(name, free if isinstance(free, dict) else {})
            if value is None and (name in known):
                self.value_count += 1
                continue  # Go leaves what null is assigned to as it was
            shaped[name] = self._decode_value(value, below, here, depth + 1)
        return shaped

    def _decode_scalar(self, tree: object, rule: Schema, where: str) -> object:
        kind = rule.get("type", "string" if "enum" in rule else "")
        if isinstance(tree, int) and not -(1 << 63) <= tree < 1 << 64:
            try:
                tree = float(tree)  # as go-yaml does; `yaml_scalars.parse_plain_scalar` has done it already
            except OverflowError:
                tree = str(tree)
        if kind == "string" and isinstance(tree, int | float | None):
            text = format_scalar(tree)
            spelled = self.spellings.get(where, text)
            if text != spelled:
                what = f'{spelled} without quotes is read as "{text}"'
                self.notes.append(("warning", where, what, "Put it in quotes"))
            return text
        if isinstance(tree, float) and tree.is_integer() and abs(tree) < 1e21:
            return int(tree)
        if tree is None and kind == "integer":
            return 0
        return tree
