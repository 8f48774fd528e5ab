"""Read the host's MIG devices and their device nodes."""
