"""Batches on a GPU: which way they get there, and each of the ways."""
