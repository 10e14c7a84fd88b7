"""Entry point of `python -m torchwire`."""

import sys

from torchwire.command_line import main

# Guarded, because multiprocessing imports the main module again in processes that it spawns.
if __name__ == "__main__":
    sys.exit(main())
