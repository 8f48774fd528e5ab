"""Requirements of end-to-end tests: a machine that lacks one skips the test loudly, or fails it."""

from __future__ import annotations

import os

import pytest

from support.e2e import machine

E2E_REQUIRED = os.environ.get("GPU_OCI_HOOK_E2E") == "require"


def require_programs(*programs: str) -> None:
    """Skip, loudly, what this machine cannot run; with GPU_OCI_HOOK_E2E=require fail instead."""
    lack = machine.describe_missing(programs)
    if lack and E2E_REQUIRED:
        pytest.fail(f"GPU_OCI_HOOK_E2E=require, but this machine {lack}", pytrace=False)
    if lack:
        pytest.skip(f"END TO END NOT TESTED: {lack}")
