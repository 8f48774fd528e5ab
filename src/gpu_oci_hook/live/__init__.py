"""Containers that run already: find them and their bundles."""
