"""GPUs by the driver's own account."""
