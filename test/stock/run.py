#!/usr/bin/env python3
"""Runs PyTorch's own RPC suites against TORCHWIRE. See README.md."""

import argparse
import os
import signal
import sys
import time

import backend_name
import device_needs
import plan
import tripwire
from fork_server import FULL_EXIT
from pool import Pool
from progress import Progress
from report import Report
from runner_process import StartError

RETRIES = 2

# With so many failures the run has failed anyway, and retries would only take time.
MAX_TO_RETRY = 20

TEST_LIMIT = 240


def positive(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def default_jobs():
    """One test a core, each of four processes that mostly wait. Two cores: three at a time were
    slower than two."""
    return min(max(len(os.sched_getaffinity(0)), 2), 8)


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--suite", action="append", metavar="NAME", help="only this suite; may be repeated")
    add("--cuda", action="store_true", help="only the suites of CUDA devices")
    add("--test", metavar="PATTERN", help="only tests that match: a shell pattern, or a part")
    add("--mode", choices=["full", "quick"], default="full")
    add("--quick", dest="mode", action="store_const", const="quick", help="same as --mode quick")
    jobs = default_jobs()
    add("--jobs", type=positive, default=jobs, metavar="N", help=f"at a time (here {jobs})")
    add("--repeat", type=positive, default=1, metavar="N", help="run every test N times")
    add("--limit", type=positive, default=TEST_LIMIT, metavar="SECONDS", help="for one test")
    add("--attempt-all", action="store_true", help="start also tests that need more devices than there are")
    add("--full-exit", action="store_true", help="let ranks end as interpreters do (slow)")
    add("--report", metavar="FILE", help="write a CSV file")
    add("--no-tripwire", action="store_true", help="do not watch what libtorch is called for")
    add("--list", action="store_true", help="print the tests and stop")
    return parser.parse_args()


def run_cases(pool, cases, jobs):
    """Runs all, then what failed again: alone, since load may have been the cause."""
    progress = Progress(len(cases))

    def run(some, jobs):
        pool.run(some, jobs, progress.finish, lambda: progress.show(pool.busy))

    run(cases, jobs)
    for _ in range(RETRIES):
        again = [case for case in cases if case.wants_retry]
        if not again or len(again) > MAX_TO_RETRY:
            break
        progress.begin_retries(len(again))
        run(again, 1)
    progress.clear()


def warn_of_threads(greeting):
    threads = greeting["server_threads"]
    if threads > 1:
        print(
            f"warning: a preloaded module started {threads - 1} thread(s) in the fork server; "
            "tests may hang on locks that those held",
            file=sys.stderr,
        )


def require_cuda_in_ranks(greeting):
    if greeting["cuda_error"]:
        raise StartError(f"CUDA cannot be initialized in the processes of tests: {greeting['cuda_error']}")


def tripwire_library(options):
    """What to preload into the processes of the tests; None for another backend, which does call libtorch."""
    if options.list or options.no_tripwire or backend_name.NAME != backend_name.DEFAULT:
        return None
    if not tripwire.is_possible():
        print("warning: without the tripwire, which exists for x86-64 only", file=sys.stderr)
        return None
    return tripwire.build()


def run(options):
    begun = time.monotonic()
    if options.full_exit:
        os.environ[FULL_EXIT] = "1"
    if options.attempt_all:
        os.environ[device_needs.ATTEMPT_ALL] = "1"
    with Pool(1 if options.list else options.jobs, options.limit, tripwire_library(options)) as pool:
        greeting = pool.greeting()
        if options.cuda:
            options.suite = [*(options.suite or []), *greeting["cuda_suites"]]
        cases = plan.make(greeting["catalog"], options)
        if options.list:
            print("\n".join(case.name for case in cases))
            return 0
        warn_of_threads(greeting)
        require_cuda_in_ranks(greeting)
        run_cases(pool, cases, options.jobs)
    report = Report(cases, greeting["devices"])
    if options.report:
        report.write(options.report)
    minutes, seconds = divmod(int(time.monotonic() - begun), 60)
    print(f"torch {greeting['torch']}, {len(cases)} tests in {minutes} min {seconds} s")
    report.print()
    return report.status


def main():
    # The pool kills what it started when the stack unwinds.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    try:
        return run(parse_options())
    except (plan.PlanError, StartError, tripwire.BuildError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
