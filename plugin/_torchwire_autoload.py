"""Hook that PyTorch calls at the very end of every `import torch` (entry point group `torch.backends`).

It lives outside the `torchwire` package so that a process which does not ask for torchwire pays for one look at the
environment and nothing else: importing anything inside the package would load the extension.
"""

from __future__ import annotations

import os


def autoload() -> None:
    """Puts torchwire in the place of TENSORPIPE in this process if TORCHWIRE_REPLACE_TENSORPIPE asks for it.

    Raises ValueError for a malformed variable and ImportError when torchwire does not fit the installed torch.
    """
    if os.environ.get("TORCHWIRE_REPLACE_TENSORPIPE", "").strip().lower() not in ("", "0", "false"):
        import torchwire  # noqa: F401 - as its last act it does what the variable says
