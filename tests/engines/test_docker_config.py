"""docker's daemon.json: whatever is in it stays as it is, and only our entries come and go."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpu_oci_hook.engines.docker_config import add_docker_runtime, has_own_docker_runtime, take_out_docker_runtime
from gpu_oci_hook.engines.wanted import WantedRuntime
from gpu_oci_hook.errors import Fault

PATH = "/etc/docker/daemon.json"
PROGRAM = "/usr/local/bin/gpu-oci-runtime"
WANTED = WantedRuntime("gpu-oci", PROGRAM)
DEFAULT = WantedRuntime("gpu-oci", PROGRAM, default=True)
AS_NVIDIA = WantedRuntime("nvidia", PROGRAM, default=True)
OURS = {"path": PROGRAM}

# What operators have. Each: the file, and the very text that `configure` makes of it.
EDITED = {
    "no file": (None, '{\n  "runtimes": {\n    "gpu-oci": {\n      "path": "PROGRAM"\n    }\n  }\n}\n'),
    "an empty file": ("", '{\n  "runtimes": {\n    "gpu-oci": {\n      "path": "PROGRAM"\n    }\n  }\n}\n'),
    "blanks": (" \n\t\n", '{\n  "runtimes": {\n    "gpu-oci": {\n      "path": "PROGRAM"\n    }\n  }\n}\n'),
    "null": ("null\n", '{\n  "runtimes": {\n    "gpu-oci": {\n      "path": "PROGRAM"\n    }\n  }\n}\n'),
    "an empty object": ("{}", '{\n  "runtimes": {\n    "gpu-oci": {\n      "path": "PROGRAM"\n    }\n  }\n}'),
    "other keys, four blanks, short lists on one line": (
        '{\n    "log-opts": {"max-size": "10m"},\n    "dns": ["10.0.0.1", "10.0.0.2"]\n}\n',
        (
            '{\n    "log-opts": {"max-size": "10m"},\n    "dns": ["10.0.0.1", "10.0.0.2"],\n    "runtimes": {\n'
            '        "gpu-oci": {\n            "path": "PROGRAM"\n        }\n    }\n}\n'
        ),
    ),
    "tabs": (
        '{\n\t"debug": true\n}\n',
        '{\n\t"debug": true,\n\t"runtimes": {\n\t\t"gpu-oci": {\n\t\t\t"path": "PROGRAM"\n\t\t}\n\t}\n}\n',
    ),
    "CRLF": (
        '{\r\n  "debug": true\r\n}\r\n',
        '{\n  "debug": true,\n  "runtimes": {\n    "gpu-oci": {\n      "path": "PROGRAM"\n    }\n  }\n}\n'.replace(
            "\n", "\r\n"
        ),
    ),
    "a byte order mark": (
        '\ufeff{\n  "debug": true\n}\n',
        '\ufeff{\n  "debug": true,\n  "runtimes": {\n    "gpu-oci": {\n      "path": "PROGRAM"\n    }\n  }\n}\n',
    ),
    "one line": (
        '{"debug":true,"runtimes":{"kata":{"path":"/opt/kata"}}}',
        '{"debug":true,"runtimes":{"kata":{"path":"/opt/kata"}, "gpu-oci": {"path": "PROGRAM"}}}',
    ),
    "another runtime": (
        '{\n  "runtimes": {\n    "kata": {\n      "path": "/opt/kata"\n    }\n  },\n  "debug": true\n}\n',
        (
            '{\n  "runtimes": {\n    "kata": {\n      "path": "/opt/kata"\n    },\n    "gpu-oci": {\n'
            '      "path": "PROGRAM"\n    }\n  },\n  "debug": true\n}\n'
        ),
    ),
    "an empty map of runtimes": (
        '{\n  "runtimes": {}\n}\n',
        '{\n  "runtimes": {\n    "gpu-oci": {\n      "path": "PROGRAM"\n    }\n  }\n}\n',
    ),
    "runtimes that are null": (
        '{\n  "runtimes": null\n}\n',
        '{\n  "runtimes": {\n    "gpu-oci": {\n      "path": "PROGRAM"\n    }\n  }\n}\n',
    ),
    "ours at another path": (
        '{\n  "runtimes": {\n    "gpu-oci": {"path": "/opt/bin/gpu-oci-runtime"}\n  }\n}\n',
        '{\n  "runtimes": {\n    "gpu-oci": {\n      "path": "PROGRAM"\n    }\n  }\n}\n',
    ),
    "ours with a type that dockerd refuses beside a path": (
        '{\n  "runtimes": {\n    "gpu-oci": {"path": "PROGRAM", "runtimeType": "io.containerd.runc.v2"}\n  }\n}\n',
        '{\n  "runtimes": {\n    "gpu-oci": {\n      "path": "PROGRAM"\n    }\n  }\n}\n',
    ),
    "ours already, with arguments of the administrator": (
        '{"runtimes": {"gpu-oci": {"runtimeArgs": ["--debug"], "path": "PROGRAM"}}, "features": {"cdi": true}}',
        '{"runtimes": {"gpu-oci": {"runtimeArgs": ["--debug"], "path": "PROGRAM"}}, "features": {"cdi": true}}',
    ),
    "the incumbent beside us": (
        (
            '{\n  "runtimes": {\n    "nvidia": {\n      "args": [],\n'
            '      "path": "nvidia-container-runtime"\n    }\n  }\n}\n'
        ),
        (
            '{\n  "runtimes": {\n    "nvidia": {\n      "args": [],\n      "path": "nvidia-container-runtime"\n    },\n'
            '    "gpu-oci": {\n      "path": "PROGRAM"\n    }\n  }\n}\n'
        ),
    ),
    "umlauts and escapes": (
        '{\n  "labels": ["gr\\u00f6\\u00dfe=ä", "\\"}{=x"]\n}\n',
        (
            '{\n  "labels": ["gr\\u00f6\\u00dfe=ä", "\\"}{=x"],\n  "runtimes": {\n'
            '    "gpu-oci": {\n      "path": "PROGRAM"\n    }\n  }\n}\n'
        ),
    ),
}


def to_bytes(text: str | None) -> bytes | None:
    return None if text is None else text.replace("PROGRAM", PROGRAM).encode()


@pytest.mark.parametrize(("before", "after"), EDITED.values(), ids=EDITED)
def test_only_our_entry_is_added_in_the_style_of_the_file(before: str | None, after: str) -> None:
    made = add_docker_runtime(to_bytes(before), WANTED, PATH)
    assert made == to_bytes(after)
    assert add_docker_runtime(made, WANTED, PATH) == made, "a second time changes something"


@pytest.mark.parametrize("before", [before for before, _ in EDITED.values()], ids=EDITED)
@pytest.mark.parametrize("wanted", [WANTED, DEFAULT, AS_NVIDIA], ids=["plain", "default", "nvidia"])
def test_what_was_there_is_there_still_and_taking_out_leaves_the_same_settings(
    before: str | None, wanted: WantedRuntime
) -> None:
    original = to_bytes(before)
    made = add_docker_runtime(original, wanted, PATH)
    old, new = parse(original), parse(made)
    assert new["runtimes"][wanted.name]["path"] == PROGRAM
    assert new.get("default-runtime") == (wanted.name if wanted.default else None)
    assert {key: new[key] for key in old if key != "runtimes"} == {key: old[key] for key in old if key != "runtimes"}
    # Somebody else adds a key of his own meanwhile.
    edited = add_docker_runtime(made, WantedRuntime("other", "/opt/other"), PATH)
    left = parse(take_out_docker_runtime(edited, original, wanted, PATH))
    assert left["runtimes"].pop("other") == {"path": "/opt/other"}
    assert {**left, "runtimes": left["runtimes"] or None} == {**old, "runtimes": old.get("runtimes") or None}


def parse(data: bytes | None) -> dict[str, Any]:
    text = (data or b"").decode("utf-8-sig")
    return (json.loads(text) or {}) if text.strip() else {}


def test_the_default_of_the_administrator_comes_back() -> None:
    original = b'{"default-runtime": "kata", "runtimes": {"kata": {"path": "/opt/kata"}}}'
    made = add_docker_runtime(original, DEFAULT, PATH)
    assert parse(made)["default-runtime"] == "gpu-oci"
    assert take_out_docker_runtime(made, original, DEFAULT, PATH) == original


def test_a_default_that_was_changed_after_us_stays() -> None:
    made = add_docker_runtime(b'{"default-runtime": "runc"}', DEFAULT, PATH)
    edited = made.replace(b'"default-runtime": "gpu-oci"', b'"default-runtime": "kata"')
    left = parse(take_out_docker_runtime(edited, b'{"default-runtime": "runc"}', DEFAULT, PATH))
    assert left == {"default-runtime": "kata"}


def test_without_a_record_every_entry_with_our_program_is_taken_out() -> None:
    data = b'{\n  "default-runtime": "gpu",\n  "runtimes": {\n    "gpu": {"path": "/opt/bin/gpu-oci-runtime"},\n'
    data += b'    "nvidia": {"path": "nvidia-container-runtime"}\n  }\n}\n'
    assert has_own_docker_runtime(data, PATH)
    left = take_out_docker_runtime(data, None, None, PATH)
    assert left == b'{\n  "runtimes": {\n    "nvidia": {"path": "nvidia-container-runtime"}\n  }\n}\n'
    assert not has_own_docker_runtime(left, PATH)


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ('{\n  "debug": true, // why\n}', ":2:18", "not JSON: "),
        ('{\n  "debug": true,\n}', ":", "not JSON: "),
        ('{\n  "debug": true\n}}', ":3:2", "not JSON: extra data"),
        ('{"debug": NaN}', "", "NaN is not a number in JSON"),
        ("[]", ":1", "the top level of the file is not an object"),
        ('{\n  "runtimes": ["a"]\n}', ":2", '"runtimes" is not an object'),
        ('{\n "runtimes": {},\n "runtimes": {}\n}', ":3", 'the key "runtimes" is set twice, first in line 2'),
        ('{\n "runtimes": {\n  "gpu-oci": {"path": "/opt/kata"}\n }\n}', ":3", "another runtime has the name gpu-oci"),
        ('{\n "runtimes": {\n  "gpu-oci": "x"\n }\n}', ":3", "another runtime has the name gpu-oci"),
    ],
)
def test_a_file_that_cannot_be_edited_is_refused_by_line(text: str, where: str, what: str) -> None:
    with pytest.raises(Fault) as caught:
        add_docker_runtime(text.encode(), WANTED, PATH)
    assert caught.value.where.startswith(f"{PATH}{where}")
    assert what in caught.value.what


@pytest.mark.parametrize("data", ["{}".encode("utf-16"), b'{\n"a": "\xff"}'])
def test_a_file_in_another_encoding_is_refused_by_line(data: bytes) -> None:
    with pytest.raises(Fault, match=r"UTF-(8|16)") as caught:
        add_docker_runtime(data, WANTED, PATH)
    assert caught.value.where == f"{PATH}:{2 if data.startswith(b'{') else 1}"
