"""Functions of PyTorch's Python layer that are replaced for a while."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import CellType
from typing import Any, NamedTuple, cast


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
        self._applied.append(_Patch(owner, name, _held(owner, name), replacement))
        setattr(owner, name, replacement)

    def undo(self) -> None:
        """Puts the originals back, the latest first. What somebody else has replaced meanwhile stays as it is."""
        while self._applied:
            patch = self._applied.pop()
            if _held(patch.owner, patch.name) is patch.replacement:
                setattr(patch.owner, patch.name, patch.original)


def cell_within(wrapper: Any) -> CellType | None:
    """Where a function of PyTorch's that is wrapped keeps what it wraps: to replace that for all that have the wrapper.

    None if somebody has put a function of another kind in its place.
    """
    proper = getattr(wrapper, "__wrapped__", None)
    cells = getattr(wrapper, "__closure__", None) or ()
    return next((cell for cell in cells if cell.cell_contents is proper), None)


def _held(owner: Any, name: str) -> Any:
    """What the owner has under that name itself: a class would make something else of some replacements."""
    own: Mapping[str, Any] = cast("Any", vars)(owner) if isinstance(owner, type) else {}
    return own[name] if name in own else getattr(owner, name)
