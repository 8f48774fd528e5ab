"""By what a CDI file is made, and the making: content, then what its readers cannot read taken out, then its bytes.

`generate`, `refresh` and the watch come through here, so the same options give the same bytes. Cost rule: cold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu_oci_hook.cdi import generate, limits, origin, output, versions
from gpu_oci_hook.cdi.content import Edits
from gpu_oci_hook.cdi.options import Options
from gpu_oci_hook.config import Config

if TYPE_CHECKING:
    from gpu_oci_hook.host.inventory import Memory


COMMON = "0.5.0"
"""What a file of ours needs anyhow (names that are numbers). Engines that read this and no more are still at work
(podman 4.3, containerd 1.7.0), so that more is worth a warning."""


@dataclass(frozen=True)
class Recipe:
    """By what a file is made.

    Attributes:
        options: see its class. form: "yaml" or "json".
        maximum: the greatest version of CDI that may be needed, "" for any; reader: the engine that reads no more.
    """

    options: Options
    form: str = "yaml"
    maximum: str = ""
    reader: str = ""


@dataclass(frozen=True)
class Product:
    """A file's bytes and what they say, with sentences for people.

    Attributes:
        refused: a sentence about the engines that cannot read the file at all; "" where there are none to speak of, or
            where somebody has said who reads it.
    """

    data: bytes
    spec: Edits
    warnings: tuple[str, ...]
    refused: str = ""

    def summary(self) -> str:
        """The file in a few words."""
        names = generate.device_names(self.spec)
        shown = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
        count = f"{len(names)} device{'' if len(names) == 1 else 's'}"
        version = self.spec["cdiVersion"]
        readers = ", ".join(versions.readers(version))
        return f"{self.spec['kind']}, {count} ({shown}), CDI {version}, which {readers} and later read"


def make(recipe: Recipe, config: Config, memory: Memory) -> Product:
    """Makes the file; raises as `generate.generate` and `limits.fit` do."""
    made = generate.generate(config, recipe.options, memory)
    warnings = list(made.warnings)
    if recipe.maximum:
        warnings += limits.fit(made.spec, recipe.maximum, recipe.reader)
    version, why = versions.needed(made.spec)
    spec: Edits = {"cdiVersion": version, **made.spec}
    command = recipe.options.command
    comments = [f"{origin.ANEW}{command}"] if command else []
    comments.append(f"made from {made.made_from}")
    if made.driver:
        comments.append(f"driver {made.driver}")
    comments += [f"{origin.INCOMPLETE}{missing}" for missing in made.missing if missing.required]
    data = output.dump(spec, recipe.form, tuple(comments))
    if recipe.form == "json" and not spec.get("containerEdits", {}).get("hooks"):
        warnings.append("JSON without a hook cannot say that the file is ours: refresh will leave it alone; YAML can")
    refused = ""
    if not recipe.maximum and versions.greater(version, COMMON):
        refused = (
            f"the file needs CDI {version} ({why.rpartition(': ')[2]}), and {', '.join(versions.refusers(version))} "
            "refuse it as a whole. Write one that they can read with --target ENGINE-VERSION, as in --target podman-4.3"
        )
    return Product(data, spec, tuple(warnings), refused)
