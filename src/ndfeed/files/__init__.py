"""The only package that touches the disk.

``system`` asks what the platform can do, ``file`` opens and reads, ``maps`` maps and guards,
``keeper`` looks after the guards, ``tree`` finds, ``paths`` holds many names in little memory,
``publish`` writes, ``shared`` holds memory that several processes see.

Files are opened read-only and read by position: no shared offset, so threads and forked
processes never disturb each other.
"""
