"""The code in README.md and docs/ runs as it is shown, and the files that shell blocks name are there."""

import csv
import importlib.util
import re
import sys
from pathlib import Path

import pytest
from document_blocks import blocks_of
from group import running
from processes import WorkerProcess, run_script

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
WHOLLY_RUN = {"README.md", "docs/start.md", "docs/migrating.md", "docs/examples.md"}

LIMIT = 180  # seconds for a program, whose processes import torch anew: about 10 where nothing else runs

# What a reader takes for granted in a block that is no whole program.
PRELUDE = """
import contextlib, tempfile, time
import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
import torchwire
"""


def blocks(language):
    return [
        block
        for path in DOCUMENTS
        for block in blocks_of(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"), language)
    ]


PYTHON = blocks("python")


def execute(text, where):
    exec(compile(PRELUDE + text, where, "exec"), {"__name__": "block_of_a_document"})


def import_block(path):
    specification = importlib.util.spec_from_file_location("block", path)
    sys.modules["block"] = module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)


def run_alone(block, folder):
    worker = WorkerProcess("worker0")
    worker.run(execute, block.before + block.code + block.after, str(block))
    worker.close()


def run_on_two_workers(block, folder):
    with running(2, folder) as group:
        group[0].run(execute, block.before + block.code + block.after, str(block))


def run_definitions(block, folder):
    module = folder / "block.py"
    module.write_text(block.before + block.code)
    with running(2, folder) as group:
        group.all(import_block, module)
        group[0].run(execute, "import block\n" + block.after, str(block))


def run_program(block, folder):
    script = folder / "program.py"
    script.write_text(block.before + block.code + block.after)
    process = run_script(script, limit=LIMIT)
    assert process.returncode == 0, process.stderr
    assert block.argument and block.argument in process.stdout, process.stdout


RUNNERS = {
    "alone": run_alone,
    "two workers": run_on_two_workers,
    "definitions": run_definitions,
    "program": run_program,
}


@pytest.mark.slow
@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_the_block_runs(block, tmp_path):
    if block.kind == "skip":
        pytest.skip(block.argument)
    RUNNERS[block.kind](block, tmp_path)


def test_blocks_are_found():
    assert {"README.md", "docs/start.md", "docs/migrating.md", "docs/errors.md"} <= {block.document for block in PYTHON}


def test_what_newcomers_read_is_run_without_exception():
    assert [str(block) for block in PYTHON if block.document in WHOLLY_RUN and block.kind == "skip"] == []


def test_a_block_that_fails_fails_its_test(tmp_path):
    (block,) = blocks_of(
        "it.md", "<!-- test: alone\n---\nassert answer == 2\n-->\n```python\nanswer = 1\n```\n", "python"
    )
    with pytest.raises(Exception, match="AssertionError"):
        run_alone(block, tmp_path)


@pytest.mark.parametrize("how, why", [("skip:", "needs a reason"), ("three workers", "nobody knows how")])
def test_a_comment_that_says_nothing_is_refused(how, why):
    with pytest.raises(ValueError, match=why):
        list(blocks_of("it.md", f"<!-- test: {how} -->\n```python\n1\n```\n", "python"))


@pytest.mark.parametrize("block", blocks("sh"), ids=str)
def test_the_files_that_shell_blocks_name_are_there(block):
    named = re.findall(r"(?<![\w$./-])(?:\.ci|tools|test|docs|plugin)/[\w./-]*\w", block.code)
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_plots_show_the_figures_of_the_table():
    text = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    text = text.partition("\n## Beside PyTorch's own backend\n")[2].partition("\n## ")[0]
    with open(ROOT / "docs" / "plots" / "stock.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) > 10
    for row in rows:
        (line,) = re.findall(rf"^\| {re.escape(row['what'])} \|(.*)$", text.replace("`", ""), re.MULTILINE)
        shown = re.findall(r"([\d.,]+) ?(µs|ms|/s)", line)
        factor = {"µs": 1, "ms": 1000, "/s": 1}
        values = [float(number.replace(",", "")) * factor[unit] for number, unit in shown]
        assert values == pytest.approx(
            [float(row[name]) for name in ("stock", "torchwire", "stock_uv", "torchwire_wire_tcp")]
        )
        assert re.findall(r"\(([\d.]+)\)", line) == [row[f"{n}_ratio"] for n in SHOWN_RATIOS if row[f"{n}_ratio"]]


SHOWN_RATIOS = ("torchwire", "stock_uv", "torchwire_wire_tcp")
