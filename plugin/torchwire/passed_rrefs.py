"""Which RRefs the program passes on: the agent finds out to whom, and takes them back if that worker dies.

PyTorch's pickler of RRefs is replaced while the current agent is torchwire's. RRefs that TorchScript passes on do not
come by it.
"""

# The functions of PyTorch's that are replaced here are private, and have no types.
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, cast

from torch._C._distributed_rpc import PyRRef
from torch.distributed.rpc import internal

from torchwire import pickling
from torchwire.current_agent import current_agent
from torchwire.patches import Patches

_patches = Patches()


def install() -> None:
    """Tells the agent of each RRef that is pickled from now on, until uninstall()."""
    _patches.undo()  # an agent that was dropped without a shutdown has left its own behind
    original = cast("Callable[..., Any]", internal._InternalRPCPickler._py_rref_reducer)

    @functools.wraps(original)
    def reducer(self: internal._InternalRPCPickler, rref: PyRRef[Any]) -> Any:
        pickling.expect_rrefs()
        agent = current_agent()
        if agent is not None:
            agent.expect_of_this_lifetime(rref)
        receiver, (serialized,) = original(self, rref)
        if agent is not None:
            agent.note_pickled_rref(serialized)
        return receiver, (serialized,)

    _patches.replace(internal._InternalRPCPickler, "_py_rref_reducer", reducer)


def uninstall() -> None:
    """Puts PyTorch's own function back."""
    _patches.undo()
