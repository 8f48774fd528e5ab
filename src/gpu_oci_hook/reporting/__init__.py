"""Report failures, warnings and starts to engines and logs."""
