"""Rewrite a dataset into plain columns, once, in parallel, and lose nothing.

``verify`` reads a packed dataset whole and says what is damaged, over ``blocks``, which compares
the checksums of one column.
"""
