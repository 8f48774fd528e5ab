"""`nvidia-container-cli`: our program under the name of libnvidia-container's command line, for those who call it."""
