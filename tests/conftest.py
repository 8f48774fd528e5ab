"""Fixtures for every test; each module of tests/support describes its own."""

from __future__ import annotations

import signal

# A shell starts background jobs with these ignored, and what is ignored stays so across exec: the programs under test
# would then differ from those that an engine starts.
for ignored in (signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(ignored) is signal.SIG_IGN:
        signal.signal(ignored, signal.default_int_handler if ignored is signal.SIGINT else signal.SIG_DFL)

pytest_plugins = ["support.fixtures", "support.command_line", "support.rootfs_fixtures"]
