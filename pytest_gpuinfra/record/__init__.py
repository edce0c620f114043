"""Recordings, snapshots, comparisons, numbers."""
