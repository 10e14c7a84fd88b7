"""docs/fault_injection.md shows what there is, and what it shows runs."""

import re
from dataclasses import fields
from pathlib import Path

import pytest
from processes import run_script
from torchwire import TorchwireRpcBackendOptions
from torchwire.testing import (
    Fault,
    FaultyTorchwireRpcBackendOptions,
    Plan,
    Rule,
    Run,
    message_types,
)
from torchwire.testing.phases import PHASES, PHASES_OF

DOCUMENT = (Path(__file__).parents[3] / "docs" / "fault_injection.md").read_text(encoding="utf-8")
EXAMPLES = sorted((Path(__file__).parent / "examples").glob("test_*.py"))

TERMS = {
    "field of Rule": [field.name for field in fields(Rule) if field.name != "_"],
    "field of Fault": [field.name for field in fields(Fault)],
    "field of Run": [field.name for field in fields(Run)],
    "action": PHASES_OF,
    "phase": PHASES,
    "type of message": message_types.TYPES,
    "group of messages": message_types.GROUPS,
    "name of a type": message_types.ALIASES,
    "option": set(FaultyTorchwireRpcBackendOptions._keywords()) - set(TorchwireRpcBackendOptions._keywords()),
}


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("kind", TERMS)
def test_the_document_mentions_every(kind):
    assert [term for term in TERMS[kind] if f"`{term}`" not in DOCUMENT] == []


def test_the_document_shows_the_examples_as_they_are():
    assert len(EXAMPLES) == 3
    shown = blocks("python")
    assert [path.name for path in EXAMPLES if path.read_text(encoding="utf-8") not in shown] == []


def test_the_first_program_prints_what_the_document_says(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(blocks("python")[0])
    printed = run_script(script).stdout.splitlines()
    said = blocks("text")[0].splitlines()
    assert len(printed) == len(said) == 2
    assert printed[0] == said[0]
    assert printed[1].partition(" ")[2] == said[1].partition(" ")[2]  # but for the time


def test_the_plan_in_toml_is_one():
    (text,) = blocks("toml")
    assert [rule.action for rule in Plan.from_toml(text).rules] == ["delay", "partition"]
