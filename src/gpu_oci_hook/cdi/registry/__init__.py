"""All CDI specification files of a machine: list them, resolve device names, explain failures."""
