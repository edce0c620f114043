"""The pages of reference, made from the code."""
