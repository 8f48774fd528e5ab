"""`gpu-oci-hook cdi generate`: write a CDI file for this host's GPUs, or print it.

Import budget: cold.
"""

from __future__ import annotations

import os
from typing import Any

import click

from gpu_oci_hook.cdi.spec.reading import read_spec_file
from gpu_oci_hook.cli.cdi_generate_options import add_generate_options, read_option_values, require_nonempty
from gpu_oci_hook.cli.cdi_recipe import build_recipe, load_recipe_config, with_rewrite_command
from gpu_oci_hook.cli.command_config import ReadOnlyCache
from gpu_oci_hook.cli.printing import print_document, print_progress, print_warning
from gpu_oci_hook.errors import Fault, clip_text
from gpu_oci_hook.generate.recipe import build_spec
from gpu_oci_hook.generate.spec_writer import classify_existing_file, write_spec_file


@click.command()
@click.option(
    "--output", "path", type=require_nonempty, metavar="FILE", help="Output file.  [default: -, standard output]"
)
@add_generate_options
@click.pass_context
def generate(context: click.Context, /, path: str | None, force: bool, **_: Any) -> None:
    """Write a CDI file, with which container engines inject GPUs without gpu-oci-runtime.

    The file defines one device per GPU and per MIG device, `all` for all of them, and `none` for the driver without a
    GPU. It uses the lowest CDI version that its content needs; --target writes a file for an older engine. The options
    are recorded in the file, and `cdi refresh --output FILE` reuses them. An existing file is replaced only if
    gpu-oci-hook wrote it or it defines devices of the same kind.
    """
    path = "" if path in (None, "-") else str(path)
    if os.path.isdir(path):
        raise Fault(f"is a directory. Name a file, such as {path.rstrip('/')}/nvidia.yaml", where=f"--output {path}")
    options = read_option_values(context)
    settings = load_recipe_config(options)
    recipe = with_rewrite_command(build_recipe(path, options), path, options)
    spec = build_spec(recipe, settings, ReadOnlyCache())
    for warning in (*spec.warnings, *([spec.unreadable_warning] if spec.unreadable_warning else [])):
        print_warning(warning)
    if not path:
        print_document(spec.data.decode())
        return
    if not force:
        _refuse_foreign_file(path, spec.spec["kind"])
    print_progress(f"{write_spec_file(path, spec.data)} {path}: {spec.summarise_spec()}")


def _refuse_foreign_file(path: str, kind: str) -> None:
    """Refuse to replace a file that is neither ours nor a CDI file of the same kind.

    Raises:
        Fault: the file is one of those.
    """
    owner = classify_existing_file(path)
    hint = "Choose another --output, or replace it with --force"
    if owner == "other":
        raise Fault("the existing file is not a CDI file and is not replaced", where=path, hint=hint)
    if owner == "cdi":
        data = read_spec_file(path).data
        existing_kind = data.get("kind") if isinstance(data, dict) else None
        if existing_kind != kind:
            content = f"defines {clip_text(existing_kind)}" if isinstance(existing_kind, str) else "is invalid"
            raise Fault(f"the existing CDI file {content} and is not replaced", where=path, hint=hint)
