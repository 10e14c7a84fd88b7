"""The name of the backend under test. Imports no torch."""

import os

DEFAULT = "TORCHWIRE"
NAME = os.environ.get("TORCHWIRE_TEST_BACKEND") or DEFAULT
FAULTY = "FAULTY_TORCHWIRE"
IS_OURS = NAME in (DEFAULT, FAULTY)
