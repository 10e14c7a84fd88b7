"""Draws the picture of `python -m torchwire top` in README.md, docs/plots/top.svg, from a group that runs meanwhile.

    .venv/bin/python tools/site/top_picture.py

A learner with three actors that call it, and an evaluator that calls nobody. Needs torchwire and rich.
"""

from __future__ import annotations

import io
import os
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed.rpc as rpc
import torch.multiprocessing as mp

PICTURE = Path(__file__).parents[2] / "docs" / "plots" / "top.svg"
WORKERS = ("learner", "actor0", "actor1", "actor2", "evaluator")
HEIGHT = 24
WIDTH = 110  # characters
SECONDS = 2.0  # between the two looks

# Rich's own text, without fonts from the network, and without the frame of a window.
SVG = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: monospace; font-size: {char_height}px; line-height: {line_height}px; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal"><rect x="0" y="0" width="{terminal_width}" height="{height}"/>\
</clipPath>{lines}</defs>
<rect fill="#0c0c0c" width="{width}" height="{height}" rx="8"/>
<g transform="translate(9, 9)" clip-path="url(#{unique_id}-clip-terminal)">{backgrounds}
<g class="{unique_id}-matrix">{matrix}</g></g>
</svg>
"""


def act(observation: torch.Tensor) -> torch.Tensor:
    return observation.sum(0)


def work(rank: int, store: str, ended) -> None:
    import torchwire

    torch.set_num_threads(1)
    options = torchwire.TorchwireRpcBackendOptions(init_method=f"file://{store}")
    backend = rpc.BackendType.TORCHWIRE
    rpc.init_rpc(WORKERS[rank], backend=backend, rank=rank, world_size=len(WORKERS), rpc_backend_options=options)
    observation = torch.rand(8 * rank, 256)
    while WORKERS[rank].startswith("actor") and not ended.is_set():
        rpc.rpc_sync("learner", act, args=(observation,))
    ended.wait()
    rpc.shutdown()


def look():
    """A table of what the workers did between two looks, once all of them answer."""
    from torchwire._C import TorchwireAgent
    from torchwire.top import rates, sources
    from torchwire.top.page import Page

    while len(answers := sources.of_this_host()) < len(WORKERS) or any(answer.error for answer in answers):
        time.sleep(0.1)
    time.sleep(1)
    before = {answer.key: answer for answer in sources.of_this_host()}
    time.sleep(SECONDS)
    answers = sources.of_this_host()
    rows = [rates.row_of(answer, before[answer.key], TorchwireAgent.histogram_bounds) for answer in answers]
    rows.sort(key=lambda row: row.rank)
    title = f"torchwire: {len(rows)} workers of this host, by rank, {time.strftime('%H:%M:%S')}"
    return Page(rows, title, WIDTH, HEIGHT).renderable()


def main() -> None:
    from rich.console import Console

    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_RUNTIME_DIR"] = folder  # no other workers are shown
        ended = mp.get_context("spawn").Event()
        workers = mp.spawn(work, (f"{folder}/store", ended), nprocs=len(WORKERS), join=False)
        try:
            table = look()
        finally:
            ended.set()
            workers.join()
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    console.print(table)
    PICTURE.write_text(console.export_svg(code_format=SVG, unique_id="top"))


if __name__ == "__main__":
    main()
