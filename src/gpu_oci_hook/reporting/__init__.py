"""Tell engines and the log what happened."""
