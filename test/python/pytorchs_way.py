"""Calls that PyTorch writes, as those that its legacy profiler records.

With TORCHWIRE_TEST_PYTORCHS_WAY=1 all are, in the processes of processes.py: the fork server imports this before
anything else imports torchwire.
"""

import contextlib
import os
from unittest import mock

from torch._C._distributed_rpc import PyRRef

_to_here = PyRRef.to_here  # before torchwire replaces it

from torchwire import _C  # noqa: E402


@contextlib.contextmanager
def pytorchs_way():
    """All calls of the process."""
    leave = mock.Mock(return_value=None)  # torchwire.calls takes that for a call that is PyTorch's
    with mock.patch.multiple(_C, call=leave, call_async=leave):
        yield


if os.environ.get("TORCHWIRE_TEST_PYTORCHS_WAY") == "1":
    _always = contextlib.ExitStack()
    _always.enter_context(pytorchs_way())
    PyRRef.to_here = _to_here
