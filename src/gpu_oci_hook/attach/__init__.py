"""Attach, detach and repair GPUs of containers that run: plan, record, apply."""
