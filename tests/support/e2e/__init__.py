"""Helpers of the end-to-end tests: real engines and real containers; they need root and Debian's packages of the engines."""
