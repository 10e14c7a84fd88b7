"""The code blocks of Markdown documents, and how each is to be run: see test_docs_code.py.

A comment right above a block says how:

    <!-- test: alone -->                       statements, in a process of their own; so are blocks without a comment
    <!-- test: two workers -->                 statements that worker0 runs, in a group with worker1
    <!-- test: definitions -->                 a module, `block`, that both workers of a group can import
    <!-- test: program, prints: TEXT -->       a script, whose output contains TEXT
    <!-- test: skip: REASON -->

Code in the lines that follow within the comment runs before the block, and after it what is below `---`.
"""

import re
from dataclasses import dataclass

_BLOCK = re.compile(r"(?:^<!-- test: (?P<how>.*?) ?-->\n)?^```(?P<language>\w+)\n(?P<code>.*?)^```$", re.M | re.S)
KINDS = ("alone", "two workers", "definitions", "program", "skip")


@dataclass(frozen=True)
class Block:
    document: str
    line: int
    language: str
    kind: str
    argument: str  # of "program" and "skip"
    before: str
    code: str
    after: str

    def __str__(self):
        return f"{self.document}:{self.line}"


def blocks_of(document, text, language):
    for match in _BLOCK.finditer(text):
        if match["language"] == language:
            line = text.count("\n", 0, match.start("code"))
            yield Block(document, line, language, *_how(match["how"] or "alone", f"{document}:{line}"), **_code(match))


def _how(how, where):
    kind, _, argument = how.partition("\n")[0].partition(":")
    kind = kind.removesuffix(", prints")
    if kind not in KINDS:
        raise ValueError(f"{where}: nobody knows how to test {kind!r}; it is one of {', '.join(KINDS)}")
    if kind == "skip" and not argument.strip():
        raise ValueError(f"{where}: a block that is skipped needs a reason")
    return kind, argument.strip()


def _code(match):
    before, _, after = (match["how"] or "").partition("\n")[2].partition("---\n")
    return {"before": before, "code": match["code"], "after": after}
