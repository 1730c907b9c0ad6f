"""Tasks that note what they begin and end, for workers in other processes."""

import json
import os
import time
from pathlib import Path

from fedunseen.deploy.engines import spread


class Noted(spread.Counting):
    """Counts blocks, and notes each of them before and after.

    With ``together``, it begins no second block before so many workers have done one.
    """

    def __init__(self, plan, source, parts, journal, pause, together=0):
        super().__init__(plan, source, parts)
        self.journal, self.pause, self.together = journal, pause, together

    def note(self, what, item):
        line = json.dumps([what, item[0], os.getpid(), os.environ.get("RAY_NODE_MARK", "")])
        with open(self.journal, "a") as file:
            file.write(line + "\n")

    def __call__(self, item):
        there = (self.parts / item[0]).exists()
        self.note("repeated" if there else "begun", item)
        time.sleep(self.pause)
        name = super().__call__(item)
        self.note("done", item)
        while len(workers(self.journal)) < self.together:
            time.sleep(0.1)
        return name


def held(journal, gate, function, *words):
    """Note that a call begins, wait for a file, and call a function."""
    with open(journal, "a") as file:
        file.write(json.dumps(["begun", str(words), os.getpid(), ""]) + "\n")
    while not Path(gate).exists():
        time.sleep(0.05)
    return function(*words)


def lines(path):
    """Return what was noted."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def workers(path):
    """Return the processes that have done a block."""
    return {process for what, _, process, _ in lines(Path(path)) if what == "done"}
