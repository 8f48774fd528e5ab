"""System calls that Python has no function for, one thin layer."""
