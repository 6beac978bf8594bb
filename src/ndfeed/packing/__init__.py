"""Rewrite a dataset into plain columns, once, in parallel, and lose nothing.

``pack`` is what users call. ``fields`` decides what the columns hold, ``cast`` and ``values`` make
it so, ``columns`` knows the files; ``plan`` cuts the work into pieces, ``forecast`` says what they
come to; ``piece`` does one, reading with ``rows``, ``streams`` and ``large``, checking with
``members``, writing with ``store``; ``journal`` remembers which are done, ``work`` owns the folder
in which all of it happens, ``engine`` has pieces done by whoever can, ``packing`` sees to their
order, ``publish`` makes the result appear.

``verify`` reads a packed dataset whole and says what is damaged, over ``blocks``, which compares
the checksums of one column; ``repair`` writes damaged blocks again.
"""
