"""One module per container, each turning the headers of a file into array descriptions.

A format module never returns data, never unpickles, never imports what a file names and
never trusts a size that ``fstat`` does not confirm. ``detect`` chooses the module by the
file's first bytes; ``inflate`` undoes the codings that a description may name.
"""
