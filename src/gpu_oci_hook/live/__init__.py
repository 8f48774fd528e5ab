"""Containers that exist: find them and their bundles, and make the edits of a plan in them."""
