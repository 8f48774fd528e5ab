"""Read, evaluate and change the eBPF programs by which cgroup v2 decides about device access.

runc, crun, youki and systemd load one program for each container. It gets a device's type, numbers and the wanted
access, and returns 1 to allow it (Linux, `BPF_PROG_TYPE_CGROUP_DEVICE`). Programs of a cgroup and of those above it are
ANDed, so a further program cannot allow what one denies: the denying one must be replaced. A changed program has our
rules in front of the old program, unchanged. Its first two instructions mark it, so that the rules can be found again:
they are replaced and not added up, and without a rule the old program is returned byte for byte.

Pure: bytes in, bytes out. The system calls are in `live.bpf`.

Import budget: cold.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence

# Access bits and device types of linux/bpf.h.
MKNOD, READ, WRITE = 1, 2, 4
BLOCK, CHAR = 1, 2
_OPENING = (READ, WRITE, READ | WRITE)

INSTRUCTION_SIZE = 8
_LAYOUT = struct.Struct("<BBhi")
_STEP_LIMIT = 1 << 20

# Instruction classes and operations: Documentation/bpf/standardization/instruction-set.rst of the kernel.
_LD, _LDX, _ALU32, _JMP, _JMP32, _ALU64 = 0, 1, 4, 5, 6, 7
_LD_IMM64 = 0x18
_SOURCE_REGISTER = 0x08
_CALL, _EXIT = 0x85, 0x95
_SIZES = {0x00: 4, 0x08: 2, 0x10: 1, 0x18: 8}
_BLINDING_REGISTER = 11  # BPF_REG_AX, which only the kernel may use
_MASK32, _MASK64 = (1 << 32) - 1, (1 << 64) - 1

_MARK = 0x6F636968  # any number that no other tool writes into R6
_MARK_SIZE = 2
# Load device type, access, major and minor into R2 to R5, as runc, crun and systemd do.
_PRELUDE = (
    (0x61, 0x12, 0, 0),  # r2 = *(u32 *)(r1 + 0)
    (0x54, 0x02, 0, 0xFFFF),  # w2 &= 0xffff
    (0x61, 0x13, 0, 0),  # r3 = *(u32 *)(r1 + 0)
    (0x74, 0x03, 0, 16),  # w3 >>= 16
    (0x61, 0x14, 4, 0),  # r4 = *(u32 *)(r1 + 4)
    (0x61, 0x15, 8, 0),  # r5 = *(u32 *)(r1 + 8)
)
_RULE_LENGTH = 8
# Allows everything, as no program does; its first instruction tells that this module has made it.
OPEN_PROGRAM = _LAYOUT.pack(0xB7, 0x06, 0, _MARK) + _LAYOUT.pack(0xB7, 0x00, 0, 1) + _LAYOUT.pack(_EXIT, 0, 0, 0)


class UnusableProgramError(ValueError):
    """The kernel's dump of a program cannot be loaded again; the message says why."""


class Instruction:
    """One eBPF instruction.

    Attributes:
        code: operation.
        dst, src: registers.
        offset: of a jump in instructions, or of a load in bytes.
        imm: immediate value.
    """

    __slots__ = ("code", "dst", "imm", "offset", "src")

    def __init__(self, code: int, registers: int, offset: int, imm: int) -> None:
        self.code = code
        self.dst = registers & 0xF
        self.src = registers >> 4
        self.offset = offset
        self.imm = imm


def decode_program(data: bytes) -> list[Instruction]:
    """Decode a program.

    Raises:
        UnusableProgramError: the dump is hidden (`kernel.kptr_restrict`), or its size is not a multiple of an
            instruction's.
    """
    if not data.strip(b"\0"):
        raise UnusableProgramError("the kernel hides its instructions (sysctl kernel.kptr_restrict, or no CAP_SYSLOG)")
    if len(data) % INSTRUCTION_SIZE:
        raise UnusableProgramError(f"a program of {len(data)} bytes")
    return [Instruction(*fields) for fields in _LAYOUT.iter_unpack(data)]


def check_reloadable(data: bytes) -> None:
    """Check that the kernel would load a dump again.

    Raises:
        UnusableProgramError: the dump is hidden, or blinded (`net.core.bpf_jit_harden`), or the program uses maps or
            helper functions, whose addresses a dump does not have.
    """
    wide = False
    for instruction in decode_program(data):
        if wide:  # the second half of a 16-byte instruction
            wide = False
            continue
        if _BLINDING_REGISTER in (instruction.dst, instruction.src):
            raise UnusableProgramError("the kernel has blinded its constants (sysctl net.core.bpf_jit_harden = 2)")
        wide = instruction.code == _LD_IMM64
        if wide and instruction.src != 0:
            raise UnusableProgramError("it uses a map")
        if instruction.code == _CALL:
            raise UnusableProgramError("it calls a helper function")


def change_device_rules(
    program: bytes, *, allow: Iterable[tuple[int, int]] = (), deny: Iterable[tuple[int, int]] = ()
) -> bytes:
    """Return a program that allows or denies reading and writing these character devices and else decides as before.

    A rule of ours is added only where the original program decides otherwise, so allowing and denying a device undo
    each other.

    Arguments:
        program: the program as the kernel dumps it, which may be one that this function has built.
        allow, deny: (major, minor) of each device, of 12 and 20 bits.

    Raises:
        UnusableProgramError: see `check_reloadable`.
    """
    check_reloadable(program)
    original = strip_rules(program)
    instructions = decode_program(original)
    rules = list_rules(program)
    for device in allow:
        rules.pop(device, None)
        if not evaluate_program(instructions, CHAR, READ | WRITE, *device):
            rules[device] = True
    for device in deny:
        rules.pop(device, None)
        if any(evaluate_program(instructions, CHAR, access, *device) for access in _OPENING):
            rules[device] = False
    return build_program(original, rules)


def build_program(original: bytes, rules: Mapping[tuple[int, int], bool]) -> bytes:
    """Return a program that decides about these character devices by our rules, and about everything else as before.

    Arguments:
        original: a program without rules of ours.
        rules: by (major, minor), whether opening the device is allowed. The old program decides about mknod.
    """
    if not rules:
        return original
    mark = _encode((0xB7, 0x06, 0, _MARK), (0xB7, 0x06, 0, len(rules)))
    blocks = b"".join(_build_rule(major, minor, allow=allow) for (major, minor), allow in rules.items())
    return mark + _encode(*_PRELUDE) + blocks + original


def list_rules(program: bytes) -> dict[tuple[int, int], bool]:
    """Return the rules that `build_program` has put into a program; {} for every other program."""
    instructions = decode_program(program)
    if len(instructions) <= _MARK_SIZE:
        return {}
    first, second = instructions[:_MARK_SIZE]
    if (first.code, first.dst, first.imm) != (0xB7, 6, _MARK) or (second.code, second.dst) != (0xB7, 6):
        return {}
    start, count = _MARK_SIZE + len(_PRELUDE), second.imm
    if count < 1 or start + count * _RULE_LENGTH >= len(instructions):
        return {}
    rules = {}
    for at in range(start, start + count * _RULE_LENGTH, _RULE_LENGTH):
        rule = instructions[at : at + _RULE_LENGTH]
        rules[rule[4].imm & _MASK32, rule[5].imm & _MASK32] = rule[6].imm == 1
    return rules


def strip_rules(program: bytes) -> bytes:
    """Return the program without the rules that `build_program` has put in front of it."""
    count = len(list_rules(program))
    if not count:
        return program
    return program[(_MARK_SIZE + len(_PRELUDE) + count * _RULE_LENGTH) * INSTRUCTION_SIZE :]


def _build_rule(major: int, minor: int, *, allow: bool) -> bytes:
    """Return the instructions that decide about a device. R1 is kept: the old program needs the context in it.

    Allowing, it decides about accesses without mknod; denying, about those that read or write.
    """
    end = _RULE_LENGTH
    bits, skip = (~(READ | WRITE), 0x55) if allow else (READ | WRITE, 0x15)
    return _encode(
        (0xBC, 0x36, 0, 0),  # w6 = w3: the wanted access
        (0x54, 0x06, 0, bits),  # w6 &= bits
        (skip, 0x06, end - 3, 0),  # if r6 != 0 (allowing), or r6 == 0 (denying), goto the next rule
        (0x55, 0x02, end - 4, CHAR),  # if r2 != type goto the next rule
        (0x55, 0x04, end - 5, major),
        (0x55, 0x05, end - 6, minor),
        (0xB7, 0x00, 0, int(allow)),  # r0 = the decision
        (_EXIT, 0x00, 0, 0),
    )


def _encode(*instructions: tuple[int, int, int, int]) -> bytes:
    return b"".join(_LAYOUT.pack(*fields) for fields in instructions)


def evaluate_program(instructions: Sequence[Instruction], kind: int, access: int, major: int, minor: int) -> bool:
    """Evaluate a program and return whether it allows an access.

    Arguments:
        kind: BLOCK or CHAR.
        access: MKNOD, READ and WRITE, ORed.

    Raises:
        UnusableProgramError: it does something that device programs do not do.
    """
    # struct bpf_cgroup_dev_ctx: access_type (access << 16 | type), major, minor.
    context = struct.pack("<III", access << 16 | kind, major & _MASK32, minor & _MASK32)
    registers = [0] * (_BLINDING_REGISTER + 1)  # a blinded program can be evaluated, though not loaded
    at = 0
    for _ in range(_STEP_LIMIT):
        if not 0 <= at < len(instructions):
            break
        instruction = instructions[at]
        at += 1
        kind_of_code = instruction.code & 7
        if instruction.code == _EXIT:
            return registers[0] & _MASK32 != 0
        if instruction.code == _LD_IMM64 and instruction.src == 0 and at < len(instructions):
            registers[instruction.dst] = instruction.imm & _MASK32 | (instructions[at].imm & _MASK32) << 32
            at += 1
        elif kind_of_code == _LDX and instruction.code & 0xE0 == 0x60 and instruction.src == 1:
            size = _SIZES[instruction.code & 0x18]
            value = context[instruction.offset : instruction.offset + size]
            if instruction.offset < 0 or len(value) != size:
                break
            registers[instruction.dst] = int.from_bytes(value, "little")
        elif kind_of_code in (_ALU32, _ALU64):
            registers[instruction.dst] = _compute(instruction, registers)
        elif kind_of_code in (_JMP, _JMP32) and instruction.code != _CALL:
            if _is_taken(instruction, registers):
                at += instruction.offset
        else:
            break
    raise UnusableProgramError("it has instructions that device programs do not have")


def _read_operand(instruction: Instruction, registers: list[int], mask: int) -> int:
    operand = registers[instruction.src] if instruction.code & _SOURCE_REGISTER else instruction.imm
    return operand & mask


def _compute(instruction: Instruction, registers: list[int]) -> int:
    """Return the result of an arithmetic instruction."""
    bits = 64 if instruction.code & 7 == _ALU64 else 32
    mask = _MASK64 if bits == 64 else _MASK32
    left, right = registers[instruction.dst] & mask, _read_operand(instruction, registers, mask)
    match instruction.code & 0xF0:
        case 0x00:
            result = left + right
        case 0x10:
            result = left - right
        case 0x20:
            result = left * right
        case 0x30:
            result = left // right if right else 0
        case 0x40:
            result = left | right
        case 0x50:
            result = left & right
        case 0x60:
            result = left << (right % bits)
        case 0x70:
            result = left >> (right % bits)
        case 0x80:
            result = -left
        case 0x90:
            result = left % right if right else left
        case 0xA0:
            result = left ^ right
        case 0xB0:
            result = right
        case 0xC0:
            result = _sign(left, bits) >> (right % bits)
        case _:
            raise UnusableProgramError("it has instructions that device programs do not have")
    return result & mask


def _is_taken(instruction: Instruction, registers: list[int]) -> bool:
    """Return whether a jump is taken."""
    bits = 64 if instruction.code & 7 == _JMP else 32
    mask = _MASK64 if bits == 64 else _MASK32
    left, right = registers[instruction.dst] & mask, _read_operand(instruction, registers, mask)
    signed_left, signed_right = _sign(left, bits), _sign(right, bits)
    match instruction.code & 0xF0:
        case 0x00:
            return True
        case 0x10:
            return left == right
        case 0x20:
            return left > right
        case 0x30:
            return left >= right
        case 0x40:
            return left & right != 0
        case 0x50:
            return left != right
        case 0x60:
            return signed_left > signed_right
        case 0x70:
            return signed_left >= signed_right
        case 0xA0:
            return left < right
        case 0xB0:
            return left <= right
        case 0xC0:
            return signed_left < signed_right
        case 0xD0:
            return signed_left <= signed_right
        case _:
            raise UnusableProgramError("it has instructions that device programs do not have")


def _sign(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) else value
