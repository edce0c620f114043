"""What is expected of hosts."""
