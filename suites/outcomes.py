"""What became of each test of a run, read from what test runners print and write.

An outcome is one of "ok", "skipped", "failed" and "hung"; the last is a test that began and never
ended, because the time was over or the process died.
"""

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

# `test_name (module.Class.test_name)`, perhaps a line of its documentation, ` ... `, the word.
BEGUN = re.compile(r"^(\w+) \(([\w.<>]+)\)")
WORD = re.compile(
    r"(?:^|\.\.\. .*?|\s)(ok|FAIL|ERROR|skipped .*|expected failure|unexpected success)$"
)
WORDS = {"ok": "ok", "expected failure": "ok", "unexpected success": "failed"}
HEADLINE = re.compile(r"^(FAIL|ERROR): (\w+) \(([\w.<>]+)\)")
# `    test_name ...                                [OK]` of trial, below `  Class` and `module`.
TRIAL = re.compile(r"^( *)(\S+) \.\.\.\s*(?:.*\[(OK|FAIL|ERROR|SKIPPED|TODO|SUCCESS!\?!)\])?$")


@dataclass
class Outcome:
    """What became of one test, and the last line that it said about it."""

    result: str
    message: str = ""

    @property
    def is_bad(self) -> bool:
        return self.result in ("failed", "hung")


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else ""


def from_junit(path: Path) -> dict:
    """Reads the file that `python -m test --junit-xml` wrote; empty when there is none."""
    try:
        tree = ElementTree.parse(path)
    except (OSError, ElementTree.ParseError):
        return {}
    outcomes = {}
    for case in tree.iter("testcase"):
        name = case.get("name", "?")
        bad = case.find("failure")
        bad = case.find("error") if bad is None else bad
        if bad is not None:
            outcomes[name] = Outcome("failed", last_line("".join(bad.itertext())))
        elif case.find("skipped") is not None or case.get("result") == "skipped":
            outcomes.setdefault(name, Outcome("skipped"))
        else:
            outcomes.setdefault(name, Outcome("ok"))
    return outcomes


def full_name(method: str, where: str) -> str:
    """Before Python 3.11 the second word is the class alone."""
    return where if where.endswith(f".{method}") else f"{where}.{method}"


def from_unittest(text: str) -> dict:
    """Reads what `unittest` prints with -v; tests may print what they like between."""
    outcomes, begun = {}, None
    lines = text.splitlines()
    for line in lines:
        start = BEGUN.match(line)
        if start:
            begun = full_name(*start.groups())
            outcomes.setdefault(begun, Outcome("hung", "it did not end"))
        word = WORD.search(line)
        if begun is not None and word:
            said = word.group(1)
            result = "skipped" if said.startswith("skipped") else WORDS.get(said, "failed")
            outcomes[begun] = Outcome(result)
            begun = None
    return with_headlines(outcomes, lines)


def with_headlines(outcomes: dict, lines: list) -> dict:
    """Adds the reports at the end, which nothing can be printed into the middle of."""
    failed, report = None, []
    for line in [*lines, "=" * 70]:
        headline = HEADLINE.match(line)
        if headline:
            failed, report = full_name(*headline.groups()[1:]), []
        elif failed and line.startswith(("=" * 70, "Ran ")):
            outcomes[failed] = Outcome("failed", last_line("\n".join(report)))
            failed = None
        elif failed and not line.startswith("-" * 70):
            report.append(line)
    if any(line.startswith("Ran ") and " test" in line for line in lines):
        # It came to its end: what looks unended had its word garbled by what was printed.
        for outcome in outcomes.values():
            if outcome.result == "hung":
                outcome.result = "ok"
    return outcomes


def from_trial(text: str) -> dict:
    """Reads what `trial --reporter=verbose` prints."""
    words = {"OK": "ok", "FAIL": "failed", "ERROR": "failed", "SKIPPED": "skipped", "TODO": "ok"}
    outcomes, path, begun = {}, [], None
    for line in text.splitlines():
        if line.startswith("=" * 70):
            break
        test = TRIAL.match(line)
        if test:
            indent, name, word = test.groups()
            begun = ".".join([*path[: len(indent) // 2], name])
            outcomes[begun] = Outcome(words.get(word, "failed") if word else "hung")
            begun = None if word else begun
        elif begun and (word := re.search(r"\[(OK|FAIL|ERROR|SKIPPED|TODO)\]$", line)):
            outcomes[begun], begun = Outcome(words[word.group(1)]), None
        elif group := re.match(r"^( *)(\S+)$", line):
            path[len(group.group(1)) // 2 :] = [group.group(2)]
    return outcomes
