"""``fedunseen export``: what it writes and says, and what it refuses."""

import csv
import json
from pathlib import Path

import pytest


def test_it_writes_a_file_for_each_table(command, digits, tmp_path):
    done = command("export", digits, "--csv", tmp_path / "tables")
    names = ["rounds", "classes", "confusion_zsl", "confusion_gzsl", "clients"]
    assert (done.code, done.out) == (0, "")
    assert done.err.splitlines() == [f"wrote {tmp_path / 'tables' / name}.csv" for name in names]
    lines = (tmp_path / "tables" / "rounds.csv").read_text().splitlines()
    assert len(lines) == 1 + len((digits / "metrics.jsonl").read_text().splitlines())


def test_latex_has_the_numbers_of_the_csv_files(command, digits, tmp_path):
    result = json.loads(command("export", digits, "--csv", tmp_path, "--latex", tmp_path, "--json").out)
    assert {path.suffix for path in map(Path, result["files"])} == {".csv", ".tex"}
    with (tmp_path / "classes.csv").open(encoding="utf-8") as file:
        header, first, *rest = csv.reader(file)
    lines = (tmp_path / "classes.tex").read_text("utf-8").splitlines()
    assert lines[:3] == [r"\begin{tabular}{llrrr}", r"\toprule", " & ".join(header) + r" \\"]
    assert len(lines) == 6 + 1 + len(rest)
    cells = lines[4].removesuffix(r" \\").split(" & ")
    assert cells[:3] == first[:3]
    for text, value in zip(cells[3:], first[3:], strict=True):
        assert text == value == "" or float(text) == pytest.approx(float(value), rel=1e-3)
