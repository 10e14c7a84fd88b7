"""What happens to the agent of a process that ends without rpc.shutdown().

PyTorch keeps the agent in a static variable, which is destroyed after Python has ended; its threads would then wait for
an interpreter that is gone. So the agent is shut down when Python ends: late enough that whatever the program itself
has asked to run at exit can still use it, rpc.shutdown() above all, and early enough that all threads can still run
Python. The peers hear of it, and their calls to this worker fail at once.
"""

from __future__ import annotations

import atexit
import functools
import multiprocessing
import multiprocessing.util
import os
import sys
import threading
import weakref
from collections.abc import Callable

from torchwire import _C, concurrent_shutdown, ending, failed_start, secret_watch
from torchwire._C import TorchwireAgent
from torchwire.current_agent import current_agent

_PATIENCE = 5.0  # seconds
_LOWEST_PRIORITY = -sys.maxsize

_process: int | None = None
_after_handlers: Callable[[], _AfterHandlers | None] = lambda: None  # noqa: E731 - a weak reference, later


class _AfterHandlers:
    """Shuts the agent down once all functions registered with atexit have run.

    atexit calls the last function first, so any of ours would come before those that the program has registered
    earlier. But it drops its functions only when all have run (in CPython 3.10 to 3.13), and this object with them.
    """

    def __init__(self) -> None:
        self._exit_has_begun = False
        atexit.register(self._note_exit)

    def _note_exit(self) -> None:
        self._exit_has_begun = True
        failed_start.refuse_on_threads()

    def __del__(self) -> None:
        # atexit._clear(), which forked children of multiprocessing call from Python 3.13 on, drops it too.
        if self._exit_has_begun:
            _shut_down()


def watch() -> None:
    """Sees the exit begin: functions that are registered with atexit later are not called. May be called again."""
    global _after_handlers
    if _after_handlers() is None:
        _after_handlers = weakref.ref(_AfterHandlers())


def install() -> None:
    """Has the agent of this process, if there is one by then, shut down at exit. May be called again."""
    global _process
    ending.install()
    _C.stop_threads_where_python_ends()
    watch()
    if _process != os.getpid() and multiprocessing.parent_process() is not None:
        multiprocessing.util.Finalize(None, ending.note_exception, exitpriority=0)
        if multiprocessing.get_start_method(allow_none=True) != "spawn":
            # A finalizer, because before Python 3.13 these children end without a call of what atexit has.
            multiprocessing.util.Finalize(None, _shut_down_unless_threads_go_on, exitpriority=_LOWEST_PRIORITY)
    _process = os.getpid()


def _shut_down_unless_threads_go_on() -> None:
    # Finalizers run before the program's threads are awaited, any of which may be about to call rpc.shutdown(). They
    # cannot be awaited here: some end only when they are told to, after this.
    others = (thread for thread in threading.enumerate() if thread is not threading.current_thread())
    if all(thread.daemon for thread in others):
        _shut_down()


def _shut_down() -> None:
    if _process != os.getpid():
        return  # a forked child has a copy of the agent, but not its threads
    end = ending.of_this_process()
    failed_start.interrupt_running(_PATIENCE)
    agent = current_agent()
    if agent is not None:
        ending.explain(agent, end, process_ends=True)
        _call_with_patience(functools.partial(_end, agent))
    concurrent_shutdown.await_running()
    if end.failed:
        ending.await_earlier(_PATIENCE)


def _end(agent: TorchwireAgent) -> None:
    secret_watch.close(patience=0)
    agent.end_deletes_of_rrefs()  # or libtorch would say of each that is dropped from here on that it cannot be sent
    agent.shutdown()


def _call_with_patience(shut_down: Callable[[], None]) -> None:
    # It tells the peers first, and then waits for handlers of calls, one of which may never return.
    thread = threading.Thread(target=shut_down, name="torchwire exit", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # Python 3.12 starts no thread any more
        shut_down()
    else:
        thread.join(_PATIENCE)
