"""Requests in, raw answers out; evidence."""
