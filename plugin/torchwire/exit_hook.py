"""What happens to the agent of a process that ends without rpc.shutdown().

PyTorch keeps the agent in a static variable, which is destroyed after Python has ended; its threads would then wait for an
interpreter that is gone. So the agent is shut down when Python begins to end. The peers hear of it, and their calls to
this worker fail at once.
"""

from __future__ import annotations

import atexit
import os

from torchwire.current_agent import current_agent

_process: int | None = None


def install() -> None:
    """Has the agent of this process, if there is one by then, shut down at exit. May be called again."""
    global _process
    if _process is None:
        atexit.register(_shut_down)
    _process = os.getpid()


def _shut_down() -> None:
    agent = current_agent()
    # A forked child has a copy of the agent, but not its threads.
    if agent is not None and _process == os.getpid():
        agent.shutdown()
