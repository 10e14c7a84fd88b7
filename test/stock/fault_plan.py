"""The fault plan that the tests of FAULTY_TORCHWIRE run under. Imports no torch."""

import os

FILE = os.environ.get("TORCHWIRE_TEST_FAULT_PLAN") or None
SEED = os.environ.get("TORCHWIRE_TEST_FAULT_SEED") or None
