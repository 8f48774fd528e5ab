"""Help text of `gpu-oci-hook hook`. The package's `main` starts the hook itself before click is imported.

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
