"""Pickles of at most so many bytes: a value that needs more is given up before it is copied."""

from __future__ import annotations

import pickle
from typing import Any

import torch

from torchwire.interrupts import is_interrupt


def dumps(value: object, most_bytes: int) -> bytes | None:
    """The value's pickle; None where it cannot be pickled, or not in as many bytes.

    Raises what a handler of a signal raises.
    """
    file = _BoundedFile(most_bytes)
    try:
        _BoundedPickler(file, most_bytes).dump(value)
    except BaseException as error:  # of an object's own methods
        if is_interrupt(error):
            raise
        return None
    return b"".join(file.parts)


class _TooLarge(Exception):
    pass


class _BoundedFile:
    def __init__(self, most_bytes: int) -> None:
        self.parts: list[bytes] = []
        self._room = most_bytes

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        self._room -= size
        if self._room < 0:
            raise _TooLarge
        self.parts.append(bytes(data))
        return size


class _BoundedPickler(pickle.Pickler):
    def __init__(self, file: _BoundedFile, most_bytes: int) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._most_bytes = most_bytes

    def persistent_id(self, obj: Any) -> None:
        # Asked of each object before it is pickled, which copies the memory of some.
        if _least_bytes(obj) > self._most_bytes:
            raise _TooLarge


def _least_bytes(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    try:
        if isinstance(value, torch.Tensor):
            return value.untyped_storage().nbytes()
        if isinstance(value, (torch.UntypedStorage, torch.TypedStorage)):
            return getattr(value, "_untyped_storage", value).nbytes()
        return memoryview(value).nbytes
    except Exception:  # it has no memory of its own: its parts are asked
        return 0
