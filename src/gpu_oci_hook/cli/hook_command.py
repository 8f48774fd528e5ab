"""Help texts of `gpu-oci-hook hook`, `prestart` and `precreate`.

The package's `main` starts the hooks themselves before click is imported.

Import budget: cold.
"""

from __future__ import annotations

import click


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("arguments", metavar="NAME [FLAGS]...", nargs=-1)
def hook(arguments: tuple[str, ...]) -> None:
    """Internal: OCI hooks referenced by CDI files, with the OCI state on standard input. Not meant to be run by hand.

    In files of `cdi generate`, NAME is create-container: one hook that makes links, updates the loader cache, sets up
    CUDA compat libraries and checks requirements, as its flags say. In files of other generators, NAME is one of
    NVIDIA's hooks: create-symlinks, update-ldcache, enable-cuda-compat, disable-device-node-modification,
    update-application-profile, chmod.
    """


@click.command()
def prestart() -> None:
    """Internal: OCI hook that injects GPUs into a container of another runtime, with the OCI state on standard input.

    Not meant to be run by hand. Files of hooks.d and docker's --gpus call it at the stage prestart; see docs/hooks.md.
    """


@click.command()
def precreate() -> None:
    """Internal: OCI hook that injects GPUs into a config.json, which is on standard input and printed.

    Not meant to be run by hand. Files of hooks.d call it at the stage precreate of podman and CRI-O; see docs/hooks.md.
    """
