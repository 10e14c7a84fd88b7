"""Which RRefs the program passes on: the agent finds out to whom, and takes them back if that worker is gone.

PyTorch's pickler of RRefs is replaced while the current agent is torchwire's. RRefs that TorchScript passes on do not
come by it. Where what is to be sent cannot be pickled as a whole, those RRefs that have been are taken back at once.
"""

# The functions of PyTorch's that are replaced here are private, and have no types.
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, cast

from torch._C._distributed_rpc import PyRRef
from torch.distributed.rpc import internal

from torchwire import pickling
from torchwire.current_agent import current_agent
from torchwire.patches import Patches

_patches = Patches()


class _Pickled(threading.local):
    """By this thread, as yet in vain; None: it pickles nothing that is to be sent."""

    rrefs: list[tuple[Any, ...]] | None = None


_pickled = _Pickled()


def install() -> None:
    """Tells the agent of each RRef that is pickled from now on, until uninstall()."""
    _patches.undo()  # an agent that was dropped without a shutdown has left its own behind
    pickler = internal._InternalRPCPickler
    _patches.replace(pickler, "_py_rref_reducer", _noting(cast("Any", pickler._py_rref_reducer)))
    _patches.replace(pickler, "serialize", _withdrawing(cast("Any", pickler.serialize)))


def uninstall() -> None:
    """Puts PyTorch's own functions back."""
    _patches.undo()


def _noting(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def reducer(self: internal._InternalRPCPickler, rref: PyRRef[Any]) -> Any:
        pickling.expect_rrefs()
        agent = current_agent()
        if agent is not None:
            agent.expect_of_this_lifetime(rref)
        receiver, (serialized,) = original(self, rref)
        if agent is not None:
            agent.note_pickled_rref(serialized)
            if _pickled.rrefs is not None:
                _pickled.rrefs.append(serialized)
        return receiver, (serialized,)

    return reducer


def _withdrawing(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def serialize(self: internal._InternalRPCPickler, obj: Any) -> Any:
        outer = _pickled.rrefs
        rrefs: list[tuple[Any, ...]] = []
        _pickled.rrefs = rrefs
        try:
            return original(self, obj)
        except BaseException:
            agent = current_agent()
            if rrefs and agent is not None:
                agent.withdraw_pickled_rrefs(rrefs)
            raise
        finally:
            _pickled.rrefs = outer

    return serialize
