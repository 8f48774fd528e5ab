"""Optional devices and files of the host, beside GPUs and driver files."""
