"""A run hands on what it has made, instead of reading its own directory back."""

import sys
from collections import Counter
from pathlib import Path

import pytest

from fedunseen import run
from small_runs import experiment

READ = {
    "metrics.jsonl": 2,  # the rounds of a run that is resumed; the diagnosis, in the file's form
    "parties.json": 1,  # the names of a deployment's parties; there is none here
    "model.safetensors": 1,  # the best round's model: memory holds the last round's
    "manifest.json": 1,  # what is returned is opened as `load_run` does
    "result.json": 1,
}
"""How often a run may open its own files for reading, and why."""

_OPENED: list[str] = []


def _note(event, arguments):
    if event == "open" and isinstance(arguments[0], str):
        mode, flags = arguments[1:3]
        if mode in ("r", "rb") or (mode is None and not flags & 3):
            _OPENED.append(arguments[0])


sys.addaudithook(_note)


@pytest.mark.slow
def test_a_run_reads_no_file_back_that_it_has_in_memory(tmp_path):
    out = tmp_path / "run"
    _OPENED.clear()
    run(experiment("digit-pairs-gaussian"), out)
    own = [Path(path) for path in _OPENED if path.startswith(str(out))]
    assert own  # the control: reads are seen
    counts = Counter(path.relative_to(out).as_posix() for path in own)
    counts.pop(".lock", None)
    assert counts.keys() <= READ.keys()
    assert all(count <= READ[name] for name, count in counts.items())
