"""Recorded and composed inputs of the tests."""
