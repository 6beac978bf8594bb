"""Fuzzing: every kind of file that ndfeed reads, with inputs that nobody would write.

``targets`` has one target for each kind, ``harness`` what they share, ``mutations`` changes that
need no coverage, ``corpus`` where inputs begin. ``python -m fuzz.run`` runs them; see README.md.
"""
