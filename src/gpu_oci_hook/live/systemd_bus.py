"""Call systemd over D-Bus, within a time limit.

systemd's own socket is asked first, since it needs no message bus; only root may use it.

Import budget: cold.
"""

from __future__ import annotations

import socket
import time
from typing import Any

from jeepney import DBusAddress, HeaderFields, Message, MessageType, new_method_call
from jeepney.auth import BEGIN, make_auth_external
from jeepney.low_level import Parser

from gpu_oci_hook.errors import describe_os_error

PRIVATE_SOCKET = "/run/systemd/private"
SYSTEM_SOCKET = "/run/dbus/system_bus_socket"
DEADLINE = 5.0  # seconds for everything that is asked of one connection

_LINE_LIMIT = 4096
_NAME = "org.freedesktop.systemd1"
_MANAGER = DBusAddress("/org/freedesktop/systemd1", bus_name=_NAME, interface=f"{_NAME}.Manager")
_PROPERTIES = "org.freedesktop.DBus.Properties"
_NO_SUCH_UNIT = f"{_NAME}.NoSuchUnit"


class SystemdError(Exception):
    """systemd cannot be asked, or refuses; the message says why."""


class NoSuchUnitError(SystemdError):
    """systemd has no such unit."""


class SystemdConnection:
    """A connection to the systemd that has booted this machine.

    Raises:
        SystemdError: it cannot be reached. So do the methods if it fails, refuses, or is silent.
    """

    def __init__(self) -> None:
        self._end = time.monotonic() + DEADLINE
        self._serial = 0
        self._socket = self._connect()

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def find_unit(self, unit: str) -> str:
        """Return the object path of a unit.

        Raises:
            NoSuchUnitError: there is none.
        """
        path = self._call(_MANAGER, "GetUnit", "s", (unit,))[0]
        return str(path)

    def read_property(self, object_path: str, kind: str, name: str) -> Any:
        """Return a property of a unit.

        Arguments:
            object_path: of the unit.
            kind: "Scope" or "Service".
        """
        address = DBusAddress(object_path, bus_name=_NAME, interface=_PROPERTIES)
        return self._call(address, "Get", "ss", (f"{_NAME}.{kind}", name))[0][1]

    def set_device_allow(self, unit: str, entries: list[tuple[str, str]], *, replace: bool) -> None:
        """Add entries to the property DeviceAllow of a unit until the next boot, or replace them all.

        An empty list empties the property, and both are applied in one step (facts: systemd-device-allow).
        """
        lists: list[list[tuple[str, str]]] = [[]] if replace else []
        assignments = [("DeviceAllow", ("a(ss)", value)) for value in [*lists, entries]]
        self._call(_MANAGER, "SetUnitProperties", "sba(sv)", (unit, True, assignments))

    def _connect(self) -> socket.socket:
        reasons = []
        for path in (PRIVATE_SOCKET, SYSTEM_SOCKET):
            self._parser = Parser()
            self._socket = socket.socket(socket.AF_UNIX)
            try:
                self._authenticate(path)
                if path == SYSTEM_SOCKET:
                    bus = DBusAddress("/org/freedesktop/DBus", "org.freedesktop.DBus", "org.freedesktop.DBus")
                    self._call(bus, "Hello", None, ())
                return self._socket
            except (OSError, SystemdError) as error:
                reasons.append(f"{path}: {_describe(error)}")
                self._socket.close()
        raise SystemdError(", ".join(reasons))

    def _authenticate(self, path: str) -> None:
        """Connect to a socket, as the user of this process.

        All of it is sent at once. systemd waits for more if it reads the first message together with the end of the
        authentication, so nothing may follow before its answer (facts: systemd-bus-authentication).

        Raises:
            OSError: the socket is missing, or silent.
            SystemdError: the user is refused.
        """
        self._socket.settimeout(self._count_remaining())
        self._socket.connect(path)
        self._socket.sendall(b"\0" + make_auth_external() + BEGIN)
        answer = b""
        while b"\r\n" not in answer:
            self._socket.settimeout(self._count_remaining())
            data = self._socket.recv(4096)
            if not data or len(answer) > _LINE_LIMIT:
                raise SystemdError("it does not speak D-Bus")
            answer += data
        line, _, rest = answer.partition(b"\r\n")
        if not line.startswith(b"OK "):
            raise SystemdError("it refuses this user")
        self._parser.add_data(rest)

    def _call(self, address: DBusAddress, member: str, signature: str | None, body: tuple[object, ...]) -> Any:
        """Call a method and return the body of its answer."""
        message = new_method_call(address, member, signature, body)
        self._serial += 1
        try:
            self._socket.settimeout(self._count_remaining())
            self._socket.sendall(message.serialise(serial=self._serial))
            reply = self._receive_reply()
        except OSError as error:
            raise SystemdError(_describe(error)) from None
        except ValueError as error:
            raise SystemdError(f"it does not speak D-Bus: {error}") from None
        if reply.header.message_type == MessageType.error:
            name = reply.header.fields.get(HeaderFields.error_name, "")
            text = str(reply.body[0]) if reply.body else str(name)
            raise (NoSuchUnitError if name == _NO_SUCH_UNIT else SystemdError)(text)
        return reply.body

    def _receive_reply(self) -> Message:
        while True:
            while (message := self._parser.get_next_message()) is not None:
                if message.header.fields.get(HeaderFields.reply_serial) == self._serial:
                    return message
            self._socket.settimeout(self._count_remaining())
            data = self._socket.recv(65536)
            if not data:
                raise ConnectionResetError("the connection was closed")
            self._parser.add_data(data)

    def _count_remaining(self) -> float:
        remaining = self._end - time.monotonic()
        if remaining <= 0:
            raise TimeoutError
        return remaining


def _describe(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"it did not answer within {DEADLINE:g} seconds"
    return describe_os_error(error) if isinstance(error, OSError) else str(error)
