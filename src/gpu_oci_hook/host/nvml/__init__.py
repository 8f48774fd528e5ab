"""Ask NVML, in a child process, for what /proc lacks."""
