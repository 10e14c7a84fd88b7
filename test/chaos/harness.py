"""What test/python has for processes and groups. It is no package, so its folder has to be on the path first."""

import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "python"))

from group import HostedStore, init
from processes import WorkerError, WorkerProcess, close_all, start_fork_server

__all__ = ["HostedStore", "WorkerError", "WorkerProcess", "close_all", "init", "start_fork_server"]
