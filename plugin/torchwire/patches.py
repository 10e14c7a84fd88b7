"""Functions of PyTorch's Python layer that are replaced for a while."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple


class _Patch(NamedTuple):
    module: ModuleType
    name: str
    original: Callable[..., Any]
    replacement: Callable[..., Any]


class Patches:
    """Replacements that are undone together. Not thread-safe."""

    def __init__(self) -> None:
        self._applied: list[_Patch] = []

    def replace(self, module: ModuleType, name: str, replacement: Callable[..., Any]) -> None:
        """Puts `replacement` in the place of the module's function `name`, until undo()."""
        self._applied.append(_Patch(module, name, getattr(module, name), replacement))
        setattr(module, name, replacement)

    def undo(self) -> None:
        """Puts the originals back, the latest first. What somebody else has replaced meanwhile stays as it is."""
        while self._applied:
            patch = self._applied.pop()
            if getattr(patch.module, patch.name) is patch.replacement:
                setattr(patch.module, patch.name, patch.original)
