"""Rewrites a dataset into plain columns, once, in parallel, without losing anything.

``pack`` is what users call; ``request`` checks its arguments and forecasts the result.
``stored_fields`` decides what the columns hold, ``column_values`` converts to it, ``columns`` knows
the files. ``plan`` divides the work; ``tasks`` does parts of it, reading with ``source_rows`` and
``streams``, checking with ``member_checksums``. ``journal`` records which tasks are done,
``staging_folder`` owns the folder in which all of it happens, ``executors`` runs tasks in parallel,
``run`` runs them in order, ``publish`` makes the result appear.

``verify`` reads a whole packed dataset and reports damage; ``repair`` writes damaged blocks again.
"""
