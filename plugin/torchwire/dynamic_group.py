"""Leaving a dynamic group: one that workers join and leave while it runs.

rpc.shutdown() knows dynamic groups of its own agent only. For any other agent it first runs `_wait_all_workers`, a
gathering of the names that were there when this worker joined. Workers that left will never come to it, workers that
joined later are not asked, and those that mean to stay should not have to come: in a dynamic group it can only hang or
fail. Leaving is what the agent's join() does there, so the gathering is skipped.

Two functions of torch.distributed.rpc.api are replaced, and only while the current agent is a dynamic one of
torchwire's: `_wait_all_workers` for the above, and `_finalize_shutdown`, which every shutdown ends with, graceful or
not, to put both back. `_wait_all_workers` cannot put itself back when it runs: a shutdown that is not graceful never
calls it, and after a direct call of it the shutdown proper would still have to find the replacement.
"""

from __future__ import annotations

import functools
from typing import Any

from torch.distributed.rpc import api

from torchwire.current_agent import current_agent
from torchwire.patches import Patches

_patches = Patches()


def install() -> None:
    """Makes the next rpc.shutdown() leave the dynamic group instead of waiting for all its workers."""
    _patches.undo()  # an agent that was dropped without a shutdown has left its own behind
    _replace_wait_all_workers()
    _replace_finalize_shutdown()


def _replace_wait_all_workers() -> None:
    original = api._wait_all_workers

    @functools.wraps(original)
    def wait_all_workers(*args: Any, **kwargs: Any) -> None:
        # Asked each time, because somebody may keep this function for longer than the agent lives.
        agent = current_agent()
        if agent is None or agent.is_static_group:
            original(*args, **kwargs)

    _patches.replace(api, "_wait_all_workers", wait_all_workers)


def _replace_finalize_shutdown() -> None:
    original = api._finalize_shutdown

    @functools.wraps(original)
    def finalize_shutdown() -> None:
        _patches.undo()  # first, because the original may raise
        original()

    _patches.replace(api, "_finalize_shutdown", finalize_shutdown)
