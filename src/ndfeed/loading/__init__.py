"""Batches made ahead of use: their memory, threads, processes, and what limits them."""
