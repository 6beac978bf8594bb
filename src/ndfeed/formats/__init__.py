"""Readers of headers, one module per container: they describe the arrays of a file.

A format module never returns data, never unpickles, never imports what a file names and
never trusts a size that ``fstat`` does not confirm. ``detect`` chooses the module by the
file's first bytes; ``inflate`` decodes the codings that a description may name.
"""
