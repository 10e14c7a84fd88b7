"""What `rpc.shutdown()` does first when it is graceful: wait for all workers.

PyTorch does that with an all-gather over RPC, by the names that were there when this worker joined. Two things are
wrong with it. In a dynamic group, which workers join and leave while it runs, workers that left never come, workers
that joined later are not asked, and those that mean to stay should not have to come; PyTorch knows that, but only of
its own agent. So there the all-gather is left out; leaving is what the agent's join() does. And in a static group,
where all must come, it waits for ever for a worker whose process has died. So there the agent first waits for all
workers that live. If none is dead the all-gather, which then finds all of them, still runs, because programs may build
on its parts.

Two functions of torch.distributed.rpc.api are replaced, and only while the current agent is torchwire's:
`_wait_all_workers` for the above, and `_finalize_shutdown`, which every shutdown ends with, graceful or not, to put
both back, to end the agent before libtorch's tables of RRefs, and to say more of leaked RRefs (see leak_report).
`_wait_all_workers` cannot put itself back when it runs: a shutdown that is not graceful never calls it, and after a
direct call of it the shutdown proper would still have to find the replacement. With them goes what concurrent_shutdown
puts into `shutdown` itself.
"""

# The functions of PyTorch's that are replaced here are private.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import functools
import threading
from collections.abc import Callable

from torch.distributed.rpc import api
from torch.distributed.rpc.constants import DEFAULT_SHUTDOWN_TIMEOUT

from torchwire import concurrent_shutdown, creation_sites, passed_rrefs, torch_parts
from torchwire.current_agent import current_agent
from torchwire.leak_report import LeakReport
from torchwire.observe import observers, trace
from torchwire.patches import Patches

_PATIENCE = 10.0  # seconds

_patches = Patches()


def install(before_leaving: Callable[[], None]) -> None:
    """Makes rpc.shutdown() and its parts ask torchwire's agent, until the next shutdown ends.

    `before_leaving` is called once all workers have come, when none has left yet, and again at the very end.
    """
    global _patches
    _patches.undo()  # an agent that was dropped without a shutdown has left its own behind
    _patches = Patches()  # a shutdown that has not quite ended elsewhere must not undo these
    concurrent_shutdown.install(_patches)
    leaks = LeakReport()
    _replace_wait_all_workers(_patches, leaks, before_leaving)
    _replace_finalize_shutdown(_patches, leaks, before_leaving)


def _replace_wait_all_workers(patches: Patches, leaks: LeakReport, before_leaving: Callable[[], None]) -> None:
    original = api._wait_all_workers

    @functools.wraps(original)
    def wait_all_workers(timeout: float = DEFAULT_SHUTDOWN_TIMEOUT) -> None:
        # Asked each time, because somebody may keep this function for longer than the agent lives.
        agent = current_agent()
        if agent is not None:
            leaks.settle()
        if agent is None or (agent.wait_all_workers(timeout) and agent.is_static_group):
            original(timeout)
        if agent is not None:
            agent.settle_rrefs(timeout, _PATIENCE)
            leaks.prepare()  # the last moment at which all peers answer for certain
            trace.write_before_leaving(agent)
        before_leaving()

    patches.replace(api, "_wait_all_workers", wait_all_workers)


def _replace_finalize_shutdown(patches: Patches, leaks: LeakReport, before_leaving: Callable[[], None]) -> None:
    original = api._finalize_shutdown
    # Two threads come here only when a shutdown(graceful=False) breaks off one that waits.
    one_at_a_time = threading.RLock()

    def finalize() -> None:
        creation_sites.uninstall()
        passed_rrefs.uninstall()
        before_leaving()
        observers.close()
        if current_agent() is not None:
            leaks.prepare()  # of use only after a shutdown that was not graceful
        _shut_agent_down()
        _finalize(original, leaks)

    @functools.wraps(original)
    def finalize_shutdown() -> None:
        with one_at_a_time:
            try:
                if torch_parts.is_current_rpc_agent_set():
                    finalize()
            finally:
                if not concurrent_shutdown.runs_elsewhere():  # else it is still to find these
                    patches.undo()

    patches.replace(api, "_finalize_shutdown", finalize_shutdown)


def _shut_agent_down() -> None:
    """Has no thread of the agent left when libtorch lists and drops what is left of RRefs, which it does without locks.

    PyTorch does that first, and shuts the agent down afterwards: then there is nothing more to do.
    """
    agent = current_agent()
    if agent is not None:
        agent.end_deletes_of_rrefs()
        agent.shutdown()


def _finalize(original: Callable[[], None], leaks: LeakReport) -> None:
    try:
        original()
    except RuntimeError as error:
        explained = leaks.explain(error)
        if explained is error:
            raise
        raise explained from None
