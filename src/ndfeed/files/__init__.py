"""The only package that touches the disk.

``platform_calls`` knows what the platform can do, ``file`` opens and reads, ``maps`` maps files and
``map_guard`` guards the maps, ``listing`` finds files, ``write`` and ``folder`` write,
``cache_files`` stores caches, ``shared_memory`` is memory shared by several processes.

Files are opened read-only and read by position: no shared offset, so threads and forked processes
never disturb each other.
"""
