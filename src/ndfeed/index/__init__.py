"""Many files as one table of arrays: found, described, cached, validated.

``source`` finds the files that a caller names, ``build`` describes them in a ``table``, ``codec``
converts tables to bytes and back, ``cache`` keeps them between runs, ``open`` combines all of this.
"""
