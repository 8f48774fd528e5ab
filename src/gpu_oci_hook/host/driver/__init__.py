"""Find the driver's files on the host and cache the result. Kept empty because the shim loads it.

Import budget: GPU container.
"""
