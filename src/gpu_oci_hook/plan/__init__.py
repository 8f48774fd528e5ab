"""What goes into a container, what is withheld, and the reason for each: the one place of decision; pure."""
