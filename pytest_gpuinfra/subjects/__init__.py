"""Pure functions that join facts with expectations, and facts with each other."""
