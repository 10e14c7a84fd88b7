#!/usr/bin/env python3
"""Counts the instructions of a call's path in torchwire, under Valgrind's callgrind: they are the same in each run.

    python test/bench/instructions.py [--calls N] [--function add|noop] [--option NAME=VALUE]... [SITE...]

SITE: folders with a torchwire each, as for PYTHONPATH ("" is the one that is installed), to be compared. A worker
under callgrind calls torch.add, or a Python function that does nothing, on a second one, N times, and is called as
often. Printed is, for functions at the beginning of each stretch of the path, what one call costs in them and in all
that they call, torch and TensorPipe included; and what it costs in all, Python and waiting included, which makes it
differ from run to run. --option: of torchwire's, as session_timeout=0.
"""

import argparse
import ast
import os
import re
import subprocess
import sys
import tempfile

WARM_UP = 20

FUNCTIONS = {
    "send a request": "torchwire::Agent::send(",
    "of that, on the link": "torchwire::LinkManager::send(",  # differs with how full the ring is
    "take a frame in": "torchwire::LinkManager::onFrame(",
    "complete a call": "torchwire::Caller::complete(",
    "find a thread for a request": "torchwire::Server::serve(",
    "run a request and answer it": "torchwire::Server::run(",
    "encode a message": "torchwire::encodeMessage(",
    "send a response": "torchwire::LinkManager::sendIfConnected(",
}
IN_ALL = "in all"


def noop():
    pass


def work(rank, store, calls, function, settings):
    """One worker: calls the other, while being called."""
    import torch
    import torch.distributed.rpc as rpc
    import torchwire

    torch.set_num_threads(1)
    options = torchwire.TorchwireRpcBackendOptions(init_method=f"file://{store}", rpc_timeout=600, **settings)
    rpc.init_rpc(
        f"worker{rank}", backend=rpc.BackendType.TORCHWIRE, rank=rank, world_size=2, rpc_backend_options=options
    )
    one = torch.ones(1)
    call = (torch.add, (one, one)) if function == "add" else (noop, ())
    for _ in range(WARM_UP):
        rpc.rpc_sync(f"worker{1 - rank}", *call)
    if rank == 0:
        count_instructions("on")
    rpc.api._all_gather(None)  # now both are about to call
    for _ in range(calls):
        rpc.rpc_sync(f"worker{1 - rank}", *call)
    rpc.api._all_gather(None)
    if rank == 0:
        count_instructions("off")
    rpc.shutdown()


def count_instructions(state):
    subprocess.run(["callgrind_control", f"--instr={state}", str(os.getpid())], check=True, stdout=subprocess.DEVNULL)


def count(site, options):
    """Instructions per call by name of the stretch."""
    with tempfile.TemporaryDirectory() as folder:
        environment = dict(os.environ)
        if site:
            environment["PYTHONPATH"] = site
        command = [sys.executable, os.path.abspath(__file__), "--calls", str(options.calls)]
        command += ["--function", options.function, "--store", f"{folder}/store"]
        command += [f"--option={text}" for text in options.option]
        profile = f"{folder}/profile"
        callgrind = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={profile}", "--instr-atstart=no"]
        other = subprocess.Popen([*command, "--rank", "1"], env=environment)
        subprocess.run([*callgrind, *command, "--rank", "0"], env=environment, check=True, stderr=subprocess.DEVNULL)
        assert other.wait() == 0
        listing = subprocess.run(
            ["callgrind_annotate", "--inclusive=yes", "--threshold=100", profile],
            check=True, capture_output=True, text=True,
        ).stdout  # fmt: skip
    counts = {what: instructions_of(function, listing) / options.calls for what, function in FUNCTIONS.items()}
    return {**counts, IN_ALL: total_of(listing) / options.calls}


def instructions_of(function, listing):
    largest = 0  # beside the function itself, lambdas in it begin with its name
    for line in listing.splitlines():
        match = re.match(r"\s*([\d,]+) \([^)]*\)\s+\S*?:(.*)", line)
        if match and match[2].startswith(function):
            largest = max(largest, int(match[1].replace(",", "")))
    return largest


def total_of(listing):
    return int(re.search(r"([\d,]+) \(100\.0%\)\s+PROGRAM TOTALS", listing)[1].replace(",", ""))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--function", choices=["add", "noop"], default="add")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--store", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("sites", nargs="*", default=[""])
    options = parser.parse_args()
    if options.rank is not None:
        settings = {name: ast.literal_eval(value) for name, value in (text.split("=", 1) for text in options.option)}
        work(options.rank, options.store, options.calls, options.function, settings)
        return
    counts = [count(site, options) for site in options.sites]
    print(f"{'instructions per call':30}" + "".join(f"{site or 'installed':>24}" for site in options.sites))
    for what in (*FUNCTIONS, IN_ALL):
        print(f"{what:30}" + "".join(f"{one[what]:24,.0f}" for one in counts))


if __name__ == "__main__":
    main()
