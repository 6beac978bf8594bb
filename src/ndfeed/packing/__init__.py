"""Rewrites a dataset into plain columns, once, in parallel, without losing anything.

``pack`` is what users call; ``request`` holds its checked arguments. ``plan`` divides the work into
tasks, ``tasks`` does them, ``executors`` runs them in parallel, and ``run`` runs all of them in
order and makes the result appear. ``source_rows`` and ``streams`` read the source,
``member_checksums`` checks it; ``stored_fields`` decides what the columns hold and converts to it,
``columns`` knows their files. ``journal`` records which tasks are done, and ``staging_folder`` owns
the folder in which all of it happens.

``verify`` reads a whole packed dataset and reports damage; ``repair`` writes damaged blocks again.
"""
