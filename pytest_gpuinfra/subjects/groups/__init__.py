"""All-reduces over several hosts."""
