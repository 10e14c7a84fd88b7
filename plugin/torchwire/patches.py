"""Functions of PyTorch's Python layer that are replaced for a while."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class _Patch(NamedTuple):
    owner: Any  # a module or a class
    name: str
    original: Callable[..., Any]
    replacement: Callable[..., Any]


class Patches:
    """Replacements that are undone together. Not thread-safe."""

    def __init__(self) -> None:
        self._applied: list[_Patch] = []

    def replace(self, owner: Any, name: str, replacement: Callable[..., Any]) -> None:
        """Puts `replacement` in the place of the function `name` of a module or a class, until undo()."""
        self._applied.append(_Patch(owner, name, getattr(owner, name), replacement))
        setattr(owner, name, replacement)

    def undo(self) -> None:
        """Puts the originals back, the latest first. What somebody else has replaced meanwhile stays as it is."""
        while self._applied:
            patch = self._applied.pop()
            if getattr(patch.owner, patch.name) is patch.replacement:
                setattr(patch.owner, patch.name, patch.original)
