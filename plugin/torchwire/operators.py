"""rpc.remote of an operator that returns nothing, or several values, raises an error.

libtorch takes the type of the RRef from the operator's first result, and the process ends where there is none. What
`rpc.remote` calls for operators is replaced once, when torchwire is imported; on other backends it does what it always
did.
"""

# The function of PyTorch's that is replaced here is private, and has no types.
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, cast

from torch.distributed.rpc import api

from torchwire._C import TorchwireAgent

_installed = False


def install() -> None:
    """Replaces the function. May be called again; not thread-safe."""
    global _installed
    if _installed:
        return
    original = cast("Callable[..., Any]", api._invoke_remote_builtin)

    @functools.wraps(original)
    def invoke(to: Any, operator: str, timeout: float, *args: Any, **kwargs: Any) -> Any:
        TorchwireAgent.expect_one_result(operator, args, kwargs)
        return original(to, operator, timeout, *args, **kwargs)

    api._invoke_remote_builtin = invoke
    _installed = True
