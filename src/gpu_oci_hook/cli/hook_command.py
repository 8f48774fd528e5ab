"""`gpu-oci-hook hook --help`: what CDI files call. The hook itself is started before click is loaded, see `cli`."""

from __future__ import annotations

import click


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("words", metavar="NAME [FLAGS]...", nargs=-1)
def hook(words: tuple[str, ...]) -> None:
    """What CDI files call in a container, with the OCI state on standard input; not for people.

    NAME is create-container in files of `cdi generate`: links, the loader, CUDA compat and conditions in one go, by
    flags that the generator writes. In files that others generated it is one of NVIDIA's: create-symlinks,
    update-ldcache, enable-cuda-compat, disable-device-node-modification, update-application-profile, chmod.
    """
