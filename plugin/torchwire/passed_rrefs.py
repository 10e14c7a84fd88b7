"""Which RRefs the program passes on: the agent finds out to whom, and takes them back if that worker is gone.

What PyTorch pickles RRefs with is replaced while the current agent is torchwire's. RRefs that TorchScript passes on do
not come by it. Where what is to be sent cannot be pickled as a whole, or a handler of a signal raises before it is
sent, those RRefs that have been pickled are taken back at once.
"""

# The functions of PyTorch's that are replaced here are private, and have no types.
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch._C._distributed_rpc import PyRRef
from torch.distributed.rpc import internal

from torchwire import _C, pickling
from torchwire.current_agent import current_agent
from torchwire.replaced import API, PICKLER, RREF, Replacements, Until

_replaced = Replacements(Until.SHUTDOWN)


def install() -> None:
    """Tells the agent of each RRef that is pickled from now on, until uninstall()."""
    _replaced.undo()  # an agent that was dropped without a shutdown has left its own behind
    _replaced.replace(f"{PICKLER}._py_rref_reducer", _checking)
    _replaced.replace(f"{PICKLER}.serialize", _C.withdrawing_rrefs)
    # remote() pickles, and sends by another function; all others are calls.py's.
    _replaced.replace(f"{API}.remote.__wrapped__", _C.withdrawing_rrefs_of_call)
    _replaced.replace(f"{RREF}._serialize", _C.noting_rrefs)


def uninstall() -> None:
    """Puts PyTorch's own functions back."""
    _replaced.undo()


def _checking(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def reducer(self: internal._InternalRPCPickler, rref: PyRRef[Any]) -> Any:
        pickling.expect_rrefs()
        agent = current_agent()
        if agent is not None:
            agent.expect_of_this_lifetime(rref)
        return original(self, rref)

    return reducer
