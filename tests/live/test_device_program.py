"""Device programs of cgroup v2: evaluated, changed by our rules, and given back as they were.

`device_programs.json` has the programs of real runtimes for `runc spec`'s bundle, as a kernel 6.18 dumps them.
"""

from __future__ import annotations

import json
import os
import random
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_oci_hook.live import device_program
from gpu_oci_hook.live.device_program import CHAR, MKNOD, READ, WRITE, UnusableProgramError
from support.bundles import skip_or_fail

Device = tuple[int, int]

DUMPS = {
    name: bytes.fromhex(text)
    for name, text in json.loads((Path(__file__).with_name("device_programs.json")).read_text()).items()
}


def assemble(*instructions: tuple[int, int, int, int]) -> bytes:
    return b"".join(struct.pack("<BBhi", *fields) for fields in instructions)


PRELUDE = (
    (0x61, 0x12, 0, 0),
    (0x54, 0x02, 0, 0xFFFF),
    (0x61, 0x13, 0, 0),
    (0x74, 0x03, 0, 16),
    (0x61, 0x14, 4, 0),
    (0x61, 0x15, 8, 0),
)
# systemd's shape (src/core/bpf-devices.c): blocks that jump to a shared exit, jumps by 32 bits.
SYSTEMD = assemble(
    *PRELUDE,
    (0x55, 0x02, 5, CHAR),
    (0xBC, 0x31, 0, 0),
    (0x54, 0x01, 0, READ | WRITE),
    (0x5D, 0x31, 2, 0),  # if r1 != r3
    (0x55, 0x04, 1, 1),
    (0x05, 0x00, 3, 0),  # goto pass
    (0x55, 0x02, 1, CHAR),
    (0x16, 0x04, 1, 136),  # if w4 == 136 goto pass
    (0x05, 0x00, 2, 0),  # goto deny
    (0xB7, 0x00, 0, 1),
    (0x95, 0x00, 0, 0),
    (0xB7, 0x00, 0, 0),
    (0x95, 0x00, 0, 0),
)
PROGRAMS = {**DUMPS, "systemd's shape": SYSTEMD}
GPU: list[Device] = [(195, 0), (195, 255), (510, 0), (510, 1048575)]
KNOWN: list[Device] = [*GPU, (1, 3), (1, 5), (5, 0), (136, 7), (10, 200), (1, 1)]


@pytest.fixture(params=PROGRAMS, ids=list(PROGRAMS))
def program(request: pytest.FixtureRequest) -> bytes:
    return PROGRAMS[request.param]


def choose_access(dice: random.Random) -> tuple[int, int, int, int]:
    """Choose type, access, major and minor, often near the numbers that the programs know."""
    major = dice.choice([1, 5, 10, 136, 195, 510, 511, dice.randrange(1 << 12), dice.randrange(1 << 32)])
    minor = dice.choice([0, 1, 2, 3, 5, 200, 255, 1048575, dice.randrange(1 << 20), 4294967295])
    return dice.choice([1, 2, 2, 2, 3]), dice.randrange(1, 8), major, minor


def test_a_changed_program_decides_by_our_rules_and_else_as_the_old_one(program: bytes) -> None:
    old = device_program.decode_program(program)
    dice = random.Random(11)
    seen = set()
    for _ in range(1000):
        rules = {device: dice.random() < 0.5 for device in dice.sample(KNOWN, dice.randrange(len(KNOWN)))}
        new = device_program.decode_program(device_program.build_program(program, rules))
        for _ in range(100):
            kind, access, major, minor = choose_access(dice)
            rule = rules.get((major, minor)) if kind == CHAR else None
            expected = old_answer = device_program.evaluate_program(old, kind, access, major, minor)
            if rule is False and access & (READ | WRITE):
                expected = False
            elif rule is True and not access & MKNOD:
                expected = True
            assert device_program.evaluate_program(new, kind, access, major, minor) == expected
            seen.add((rule, old_answer))
    assert seen == {(rule, answer) for rule in (None, False, True) for answer in (False, True)}


def test_allowing_and_denying_undo_each_other_and_nothing_grows(program: bytes) -> None:
    old = device_program.decode_program(program)
    dice = random.Random(7)
    current, wanted = program, {}
    for _ in range(300):
        devices = dice.sample(KNOWN, dice.randrange(1, 4))
        allow = dice.random() < 0.5
        word = "allow" if allow else "deny"
        current = device_program.change_device_rules(current, **{word: devices})
        wanted.update(dict.fromkeys(devices, allow))
        decoded = device_program.decode_program(current)
        for device in KNOWN:
            for access in (READ, WRITE, READ | WRITE):
                original = device_program.evaluate_program(old, CHAR, access, *device)
                answer = device_program.evaluate_program(decoded, CHAR, access, *device)
                assert answer == wanted.get(device, original)
        rules = device_program.list_rules(current)
        assert rules.keys() <= wanted.keys()
        assert all(allow != device_program.evaluate_program(old, CHAR, 6, *device) for device, allow in rules.items())
        if not rules:
            assert current == program
    allowed = [device for device in KNOWN if device_program.evaluate_program(old, CHAR, READ | WRITE, *device)]
    back = device_program.change_device_rules(current, allow=allowed, deny=[d for d in KNOWN if d not in allowed])
    assert back == program


def test_a_device_that_was_given_at_the_start_is_denied_by_a_rule_of_ours_and_given_again() -> None:
    program = DUMPS["runc 1.1.5"]
    null = (1, 3)
    denied = device_program.change_device_rules(program, deny=[null, (195, 0)])
    assert device_program.list_rules(denied) == {null: False}
    assert denied.endswith(program)
    assert device_program.change_device_rules(denied, deny=[null]) == denied
    assert device_program.change_device_rules(denied, allow=[null]) == program


def test_rules_are_replaced_and_without_one_the_old_program_comes_back(program: bytes) -> None:
    first = device_program.change_device_rules(program, allow=GPU)
    assert device_program.list_rules(first) == dict.fromkeys(GPU, True)
    second = device_program.change_device_rules(first, deny=GPU[1:])
    assert device_program.list_rules(second) == {GPU[0]: True}
    assert len(second) < len(first)
    assert device_program.change_device_rules(second, deny=GPU) == program
    assert device_program.change_device_rules(program) == program
    assert device_program.list_rules(program) == {}


def test_allowing_what_the_program_allows_adds_nothing(program: bytes) -> None:
    extended = device_program.change_device_rules(program, allow=[(195, 0), (1, 3)])
    assert device_program.list_rules(extended) == {(195, 0): True}
    assert device_program.change_device_rules(extended, allow=[(195, 0)]) == extended


@pytest.mark.parametrize(
    ("dump", "words"),
    [
        (bytes(64), "kptr_restrict"),
        (assemble(*PRELUDE, (0xB4, 0x0B, 0, 0x1234), (0xAC, 0xB4, 0, 0), (0x95, 0, 0, 0)), "bpf_jit_harden"),
        (assemble((0x18, 0x11, 0, 7), (0, 0, 0, 0), (0x95, 0, 0, 0)), "uses a map"),
        (assemble((0x85, 0, 0, 14), (0x95, 0, 0, 0)), "helper function"),
        (b"", "0 bytes|hides"),
        (b"\x95" + bytes(11), "12 bytes"),
    ],
    ids=["hidden", "blinded", "with a map", "with a helper", "empty", "cut"],
)
def test_a_dump_that_the_kernel_would_refuse_is_refused_with_the_reason(dump: bytes, words: str) -> None:
    with pytest.raises(UnusableProgramError, match=words):
        device_program.change_device_rules(dump, allow=GPU)


@pytest.mark.parametrize(
    "instructions",
    [
        ((0x05, 0, -1, 0),),  # a loop
        ((0x05, 0, 9, 0),),  # a jump out of the program
        ((0x61, 0x12, 64, 0), (0x95, 0, 0, 0)),  # a load behind the context
        ((0x85, 0, 0, 1), (0x95, 0, 0, 0)),
        ((0xDC, 0x02, 0, 16), (0x95, 0, 0, 0)),  # byte swap
        ((0xB7, 0, 0, 1),),  # no exit
    ],
)
def test_what_device_programs_do_not_do_is_refused_and_ends(
    instructions: tuple[tuple[int, int, int, int], ...],
) -> None:
    with pytest.raises(UnusableProgramError):
        device_program.change_device_rules(assemble(*instructions), allow=[(1, 1)])


@pytest.mark.root
def test_the_kernel_decides_as_our_evaluation_says(tmp_path: Path) -> None:
    """200 accesses of each program, by opening device nodes in a cgroup of version 2."""
    if os.geteuid() != 0:
        skip_or_fail("needs root")
    script = Path(__file__).with_name("kernel_judge.py")
    cases = {}
    for name, old in PROGRAMS.items():
        changed = device_program.change_device_rules(old, allow=GPU[:2], deny=[(1, 3), (5, 0)])
        decoded = device_program.decode_program(changed)
        dice = random.Random(5)
        accesses = []
        while len(accesses) < 200:
            _, access, major, minor = choose_access(dice)
            if major < 1 << 12 and minor < 1 << 20 and access & (READ | WRITE):
                accesses.append((access & (READ | WRITE), major, minor))
        expected = [device_program.evaluate_program(decoded, CHAR, *access) for access in accesses]
        assert {True, False} == set(expected)
        cases[name] = {"program": changed.hex(), "accesses": accesses, "expected": expected}
    command = ["unshare", "--mount", "--propagation", "private", sys.executable, str(script), str(tmp_path)]
    done = subprocess.run(command, input=json.dumps(cases), capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    for name, decisions in json.loads(done.stdout).items():
        assert decisions == cases[name]["expected"], name
