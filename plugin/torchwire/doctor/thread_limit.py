"""How many processes and threads this one's user and cgroup may have, and what raises that."""

from __future__ import annotations

import resource
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_SPARE = 64  # for the program itself


def remedy(needed: int) -> str:
    """What lets a process that this one starts have `needed` threads, which it could not start."""
    folder = _strictest_cgroup()
    if folder is not None:
        limit, count = _number(folder / "pids.max"), _number(folder / "pids.current")
        if limit is not None and count is not None and count + needed > limit:
            return (
                f"raise pids.max of the cgroup, which is {limit}, to {limit + needed + _SPARE} or more: TasksMax of "
                "the service, or --pids-limit of the container"
            )
    soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    if soft == resource.RLIM_INFINITY:
        return "raise the kernel's limits: sysctl kernel.threads-max, kernel.pid_max and vm.max_map_count"
    wanted = soft + needed + _SPARE
    if hard == resource.RLIM_INFINITY or hard >= wanted:
        return f"raise the limit of the user's processes, which is {soft}: ulimit -u {wanted}"
    return (
        f"have the administrator raise the limit of the user's processes, which is {hard}, to {wanted} or more: nproc "
        "in limits.conf, LimitNPROC of the service, or --ulimit nproc of the container"
    )


def _strictest_cgroup() -> Path | None:
    """The one of this process's, and of those around it, with the lowest pids.max."""
    limited = {folder: limit for folder in _cgroups() if (limit := _number(folder / "pids.max")) is not None}
    return min(limited, key=lambda folder: limited[folder], default=None)


def _cgroups() -> list[Path]:
    folders: list[Path] = []
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return folders
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "pids"):  # version 2, version 1
            root = _CGROUPS / controllers
            own = root / path.lstrip("/")
            folders += [own, *(parent for parent in own.parents if parent.is_relative_to(root))]
    return folders


def _number(path: Path) -> int | None:
    """What is in the file; None for "max", and where there is none."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
