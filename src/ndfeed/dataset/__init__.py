"""Samples and fields over a table of arrays: planned, read, viewed.

``samples`` decides what a sample is, ``column`` knows where each one lies, ``reader`` copies them
(``gather`` from mapped files, ``whole_files`` file by file, ``decoding`` from compressed ones),
``dataset`` is what users hold, ``open`` is how they get it.
"""
