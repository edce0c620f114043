"""Runs of many nodes as one."""
