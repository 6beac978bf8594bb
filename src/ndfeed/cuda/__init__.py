"""Batches on a GPU, without a framework: which way they get there, and each of the ways."""
