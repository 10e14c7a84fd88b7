"""The future of a call."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import torch

from torchwire import _C

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")


class CallFuture(torch.futures.Future[T]):
    """What `rpc_async` returns on torchwire: a torch.futures.Future that knows its call.

    `wait()` reads the answer on the thread that waits. `await future` in a coroutine gives the result, on the
    coroutine's event loop; where its task is cancelled, so is the call.

    Raises:
        TypeError: A program makes one: only `rpc_async` does.
    """

    def __init__(self) -> NoReturn:
        raise TypeError("rpc_async() makes these: call torch.futures.Future() for one of your own")

    def cancel(self) -> bool:
        """Gives the call up, as `torchwire.cancel()` does.

        Returns:
            Whether the call has ended by this: False when it had ended before.

        Raises:
            ValueError: It is the future of an RRef's creation, which cannot be given up.
        """
        return _C.cancel_call(self)

    def __await__(self) -> Generator[Any, None, T]:
        import asyncio  # which most programs never need

        if not self.done():
            _C.expect_to_end()
        loop = asyncio.get_running_loop()
        done = loop.create_future()

        def wake(_: torch.futures.Future[T]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(_complete, done)

        self.add_done_callback(wake)
        try:
            yield from done
        except asyncio.CancelledError:
            with contextlib.suppress(ValueError, RuntimeError):  # of a creation, or in a forked process
                self.cancel()
            raise
        return self.wait()  # it is complete; the streams of devices wait for what fills its tensors


def _complete(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)


def install() -> None:
    """Has calls return them. After `torch.Future.wait` has been replaced; once is enough."""
    # The function itself: torch.futures.Future.wait has a frame, in which the traceback of an error keeps the future.
    CallFuture.wait = vars(torch.Future)["wait"]  # pyright: ignore[reportAttributeAccessIssue]
    _C.set_call_future_class(CallFuture)
