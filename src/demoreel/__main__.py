"""``python -m demoreel``: the command line."""

import sys

from demoreel.cli import main

if __name__ == "__main__":
    sys.exit(main())
