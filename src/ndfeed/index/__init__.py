"""Many files as one table of arrays: found, described, cached, validated.

``source`` finds the files a caller means, ``build`` describes them into a ``table``,
``cache`` keeps tables between runs.
"""
