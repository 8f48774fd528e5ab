"""Detect WSL and Tegra, and read their GPUs, device nodes and driver files."""
