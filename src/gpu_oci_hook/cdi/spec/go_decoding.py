"""Decode values as Go's decoder does for the types of a CDI file, which is more lenient than JSON looks.

Keys match in any case. A number or a word such as `yes` becomes text where text is expected (people only write that in
YAML, but JSON behaves the same). null means absent. 195.0 is 195. All of it was observed with podman 4.3, and each
conversion that a person would not expect becomes a note.

Import budget: cold.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpu_oci_hook.cdi.spec.finding import Level
from gpu_oci_hook.cdi.spec.schema_check import Schema, load_full_schema, resolve_schema_ref
from gpu_oci_hook.formats.json_lines import join_json_path
from gpu_oci_hook.formats.yaml_scalars import format_scalar

# 16 GPUs with 7 MIG instances each have some 10,000 values, 10 levels deep at most.
MAX_VALUES = 100_000
MAX_DEPTH = 64


class SpecTooLargeError(Exception):
    """The file has more values, or more levels, than any CDI file needs."""


class GoDecoder:
    """Decodes one document.

    Arguments:
        spellings: original spelling of scalars that are not text, by JSON path.

    Attributes:
        notes: (level, JSON path, text, hint) of each conversion that a person would not expect.
    """

    def __init__(self, spellings: Mapping[str, str]) -> None:
        self.spellings = spellings
        self.notes: list[tuple[Level, str, str, str]] = []
        self.value_count = 0

    def decode_document(self, document: object) -> object:
        """Decode a document to the types of a CDI file.

        Raises:
            SpecTooLargeError: it has too many values or levels.
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
            item_rule = rule.get("items", {})
            return [
                self._decode_value(item, item_rule, join_json_path(where, index), depth + 1)
                for index, item in enumerate(value)
            ]
        return self._decode_scalar(value, rule, where)

    def _decode_mapping(self, mapping: dict[str, object], rule: Schema, where: str, depth: int) -> dict[str, object]:
        properties: dict[str, Schema] = rule.get("properties", {})
        other_rule = rule.get("additionalProperties")
        names_by_lower_case = {name.lower(): name for name in properties}
        decoded: dict[str, object] = {}
        for key, value in mapping.items():
            name = names_by_lower_case.get(key.lower(), key) if properties else key
            json_path = join_json_path(where, key)
            if name != key:
                text = f"is read as {name}, since engines ignore the case"
                self.notes.append(("warning", json_path, text, f"Write {name}"))
                if name in mapping:
                    self.notes.append(("error", json_path, f"is also present as {name}", "Remove one of them"))
            if value is None and name in properties:
                self.value_count += 1
                continue  # Go leaves a field unchanged when null is assigned
            value_rule = properties.get(name, other_rule if isinstance(other_rule, dict) else {})
            decoded[name] = self._decode_value(value, value_rule, json_path, depth + 1)
        return decoded

    def _decode_scalar(self, value: object, rule: Schema, where: str) -> object:
        type_name = rule.get("type", "string" if "enum" in rule else "")
        if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
            try:
                value = float(value)  # as go-yaml does; `yaml_scalars.parse_plain_scalar` has done it already
            except OverflowError:
                value = str(value)
        if type_name == "string" and isinstance(value, int | float | None):
            text = format_scalar(value)
            spelling = self.spellings.get(where, text)
            if text != spelling:
                note = f'{spelling} without quotes is read as "{text}"'
                self.notes.append(("warning", where, note, "Put it in quotes"))
            return text
        if isinstance(value, float) and value.is_integer() and abs(value) < 1e21:
            return int(value)
        if value is None and type_name == "integer":
            return 0
        return value
