"""Which ranks work under load."""
