"""Whether each rank of a test runs under a profiler from its beginning to its end. Imports no torch."""

import contextlib
import os

IS_ON = os.environ.get("TORCHWIRE_TEST_PROFILER") == "1"


@contextlib.contextmanager
def profiled():
    """What runs within does so under the profiler, if that is on: the legacy one, the only one that PyTorch's RPC
    knows. Its records are not read, since their parser fails at ranges that end on another thread, as calls' do."""
    if not IS_ON:
        yield
        return
    from torch.autograd import profiler_legacy  # which is not to be imported by who only starts the server

    profiler_legacy._enable_profiler_legacy(profiler_legacy.profile().config())
    try:
        yield
    finally:
        profiler_legacy._disable_profiler_legacy()


def has_own(test):
    """Whether the test of that name starts a profiler itself: there can be only one."""
    return "profil" in test
