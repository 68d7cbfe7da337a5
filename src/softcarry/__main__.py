"""``python -m softcarry``: the same as the command ``softcarry``."""

import sys

from softcarry.cli import main

if __name__ == "__main__":
    sys.exit(main())
