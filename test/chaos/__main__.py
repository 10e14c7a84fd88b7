"""A mixed load on torchwire, with kills, freezes, fault plans, or nothing that goes wrong: see README.md."""

import argparse
import dataclasses
import sys
import tempfile

import harness
import operations
from crew import Crew
from outcomes import Total
from rounds import Round
from settings import Settings


def main():
    settings = settings_from(parser().parse_args())
    harness.start_fork_server()
    total = Total()
    try:
        run(settings, total)
    except KeyboardInterrupt:
        print("interrupted")
    print(total)
    sys.exit(total.failed)


def run(settings, total):
    with Crew(settings.world) as crew:
        for number in range(settings.first_round, settings.first_round + settings.rounds):
            outcome = Round(settings, number, crew).run()
            total.add(outcome)
            print(outcome, flush=True)


def parser():
    made = argparse.ArgumentParser(prog="python test/chaos", description=__doc__)
    add = made.add_argument
    add("--rounds", type=int, help="how many groups, one after the other")
    add("--first-round", type=int, help="the number of the first: to repeat one of an earlier run with the same seed")
    add("--world", type=int, help="workers of a group")
    add("--seed", type=int, help="what the operations and faults are drawn from")
    add("--kills", type=int, help="workers killed in a round; 1 if nothing else is to go wrong")
    add("--restarts", type=int, help="workers killed and started again in a round, whose group is a dynamic one")
    add("--freezes", type=int, help="workers that stand still for a while, in a round")
    add("--departures", type=int, help="workers that leave without the others, in a round")
    add("--interrupts", type=int, help="interrupts of a worker's main thread, in a round; after them nothing may fail")
    add("--plan", help="a file with a fault plan, see docs/fault_injection.md; needs a build with fault injection")
    add("--no-faults", action="store_true", help="nothing goes wrong, so nothing may fail")
    add("--operations", type=words, help=f"names, with commas between; all by default: {', '.join(operations.usual())}")
    add("--callers", type=int, help="threads of each worker that perform operations")
    add("--largest", type=int, help="bytes of a tensor, up to 16 MiB")
    add("--seconds", type=float, help="how long the load goes on, from the last kill or freeze if there is one")
    add("--transports", type=words, help="as the option _transports")
    add("--channels", type=words, help="as the option _channels")
    add("--threads", type=int, help="as the option num_worker_threads")
    add("--checksums", action="store_true", help="as the option checksums")
    add("--encryption", action="store_true", help="as the option encryption: within this host, too")
    add("--timeout", type=float, help="of each call, in seconds")
    add("--slack", type=float, help="seconds that an end may take longer on a busy machine, beyond its time-outs")
    add("--shutdown-limit", type=float, help="seconds that the survivors' shutdown may take")
    add("--reuse", action="store_true", help="the same processes start the next group, which takes less time")
    add(
        "--output", help="a folder for stacks and outputs of rounds that went wrong; one for temporary files by default"
    )
    return made


def words(text):
    return tuple(text.split(","))


def settings_from(arguments):
    given = {name: value for name, value in vars(arguments).items() if value is not None}
    faults = {"kills", "restarts", "freezes", "departures", "plan"} & given.keys()
    if given.pop("no_faults"):
        if faults:
            parser().error("--no-faults goes with none of --kills, --restarts, --freezes, --departures and --plan")
    elif not faults:
        given["kills"] = 1
    given.setdefault("output", tempfile.mkdtemp(prefix="torchwire-chaos-"))
    settings = dataclasses.replace(Settings(), **given)
    try:
        operations.chosen(settings)
    except ValueError as error:
        parser().error(str(error))
    return settings


if __name__ == "__main__":
    main()
