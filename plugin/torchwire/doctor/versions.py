"""Which torch and torchwire are installed, also where they do not fit each other and torchwire cannot be imported."""

from __future__ import annotations

import importlib.metadata
import sys

_UNKNOWN = "of an unknown version"


def torchwire_version() -> str:
    """As the imported package says; where its import fails, as its installation does."""
    return str(getattr(sys.modules.get("torchwire"), "__version__", None) or _installed("torchwire"))


def torch_version() -> str:
    """As the imported package says; where its import fails, as its installation does."""
    return str(getattr(sys.modules.get("torch"), "__version__", None) or _installed("torch"))


def _installed(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return _UNKNOWN
