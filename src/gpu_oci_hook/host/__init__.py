"""Read the host: its root, driver, GPUs, device nodes and driver files. Kept empty because the shim loads it.

Import budget: GPU container.
"""
