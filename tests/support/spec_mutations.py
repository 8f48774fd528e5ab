"""CDI files with random small errors, from a seeded generator."""

from __future__ import annotations

import json
import random
from typing import Any

from support.valid_specs import Spec

ODD_VALUES: list[object] = [
    None, True, False, 0, -1, 1, 5, 195, 1.0, 1.5, -0.0, 1e300, 2**32, 2**63, 2**64, 10**30, "", "a", "0", "c", "u",
    "rwm", "rx", "none", "/", "/a", ".", "..", "a/b", "vendor.com/class", "vendor.com/cl.ass", "v/c", "A=b", "=b", "A",
    "a\n", "a\0b", "\n", "é", "0.5.0", "v1.1.0", "2.0.0", "prestart", "x" * 300, [], [None], [[]], ["A=b"], ["x", 1],
    [0], [1, -1], [{}], {}, {"a": "b"}, {"a": 1}, {"A/b/c": "x"}, {"a.b/c": "x"}, {"-a": "x"}, {"path": "/x"},
    {"env": ["A=b"]}, {"env": []}, {"intelRdt": {}}, {"intelRdt": None}, {"unknown": 1},
    {"hostInterfaceName": "a", "name": "b"}, {"hostPath": "/a", "containerPath": "b"},
]  # fmt: skip


def mutate_spec(spec: Spec, chance: random.Random, most: int = 3) -> object:
    """Return a copy of a file with one to `most` values replaced, removed or moved."""
    new: object = json.loads(json.dumps(spec))
    for _ in range(chance.randint(1, most)):
        places: list[tuple[Any, Any]] = []
        waiting = [new]
        while waiting:
            one = waiting.pop()
            keys = list(one) if isinstance(one, dict) else range(len(one)) if isinstance(one, list) else ()
            places += [(one, key) for key in keys]
            waiting += [one[key] for key in keys]  # type: ignore[index]
        if not places:
            return chance.choice(ODD_VALUES)
        owner, key = chance.choice(places)
        match chance.randrange(5):
            case 0:
                del owner[key]
            case 1 if isinstance(owner, dict):
                owner[chance.choice(["mounts", "env", "name", "netDevices", "enableMBM", "schemata", "", "é"])] = owner[
                    key
                ]
            case 2 if isinstance(owner, list):
                owner.append(owner[key])
            case _:
                owner[key] = json.loads(json.dumps(chance.choice(ODD_VALUES)))
    return new


def mutate_text(text: str, chance: random.Random, most: int = 4) -> str:
    """Return the text with one to `most` small changes."""
    pieces = [
        "[",
        "]",
        "{",
        "}",
        ":",
        " ",
        "\n",
        "- ",
        "&a ",
        "*a",
        "!!int ",
        "<<: ",
        "'",
        '"',
        "#",
        ",",
        "? ",
        "|",
        ">",
    ]
    pieces += ["\t", "~", "0", "yes", "---\n", "...\n", "%", "@", "é", "\\", "null", "1e5", "x" * 20]
    for _ in range(chance.randint(1, most)):
        place, end = sorted((chance.randrange(len(text) + 1), chance.randrange(len(text) + 1)))
        match chance.randrange(4):
            case 0:
                text = text[:place] + chance.choice(pieces) + text[place:]
            case 1:
                text = text[:place] + text[min(end, place + chance.choice((1, 2, 12))) :]
            case 2:
                text = text[:place] + text[place : min(end, place + chance.choice((1, 3, 30)))] * 2 + text[place:]
            case _:
                text = text[:place] + chance.choice(pieces) + text[place + 1 :]
    return text
