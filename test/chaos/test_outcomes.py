"""Every defect is found: a load whose outcome is always good would be worth nothing."""

import pathlib

import outcomes as kinds
import pytest
from crew import Crew
from rounds import Round
from settings import Settings


def outcome_of(defect, folder):
    settings = Settings(
        world=2,
        callers=1,
        seconds=0.2,
        timeout=1,
        slack=0.5,
        shutdown_limit=1.5,
        operations=("echo", defect),
        output=str(folder),
        native_stacks=False,
    )
    with Crew(settings.world) as crew:
        return Round(settings, 0, crew).run()


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize(
    ("defect", "kind", "text"),
    [
        ("defect_wrong_data", kinds.WRONG, "what came back: a tensor of"),
        ("defect_error", kinds.ERROR, "RuntimeError: on purpose"),
        ("defect_odd_error", kinds.ERROR, "ValueError: invalid literal"),
        ("defect_crash", kinds.LOST, "exit code -6"),
        ("defect_hang", kinds.HUNG, "defect_hang has not ended after"),
        ("defect_lateness", kinds.LATE, "defect_lateness took"),
        ("defect_endless_call", kinds.HUNG, "leave has not ended after"),
        ("defect_leak", kinds.LEFT_OVER, "owner"),
    ],
)
def test_every_defect_is_found(tmp_path, defect, kind, text):
    outcome = outcome_of(defect, tmp_path)
    assert kind in outcome.kinds(), outcome
    assert text in next(one.text for one in outcome.violations if one.kind == kind)
    outputs = [path for path in outcome.files if path.endswith(".out")]
    assert len(outputs) == 2
    if kind == kinds.HUNG:
        assert "(most recent call first)" in pathlib.Path(outputs[0]).read_text()
