"""What `rpc.shutdown()` does first when it is graceful: wait for all workers.

PyTorch does that with an all-gather over RPC, by the names that were there when this worker joined. Two things are
wrong with it. In a dynamic group, which workers join and leave while it runs, workers that left never come, workers
that joined later are not asked, and those that mean to stay should not have to come; PyTorch knows that, but only of
its own agent. So there nobody is waited for; leaving is what the agent's join() does. And in a static group, where all
must come, it waits for ever for a worker whose process has died, and runs no handlers of signals meanwhile. So there
the agent waits for all workers that live, and the all-gather does not run.

Three functions of torch.distributed.rpc.api are replaced, and only while the current agent is torchwire's:
`_wait_all_workers` for the above; `_delete_all_user_and_unforked_owner_rrefs`, so that handlers of signals run while
libtorch waits, and so that a worker that leaves a dynamic group does not wait; and `_finalize_shutdown`, which every
shutdown ends with, graceful or not, to put all back, to end the agent before libtorch's tables of RRefs, and to say
more of leaked RRefs (see leak_report).
`_wait_all_workers` cannot put itself back when it runs: a shutdown that is not graceful never calls it, and after a
direct call of it the shutdown proper would still have to find the replacement. With them goes what concurrent_shutdown
puts into `shutdown` itself.
"""

# The functions of PyTorch's that are replaced here are private.
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Generator
from typing import NamedTuple

from torch.distributed.rpc.constants import DEFAULT_SHUTDOWN_TIMEOUT

from torchwire import (
    concurrent_shutdown,
    creation_sites,
    ending,
    passed_rrefs,
    rendezvous,
    secret_watch,
    torch_parts,
)
from torchwire._C import TorchwireAgent
from torchwire.current_agent import current_agent
from torchwire.leak_report import LeakReport
from torchwire.observe import observers, trace
from torchwire.replaced import API, Replacements, Until

_PATIENCE = 10.0  # seconds
_RREF_TIMEOUT = 100.0  # seconds, as libtorch has it

_replaced = Replacements(Until.SHUTDOWN)


def install(before_leaving: Callable[[], None]) -> None:
    """Makes rpc.shutdown() and its parts ask torchwire's agent, until the next shutdown ends.

    `before_leaving` is called once all workers have come, when none has left yet, and again at the very end.
    """
    global _replaced
    _replaced.undo()  # an agent that was dropped without a shutdown has left its own behind
    _replaced = Replacements(Until.SHUTDOWN)  # a shutdown that has not quite ended elsewhere must not undo these
    concurrent_shutdown.install(_replaced)
    end = _End(_replaced, LeakReport(), before_leaving)
    _replaced.replace(f"{API}._wait_all_workers", functools.partial(_waiting_for_workers, end=end))
    _replaced.replace(f"{API}._delete_all_user_and_unforked_owner_rrefs", _deleting_rrefs)
    _replaced.replace(f"{API}._finalize_shutdown", functools.partial(_finalizing, end=end))


def uninstall() -> None:
    """Puts PyTorch's own functions back."""
    _replaced.undo()


class _End(NamedTuple):
    """What the parts of one shutdown share."""

    replaced: Replacements
    leaks: LeakReport
    before_leaving: Callable[[], None]


def _waiting_for_workers(original: Callable[[float], None], end: _End) -> Callable[[float], None]:
    @functools.wraps(original)
    def wait_all_workers(timeout: float = DEFAULT_SHUTDOWN_TIMEOUT) -> None:
        # Asked each time, because somebody may keep this function for longer than the agent lives.
        agent = current_agent()
        if agent is None:
            original(timeout)
            return
        with _telling_others_if_interrupted(agent):
            end.leaks.settle()
        agent.wait_all_workers(timeout)
        with _telling_others_if_interrupted(agent):
            agent.settle_rrefs(timeout, _PATIENCE)
            end.leaks.prepare()  # the last moment at which all peers answer for certain
            trace.write_before_leaving(agent)
            end.before_leaving()

    return wait_all_workers


@contextlib.contextmanager
def _telling_others_if_interrupted(agent: TorchwireAgent) -> Generator[None]:
    try:
        yield
    except BaseException:
        agent.interrupt_shutdown()  # which does nothing where the others know already why it ends
        raise


def _deleting_rrefs(original: Callable[[float], None]) -> Callable[[float], None]:
    @functools.wraps(original)
    def delete_rrefs(timeout: float = _RREF_TIMEOUT) -> None:
        agent = current_agent()
        if agent is None:
            original(timeout)
            return
        with _telling_others_if_interrupted(agent):
            left = timeout if _await_confirmations(agent, timeout) else 0
            if not agent.is_static_group:
                # The others go on, and may hold RRefs of this worker for as long as they do. They drop what this one
                # held of theirs when it has left, and until then functions of others that run here may use it.
                return
            counts = agent.rref_counts()
            if counts["confirmed_users"] or counts["owners"]:
                # It deletes those at once, and then waits until the others have deleted theirs.
                rendezvous.within(threading.TIMEOUT_MAX, lambda: original(left), "torchwire rrefs")
            else:
                original(left)

    return delete_rrefs


def _await_confirmations(agent: TorchwireAgent, timeout: float) -> bool:
    """Whether owners and parents have confirmed all of this worker's RRefs in time, for which libtorch waits first."""
    end = time.monotonic() + timeout
    while True:
        counts = agent.rref_counts()
        if not counts["pending_users"] and not counts["pending_children"]:
            return True
        if time.monotonic() >= end:
            return False
        time.sleep(0.01)


def _finalizing(original: Callable[[], None], end: _End) -> Callable[[], None]:
    # Two threads come here only when a shutdown(graceful=False) breaks off one that waits.
    one_at_a_time = threading.RLock()

    @functools.wraps(original)
    def finalize_shutdown() -> None:
        with one_at_a_time:
            try:
                if torch_parts.is_current_rpc_agent_set():
                    _finalize(original, end)
            finally:
                if not concurrent_shutdown.runs_elsewhere():  # else it is still to find these
                    end.replaced.undo()

    return finalize_shutdown


def _finalize(original: Callable[[], None], end: _End) -> None:
    with contextlib.ExitStack() as last:  # whatever a handler of a signal raises before
        last.callback(TorchwireAgent.end_lifetime)
        last.callback(_end_rrefs, original, end.leaks)
        last.callback(_shut_agent_down)
        creation_sites.uninstall()
        passed_rrefs.uninstall()
        end.before_leaving()
        secret_watch.close()
        observers.close()
        if current_agent() is not None:
            end.leaks.prepare()  # of use only after a shutdown that was not graceful


def _shut_agent_down() -> None:
    """Has no thread of the agent left when libtorch lists and drops what is left of RRefs, which it does without locks.

    But for one that runs a function which never returns, where a handler of a signal has ended the wait for it.
    PyTorch does that first, and shuts the agent down afterwards: then there is nothing more to do.
    """
    agent = current_agent()
    if agent is not None:
        why = ending.of_shutdown(*concurrent_shutdown.circumstances())
        if why is not None:
            ending.explain(agent, why, process_ends=False)
        agent.end_deletes_of_rrefs()
        agent.shutdown()


def _end_rrefs(original: Callable[[], None], leaks: LeakReport) -> None:
    try:
        original()
    except RuntimeError as error:
        explained = leaks.explain(error)
        if explained is error:
            raise
        raise explained from None
