"""Write the files that a driver installs: libraries, programs, firmware, configuration and the loader cache.

The files are listed in driver.toml, the directories of each layout in layouts.toml.

Import budget: cold.
"""

from __future__ import annotations

from typing import Any

from gpu_oci_hook.formats.architectures import ARCHITECTURES
from gpu_oci_hook.formats.elf_builder import build_shared_object
from gpu_oci_hook.formats.ldcache import dump_ld_cache, merge_ld_cache
from gpu_oci_hook.simulate.special_files import SpecialFiles

_PROGRAM_SCRIPT = """#!/bin/sh
# Made by `gpu-oci-hook simulate`; stands for NVIDIA's {name}.
echo "{name} {version} (simulated)"
for node in /dev/nvidia[0-9]*; do [ -e "$node" ] && echo "$node"; done
exit 0
"""


class Userland:
    """The driver's files below one root.

    Arguments:
        special_files: creates the socket; its root takes the files too.
        layout: a table of layouts.toml.
        catalogue: the content of driver.toml.
        driver: the driver's version.

    Attributes:
        libraries: SONAME to the file's path. libraries32: the same for 32-bit libraries.
        loader_cache: path of the loader cache, or "".
        system_libraries: names of the stand-ins for the host's own libraries.
        cacheable_names: (directory, name) of each library that a loader cache would list.
    """

    def __init__(
        self, special_files: SpecialFiles, layout: dict[str, Any], catalogue: dict[str, Any], driver: str, arch: str
    ) -> None:
        self.special_files = special_files
        self.files = special_files.files
        self.layout = layout
        self.catalogue = catalogue
        self.arch, self.arch32 = arch, ARCHITECTURES[arch].arch32
        triple, triple32 = ARCHITECTURES[arch].triple, ARCHITECTURES[self.arch32].triple
        self.placeholders = {"{version}": driver, "{arch}": arch, "{triple}": triple, "{triple32}": triple32}
        self.libraries: dict[str, str] = {}
        self.libraries32: dict[str, str] = {}
        self.loader_cache = ""
        self.system_libraries: list[str] = []
        self.cacheable_names: set[tuple[str, str]] = set()

    def get_directory(self, key: str) -> str:
        """Return a directory of the layout with its placeholders filled in, or "" if the layout has none."""
        return self._expand_placeholders(self.layout.get(key, ""))

    def build_files(self, *, loader_cache: bool) -> None:
        """Write all files of the layout."""
        for link, target in self.layout.get("links", []):
            link, target = self._expand_placeholders(link), self._expand_placeholders(target)
            self.files.open_directory(target if target.startswith("/") else f"{link.rpartition('/')[0]}/{target}")
            self.files.make_symlink(link, target)
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
        self.special_files.make_socket("/run/nvidia-persistenced/socket")
        if loader_cache and self.get_directory("cache"):
            self._write_loader_cache()

    def _expand_placeholders(self, text: str) -> str:
        for name, value in self.placeholders.items():
            text = text.replace(name, value)
        return text

    def _write_system_libraries(self) -> None:
        """Write stand-ins for the host's own libraries, so that its loader cache lists more than the driver's."""
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
        subdirectory = "/" + entry["subdirectory"] if "subdirectory" in entry else ""
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
            # Debian puts a library that needs no alternative into the public directory itself.
            directory, front = front, ""
        else:
            directory = self.get_directory(key)
        self.files.write_file(f"{directory}{subdirectory}/{file}", data, 0o644)
        paths[soname] = f"{directory}{subdirectory}/{file}"
        links = [name for name in (soname, *entry.get("links", [])) if name != file]
        for name in links:
            target = file if name == soname else soname
            self.files.make_symlink(f"{directory}{subdirectory}/{name}", "../" * name.count("/") + target)
        for name in {file, *links} if not alternatives else set(links):
            if front:
                prefix = "glx" if entry.get("neutral") else "nvidia"
                self._link_public_name(
                    f"{front}{subdirectory}/{name}", f"{directory}{subdirectory}/{name}", prefix, triple=True
                )
        if not subdirectory:
            for name in (soname, *(n for n in links if "/" not in n)):
                self.cacheable_names.add((key, name))

    def _link_public_name(self, public: str, private: str, prefix: str, *, triple: bool = False) -> None:
        """Link the public name to the private one, the way the layout does it."""
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
        for entry in self.catalogue["config"]:
            kind, _, path = self._expand_placeholders(entry["path"]).partition("/")
            if path.endswith("/nvidia_icd.json") and self.get_directory("icd"):
                path = path.rpartition("/")[0] + "/" + self.get_directory("icd")
            private = f"{self.get_directory(kind)}/{path}"
            self.files.write_file(private, entry["text"].lstrip("\n").encode())
            if self.get_directory(f"front-{kind}"):
                self._link_public_name(f"{self.get_directory(f'front-{kind}')}/{path}", private, "nvidia")

    def _write_loader_cache(self) -> None:
        """Write the loader cache as ldconfig would write it for this tree."""
        cached = [self._expand_placeholders(path) for path in self.layout["cached"]]
        flags, flags32 = ARCHITECTURES[self.arch].cache_flags, ARCHITECTURES[self.arch32].cache_flags
        entries: list[tuple[str, str, int]] = []
        public = self.get_directory("front-libraries") or self.get_directory("libraries")
        if cached:
            for key, name in sorted(self.cacheable_names):
                directory, entry_flags = (cached[0], flags) if key == "libraries" else (cached[-1], flags32)
                entries.append((name, f"{directory}/{name}", entry_flags))
        system = cached[0] if cached and self.get_directory("system") == public else self.get_directory("system")
        entries += [(name, f"{system}/{name}", flags) for name in self.system_libraries]
        self.loader_cache = self.get_directory("cache")
        self.files.write_file(self.loader_cache, dump_ld_cache(merge_ld_cache(None, entries)))
