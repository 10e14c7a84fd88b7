"""rpc.remote of an operator that returns nothing, or several values, raises an error.

libtorch takes the type of the RRef from the operator's first result, and the process ends where there is none. What
`rpc.remote` calls for operators is replaced once, when torchwire is imported; on other backends it does what it always
did.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torchwire._C import TorchwireAgent
from torchwire.replaced import API, for_good


def install() -> None:
    """Replaces the function. Not thread-safe."""
    for_good(f"{API}._invoke_remote_builtin", _expecting_one_result)


def _expecting_one_result(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def invoke(to: Any, operator: str, timeout: float, *args: Any, **kwargs: Any) -> Any:
        TorchwireAgent.expect_one_result(operator, args, kwargs)
        return original(to, operator, timeout, *args, **kwargs)

    return invoke
