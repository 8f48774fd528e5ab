"""CDI: the plan as a file, other people's files as plans. Kept empty: the shim pays for every import."""
