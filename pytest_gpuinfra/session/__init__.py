"""One pytest session."""
