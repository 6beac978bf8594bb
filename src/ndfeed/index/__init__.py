"""Many files as one table of arrays: found, described, cached, validated.

``source`` finds the files a caller means, ``build`` describes them into a ``table``, ``codec``
turns tables into bytes and back, ``cache`` keeps them between runs, ``open`` puts it together.
"""
