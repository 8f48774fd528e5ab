"""What a driver installs: libraries, programs, firmware, configuration, and the loader cache that knows them.

The lists are data (driver.toml); where things go is data too (layouts.toml). Cost rule: none.
"""

from __future__ import annotations

import socket
from typing import Any

from gpu_oci_hook.errors import describe_os_error
from gpu_oci_hook.files.rootfs import Rootfs
from gpu_oci_hook.formats.architectures import ARCHITECTURES
from gpu_oci_hook.formats.elf import build_shared_object
from gpu_oci_hook.formats.ldcache import dump_ld_cache, merge_ld_cache

_PROGRAM_SCRIPT = """#!/bin/sh
# Made by `gpu-oci-hook simulate`; stands for NVIDIA's {name}.
echo "{name} {version} (simulated)"
for node in /dev/nvidia[0-9]*; do [ -e "$node" ] && echo "$node"; done
exit 0
"""


class Userland:
    """The driver's files below one root.

    Attributes:
        libraries, libraries32: SONAME to the file's path.
        loader_cache: path of the loader cache, or "".
        left_out: what could not be made, and why.
    """

    def __init__(
        self, files: Rootfs, layout: dict[str, Any], catalogue: dict[str, Any], driver: str, arch: str
    ) -> None:
        self.files = files
        self.layout = layout
        self.catalogue = catalogue
        self.arch, self.arch32 = arch, ARCHITECTURES[arch].arch32
        triple, triple32 = ARCHITECTURES[arch].triple, ARCHITECTURES[self.arch32].triple
        self.placeholders = {"{version}": driver, "{arch}": arch, "{triple}": triple, "{triple32}": triple32}
        self.libraries: dict[str, str] = {}
        self.libraries32: dict[str, str] = {}
        self.loader_cache = ""
        self.left_out: list[str] = []
        self.system_libraries: list[str] = []
        self.cacheable_names: set[tuple[str, str]] = set()  # (directory, name) of what a loader cache would list

    def get_directory(self, key: str) -> str:
        """A directory of the layout, with the names filled in; "" when it has none."""
        return self._expand_placeholders(self.layout.get(key, ""))

    def build_files(self, *, loader_cache: bool) -> None:
        """Makes everything."""
        for where, target in self.layout.get("links", []):
            target = self._expand_placeholders(target)
            if target.startswith("/"):
                self.files.open_directory(target)
            else:
                self.files.open_directory(f"{self._expand_placeholders(where).rpartition('/')[0]}/{target}")
            self.files.make_symlink(self._expand_placeholders(where), target)
        for path in ("/etc", "/run", "/tmp", "/var"):  # noqa: S108
            self.files.open_directory(path)
        self.files.make_symlink("/var/run", "../run")
        for path, text in self.layout.get("files", {}).items():
            self.files.write_file(self._expand_placeholders(path), self._expand_placeholders(text).encode())
        self._write_system_libraries()
        for library in self.catalogue["library"]:
            self._write_library(library, "libraries", self.arch, self.libraries)
            if library.get("compat32") and self.get_directory("libraries32"):
                self._write_library(library, "libraries32", self.arch32, self.libraries32)
        self._write_programs()
        self._write_data_files()
        self._create_socket("/run/nvidia-persistenced/socket")
        if loader_cache and self.get_directory("cache"):
            self._write_loader_cache()

    def _expand_placeholders(self, text: str) -> str:
        for name, value in self.placeholders.items():
            text = text.replace(name, value)
        return text

    def _write_system_libraries(self) -> None:
        """Stand-ins for the host's own libraries, so that its loader cache is not the driver's alone."""
        directory = self.get_directory("system")
        if directory:
            for name in self.catalogue["system"]["libraries"]:
                self.files.write_file(f"{directory}/{name}", build_shared_object(soname=name, arch=self.arch), 0o755)
                self.system_libraries.append(name)

    def _write_library(self, entry: dict[str, Any], key: str, arch: str, paths: dict[str, str]) -> None:
        file = self._expand_placeholders(entry["file"])
        soname = entry.get("soname", file)
        if self.layout.get("unversioned") and entry.get("unversioned"):
            file = soname
        below = "/" + entry["subdirectory"] if "subdirectory" in entry else ""
        common = self.catalogue["system"]
        data = build_shared_object(
            soname=soname,
            needed=[self._expand_placeholders(name) for name in entry.get("needs", [])] + common["needs"],
            arch=arch,
            symbols=entry.get("symbols", ()),
            glibc=entry.get("glibc", common["glibc"]),
        )
        front = self.get_directory("front-libraries") if key == "libraries" else ""
        alternatives = self.layout.get("front") == "alternatives"
        if alternatives and (soname == file or entry.get("own")):
            # Debian: what no alternative has to choose between lies in the public directory itself.
            directory, front = front, ""
        else:
            directory = self.get_directory(key)
        self.files.write_file(f"{directory}{below}/{file}", data, 0o644)
        paths[soname] = f"{directory}{below}/{file}"
        links = [name for name in (soname, *entry.get("links", [])) if name != file]
        for name in links:
            target = file if name == soname else soname
            self.files.make_symlink(f"{directory}{below}/{name}", "../" * name.count("/") + target)
        for name in {file, *links} if not alternatives else set(links):
            if front:
                prefix = "glx" if entry.get("neutral") else "nvidia"
                self._link_public_name(f"{front}{below}/{name}", f"{directory}{below}/{name}", prefix, triple=True)
        if not below:
            for name in (soname, *(n for n in links if "/" not in n)):
                self.cacheable_names.add((key, name))

    def _link_public_name(self, public: str, private: str, prefix: str, *, triple: bool = False) -> None:
        """Makes the public name lead to the private one, the way the layout does it."""
        if self.layout["front"] == "alternatives":
            name = public.rpartition("/")[2] + (f"-{self.placeholders['{triple}']}" if triple else "")
            self.files.make_symlink(f"/etc/alternatives/{prefix}--{name}", private)
            private = f"/etc/alternatives/{prefix}--{name}"
        self.files.make_symlink(public, private)

    def _write_programs(self) -> None:
        for name in self.catalogue["binaries"]["names"]:
            private = f"{self.get_directory('binaries')}/{name}"
            text = _PROGRAM_SCRIPT.format(name=name, version=self.placeholders["{version}"])
            self.files.write_file(private, text.encode(), 0o755)
            if self.get_directory("front-binaries"):
                self._link_public_name(f"{self.get_directory('front-binaries')}/{name}", private, "nvidia")

    def _write_data_files(self) -> None:
        version = self.placeholders["{version}"]
        for name in self.catalogue["firmware"]["names"]:
            text = f"{name} of driver {version}, made by gpu-oci-hook simulate\n"
            self.files.write_file(f"{self.get_directory('firmware')}/nvidia/{version}/{name}", text.encode())
        for facts in self.catalogue["config"]:
            kind, _, path = self._expand_placeholders(facts["path"]).partition("/")
            if path.endswith("/nvidia_icd.json") and self.get_directory("icd"):
                path = path.rpartition("/")[0] + "/" + self.get_directory("icd")
            private = f"{self.get_directory(kind)}/{path}"
            self.files.write_file(private, facts["text"].lstrip("\n").encode())
            if self.get_directory(f"front-{kind}"):
                self._link_public_name(f"{self.get_directory(f'front-{kind}')}/{path}", private, "nvidia")

    def _create_socket(self, path: str) -> None:
        above, _, name = path.rpartition("/")
        directory = self.files.open_directory(above)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            try:
                # By the descriptor: a socket's path may have 107 bytes only, and a test's directory is often longer.
                listener.bind(f"/proc/self/fd/{directory.fd}/{name}")
            except OSError as error:
                self.left_out.append(f"socket {path}: {describe_os_error(error, writing=True)}")

    def _write_loader_cache(self) -> None:
        """The loader cache as ldconfig would write it for this tree."""
        cached = [self._expand_placeholders(path) for path in self.layout["cached"]]
        flags, flags32 = ARCHITECTURES[self.arch].cache_flags, ARCHITECTURES[self.arch32].cache_flags
        entries: list[tuple[str, str, int]] = []
        public = self.get_directory("front-libraries") or self.get_directory("libraries")
        if cached:
            for key, name in sorted(self.cacheable_names):
                where, kind = (cached[0], flags) if key == "libraries" else (cached[-1], flags32)
                entries.append((name, f"{where}/{name}", kind))
        system = cached[0] if cached and self.get_directory("system") == public else self.get_directory("system")
        entries += [(name, f"{system}/{name}", flags) for name in self.system_libraries]
        self.loader_cache = self.get_directory("cache")
        self.files.write_file(self.loader_cache, dump_ld_cache(merge_ld_cache(None, entries)))
