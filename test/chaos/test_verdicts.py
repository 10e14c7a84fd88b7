"""What is planted is found: a load whose verdict is always good would be worth nothing."""

import pathlib

import pytest
import verdict as kinds
from crew import Crew
from rounds import Round
from settings import Settings


def verdict_on(planted, folder):
    settings = Settings(
        world=2,
        callers=1,
        seconds=0.2,
        timeout=1,
        slack=0.5,
        shutdown_limit=1.5,
        operations=("echo", planted),
        output=str(folder),
        native_stacks=False,
    )
    with Crew(settings.world) as crew:
        return Round(settings, 0, crew).run()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("planted", "kind", "text"),
    [
        ("planted_wrong_data", kinds.WRONG, "what came back: a tensor of"),
        ("planted_error", kinds.ERROR, "RuntimeError: planted"),
        ("planted_odd_error", kinds.ERROR, "ValueError: invalid literal"),
        ("planted_crash", kinds.LOST, "exit code -6"),
        ("planted_hang", kinds.HUNG, "planted_hang has not ended after"),
        ("planted_lateness", kinds.LATE, "planted_lateness took"),
        ("planted_endless_call", kinds.HUNG, "leave has not ended after"),
        ("planted_leak", kinds.LEFT_OVER, "owner"),
    ],
)
def test_what_is_planted_is_found(tmp_path, planted, kind, text):
    verdict = verdict_on(planted, tmp_path)
    assert kind in verdict.kinds(), verdict
    assert text in next(one.text for one in verdict.violations if one.kind == kind)
    outputs = [path for path in verdict.files if path.endswith(".out")]
    assert len(outputs) == 2
    if kind == kinds.HUNG:
        assert "(most recent call first)" in pathlib.Path(outputs[0]).read_text()
