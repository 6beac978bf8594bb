"""Rewrite a dataset into plain columns, once, in parallel, and lose nothing.

``pack`` is what users call. ``fields`` decides what the columns hold, ``cast`` makes it so,
``columns`` knows the files, ``plan`` cuts the work into pieces, ``rows`` reads them from the
sources, ``piece`` writes them, ``journal`` remembers which are done, ``work`` owns the folder in
which all of it happens, ``engine`` has pieces done by whoever can, ``publish`` makes the result
appear, ``append`` and ``repair`` do the same to what is there already.
"""
