"""A client of the Kubernetes container runtime interface, as the kubelet calls containerd's CRI plugin.

It needs grpcio, which tests/e2e/newer-engines installs. Messages are dicts of field numbers (facts: cri-messages).
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from support.e2e import images, machine
from support.e2e.machine import CommandResult, find_program

Message = Mapping[int, Any]
RUNTIME_SERVICE = "/runtime.v1.RuntimeService"
IMAGE = "docker.io/library/probe:latest"
# The host's network namespace, so that no CNI plugin is called (enum NamespaceMode NODE).
HOST_NETWORK = {1: 2}


def encode_message(message: Message) -> bytes:
    """Encode a protobuf message: ints as varints, str and bytes, dicts as messages, lists as repeated fields."""
    encoded = b""
    for number, value in message.items():
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, int):
                encoded += encode_varint(number << 3) + encode_varint(item)
                continue
            data = encode_message(item) if isinstance(item, dict) else item.encode() if isinstance(item, str) else item
            encoded += encode_varint(number << 3 | 2) + encode_varint(len(data)) + data
    return encoded


def encode_varint(value: int) -> bytes:
    """Encode a protobuf varint."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def decode_message(data: bytes) -> dict[int, list[Any]]:
    """Decode a protobuf message: field number -> values, messages as bytes."""
    found: dict[int, list[Any]] = {}
    position = 0

    def read_varint() -> int:
        nonlocal position
        value = shift = 0
        while True:
            byte = data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while position < len(data):
        key = read_varint()
        if key & 7 == 0:
            found.setdefault(key >> 3, []).append(read_varint())
            continue
        assert key & 7 == 2, f"wire type {key & 7}"
        length = read_varint()
        found.setdefault(key >> 3, []).append(data[position : position + length])
        position += length
    return found


class CriContainerd:
    """containerd with its CRI plugin, configured as docs/engines.md says.

    Arguments:
        directory: for its state; config: the configuration file.
    """

    def __init__(self, directory: Path, config: Path) -> None:
        self.config = config
        self.socket = directory / "containerd.sock"
        self.log = directory / "containerd.log"
        words = ["--root", str(directory / "root"), "--state", str(directory / "state"), "--address", str(self.socket)]
        with self.log.open("wb") as log:
            self._daemon = subprocess.Popen(
                [find_program("containerd"), "--config", str(config), *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={"PATH": machine.DIRECTORIES},
            )
        machine.wait_for(lambda: self.ctr("version").status == 0, f"containerd ({self.log})")
        self._grpc = importlib.import_module("grpc")
        self._channel = self._grpc.insecure_channel(
            f"unix:{self.socket}", options=[("grpc.default_authority", "localhost")]
        )
        self._numbers = itertools.count(1)

    def ctr(self, *words: str) -> CommandResult:
        """Run a command of ctr in the namespace of Kubernetes."""
        return machine.run_command(
            [find_program("ctr"), "--address", str(self.socket), "--namespace", "k8s.io", *words]
        )

    def stop(self) -> None:
        """Remove all pods and stop containerd."""
        for pod in decode_message(self.call("ListPodSandbox", {})).get(1, []):
            self.call("StopPodSandbox", {1: decode_message(pod)[1][0]})
            self.call("RemovePodSandbox", {1: decode_message(pod)[1][0]})
        self._channel.close()
        machine.stop_daemon(self._daemon)

    def call(self, method: str, message: Message) -> bytes:
        """Call a method of the runtime service.

        Raises:
            AssertionError: it failed; with the server's text.
        """
        stub = self._channel.unary_unary(f"{RUNTIME_SERVICE}/{method}", None, None)
        try:
            answer: bytes = stub(encode_message(message), timeout=60)
        except self._grpc.RpcError as error:
            raise AssertionError(f"{method}: {error.details()}") from error
        return answer

    def import_image(self, root: Path, name: str, directory: Path) -> None:
        """Import a root file system as an image by this name."""
        archive = write_image_archive(root, name, directory)
        self.ctr("images", "import", "--all-platforms", str(archive)).check()

    def run_pod(self, handler: str) -> tuple[str, Message]:
        """Start a pod's sandbox with a runtime handler; return its id and configuration."""
        number = next(self._numbers)
        config = {
            1: {1: f"pod{number}", 2: f"uid{number}", 3: "default"},
            8: {1: "/gpu-oci-e2e", 2: {1: HOST_NETWORK}},
        }
        answer = decode_message(self.call("RunPodSandbox", {1: config, 2: handler}))
        return answer[1][0].decode(), config

    def start_container(
        self,
        pod: tuple[str, Message],
        *,
        env: Sequence[str] = (),
        devices: Sequence[str] = (),
        annotations: Mapping[str, str] | None = None,
        mounts: Sequence[tuple[str, str]] = (),
    ) -> str:
        """Start a container that sleeps, in a pod; return its id."""
        pairs = [entry.split("=", 1) for entry in env]
        config = {
            1: {1: f"container{next(self._numbers)}"},
            2: {1: IMAGE},
            3: ["/bin/sleep", "1000"],
            6: [{1: key, 2: value} for key, value in pairs],
            7: [{1: target, 2: source} for source, target in mounts],
            10: [{1: key, 2: value} for key, value in (annotations or {}).items()],
            15: {1: {4: 512 << 20}, 2: {3: HOST_NETWORK}},
            17: [{1: name} for name in devices],
        }
        answer = decode_message(self.call("CreateContainer", {1: pod[0], 2: config, 3: pod[1]}))
        container: str = answer[1][0].decode()
        self.call("StartContainer", {1: container})
        return container

    def exec(self, container: str, args: Sequence[str]) -> CommandResult:
        """Run a command in a container."""
        answer = decode_message(self.call("ExecSync", {1: container, 2: list(args), 3: 30}))
        stdout, stderr = (b"".join(answer.get(field, [])).decode() for field in (1, 2))
        return CommandResult(args, answer.get(3, [0])[0], stdout, stderr)

    def update_memory(self, container: str, limit: int) -> None:
        """Change a container's memory limit, as the kubelet does for an in-place resize."""
        self.call("UpdateContainerResources", {1: container, 2: {4: limit}})


def write_image_archive(root: Path, name: str, directory: Path) -> Path:
    """Write a root file system as an archive of `docker save`."""
    work = directory / f"image-{name.replace('/', '-').replace(':', '-')}"
    (work / "layer").mkdir(parents=True)
    layer = images.write_archive(root, work / "layer/layer.tar")
    digest = machine.run_command([find_program("sha256sum"), str(layer)]).check().stdout.split()[0]
    config = {
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine],
        "os": "linux",
        "config": {"Env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"], "Cmd": ["/bin/sleep", "100000"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    (work / "config.json").write_text(json.dumps(config))
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer/layer.tar"]}]
    (work / "manifest.json").write_text(json.dumps(manifest))
    archive = directory / f"{work.name}.tar"
    machine.run_command(["tar", "-C", str(work), "-cf", str(archive), "."]).check()
    return archive
