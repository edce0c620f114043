"""A systemd unit: its files, processes and environment."""
