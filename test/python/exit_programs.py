"""Pairs of workers that end in one way or another; see test_exit.py.

    python exit_programs.py TORCHWIRE

reads lines "WAY ROW FOLDER", lets two processes run the row, and answers with a line of JSON: how the processes ended,
and what they have noted. ROW may have arguments: "ROW:ARGUMENT:ARGUMENT". WAY is one of multiprocessing's start
methods, or "main": a process that ends as a main program does. Such a process is forked off here, by os.fork, because
importing torch takes longer than most rows.
"""

import atexit
import contextlib
import functools
import json
import multiprocessing
import multiprocessing.util
import os
import pathlib
import signal
import sys
import threading
import time

LIMIT = 30.0

rpc = None  # torch.distributed.rpc, once a row has imported it


class Worker:
    """One of the two. Rows are its methods."""

    def __init__(self, backend, rank, folder):
        self.backend, self.rank, self.folder = backend, rank, pathlib.Path(folder)

    # ---- steps ----

    def note(self, text):
        with open(self.folder / f"notes{self.rank}", "a") as file:
            file.write(f"{text}\n")

    def attempt(self, what, function, *args, **kwargs):
        try:
            function(*args, **kwargs)
        except BaseException as error:
            self.note(f"{what}: {type(error).__name__}: {str(error).splitlines()[0]}")
        else:
            self.note(f"{what}: ok")

    def shut_down(self):
        self.attempt("shutdown", rpc.shutdown)

    def load(self):
        global rpc
        import torch
        import torch.distributed.rpc as rpc
        import torchwire

        torch.set_num_threads(1)
        options = {"TORCHWIRE": torchwire.TorchwireRpcBackendOptions, "TENSORPIPE": rpc.TensorPipeRpcBackendOptions}
        self._options = options[self.backend]

    def start(self, **options):
        """Both have started, and have called each other, when this returns."""
        rpc.init_rpc(
            f"worker{self.rank}",
            backend=rpc.BackendType[self.backend],
            rank=self.rank,
            world_size=2,
            rpc_backend_options=self._options(init_method=f"file://{self.folder}/store", **options),
        )
        rpc.rpc_sync(self.other, os.getpid)
        self.mark(f"started{self.rank}")
        self.await_mark(f"started{1 - self.rank}")

    @property
    def other(self):
        return f"worker{1 - self.rank}"

    def mark(self, name):
        (self.folder / name).touch()

    def await_mark(self, name):
        wait_until((self.folder / name).exists)

    # ---- rows: who calls shutdown ----

    def handler_before_import(self):
        atexit.register(self.shut_down)
        self.load()
        self.start()

    def handler_before_init(self):
        self.load()
        atexit.register(self.shut_down)
        self.start()

    def plain_handler_before_init(self):
        self.load()
        atexit.register(lambda: self.note(f"initialized after it: {rpc._is_current_rpc_agent_set()}"))  # runs last
        atexit.register(rpc.shutdown)
        self.start()

    def handler_after_init(self):
        self.load()
        self.start()
        atexit.register(self.shut_down)

    def handler_and_error(self):
        self.load()
        atexit.register(self.shut_down)
        self.start()
        raise RuntimeError("the program failed")

    def finalizer(self):
        self.load()
        multiprocessing.util.Finalize(None, self.shut_down, exitpriority=-100)
        self.start()

    def thread(self):
        def wait_and_shut_down():
            threading.main_thread().join()
            self.shut_down()

        self.load()
        self.start()
        threading.Thread(target=wait_and_shut_down).start()

    def twice(self):
        self.load()
        atexit.register(self.shut_down)
        self.start()
        self.shut_down()

    def two_threads(self):
        self.load()
        self.start()
        if self.rank == 1:
            self.await_mark("both are in shutdown")
            self.shut_down()
            return
        threads = [threading.Thread(target=self.shut_down, daemon=True) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            wait_until(functools.partial(is_in_shutdown, thread))
        self.mark("both are in shutdown")
        self._note_those_that_stay(threads)

    def broken_off(self):
        self.load()
        self.start()
        if self.rank == 1:
            self.await_mark("broken off")
            return
        thread = threading.Thread(target=self.shut_down, daemon=True)
        thread.start()
        wait_until(functools.partial(is_in_shutdown, thread))
        self.attempt("not graceful", rpc.shutdown, graceful=False)
        self.mark("broken off")
        self._note_those_that_stay([thread])

    def _note_those_that_stay(self, threads):
        # Stock's wait for ever; so this is the one place where time has to tell.
        end = time.monotonic() + (3 if self.backend == "TENSORPIPE" else LIMIT)
        for thread in threads:
            thread.join(max(0, end - time.monotonic()))
            if thread.is_alive():
                self.note("a thread still waits")

    def call_runs(self):
        self.load()
        atexit.register(self.shut_down)
        self.start()
        if self.rank == 0:
            self.attempt("call", rpc.rpc_sync, self.other, return_when_main_thread_shuts_down)

    # ---- rows: nobody calls it, or in vain ----

    def silent(self):
        self.load()
        self.start()
        if self.rank == 0:
            self._call_until_it_fails()

    def blocked_handler(self):
        """The call that worker1 serves when it ends never returns of its own accord."""
        self.load()
        self.start()
        if self.rank == 0:
            self.attempt("call", rpc.rpc_sync, self.other, wait_for_ever, args=(str(self.folder),))
        else:
            self.await_mark("waits")

    def daemon_thread(self):
        self.load()
        self.start()
        if self.rank == 0:
            self._call_until_it_fails()
            return
        thread = threading.Thread(target=rpc.shutdown, daemon=True)
        thread.start()
        wait_until(functools.partial(is_in_shutdown, thread))

    def daemon_thread_that_prints(self):
        if self.rank == 1:
            threading.excepthook = self._print_slowly
        self.daemon_thread()

    def ends(self, way_to_end, peer):
        """The peer is in a call, or in rpc.shutdown(), when the process ends."""
        self.load()
        self.start()
        if self.rank == 1:
            WAYS_TO_END[way_to_end]()
        elif peer == "calls":
            self._call_until_it_fails()
        else:
            self.shut_down()

    def _print_slowly(self, what):
        self.note(f"raised {what.exc_type.__name__}")
        time.sleep(0.3)  # as on a machine that has other things to do
        self.note("printed")

    def _call_until_it_fails(self):
        try:
            while True:
                start = time.monotonic()
                rpc.rpc_sync(self.other, os.getpid)
        except RuntimeError as error:
            self.note(f"call: {str(error).splitlines()[0]}")
            self.note(f"at once: {time.monotonic() - start < 5}")


def end_by_an_error():
    raise ValueError("on purpose,\n\x1b[31mand in red")


def exit_with_3():
    sys.exit(3)


def exit_on_an_error():
    try:
        raise ValueError("on purpose")
    except ValueError:
        sys.exit(1)


def exit_on_a_signal(handler):
    """While an error is handled that ends nothing."""
    signal.signal(signal.SIGTERM, handler)
    try:
        raise ValueError("caught")
    except ValueError:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(LIMIT)


def exit_on_an_error_as_on_a_signal():
    signal.signal(signal.SIGTERM, stop)
    try:
        raise ValueError("on purpose")
    except ValueError:
        stop()


def stop(*_):
    sys.exit(3)


def fail_to_stop(*_):
    try:
        raise OSError("on purpose")
    except OSError:
        stop()


def go_on_after_an_exit():
    with contextlib.suppress(SystemExit):
        sys.exit(3)


def leave_on_an_error():
    try:
        raise ValueError("on purpose")
    finally:
        rpc.shutdown(graceful=False)


WAYS_TO_END = {
    "return": lambda: None,
    "error": end_by_an_error,
    "exit": exit_with_3,
    "exit_on_error": exit_on_an_error,
    "exit_on_signal": functools.partial(exit_on_a_signal, stop),
    "exit_as_on_signal": exit_on_an_error_as_on_a_signal,
    "exit_in_handler": functools.partial(exit_on_a_signal, fail_to_stop),
    "caught_exit": go_on_after_an_exit,
    "leave_on_error": leave_on_an_error,
}


def wait_until(condition, limit=LIMIT):
    end = time.monotonic() + limit
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"{condition} did not come to pass")
        time.sleep(0.005)


def is_in_shutdown(thread, file=""):
    """`file`: how the name of its file ends, where one of the functions of that name is meant."""
    frame = sys._current_frames().get(thread.ident)
    while frame is not None:
        if frame.f_code.co_name == "shutdown" and frame.f_code.co_filename.endswith(file):
            return True
        frame = frame.f_back
    return False


def return_when_main_thread_shuts_down():
    wait_until(functools.partial(is_in_shutdown, threading.main_thread()))


def wait_for_ever(folder):
    pathlib.Path(folder, "waits").touch()
    threading.Event().wait()


# ---- the processes ----


class ForkedProcess:
    """Has what is used here of multiprocessing's. The child returns to its caller, to end as this process would."""

    def __init__(self):
        sys.stdout.flush()
        self.pid = os.fork()
        self.exitcode = None

    def join(self, limit):
        end = time.monotonic() + limit
        while self.exitcode is None and time.monotonic() < end:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.exitcode = os.waitstatus_to_exitcode(status)
            else:
                time.sleep(0.005)


def run_row(backend, row, rank, folder):
    name, *arguments = row.split(":")
    getattr(Worker(backend, rank, folder), name)(*arguments)


def ends_of(processes):
    """The exit status of each, or "hung" where it had to be killed."""
    end = time.monotonic() + LIMIT
    ends = []
    for process in processes:
        process.join(max(0, end - time.monotonic()))
        hung = process.exitcode is None
        if hung:
            os.kill(process.pid, signal.SIGABRT)  # faulthandler, where it is on, shows the stacks
            process.join(LIMIT)
        ends.append("hung" if hung else process.exitcode)
    return ends


def notes_in(folder, rank):
    path = pathlib.Path(folder, f"notes{rank}")
    return path.read_text().splitlines() if path.exists() else []


def serve(backend):
    for line in sys.stdin:
        way, row, folder = line.split()
        processes = []
        for rank in range(2):
            if way == "main":
                processes.append(ForkedProcess())
                if processes[-1].pid == 0:
                    run_row(backend, row, rank, folder)
                    return
            else:
                make = multiprocessing.get_context(way).Process
                processes.append(make(target=run_row, args=(backend, row, rank, folder)))
                processes[-1].start()
        ends = ends_of(processes)
        print(json.dumps({"ends": ends, "notes": [notes_in(folder, rank) for rank in range(2)]}), flush=True)


if __name__ == "__main__":
    import torch.distributed.rpc  # noqa: F401 - for all that are forked from here

    multiprocessing.get_context("forkserver").set_forkserver_preload(["torch.distributed.rpc"])
    serve(sys.argv[1])
