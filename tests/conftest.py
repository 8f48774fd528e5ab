"""Fixtures for every test; each module of tests/support describes its own."""

from __future__ import annotations

pytest_plugins = ["support.fixtures", "support.command_line", "support.rootfs_fixtures"]
