"""What is there: the host's root, driver, GPUs, nodes and driver files. Kept empty: the shim pays for it."""
