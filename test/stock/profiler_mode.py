"""Whether each rank of a test runs under a profiler from its beginning to its end. Imports no torch."""

import os

IS_ON = os.environ.get("TORCHWIRE_TEST_PROFILER") == "1"


def has_own(test):
    """Whether the test of that name starts a profiler itself: there can be only one."""
    return "profil" in test
