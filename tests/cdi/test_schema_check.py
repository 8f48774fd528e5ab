"""The one schema: whole, strict for each version, and the same as what the hand-written checks say."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_oci_hook.cdi.spec import schema_check, validation, versions
from gpu_oci_hook.formats import cdi_names
from support.spec_mutations import mutate_spec
from support.valid_specs import FULL_SPEC, SPECS_BY_VERSION, minimal_spec, with_change

WHOLE = schema_check.load_full_schema()


def oracle(rule: dict[str, Any]) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(rule)


ORACLES = {version: oracle(schema_check.build_version_schema(version)) for version in versions.KNOWN_VERSIONS}


def agrees(spec: object, rule: dict[str, Any], judge: jsonschema.Draft202012Validator) -> bool:
    return judge.is_valid(spec) == (next(schema_check.find_schema_violations(spec, rule), None) is None)


def test_every_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(WHOLE)
    for version in versions.KNOWN_VERSIONS:
        jsonschema.Draft202012Validator.check_schema(schema_check.build_version_schema(version))
        text = json.dumps(schema_check.build_version_schema(version))
        assert not any(word in text for word in ("x-since", "x-until", "x-features", "$ref"))


def rules_of(rule: Any, properties: bool = False) -> list[dict[str, Any]]:
    """Every rule in a schema."""
    if not isinstance(rule, dict):
        return []
    found = [] if properties else [rule]
    for key, one in rule.items():
        if key in ("properties", "$defs") and not properties:
            found += rules_of(one, True)
        elif isinstance(one, list):
            found += [below for part in one for below in rules_of(part) if key in ("allOf", "anyOf")]
        elif properties or key in ("items", "additionalProperties", "propertyNames", "not"):
            found += rules_of(one)
    return found


def test_the_schema_uses_no_keyword_that_is_not_checked() -> None:
    notes = {"$schema", "$id", "$ref", "$defs", "title", "description"}
    used = {key for rule in rules_of(WHOLE) for key in rule if not key.startswith("x-")}
    assert used - notes == schema_check.CHECKED_KEYWORDS


def test_every_mapping_is_strict_and_every_property_says_its_kind() -> None:
    for rule in rules_of(WHOLE):
        if "properties" in rule and "type" in rule:
            assert rule["additionalProperties"] is False
        for one in rule.get("properties", {}).values():
            if "minItems" not in one:
                assert {"type", "enum"} & set(schema_check.resolve_schema_ref(one)), one


def test_a_ref_and_what_stands_beside_it_never_say_the_same_keyword() -> None:
    for rule in rules_of(WHOLE):
        if "$ref" in rule:
            below = schema_check.resolve_schema_ref({"$ref": rule["$ref"]})
            assert not {key for key in rule if key in schema_check.CHECKED_KEYWORDS} & set(below)


@pytest.mark.parametrize("brought", SPECS_BY_VERSION)
@pytest.mark.parametrize("version", versions.KNOWN_VERSIONS)
def test_a_file_of_one_version_is_right_for_that_schema_and_newer_content_is_wrong(brought: str, version: str) -> None:
    spec = with_change(SPECS_BY_VERSION[brought], "cdiVersion", to=version)
    old = schema_check.parse_cdi_version(version) < schema_check.parse_cdi_version(brought)
    gone = brought == "0.7.0" and version == "1.1.0"  # enableCMT
    needs_nothing = brought in ("0.8.0", "1.0.0")
    assert ORACLES[version].is_valid(spec) == (not gone and (not old or needs_nothing))
    assert ORACLES[version].is_valid(spec | {"cdiVersion": f"v{version}"}) == ORACLES[version].is_valid(spec)
    assert agrees(spec, schema_check.build_version_schema(version), ORACLES[version])


def test_the_file_with_every_field_is_right_and_has_every_field() -> None:
    assert ORACLES["1.1.0"].is_valid(FULL_SPEC)
    text = json.dumps(FULL_SPEC)
    for name, one in WHOLE["$defs"].items():
        for field, rule in one.get("properties", {}).items():
            assert f'"{field}"' in text or "x-until" in rule, (name, field)


def test_hand_checks_and_schema_agree_on_every_mutation_of_good_files() -> None:
    chance = random.Random(4)
    good = [*SPECS_BY_VERSION.values(), FULL_SPEC]
    wrong = 0
    judge = oracle(WHOLE)
    for _ in range(6000):
        spec = mutate_spec(chance.choice(good), chance)
        assert agrees(spec, WHOLE, judge), spec
        version = chance.choice(versions.KNOWN_VERSIONS)
        assert agrees(spec, schema_check.build_version_schema(version), ORACLES[version]), (version, spec)
        wrong += not judge.is_valid(spec)
    assert 3000 < wrong < 6000


def test_no_mutation_of_good_files_is_more_than_findings() -> None:
    chance = random.Random(5)
    good = [*SPECS_BY_VERSION.values(), FULL_SPEC]
    for _ in range(6000):
        spec = mutate_spec(chance.choice(good), chance)
        for maximum in ("", chance.choice(versions.KNOWN_VERSIONS)):
            found = validation.validate_spec(spec, "x", maximum=maximum)
            assert all(str(one) and one.level in ("error", "warning", "info") for one in found)
        assert versions.find_minimum_version(spec)[0] in versions.KNOWN_VERSIONS


def test_a_file_without_findings_is_right_for_the_schema_of_the_version_that_it_declares() -> None:
    chance = random.Random(6)
    seen = 0
    for _ in range(6000):
        spec = mutate_spec(chance.choice([*SPECS_BY_VERSION.values(), FULL_SPEC]), chance)
        found = validation.validate_spec(spec, "x")
        if not found and isinstance(spec, dict):
            seen += 1
            assert ORACLES[spec["cdiVersion"].removeprefix("v")].is_valid(spec), spec
    assert seen > 200


@given(st.text(alphabet="aZ0_-.:/=\n é", max_size=6))
def test_the_grammar_of_names_is_the_hot_modules(text: str) -> None:
    spec = minimal_spec("0.6.0") | {"kind": text}
    assert ORACLES["0.6.0"].is_valid(spec) == (cdi_names.parse_cdi_kind(text) is not None)
    spec = with_change(minimal_spec("0.6.0"), "devices", 0, "name", to=text)
    assert ORACLES["0.6.0"].is_valid(spec) == cdi_names.is_device_name(text)
