"""Helpers of tests with real engines and containers: they need root and Debian's packages of the engines."""
