"""Which torch and torchwire are installed, also where they do not fit each other and torchwire cannot be imported."""

from __future__ import annotations

import importlib.metadata
import sys

_UNKNOWN = "of an unknown version"


def torchwire_version() -> str:
    """As the imported package says; where its import fails, as its installation does."""
    return _version_of("torchwire")


def torch_version() -> str:
    """As the imported package says; where its import fails, as its installation does."""
    return _version_of("torch")


def _version_of(name: str) -> str:
    imported = getattr(sys.modules.get(name), "__version__", None)
    if imported:
        return str(imported)
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return _UNKNOWN
