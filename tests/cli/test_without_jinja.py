"""Pages need Jinja, and a run does not."""

import sys

import pytest

from fedunseen import load_run
from fedunseen.pages.report import parts
from processes import sets


@pytest.mark.slow
def test_without_jinja_a_run_ends_and_says_in_one_sentence_why_there_is_no_report(
    tmp_path, monkeypatch, works
):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    parts._environment.cache_clear()
    small = {"evaluation.selection": "last", "data.train_per_class": 20}
    out = tmp_path / "run"
    said = works("run", "digit-pairs-gaussian", *sets(small), "--out", out).err
    note = "note: there is no report: pages need jinja2: pip install 'fedunseen[report]'"
    assert [line for line in said.splitlines() if "report" in line] == [note]
    assert load_run(out).result["zsl"] > 50
    assert not (out / "report.html").exists()
