"""Runs the tests that need CUDA devices; see tools/gpu-test. The parts:

    stock    PyTorch's suites for CUDA devices, by test/stock/run.py --cuda
    devices  test/python/test_devices.py on CUDA, once for each seed, with other kernels running meanwhile

A test that needs more devices than there are is skipped, and counted by the number that it needs. One that is skipped
for any other reason has failed: a machine with a GPU where nothing runs would show nothing.
"""

import argparse
import contextlib
import csv
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as xml
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WANT = re.compile(r"(?i)needs? (?:at least )?(\d+) cuda device")
MOST_NAMES = 20  # of failed tests, that are listed


@dataclass
class Result:
    """What came of a part."""

    part: str
    passed: int = 0
    failed: list[str] = field(default_factory=list)  # tests, and what else went wrong
    wanting: Counter = field(default_factory=Counter)  # tests that were skipped, by the number of devices they need
    seconds: float = 0.0

    def skip(self, test, reason):
        match = WANT.search(reason)
        if match:
            self.wanting[int(match[1])] += 1
        else:
            self.failed.append(f"{test}: skipped, though not for want of a device: {reason}")

    def row(self):
        needs = ", ".join(f"{count} need {devices}" for devices, count in sorted(self.wanting.items()))
        verdict = "FAILED" if self.failed else "ok" if self.passed else "skipped"
        counts = f"{self.passed:7} {len(self.failed):7} {sum(self.wanting.values()):8} {self.seconds:8.0f}"
        return f"{self.part:8} {verdict:8} {counts}  {needs}"


def parse_options():
    parser = argparse.ArgumentParser(prog="tools/gpu-test", description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all by default")
    add("--build-only", action="store_true", help="alone: make wheels for a machine that cannot build, in build/gpu")
    add("--jobs", type=int, default=default_jobs(), metavar="N", help="tests at a time (default here %(default)s)")
    add("--seeds", type=int, default=50, metavar="N", help="of the part devices (default %(default)s)")
    add("--minutes", type=float, default=9.5, metavar="M", help="after which all is ended (default %(default)s)")
    add("--logs", type=Path, default=ROOT / "build/logs", metavar="FOLDER", help="default: build/logs")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    if options.build_only or min(options.jobs, options.seeds) < 1:
        parser.error("--build-only stands alone; --jobs and --seeds are at least 1")
    return options


def default_jobs():
    """Each is two to four processes, which mostly wait for devices."""
    return min(max(len(os.sched_getaffinity(0)) // 2, 2), 8)


def run_stock(options, _devices, end):
    report = options.logs / "gpu-stock.csv"
    report.unlink(missing_ok=True)
    arguments = ["--cuda", "--no-tripwire", "--jobs", options.jobs, "--limit", 120, "--report", report]
    log = options.logs / "gpu-stock.log"
    (status,) = run_all([(["test/stock/run.py", *arguments], {}, log)], end)
    result = Result("stock")
    rows = list(csv.DictReader(report.open())) if report.exists() else []
    for row in rows:
        name = f"{row['suite']}.{row['test']}"
        if row["result"] in ("passed", "flaky"):
            result.passed += 1
        elif row["result"] == "skipped":
            result.skip(name, row["skipped_because"])
        else:
            result.failed.append(f"{name}: {row['result']}")
    add_status(result, status, bool(rows), log)
    return result


def run_devices(options, devices, end):
    seeds = options.seeds if devices else 1  # each would be skipped alike
    shards = [range(first, seeds, options.jobs) for first in range(min(options.jobs, seeds))]
    result = Result("devices")
    with tempfile.TemporaryDirectory(prefix="torchwire-gpu-") as folder:
        runs = []
        for number, shard in enumerate(shards):
            report, log = (Path(folder) / f"{number}.{suffix}" for suffix in ("xml", "log"))
            command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--junitxml", report]
            seeds_of_shard = ",".join(map(str, shard)) + ","  # which seeds, and not how many
            environment = {"TORCHWIRE_TEST_DEVICE_TYPE": "cuda", "TORCHWIRE_TEST_DEVICE_SEEDS": seeds_of_shard}
            runs.append(([*command, "test/python/test_devices.py"], environment, log))
        statuses = run_all(runs, end)
        with open(options.logs / "gpu-devices.log", "wb") as all_logs:
            for number, ((command, _, log), status) in enumerate(zip(runs, statuses)):
                all_logs.write(f"==== shard {number}: seeds {shards[number]} ====\n".encode() + log.read_bytes())
                report = Path(command[command.index("--junitxml") + 1])
                add_cases(result, report)
                add_status(result, status, report.exists(), options.logs / "gpu-devices.log")
    return result


PARTS = {"stock": run_stock, "devices": run_devices}


def add_cases(result, report):
    """The tests in pytest's XML report."""
    for case in xml.parse(report).iter("testcase") if report.exists() else []:
        kinds = {child.tag: child.get("message", "") for child in case}
        if "failure" in kinds or "error" in kinds:
            result.failed.append(case.get("name"))
        elif "skipped" in kinds:
            result.skip(case.get("name"), kinds["skipped"])
        else:
            result.passed += 1


def add_status(result, status, has_report, log):
    """What an exit status says beyond the tests that are known to have failed."""
    if status is None:
        result.failed.append(f"not done in time, see {log}")
    elif not has_report or (status != 0 and not result.failed):
        result.failed.append(f"exit status {status}, see {log}")


def run_all(runs, end):
    """Runs Python with each (arguments, environment, log) at the same time; returns the exit statuses, with None for
    those that are ended at `end` (time.monotonic())."""
    processes = [start(*run) for run in runs]
    statuses = []
    try:
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(end - time.monotonic(), 0.1))
            statuses.append(process.poll())
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # also what it has left behind
            process.wait()
    return statuses


def start(arguments, environment, log):
    with open(log, "wb") as output:
        return subprocess.Popen(
            [sys.executable, *map(str, arguments)],
            cwd=ROOT,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def print_results(results, devices):
    print(f"\n{'part':8} {'result':8} {'passed':>7} {'failed':>7} {'skipped':>8} {'seconds':>8}  for want of devices")
    for result in results:
        print(result.row())
    print()
    for result in results:
        for name in result.failed[:MOST_NAMES]:
            print(f"failed: {result.part}: {name}")
        if len(result.failed) > MOST_NAMES:
            print(f"failed: {result.part}: and {len(result.failed) - MOST_NAMES} more")
    skipped = sum((result.wanting for result in results), Counter())
    if devices == 0:
        print("Nothing was tested on a device: there is no CUDA device here.")
    elif skipped:
        print(f"{sum(skipped.values())} tests need more devices than the {devices} that there are.")


def count_devices():
    import torch

    return torch.cuda.device_count()


def main():
    options = parse_options()
    options.logs.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("TORCHWIRE_CHECK_THREADS", "1")  # as in tools/test
    end = time.monotonic() + 60 * options.minutes
    devices = count_devices()
    subprocess.run([sys.executable, "-m", "torchwire", "info"], check=True)
    if shutil.which("nvidia-smi"):
        subprocess.run(["nvidia-smi", "--list-gpus"])
    results = []
    for part in options.parts or PARTS:
        print(f"{part} ...", flush=True)
        begun = time.monotonic()
        results.append(PARTS[part](options, devices, end))
        results[-1].seconds = time.monotonic() - begun
    print_results(results, devices)
    return 1 if any(result.failed for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
