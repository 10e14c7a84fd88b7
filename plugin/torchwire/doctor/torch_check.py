"""That torch is a release for which torchwire was built."""

from __future__ import annotations

import importlib
import re

from torchwire.doctor import versions
from torchwire.doctor.check import Check, failed, ok

_NAME = "torch"
_WITH_REMEDY = re.compile(r"(?P<found>.*?)\. (?P<remedy>(?:Rei|I)nstall .*)")


def fitting_torch() -> Check:
    """Where it does not fit, importing torchwire fails before this, and misfit() says it."""
    built_for = importlib.import_module("torchwire._build").TORCH_VERSION
    return ok(
        _NAME,
        f"torch {versions.torch_version()}; torchwire {versions.torchwire_version()} was built for torch {built_for}",
    )


def misfit(error: Exception) -> Check:
    """What the import of torchwire has failed with. Its errors end in their remedies (compatibility.py)."""
    if isinstance(error, ModuleNotFoundError) and error.name == "torch":
        return failed(_NAME, "torch is not installed for this Python", "install it, and then torchwire anew")
    text = " ".join(str(error).split())
    parts = _WITH_REMEDY.fullmatch(text)
    if parts is None:
        return failed(_NAME, f"torchwire cannot be imported: {text}", "install torch and torchwire anew")
    return failed(_NAME, parts["found"], parts["remedy"][0].lower() + parts["remedy"][1:])
