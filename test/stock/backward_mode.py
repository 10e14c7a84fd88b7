"""The backward_mode that the tests run with. Imports no torch."""

import os

DEFAULT = "smart"  # torchwire's
NAME = os.environ.get("TORCHWIRE_TEST_BACKWARD_MODE") or DEFAULT
