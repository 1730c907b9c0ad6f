"""``fedunseen compare``: what it prints, and what it refuses."""

import json

import pytest

from fedunseen import Experiment, run


@pytest.fixture(scope="module")
def better(fast, tmp_path_factory):
    settings = {**fast, "method.kl": 0, "strategy.rounds": 6}
    return run(Experiment.load("digit-pairs", settings), tmp_path_factory.mktemp("better") / "run").path


@pytest.mark.slow
def test_it_prints_a_line_for_each_number(command, digits, better):
    done = command("compare", digits, better, digits)
    lines = done.out.splitlines()
    assert (done.code, done.err, len(lines)) == (0, "", 10)
    assert lines[0].startswith(f"{better} against {digits}, 95 % intervals over ")
    assert lines[6:] == ["  ZSL      +0.0 ± 0.0", *(f"  {name}        +0.0 ± 0.0" for name in "USH")]


def test_json_has_the_same_unrounded(command, digits, better):
    (result,) = json.loads(command("compare", digits, better, "--json").out)
    results = [json.loads((path / "result.json").read_text()) for path in (better, digits)]
    assert result["run"] == str(better)
    assert result["differences"]["zsl"]["difference"] == pytest.approx(results[0]["zsl"] - results[1]["zsl"])
    assert result["differences"]["zsl"]["ci95"] > 0
