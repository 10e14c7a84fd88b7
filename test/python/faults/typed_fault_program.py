"""As typed_program.py, for torchwire.testing."""

# pyright: strict

from __future__ import annotations

import torchwire.testing as faults


def plans() -> faults.Plan:
    rules = [
        faults.Rule("delay", messages="call", to="ps*", seconds=faults.Uniform(0.1, 0.2), probability=0.1),
        faults.Rule("delay", seconds=faults.Normal(0.1, 0.02), nth=[1, 2]),
        faults.Rule("delay", seconds=faults.Exponential(mean=0.1), at_most=3),
        faults.Rule("partition", between=(["a"], ["b"]), seconds=2, after=1.5),
    ]
    plan = faults.Plan(rules, seed=7)
    text: str = plan.to_toml()
    return faults.Plan.from_dict({**faults.Plan.from_toml(text).to_dict()})


def options() -> faults.FaultyTorchwireRpcBackendOptions:
    given = faults.FaultyTorchwireRpcBackendOptions(fault_plan=plans(), fault_log="logs", num_worker_threads=4)
    delayed: dict[str, float] = given.messages_to_delay
    folder: str | None = given.fault_log
    print(delayed, folder)
    return given


def control() -> list[faults.Fault]:
    revision: int = faults.set_plan(plans(), timeout=2.0) + faults.clear_plan()
    log: list[faults.Fault] = faults.fault_log()
    revision += faults.replay(log)
    faults.replace_faulty_tensorpipe()
    faults.restore_faulty_tensorpipe()
    print(faults.current_plan().seed, revision)
    return [*log, *faults.read_logs("logs")]


def double(number: int) -> int:
    return 2 * number


def run() -> float:
    outcome: faults.Run = faults.run_workers(double, 3, workers=3, plan="plan.toml", timeout=10)
    for worker, failure in outcome.errors.items():
        described: faults.WorkerFailure = failure
        print(worker, described.type_name, outcome.exit_codes[worker])
    return outcome.seconds
