"""Causes before what follows from them."""
