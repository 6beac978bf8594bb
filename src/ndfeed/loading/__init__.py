"""Makes batches ahead of use: their memory, threads and worker processes, and the report."""
