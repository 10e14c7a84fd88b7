"""The trace context of OpenTelemetry, carried from who calls a Python function to where it runs.

A caller that has asked for it (propagate_opentelemetry) and in which a span is current gives its function a companion:
what OpenTelemetry's propagators say of the context, which is W3C's `traceparent` as a rule. A direct call has it at its
end; where the call is pickled, it is pickled with the function. A call without one is as it always was.
"""

# The functions of PyTorch's that are replaced here are private, and have no types.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import functools
import importlib
import logging
import sys
from collections.abc import Callable, Mapping
from typing import Any, cast

from torch.distributed.rpc import api, internal
from torch.distributed.rpc.constants import UNSET_RPC_TIMEOUT

from torchwire import option_checks
from torchwire.replaced import API, PROXY, Replacements, Until

_logger = logging.getLogger(__name__)

_replaced = Replacements(Until.UNTRACED)
_propagates = False


class InContext:
    """A function that runs in the trace context of who has called it.

    Like the function itself in all other respects, so that it can be called by rpc_sync, rpc_async and remote.
    """

    __slots__ = ("carrier", "function")

    def __init__(self, function: Callable[..., Any], carrier: Mapping[str, str]) -> None:
        self.function = function
        self.carrier = carrier

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        detach = _attach(self.carrier)
        try:
            return self.function(*args, **kwargs)
        finally:
            detach()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.function, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return InContext, (self.function, self.carrier)


def propagate_opentelemetry(enabled: bool = True) -> None:
    """From now on the Python functions that this process calls run in the trace context of OpenTelemetry of their call.

    While a span is current here, what rpc_sync, rpc_async, remote and the calls by proxy of an RRef (`rref.rpc_sync()`
    and the like) run elsewhere has that span for its remote parent: spans that the function starts belong to the same
    trace. The context travels as the propagators of OpenTelemetry say (W3C's `traceparent`, `tracestate` and `baggage`,
    unless it is configured otherwise). It is current until the function returns; what an async function leaves to
    callbacks runs without it.

    Only who calls has to ask for it, but all workers need a torchwire that knows of it: an earlier one fails calls that
    are pickled. The other side takes part if it has imported `opentelemetry.trace`; otherwise the function
    runs as ever, and so do functions of TorchScript and PyTorch's operators. Calls without a current span, and those of
    a process that has not asked for it, are the same, byte for byte, as without OpenTelemetry.

    `enabled`: False ends it (default True). May be called again, before or after init_rpc; not thread-safe, so call it
    while no other thread makes calls.

    Raises ModuleNotFoundError where the package opentelemetry-api is not installed, TypeError where `enabled` is no
    bool.
    """
    global _propagates
    if option_checks.switch("propagate_opentelemetry: enabled", enabled) == _propagates:
        return
    if enabled:
        current_carrier = _current_carrier()
        _replaced.replace(f"{API}._invoke_rpc", functools.partial(_invoking, current_carrier=current_carrier))
        _replaced.replace(f"{API}.PythonUDF", lambda _: _pickling(current_carrier))
        _replaced.replace(
            f"{PROXY}._invoke_rpc",
            functools.partial(_invoking_by_proxy, current_carrier=current_carrier),
        )
    else:
        _replaced.undo()
    _propagates = enabled


def _current_carrier() -> Callable[[], dict[str, str]]:
    """A function that returns what is to be carried now: an empty dict where no span is current."""
    inject: Callable[[dict[str, str]], None] = importlib.import_module("opentelemetry.propagate").inject
    current_span: Callable[[], Any] = importlib.import_module("opentelemetry.trace").get_current_span
    from torchwire.current_agent import current_agent  # loads the extension, which loads this module

    def current_carrier() -> dict[str, str]:
        carrier: dict[str, str] = {}
        if current_span().get_span_context().is_valid and current_agent() is not None:
            inject(carrier)
        return carrier

    return current_carrier


def _invoking(original: Callable[..., Any], current_carrier: Callable[[], dict[str, str]]) -> Callable[..., Any]:
    from torchwire.calls import is_python  # as above

    @functools.wraps(original)
    def invoke(
        to: Any, func: Any, rpc_type: Any, args: Any = None, kwargs: Any = None, rpc_timeout: float = UNSET_RPC_TIMEOUT
    ) -> Any:
        carrier = current_carrier()
        if carrier and is_python(func):
            func = InContext(func, carrier)
        return original(to, func, rpc_type, args, kwargs, rpc_timeout)

    return invoke


def _pickling(current_carrier: Callable[[], dict[str, str]]) -> Callable[..., Any]:
    """For the creation of RRefs, and for calls that go PyTorch's own way."""

    def python_udf(func: Any, args: Any, kwargs: Any) -> Any:
        if not isinstance(func, InContext):
            carrier = current_carrier()
            if carrier:
                func = InContext(func, carrier)
        return internal.PythonUDF(func, args, kwargs)

    return python_udf


def _invoking_by_proxy(
    original: Callable[..., Any], current_carrier: Callable[[], dict[str, str]]
) -> Callable[..., Any]:
    @functools.wraps(original)
    def invoke(rref: Any, rpc_api: Any, func_name: str, timeout: float, *args: Any, **kwargs: Any) -> Any:
        if rpc_api is cast("Any", api).rpc_async and current_carrier():
            # PyTorch calls from a callback of this future, in no context: unless it is there already.
            kind = rref._get_type(timeout=timeout, blocking=False)
            try:
                kind.wait()
            except Exception:  # which the call's own future says
                pass
        return original(rref, rpc_api, func_name, timeout, *args, **kwargs)

    return invoke


def _nothing() -> None:
    pass


def _attach(carrier: Mapping[str, str]) -> Callable[[], None]:
    """Makes the context current on this thread, where OpenTelemetry is in use. Returns what ends that."""
    if "opentelemetry.trace" not in sys.modules:
        return _nothing
    try:
        context: Any = importlib.import_module("opentelemetry.context")
        remote: Any = importlib.import_module("opentelemetry.propagate").extract(carrier)
        return functools.partial(context.detach, context.attach(remote))
    except Exception as error:  # the function runs all the same
        _logger.warning("the trace context of a call cannot be used: %s", error)
        return _nothing
