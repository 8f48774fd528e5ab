"""A stand-in for systemd's private bus: answers what runc and we ask, and notes every call as a line of JSON.

    python systemd_bus.py SOCKET LOG

Each line is [member, body]. The real systemd is in tests/e2e/booted-systemd.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
from pathlib import Path
from typing import Any

from jeepney import DBusAddress, HeaderFields, Message, MessageType, new_error, new_method_return, new_signal
from jeepney.low_level import Parser

MANAGER = DBusAddress("/org/freedesktop/systemd1", interface="org.freedesktop.systemd1.Manager")
JOB = "/org/freedesktop/systemd1/job/1"
UNIT_PATH = "/org/freedesktop/systemd1/unit/"
SIGNATURES = {"ControlGroup": "s", "DevicePolicy": "s", "DeviceAllow": "a(ss)", "Version": "s"}


class Unit:
    """The properties of a unit that are about devices, changed as systemd does.

    Attributes:
        properties: by their names.
    """

    def __init__(self, cgroup: str = "") -> None:
        self.properties: dict[str, Any] = {"ControlGroup": cgroup, "DevicePolicy": "auto", "DeviceAllow": []}

    def assign(self, name: str, value: Any) -> None:
        """Set a property; DeviceAllow is added to, and an empty list empties it."""
        if name == "DeviceAllow":
            entries = dict(self.properties[name]) if value else {}
            self.properties[name] = list({**entries, **dict(value)}.items())
        elif name in self.properties:
            self.properties[name] = value


class Bus:
    """The bus: a socket, its clients, and the log."""

    def __init__(self, path: str, log: str) -> None:
        self.log = Path(log)
        self.server = socket.socket(socket.AF_UNIX)
        self.server.bind(path)
        self.server.listen(8)
        self.clients: list[socket.socket] = []
        self.units: dict[str, Unit] = {}
        self.refuses_changes = False
        self.serial = 100
        self.lock = threading.Lock()

    def serve(self) -> None:
        """Accept clients until the socket is closed."""
        while True:
            try:
                client = self.server.accept()[0]
            except OSError:
                return
            threading.Thread(target=self._serve_client, args=(client,), daemon=True).start()

    def send(self, client: socket.socket, message: Message) -> None:
        """Send a message under a new serial number."""
        with self.lock:
            self.serial += 1
            client.sendall(message.serialise(serial=self.serial))

    def _serve_client(self, client: socket.socket) -> None:
        parser = Parser()
        try:
            parser.add_data(_authenticate(client))
            self.clients.append(client)
            while True:
                message = parser.get_next_message()
                if message is not None:
                    self._answer(client, message)
                    continue
                data = client.recv(65536)
                if not data:
                    return
                parser.add_data(data)
        except OSError:
            pass

    def _answer(self, client: socket.socket, message: Message) -> None:
        member = message.header.fields.get(HeaderFields.member)
        with self.lock, self.log.open("a") as log:
            log.write(json.dumps([member, message.body]) + "\n")
        if message.header.message_type != MessageType.method_call:
            return
        if not self.refuses_changes:
            self._change_unit(member, message.body)
        if member == "Get":
            self._answer_property(client, message)
        elif member == "GetUnit":
            self._answer_unit(client, message)
        elif member == "SetUnitProperties" and self.refuses_changes:
            self.send(client, new_error(message, "org.freedesktop.DBus.Error.AccessDenied", "s", ("not permitted",)))
        elif member in ("StartTransientUnit", "StopUnit", "StartUnit", "ResetFailedUnit"):
            job: tuple[Any, ...] = (JOB,) if member != "ResetFailedUnit" else ()
            self.send(client, new_method_return(message, "o" if job else None, job))
            if job:
                self._announce_job(message.body[0])
        else:
            self.send(client, new_method_return(message))

    def _change_unit(self, member: Any, body: Any) -> None:
        if member == "StartTransientUnit":
            slice_name = next((value for name, (_, value) in body[2] if name == "Slice"), "system.slice")
            self.units[body[0]] = Unit(f"/{slice_name}/{body[0]}")
        if member in ("StartTransientUnit", "SetUnitProperties") and body[0] in self.units:
            for name, (_, value) in body[2]:
                self.units[body[0]].assign(name, value)

    def _answer_unit(self, client: socket.socket, message: Message) -> None:
        (name,) = message.body
        if name in self.units:
            path = UNIT_PATH + "".join(c if c.isalnum() else f"_{ord(c):02x}" for c in name)
            self.send(client, new_method_return(message, "o", (path,)))
        else:
            text = f"Unit {name} not loaded."
            self.send(client, new_error(message, "org.freedesktop.systemd1.NoSuchUnit", "s", (text,)))

    def _answer_property(self, client: socket.socket, message: Message) -> None:
        name, path = message.body[1], message.header.fields[HeaderFields.path]
        for unit, state in self.units.items():
            if path == UNIT_PATH + "".join(c if c.isalnum() else f"_{ord(c):02x}" for c in unit):
                value = state.properties[name]
                break
        else:
            value = "252"
        self.send(client, new_method_return(message, "v", ((SIGNATURES[name], value),)))

    def _announce_job(self, unit: str) -> None:
        for client in self.clients:
            try:
                self.send(client, new_signal(MANAGER, "JobRemoved", "uoss", (1, JOB, unit, "done")))
            except OSError:
                pass


def _authenticate(client: socket.socket) -> bytes:
    """Speak the line protocol before D-Bus messages; return what was read beyond it."""
    data = b""
    while True:
        while b"\r\n" not in data:
            more = client.recv(4096)
            if not more:
                raise OSError("closed")
            data += more
        line, data = data.split(b"\r\n", 1)
        line = line.lstrip(b"\0")
        if line.startswith(b"AUTH EXTERNAL"):
            client.sendall(b"OK 0123456789abcdef0123456789abcdef\r\n")
        elif line.startswith(b"NEGOTIATE"):
            client.sendall(b"AGREE_UNIX_FD\r\n")
        elif line == b"BEGIN":
            return data
        else:
            client.sendall(b"REJECTED EXTERNAL\r\n" if line == b"AUTH" else b"ERROR\r\n")


if __name__ == "__main__":
    Bus(*sys.argv[1:]).serve()
