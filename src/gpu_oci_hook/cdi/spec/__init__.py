"""Read and check one CDI file."""
