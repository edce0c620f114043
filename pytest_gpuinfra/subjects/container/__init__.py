"""A container on the host."""
