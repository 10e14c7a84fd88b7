"""What hangs: the stacks of its threads."""

import contextlib
import shutil
import signal
import subprocess
import time


def show(workers, folder, label, native):
    """Has all workers show their stacks, as one that hangs often waits for another; returns the files written."""
    written = [_native_stacks(worker, folder / f"{label}-{worker.name}.gdb") for worker in workers if native]
    for worker in workers:
        with contextlib.suppress(ProcessLookupError):
            worker.signal(signal.SIGUSR1)  # faulthandler writes to the worker's output
    time.sleep(1)  # there is no telling when they have written, and nothing depends on it
    return [str(path) for path in written if path]


def _native_stacks(worker, path):
    """None: there is no gdb, or it may not look."""
    if not shutil.which("gdb"):
        return None
    command = ["gdb", "-p", str(worker.pid), "-batch", "-ex", "thread apply all backtrace 60"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=120)
    except subprocess.TimeoutExpired:
        return None
    path.write_text(done.stdout + done.stderr)
    return path
