"""A host and its container, and their facts."""
