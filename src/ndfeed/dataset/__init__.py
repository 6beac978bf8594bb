"""Samples and fields over a table of arrays: planned, filled, viewed.

``samples`` decides what a sample is, ``column`` knows where each one lies, ``fill`` copies
them (``rows`` from maps, ``whole`` file by file, ``members`` out of compressed ones),
``dataset`` is what users hold, ``open`` is how they get it.
"""
