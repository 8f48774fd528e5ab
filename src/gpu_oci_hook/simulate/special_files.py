"""Create the device nodes and sockets of a simulated host, and collect the reasons where that fails.

Import budget: cold.
"""

from __future__ import annotations

import os
import socket
import stat

from gpu_oci_hook.errors import describe_os_error
from gpu_oci_hook.files.rootfs import Rootfs


class SpecialFiles:
    """The device nodes and sockets below one root.

    Attributes:
        nodes: paths of the device nodes that were created.
        left_out: one sentence for each reason why something could not be created.
    """

    def __init__(self, files: Rootfs) -> None:
        self.files = files
        self.nodes: list[str] = []
        self.left_out: list[str] = []

    def make_node(self, path: str, major: int, minor: int, mode: int = 0o666, group: int = 0) -> bool:
        """Create a character device. Return False, with the reason in `left_out`, if that is not possible."""
        parent, _, name = path.rpartition("/")
        directory = self.files.open_directory(parent)
        try:
            os.mknod(name, stat.S_IFCHR | mode, os.makedev(major, minor), dir_fd=directory.fd)
            # By name, because the descriptor is an O_PATH one. chmod undoes the umask.
            os.chmod(name, mode, dir_fd=directory.fd)
            if group:
                os.chown(name, 0, group, dir_fd=directory.fd, follow_symlinks=False)
        except OSError as error:
            reason = describe_os_error(error, writing=True)
            if isinstance(error, PermissionError):
                reason = "only root can create them"
            self._leave_out(f"no device nodes were created: {reason}")
            return False
        self.nodes.append(path)
        return True

    def make_socket(self, path: str) -> None:
        """Create a Unix socket, or add the reason to `left_out`."""
        parent, _, name = path.rpartition("/")
        directory = self.files.open_directory(parent)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            try:
                # Through the descriptor: a socket's path is limited to 107 bytes, and test paths are often longer.
                listener.bind(f"/proc/self/fd/{directory.fd}/{name}")
            except OSError as error:
                self._leave_out(f"socket {path}: {describe_os_error(error, writing=True)}")

    def _leave_out(self, sentence: str) -> None:
        if sentence not in self.left_out:
            self.left_out.append(sentence)
