"""Query NVML in a child process for what /proc lacks, and cache its answers.

Import budget: cold.
"""
