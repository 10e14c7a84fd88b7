"""Tries a wheel of torchwire in an environment that has nothing but torch and what torch depends on."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from wheel_parts import ROOT, Part

# Files of test/python that need neither a build folder nor privileges, and what is quick in them.
TESTS = ("calls", "registration", "tensors", "rrefs", "errors", "autograd_contexts", "cpu_only_torch")
QUICK = "not slow and not long and not stock and not alone"
# What looks for names of the code within, in the symbols that a wheel is stripped of, is not here: test_release_build.

FIRST_CALL = """\
import sys, tempfile, torch, torch.distributed.rpc as rpc, torch.multiprocessing as mp
import torchwire

def worker(rank, store):
    options = torchwire.TorchwireRpcBackendOptions(init_method="file://" + store)
    rpc.init_rpc(f"worker{rank}", backend=rpc.BackendType.TORCHWIRE, rank=rank, world_size=2,
                 rpc_backend_options=options)
    if rank == 0:
        print("answer", rpc.rpc_sync("worker1", torch.add, args=(torch.ones(2), 1)).tolist(), flush=True)
    rpc.shutdown()

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(worker, (folder + "/store",), nprocs=2)
"""
_ANSWER = "answer [2.0, 2.0]"


class TrialError(Exception):
    """The wheel failed; the text says at what, and how."""


@dataclass
class Result:
    """How a wheel did with one Python and one torch: a row of the table."""

    python: str
    torch: str
    built_for: str = ""
    wheel: str = ""
    install_seconds: float = 0.0
    first_call_seconds: float = 0.0  # a process that imports torch, two workers that do, and one call
    doctor: str = ""
    passed: int = 0
    skipped: int = 0
    outcome: str = "passed"

    def as_row(self) -> dict[str, object]:
        return asdict(self)


class Trial:
    """One wheel in one environment. Not thread-safe."""

    def __init__(self, part: Part, result: Result) -> None:
        self._part = part
        self._result = result
        self._log = part.folder / "trial.log"

    def run(self, wheel: Path) -> None:
        """Raises TrialError at the first thing that fails. The full output of all is in trial.log."""
        self._log.write_text("")
        torch_before = self._installed_torch()
        self._python("-m", "pip", "uninstall", "--yes", "torchwire")
        with tempfile.TemporaryDirectory() as folder:  # not the repository's root: torchwire comes from the wheel alone
            self._install(wheel, folder)
            if self._installed_torch() != torch_before:
                raise TrialError(f"pip replaced torch {torch_before} by {self._installed_torch()}")
            self._python("-m", "pip", "check", cwd=folder)
            info = self._python("-m", "torchwire", "info", cwd=folder)
            if f"installed torch  {torch_before}" not in info:
                raise TrialError(f"`torchwire info` does not name torch {torch_before}")
            self._doctor(folder)
        self._tests()

    def _install(self, wheel: Path, folder: str) -> None:
        """As a user does, from where all wheels are: pip has to take the right one."""
        start = time.monotonic()
        self._python("-m", "pip", "install", "--no-index", "--find-links", str(wheel.parent), "torchwire", cwd=folder)
        self._result.install_seconds = round(time.monotonic() - start, 1)
        start = time.monotonic()
        self._first_call(folder)
        self._result.first_call_seconds = round(time.monotonic() - start, 1)

    def first_call_of(self, site: Path) -> None:
        """A call with the torchwire that is installed in that folder, not in the environment."""
        self._log.write_text("")
        self._python("-m", "pip", "uninstall", "--yes", "torchwire")
        with tempfile.TemporaryDirectory() as folder:
            self._first_call(folder, {"PYTHONPATH": str(site)})

    def _first_call(self, folder: str, env: dict[str, str] | None = None) -> None:
        program = Path(folder, "first_call.py")
        program.write_text(FIRST_CALL)
        if _ANSWER not in self._python(str(program), cwd=folder, env=env):
            raise TrialError("the first call has another answer than 1 + 1")

    def _doctor(self, folder: str) -> None:
        report = json.loads(self._python("-m", "torchwire", "doctor", "--json", cwd=folder))
        states = [check["status"] for check in report["checks"]]
        self._result.doctor = ", ".join(f"{states.count(state)} {state}" for state in ("ok", "warning", "failed"))

    def _tests(self) -> None:
        files = [f"test/python/test_{name}.py" for name in TESTS]
        output = self._python(
            *("-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", QUICK, *files),
            cwd=str(ROOT),
            env={"PYTHONPATH": str(self._part.interpreter.testing)},
        )
        counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|skipped)", output.splitlines()[-1])}
        self._result.passed, self._result.skipped = counts.get("passed", 0), counts.get("skipped", 0)
        if not self._result.passed:
            raise TrialError("no test has run")

    def _installed_torch(self) -> str:
        return self._python("-c", "import torch; print(torch.__version__)").strip()

    def _python(self, *arguments: str, cwd: str | None = None, env: dict[str, str] | None = None) -> str:
        """The standard output of this environment's Python; TrialError when it fails."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TORCHWIRE"))}
        try:
            done = subprocess.run(
                [str(self._part.python), *arguments],
                cwd=cwd,
                env={**inherited, **(env or {})},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=1200,
            )
        except subprocess.TimeoutExpired as error:
            raise TrialError(f"`python {' '.join(arguments)}` has not ended within 20 minutes") from error
        with open(self._log, "a") as log:
            log.write(f"$ python {' '.join(arguments)}\n{done.stdout}{done.stderr}\n")
        if done.returncode != 0:
            # pytest says on standard output what has failed, all others on standard error.
            said = (done.stdout.strip() if "pytest" in arguments else "") or done.stderr.strip() or done.stdout.strip()
            last = (said or "no output").splitlines()[-1]
            raise TrialError(f"`python {' '.join(arguments[:3])}` failed: {last} (all in {self._log})")
        return done.stdout
