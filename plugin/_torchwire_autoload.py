"""Hook that PyTorch calls at the very end of every `import torch` (entry point group `torch.backends`).

It lives outside the `torchwire` package so that a process which does not ask for torchwire pays for one look at the
environment and nothing else: importing anything inside the package would load the extension.
"""

from __future__ import annotations

import os
import sys

ENVIRONMENT_VARIABLE = "TORCHWIRE_REPLACE_TENSORPIPE"

_ON = ("1", "true")
_OFF = ("", "0", "false")


def replacement_requested() -> bool:
    """Tells whether the environment asks for torchwire in the place of TENSORPIPE.

    Raises ValueError when the variable holds something that is neither yes nor no.
    """
    text = os.environ.get(ENVIRONMENT_VARIABLE, "")
    word = text.strip().lower()
    if word in _OFF:
        return False
    if word in _ON:
        return True
    raise ValueError(
        f"environment variable {ENVIRONMENT_VARIABLE} is {text!r}; "
        "set it to 1 (torchwire takes the place of TENSORPIPE) or to 0, or unset it"
    )


def autoload() -> None:
    """Puts torchwire in the place of TENSORPIPE in this process if the environment asks for it.

    Raises ValueError for a malformed variable and ImportError when torchwire does not fit the installed torch.
    """
    if not replacement_requested() or _torchwire_is_being_imported():
        return
    import torchwire

    torchwire.replace_tensorpipe()


def _torchwire_is_being_imported() -> bool:
    # A program whose first import is torchwire comes through here in the middle of it: torchwire imports torch, and
    # torch calls autoload(). torchwire has no functions yet at that point; its __init__ calls autoload() again as its
    # last act, so nothing is lost by leaving now.
    module = sys.modules.get("torchwire")
    return module is not None and not hasattr(module, "replace_tensorpipe")
