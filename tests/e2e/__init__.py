"""Tests with real engines and real containers: they need root, and Debian's packages of the engines."""
