"""Machines that are not desktops or servers: WSL and Tegra."""
