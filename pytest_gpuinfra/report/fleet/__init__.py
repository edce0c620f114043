"""Many hosts on one page."""
