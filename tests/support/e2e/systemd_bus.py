"""A stand-in for systemd's private bus: answers what runc asks, and notes every call as a line of JSON.

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

from jeepney import DBusAddress, HeaderFields, Message, MessageType, new_method_return, new_signal
from jeepney.low_level import Parser

MANAGER = DBusAddress("/org/freedesktop/systemd1", interface="org.freedesktop.systemd1.Manager")
JOB = "/org/freedesktop/systemd1/job/1"


class Bus:
    """The bus: a socket, its clients, and the log."""

    def __init__(self, path: str, log: str) -> None:
        self.log = Path(log)
        self.server = socket.socket(socket.AF_UNIX)
        self.server.bind(path)
        self.server.listen(8)
        self.clients: list[socket.socket] = []
        self.serial = 100
        self.lock = threading.Lock()

    def serve(self) -> None:
        """Accept clients for ever."""
        while True:
            client = self.server.accept()[0]
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
        if member == "Get":
            self.send(client, new_method_return(message, "v", (("s", "252"),)))
        elif member in ("StartTransientUnit", "StopUnit", "StartUnit", "ResetFailedUnit"):
            job: tuple[Any, ...] = (JOB,) if member != "ResetFailedUnit" else ()
            self.send(client, new_method_return(message, "o" if job else None, job))
            if job:
                self._announce_job(message.body[0])
        else:
            self.send(client, new_method_return(message))

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
