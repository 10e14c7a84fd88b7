"""RRefs in what is not unpickled, or not to its end: they are made and dropped here, so that their owners hear of it.

Whoever pickles an RRef counts on its receiver to tell the owner once it needs the RRef no longer. A result that comes
when its call has ended is never unpickled; and what an object raises while it is unpickled ends the unpickling before
the RRefs behind it.
"""

# The functions of PyTorch's that are replaced here are private, and have no types.
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false

from __future__ import annotations

import copyreg
import io
import logging
import pickle
from typing import Any

from torch.distributed.rpc import internal

from torchwire.interrupts import is_interrupt

_logger = logging.getLogger(__name__)

_PICKLER = internal._InternalRPCPickler
_RECEIVER = "_py_rref_receiver"
_EXTENSIONS: dict[int, Any] = vars(copyreg)["_inverted_registry"]  # which pickle reads without find_class()


def drop(binary_data: bytes, read: int = 0) -> None:
    """Receives and drops the RRefs in a pickle, but for the first ones, which have been read.

    No code of the pickle's objects runs. RRefs that a pickler of the user's or a RemoteModule's writes in a way of its
    own are not found, nor any where the program has registered extension codes with copyreg.

    Raises nothing but what a handler of a signal raises.
    """
    if _RECEIVER.encode() not in binary_data or _EXTENSIONS:
        return
    try:
        _Unpickler(binary_data, read).load()
    except Exception as error:
        if is_interrupt(error):
            raise
        _logger.debug("RRefs in a pickle that nobody reads may stay: %r", error)


class _Unpickler(pickle.Unpickler):
    """Makes RRefs, and of all else nothing."""

    def __init__(self, binary_data: bytes, read: int) -> None:
        super().__init__(io.BytesIO(binary_data))
        self._skipped = read

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "getattr"):  # by which the receiver is pickled
            return self._attribute
        return _Pickler if (module, name) == (_PICKLER.__module__, _PICKLER.__qualname__) else _Nothing

    def persistent_load(self, pid: Any) -> Any:
        return _Nothing()

    def _attribute(self, owner: object, name: str) -> Any:
        return self._receive if owner is _Pickler and name == _RECEIVER else _Nothing

    def _receive(self, serialized: tuple[Any, ...]) -> _Nothing:
        if self._skipped > 0:
            self._skipped -= 1
        else:
            try:
                _PICKLER._py_rref_receiver(serialized)
            except Exception as error:  # it cannot be received here: its owner has left, for one
                if is_interrupt(error):
                    raise
        return _Nothing()


class _Nothing:
    """In the place of another object, or its class. Takes whatever a pickle does with it."""

    def __new__(cls, *_args: Any, **_kwargs: Any) -> _Nothing:
        return super().__new__(cls)

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        pass

    def __call__(self, *_args: Any, **_kwargs: Any) -> _Nothing:
        return self

    __setstate__ = __setitem__ = append = extend = add = __call__


class _Pickler(_Nothing):
    """In the place of PyTorch's own."""
