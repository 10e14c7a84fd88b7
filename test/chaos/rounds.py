"""One round: a group starts, works, meets its faults, is checked, and shuts down."""

import multiprocessing.connection
import pathlib
import random
import signal
import statistics
import time
from typing import NamedTuple

import load
import member
import operations
import outcomes as kinds
import stacks
from harness import WorkerError
from outcomes import Outcome

_ANSWER_LIMIT = 30.0  # of what takes no time

_SAMPLES = 10  # of the workers' memory
_LONG = 60.0  # seconds after which caches have their size
_MOST_GROWTH = 1.25


class ProcessFault(NamedTuple):
    """A fault that the round brings about itself."""

    wait: float  # seconds, after the one before
    kind: str  # "kill", "leave", "restart", "freeze" or "interrupt"
    victim: int  # rank
    seconds: float  # that a freeze lasts


def draw_process_faults(settings, chance):
    """At most one for each worker, and none for at least one; but restarts for any that is not killed."""
    kinds_of_all = ["kill"] * settings.kills + ["leave"] * settings.departures + ["freeze"] * settings.freezes
    if len(kinds_of_all) >= settings.world:
        raise ValueError(f"{len(kinds_of_all)} faults are too many for {settings.world} workers: one has to be left")
    chance.shuffle(kinds_of_all)
    victims = chance.sample(range(settings.world), len(kinds_of_all))
    killed = {victim for kind, victim in zip(kinds_of_all, victims) if kind == "kill"}
    for kind in ["restart"] * settings.restarts + ["interrupt"] * settings.interrupts:
        place = chance.randint(0, len(kinds_of_all))
        kinds_of_all.insert(place, kind)
        victims.insert(place, chance.choice([rank for rank in range(settings.world) if rank not in killed]))
    return [
        # Most freezes are shorter than the time-out of calls, some are longer.
        ProcessFault(min(chance.expovariate(2), 1.5), kind, victim, chance.uniform(0.1, 1.2 * settings.timeout))
        for kind, victim in zip(kinds_of_all, victims)
    ]


def resident_memory(pid):
    """In bytes; 0 of a process that has ended."""
    try:
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return sum(1024 * int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))


class RoundOver(Exception):
    """The group is past use: what is left to do would only repeat what has been found."""


class Round:
    """Not thread-safe."""

    def __init__(self, settings, number, crew):
        self._settings = settings
        self._number = number
        self._crew = crew
        self._seed = f"{settings.seed}/{number}"
        self._chance = random.Random(self._seed)
        self._process_faults = draw_process_faults(settings, self._chance)
        self._workers = []
        self._survivors = []
        self._dead = []
        self._has_departed = False
        self._outcome = Outcome(f"round {number} (seed {settings.seed})")

    def run(self):
        begin = time.monotonic()
        try:
            self._start()
            self._work()
            self._check_survivors()
            self._shut_down()
        except RoundOver:
            pass
        if self._outcome.violations:
            self._keep_outputs()
            self._crew.kill()
        elif not self._settings.reuse:
            self._crew.dismiss()
        self._outcome.seconds = time.monotonic() - begin
        return self._outcome

    # ---- the steps ----

    def _start(self):
        self._workers = self._crew.workers()
        self._survivors = list(self._workers)
        self._all(member.join, self._settings, self._number, self._crew.init_method)
        if self._settings.plan:
            self._ask(self._survivors[:1], member.begin_faults, self._settings.plan, self._chance.getrandbits(32))

    def _work(self):
        self._all(load.begin, self._settings, self._seed)
        for fault in self._process_faults:
            self._wait_out(fault.wait)
            self._inject(fault)
        self._go_on(self._settings.seconds)
        self._find_dead()
        limit = self._longest_operation()
        records = self._all(load.finish, limit, limit=limit + _ANSWER_LIMIT)
        for worker, record in records.items():
            self._judge(worker, record)
        if any(record.busy for record in records.values()):
            self._hang()

    def _check_survivors(self):
        if self._settings.plan:
            faults = self._all(member.injected_faults)
            self._outcome.faults["injected"] += sum(faults.values())
            self._all(member.end_faults)
        self._check_connections([worker.name for worker in self._survivors])
        self._all(member.let_go)
        if not self._settings.plan:
            self._check_nothing_is_left()

    def _shut_down(self):
        # What is not graceful waits for nobody, so that a worker that is late would meet others that have left.
        # Nor is it where somebody has left without the others.
        graceful = not self._has_departed and (not self._dead or self._chance.random() < 0.75)
        errors = self._all(member.leave, graceful, limit=self._settings.shutdown_limit)
        for worker, error in errors.items():
            self._outcome.shutdowns["raised" if error else "ok"] += 1
            # Who asked the dead what they hold has no answer under a plan, which may lose it.
            if error and not (self._dead and graceful and self._settings.plan):
                self._outcome.violate(kinds.SHUTDOWN, worker.name, error)

    # ---- faults ----

    def _inject(self, fault):
        victim = self._workers[fault.victim]
        if victim not in self._survivors or not victim.is_alive():
            return
        self._outcome.faults[fault.kind] += 1
        if fault.kind == "kill":
            victim.kill()
            self._declareDead(victim)
        elif fault.kind == "leave":
            self._ask([victim], member.leave, False)
            victim.kill()
            self._declareDead(victim)
            self._has_departed = True
        elif fault.kind == "restart":
            self._restart(fault.victim)
        elif fault.kind == "interrupt":
            self._interrupt(victim)
        else:
            victim.signal(signal.SIGSTOP)
            self._wait_out(fault.seconds)
            victim.signal(signal.SIGCONT)

    def _interrupt(self, victim):
        """Its main thread is in a call when the signal comes, and is told so at once."""
        pending = victim.start(member.call_until_interrupted, self._settings.timeout)
        self._wait_out(0.01 + 0.2 * self._chance.random())
        victim.signal(signal.SIGINT)
        if not pending.is_there(_ANSWER_LIMIT):
            self._outcome.violate(kinds.HUNG, victim.name, "it was interrupted in a call, and is still there")
            self._hang()
        self._answer(victim, pending)

    def _restart(self, rank):
        """Another process comes in place of the worker; all can call it once it has joined."""
        former = self._workers[rank]
        anew = self._workers[rank] = self._crew.restarted(rank)
        self._survivors[self._survivors.index(former)] = anew
        self._ask([anew], member.join, self._settings, self._number, self._crew.init_method)
        self._check_connections([anew.name])
        self._ask([anew], load.begin, self._settings, f"{self._seed}/{self._outcome.faults['restart']}")

    def _go_on(self, seconds):
        """The load, until its end. A long one shows whether memory grows."""
        memory = []
        for _ in range(_SAMPLES):
            self._wait_out(seconds / _SAMPLES)
            memory.append(sum(resident_memory(worker.process.pid) for worker in self._survivors))
        if self._settings.faultless and seconds >= _LONG:
            self._outcome.memory = memory
            early, late = statistics.median(memory[1:5]), statistics.median(memory[-4:])
            if late > _MOST_GROWTH * early:
                self._outcome.violate(kinds.GROWTH, "all", f"memory went from {early} to {late} bytes")

    def _wait_out(self, seconds):
        """Shorter if a worker dies that should not."""
        sentinels = [worker.process.sentinel for worker in self._survivors]
        multiprocessing.connection.wait(sentinels, seconds)

    def _find_dead(self):
        """Those that a plan has killed are no survivors."""
        for worker in list(self._survivors):
            if self._settings.plan and worker.process.exitcode == -signal.SIGKILL:
                self._outcome.faults["kill"] += 1
                self._declareDead(worker)

    def _declareDead(self, worker):
        self._survivors.remove(worker)
        self._dead.append(worker)

    def _longest_operation(self):
        waits = max(operation.waits for operation in operations.chosen(self._settings))
        return waits * self._settings.timeout + self._settings.slack + self._standstill()

    def _standstill(self):
        """How long operations may take besides, as their worker stood still."""
        return sum(fault.seconds for fault in self._process_faults if fault.kind == "freeze")

    # ---- judgements ----

    def _judge(self, worker, record):
        self._outcome.add(record)
        refused = record.refused if self._settings.faultless else []
        for kind, failures in ((kinds.WRONG, record.wrong), (kinds.ERROR, record.odd), (kinds.ERROR, refused)):
            for failure in failures:
                self._outcome.violate(kind, worker.name, f"{failure.operation}: {failure.trace.rstrip()}")
        for late in record.late:
            if late.seconds > late.limit + self._standstill():
                text = f"{late.operation} took {late.seconds:.1f} s; its limit is {late.limit:.1f} s"
                self._outcome.violate(kinds.LATE, worker.name, text)
        for busy in record.busy:
            self._outcome.violate(kinds.HUNG, worker.name, f"{busy.operation} has not ended after {busy.seconds:.1f} s")

    def _check_connections(self, names):
        limit = self._settings.timeout * len(names) + _ANSWER_LIMIT
        for worker, errors in self._all(member.unreachable, names, self._settings.timeout, limit=limit).items():
            for name, error in errors.items():
                self._outcome.violate(kinds.CUT_OFF, worker.name, f"calls to {name} fail: {error}")

    def _check_nothing_is_left(self):
        for worker, left in self._all(member.left_over, self._settings.slack).items():
            if left:
                self._outcome.violate(kinds.LEFT_OVER, worker.name, "; ".join(left))

    # ---- talking to the workers ----

    def _all(self, function, *args, limit=_ANSWER_LIMIT):
        """By worker, what the function returned on each survivor."""
        return self._ask(list(self._survivors), function, *args, limit=limit)

    def _ask(self, workers, function, *args, limit=_ANSWER_LIMIT):
        pending = {worker: worker.start(function, *args) for worker in workers}
        end = time.monotonic() + limit
        silent = [worker for worker, one in pending.items() if not one.is_there(max(0.0, end - time.monotonic()))]
        answers = {worker: self._answer(worker, one) for worker, one in pending.items() if worker not in silent}
        for worker in silent:
            self._outcome.violate(kinds.HUNG, worker.name, f"{function.__name__} has not ended after {limit:g} s")
        if silent:
            self._hang()
        if any(worker not in self._survivors for worker in workers):
            raise RoundOver
        return answers

    def _answer(self, worker, pending):
        try:
            return pending.result()
        except WorkerError as error:
            kind = kinds.LOST if error.type_name == "ProcessEnded" else kinds.ERROR
            self._outcome.violate(kind, worker.name, str(error).rstrip())
            self._survivors.remove(worker)
            return None

    # ---- what is kept of a round that went wrong ----

    def _hang(self):
        folder = self._folder()
        living = [worker for worker in self._workers if worker.is_alive()]
        self._outcome.files += stacks.show(living, folder, self._label(), self._settings.native_stacks)
        raise RoundOver

    def _keep_outputs(self):
        for worker in self._workers:
            path = self._folder() / f"{self._label()}-{worker.name}.out"
            path.write_text(worker.output())
            self._outcome.files.append(str(path))

    def _label(self):
        return f"seed-{self._settings.seed}-round-{self._number}"

    def _folder(self):
        folder = pathlib.Path(self._settings.output)
        folder.mkdir(parents=True, exist_ok=True)
        return folder
