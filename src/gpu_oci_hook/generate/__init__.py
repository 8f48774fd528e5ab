"""Write CDI specification files."""
