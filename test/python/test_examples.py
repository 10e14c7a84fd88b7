"""The programs of docs/examples do what they say: each is run as a user would, and its result line is checked."""

import re
from pathlib import Path

import pytest
from processes import run_script

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
DOCUMENT = (EXAMPLES.parent / "examples.md").read_text(encoding="utf-8")
LIMIT = 300  # seconds; each takes about 15 on two cores


def losses_fall(first, last):
    assert last < first / 2


def accuracy_is_enough(accuracy):
    assert accuracy >= 0.9


def of_training(first, last, accuracy, *_):
    losses_fall(first, last)
    accuracy_is_enough(accuracy)


def of_actors(first, last, updates):
    assert first < 60 and last >= 120
    assert updates >= 10


def of_serving(rate_alone, rate, mean_batch, error):
    assert rate > 1.2 * rate_alone
    assert mean_batch > 1.5
    assert error < 1e-4


def of_sampling(first, last, accuracy, accuracy_alone):
    of_training(first, last, accuracy)
    assert accuracy > accuracy_alone + 0.1


def of_chaos(killed, seconds, failed, writes):
    assert killed == 2
    assert seconds < 5
    assert failed >= killed
    assert writes >= 800


NUMBER = r"(\d+(?:\.\d+)?(?:e-\d+)?)"

# Program -> its result line, with # for numbers, and what has to hold of them.
PROGRAMS = {
    "parameter_server.py": ("loss # -> #, accuracy #, # pushes, mean staleness #", of_training),
    "actor_learner.py": ("the pole is held up for # -> # steps, after # updates", of_actors),
    "pipeline.py": ("loss # -> #, accuracy #, after # steps", of_training),
    "batch_serving.py": (
        "# -> # requests/s with batches of # on average, largest error #, given up: left out, bad row: raised",
        of_serving,
    ),
    "graph_sampling.py": ("loss # -> #, accuracy #; without neighbors #", of_sampling),
    "chaos/chaos_test.py": (
        "# replicas killed, noticed after # s at most, # calls failed, # confirmed writes, none lost",
        of_chaos,
    ),
}
LONG = {"actor_learner.py", "parameter_server.py", "pipeline.py", "batch_serving.py", "chaos/chaos_test.py"}


def run(program, *arguments):
    return run_script(EXAMPLES / program, *arguments, limit=LIMIT)


def test_every_program_is_tested_and_in_the_document():
    programs = {path.relative_to(EXAMPLES).as_posix() for path in EXAMPLES.rglob("*.py")}
    assert programs - {"chaos/replicated_store.py"} == PROGRAMS.keys()
    assert [program for program in programs if f"(examples/{program})" not in DOCUMENT] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "program", [pytest.param(name, marks=[pytest.mark.long] if name in LONG else []) for name in PROGRAMS]
)
def test_it_does_what_it_says(program):
    process = run(program)
    assert process.returncode == 0, process.stderr
    (result,) = [line for line in process.stdout.splitlines() if line.startswith("result: ")]
    form, check = PROGRAMS[program]
    match = re.fullmatch("result: " + re.escape(form).replace(r"\#", NUMBER), result)
    assert match, result
    check(*map(float, match.groups()))


@pytest.mark.long
@pytest.mark.parametrize("program, option", [("parameter_server.py", "--steps"), ("graph_sampling.py", "--steps")])
def test_without_training_it_fails(program, option):
    process = run(program, option, "1")
    assert process.returncode != 0
    assert "did not learn enough" in process.stderr


@pytest.mark.long
@pytest.mark.parametrize("program", PROGRAMS)
def test_it_explains_itself(program):
    process = run(program, "--help")
    assert process.returncode == 0
    assert "usage: " in process.stdout and "default: " in process.stdout
