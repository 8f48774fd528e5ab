"""Call bpf(2) for the device programs of a cgroup: list, dump, load, attach and replace them.

The layouts of the call's arguments are those of `union bpf_attr` in linux/bpf.h. All calls need CAP_SYS_ADMIN in the
initial user namespace.

Import budget: cold.
"""

from __future__ import annotations

import ctypes
import os
import struct

from gpu_oci_hook.files.directory import make_os_error

_SYSCALL_NUMBERS = {"x86_64": 321, "aarch64": 280, "ppc64le": 361, "riscv64": 280, "s390x": 351, "armv7l": 386}
_PROG_LOAD, _PROG_ATTACH, _PROG_DETACH, _PROG_GET_FD_BY_ID, _OBJ_GET_INFO_BY_FD, _PROG_QUERY = 5, 8, 9, 13, 15, 16
_TYPE_CGROUP_DEVICE, _ATTACH_CGROUP_DEVICE = 15, 6
_ALLOW_MULTI, _REPLACE = 2, 4
_QUERY_EFFECTIVE = 1
_ATTRIBUTE_SIZE, _INFO_SIZE, _LOG_SIZE = 128, 256, 65536
_PROGRAM_LIMIT = 64
_SIZE_LIMIT = 8 << 20
# Nothing that is only for GPL programs is called.
_LICENSE = b"Apache-2.0"


def _call_bpf(command: int, attributes: bytearray) -> int:
    """Call bpf(2) and return its result.

    Raises:
        OSError: the kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = (ctypes.c_char * len(attributes)).from_buffer(attributes)
    number = _SYSCALL_NUMBERS.get(os.uname().machine, -1)
    result: int = libc.syscall(number, command, ctypes.byref(buffer), len(attributes))
    if result < 0:
        raise make_os_error(ctypes.get_errno())
    return result


def _pack_attributes(layout: str, *values: int) -> bytearray:
    attributes = bytearray(_ATTRIBUTE_SIZE)
    struct.pack_into(layout, attributes, 0, *values)
    return attributes


def list_program_ids(cgroup_fd: int, *, effective: bool = False) -> list[int]:
    """Return the ids of the device programs that are attached to a cgroup itself, in the kernel's order.

    Arguments:
        effective: those that decide about its processes, so also those of the cgroups above it, even of such that this
            process does not see.

    Raises:
        OSError: it is not a cgroup of version 2, or the kernel refuses.
    """
    ids = (ctypes.c_uint32 * _PROGRAM_LIMIT)()
    attributes = _pack_attributes(
        "=IIIIQI",
        cgroup_fd,
        _ATTACH_CGROUP_DEVICE,
        _QUERY_EFFECTIVE if effective else 0,
        0,
        ctypes.addressof(ids),
        _PROGRAM_LIMIT,
    )
    _call_bpf(_PROG_QUERY, attributes)
    (count,) = struct.unpack_from("=I", attributes, 24)
    return list(ids)[:count]


def open_program(program_id: int) -> int:
    """Return a descriptor of a program.

    Raises:
        OSError: it is gone, or the kernel refuses.
    """
    return _call_bpf(_PROG_GET_FD_BY_ID, _pack_attributes("=I", program_id))


def dump_program(program_fd: int) -> bytes:
    """Return a program's instructions as the kernel has translated them; zeros where it hides them.

    Raises:
        OSError: the kernel refuses.
    """
    info = (ctypes.c_char * _INFO_SIZE)()
    _call_bpf(_OBJ_GET_INFO_BY_FD, _pack_attributes("=IIQ", program_fd, _INFO_SIZE, ctypes.addressof(info)))
    (size,) = struct.unpack_from("=I", info, 20)  # xlated_prog_len
    if not 0 < size <= _SIZE_LIMIT:
        return b""
    instructions = (ctypes.c_char * size)()
    info = (ctypes.c_char * _INFO_SIZE)()
    struct.pack_into("=I", info, 20, size)
    struct.pack_into("=Q", info, 32, ctypes.addressof(instructions))  # xlated_prog_insns
    _call_bpf(_OBJ_GET_INFO_BY_FD, _pack_attributes("=IIQ", program_fd, _INFO_SIZE, ctypes.addressof(info)))
    return bytes(instructions)


def load_program(program: bytes) -> int:
    """Load a device program and return its descriptor.

    Raises:
        OSError: the verifier or the kernel refuses it.
    """
    instructions = ctypes.create_string_buffer(program, len(program))
    name = ctypes.create_string_buffer(_LICENSE)
    attributes = _pack_attributes(
        "=IIQQ", _TYPE_CGROUP_DEVICE, len(program) // 8, ctypes.addressof(instructions), ctypes.addressof(name)
    )
    attributes[48:61] = b"gpu_oci_hook\0"  # prog_name
    return _call_bpf(_PROG_LOAD, attributes)


def replace_program(cgroup_fd: int, old_fd: int, new_fd: int) -> None:
    """Replace a program of a cgroup by another one.

    One system call since Linux 5.6. Earlier kernels get the new one attached and then the old one detached; both are
    asked in between, so nothing is allowed that one of them denies.

    Raises:
        OSError: the kernel refuses.
    """
    try:
        flags = _ALLOW_MULTI | _REPLACE
        _call_bpf(_PROG_ATTACH, _pack_attributes("=IIIII", cgroup_fd, new_fd, _ATTACH_CGROUP_DEVICE, flags, old_fd))
    except OSError as error:
        if error.errno != 22:  # EINVAL: the kernel does not know the flag
            raise
        attach_program(cgroup_fd, new_fd)
        detach_program(cgroup_fd, old_fd)


def attach_program(cgroup_fd: int, program_fd: int) -> None:
    """Attach a program to a cgroup, in addition to others.

    Raises:
        OSError: the kernel refuses.
    """
    _call_bpf(_PROG_ATTACH, _pack_attributes("=IIII", cgroup_fd, program_fd, _ATTACH_CGROUP_DEVICE, _ALLOW_MULTI))


def detach_program(cgroup_fd: int, program_fd: int) -> None:
    """Detach a program from a cgroup.

    Raises:
        OSError: it is not attached, or by a link, or the kernel refuses.
    """
    _call_bpf(_PROG_DETACH, _pack_attributes("=III", cgroup_fd, program_fd, _ATTACH_CGROUP_DEVICE))


def open_cgroup(path: str) -> int:
    """Open a cgroup's directory.

    Raises:
        OSError: it is missing.
    """
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
