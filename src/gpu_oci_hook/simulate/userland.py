"""What a driver installs: libraries, programs, firmware, configuration, and the loader cache that knows them.

The lists are data (driver.toml); where things go is data too (layouts.toml). Cost rule: none.
"""

from __future__ import annotations

import socket
from typing import Any

from gpu_oci_hook.container.rootfs import Rootfs
from gpu_oci_hook.errors import words
from gpu_oci_hook.formats import ARCHITECTURES, elf, ldcache

_SCRIPT = """#!/bin/sh
# Made by `gpu-oci-hook simulate`; stands for NVIDIA's {name}.
echo "{name} {version} (simulated)"
for node in /dev/nvidia[0-9]*; do [ -e "$node" ] && echo "$node"; done
exit 0
"""


class Userland:
    """The driver's files below one root.

    Attributes:
        libraries, libraries32: SONAME to the file's path.
        cache: path of the loader cache, or "".
        left_out: what could not be made, and why.
    """

    def __init__(
        self, files: Rootfs, layout: dict[str, Any], catalogue: dict[str, Any], driver: str, arch: str
    ) -> None:
        self.files = files
        self.layout = layout
        self.catalogue = catalogue
        self.arch, self.arch32 = arch, ARCHITECTURES[arch].small
        triple, triple32 = ARCHITECTURES[arch].triple, ARCHITECTURES[self.arch32].triple
        self.names = {"{version}": driver, "{arch}": arch, "{triple}": triple, "{triple32}": triple32}
        self.libraries: dict[str, str] = {}
        self.libraries32: dict[str, str] = {}
        self.cache = ""
        self.left_out: list[str] = []
        self.system: list[str] = []
        self.plain: set[tuple[str, str]] = set()  # (directory, name) of what a loader cache would list

    def place(self, key: str) -> str:
        """A directory of the layout, with the names filled in; "" when it has none."""
        return self._fill(self.layout.get(key, ""))

    def build(self, *, cache: bool) -> None:
        """Makes everything."""
        for where, target in self.layout.get("links", []):
            target = self._fill(target)
            if target.startswith("/"):
                self.files.directory(target)
            else:
                self.files.directory(f"{self._fill(where).rpartition('/')[0]}/{target}")
            self.files.link(self._fill(where), target)
        for path in ("/etc", "/run", "/tmp", "/var"):  # noqa: S108
            self.files.directory(path)
        self.files.link("/var/run", "../run")
        for path, text in self.layout.get("files", {}).items():
            self.files.write(self._fill(path), self._fill(text).encode())
        self._system()
        for library in self.catalogue["library"]:
            self._library(library, "libraries", self.arch, self.libraries)
            if library.get("compat32") and self.place("libraries32"):
                self._library(library, "libraries32", self.arch32, self.libraries32)
        self._programs()
        self._data()
        self._socket("/run/nvidia-persistenced/socket")
        if cache and self.place("cache"):
            self._cache()

    def _fill(self, text: str) -> str:
        for name, value in self.names.items():
            text = text.replace(name, value)
        return text

    def _system(self) -> None:
        """Stand-ins for the host's own libraries, so that its loader cache is not the driver's alone."""
        directory = self.place("system")
        if directory:
            for name in self.catalogue["system"]["libraries"]:
                self.files.write(f"{directory}/{name}", elf.write(soname=name, arch=self.arch), 0o755)
                self.system.append(name)

    def _library(self, facts: dict[str, Any], key: str, arch: str, made: dict[str, str]) -> None:
        file = self._fill(facts["file"])
        soname = facts.get("soname", file)
        if self.layout.get("unversioned") and facts.get("unversioned"):
            file = soname
        below = "/" + facts["subdirectory"] if "subdirectory" in facts else ""
        common = self.catalogue["system"]
        data = elf.write(
            soname=soname,
            needed=[self._fill(name) for name in facts.get("needs", [])] + common["needs"],
            arch=arch,
            symbols=facts.get("symbols", ()),
            glibc=facts.get("glibc", common["glibc"]),
        )
        front = self.place("front-libraries") if key == "libraries" else ""
        alternatives = self.layout.get("front") == "alternatives"
        if alternatives and (soname == file or facts.get("own")):
            # Debian: what no alternative has to choose between lies in the public directory itself.
            directory, front = front, ""
        else:
            directory = self.place(key)
        self.files.write(f"{directory}{below}/{file}", data, 0o644)
        made[soname] = f"{directory}{below}/{file}"
        links = [name for name in (soname, *facts.get("links", [])) if name != file]
        for name in links:
            target = file if name == soname else soname
            self.files.link(f"{directory}{below}/{name}", "../" * name.count("/") + target)
        for name in {file, *links} if not alternatives else set(links):
            if front:
                prefix = "glx" if facts.get("neutral") else "nvidia"
                self._expose(f"{front}{below}/{name}", f"{directory}{below}/{name}", prefix, triple=True)
        if not below:
            for name in (soname, *(n for n in links if "/" not in n)):
                self.plain.add((key, name))

    def _expose(self, public: str, private: str, prefix: str, *, triple: bool = False) -> None:
        """Makes the public name lead to the private one, the way the layout does it."""
        if self.layout["front"] == "alternatives":
            name = public.rpartition("/")[2] + (f"-{self.names['{triple}']}" if triple else "")
            self.files.link(f"/etc/alternatives/{prefix}--{name}", private)
            private = f"/etc/alternatives/{prefix}--{name}"
        self.files.link(public, private)

    def _programs(self) -> None:
        for name in self.catalogue["binaries"]["names"]:
            private = f"{self.place('binaries')}/{name}"
            text = _SCRIPT.format(name=name, version=self.names["{version}"])
            self.files.write(private, text.encode(), 0o755)
            if self.place("front-binaries"):
                self._expose(f"{self.place('front-binaries')}/{name}", private, "nvidia")

    def _data(self) -> None:
        version = self.names["{version}"]
        for name in self.catalogue["firmware"]["names"]:
            text = f"{name} of driver {version}, made by gpu-oci-hook simulate\n"
            self.files.write(f"{self.place('firmware')}/nvidia/{version}/{name}", text.encode())
        for facts in self.catalogue["config"]:
            kind, _, path = self._fill(facts["path"]).partition("/")
            if path.endswith("/nvidia_icd.json") and self.place("icd"):
                path = path.rpartition("/")[0] + "/" + self.place("icd")
            private = f"{self.place(kind)}/{path}"
            self.files.write(private, facts["text"].lstrip("\n").encode())
            if self.place(f"front-{kind}"):
                self._expose(f"{self.place(f'front-{kind}')}/{path}", private, "nvidia")

    def _socket(self, path: str) -> None:
        above, _, name = path.rpartition("/")
        directory = self.files.directory(above)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            try:
                # By the descriptor: a socket's path may have 107 bytes only, and a test's directory is often longer.
                listener.bind(f"/proc/self/fd/{directory.fd}/{name}")
            except OSError as error:
                self.left_out.append(f"socket {path}: {words(error, writing=True)}")

    def _cache(self) -> None:
        """The loader cache as ldconfig would write it for this tree."""
        cached = [self._fill(path) for path in self.layout["cached"]]
        flags, flags32 = ARCHITECTURES[self.arch].flags, ARCHITECTURES[self.arch32].flags
        entries: list[tuple[str, str, int]] = []
        public = self.place("front-libraries") or self.place("libraries")
        if cached:
            for key, name in sorted(self.plain):
                where, kind = (cached[0], flags) if key == "libraries" else (cached[-1], flags32)
                entries.append((name, f"{where}/{name}", kind))
        system = cached[0] if cached and self.place("system") == public else self.place("system")
        entries += [(name, f"{system}/{name}", flags) for name in self.system]
        self.cache = self.place("cache")
        self.files.write(self.cache, ldcache.dump(ldcache.merge(None, entries)))
