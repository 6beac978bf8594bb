"""``python -m ndfeed``: the same as the command ``ndfeed``."""

import sys

from ndfeed.cli import main

if __name__ == "__main__":
    sys.exit(main())
