"""Early stopping: where it stops, what it says, that the run is the long one cut short, that a kill shows nothing."""

import json

import pytest
import torch

from fedunseen import Experiment, run
from fedunseen.federation.loop import Loop
from fedunseen.report import write_report

LONG = {"strategy.rounds": 30, "method.lr": 0.5}  # learned within a few rounds, so that gains end
FEW = {
    "method.name": "protonet", "method.hidden": [8], "method.episodes": 4, "method.queries": 5,
    "partition.kind": "pccd", "partition.clients": 10, "evaluation.episodes": 10,
    "evaluation.validation_episodes": 5,
}  # fmt: skip


def slowly(merits, patience):
    """Return after how many rounds a run stops: the definition, round by round."""
    best, since = None, 0
    for done, score in enumerate(merits, 1):
        since = 0 if best is None or score > best else since + 1
        best = score if best is None else max(best, score)
        if since == patience:
            return done
    return len(merits)


def test_the_rule_is_the_one_that_counts_round_by_round():
    generator = torch.Generator().manual_seed(0)
    stops = set()
    for _ in range(200):
        merits = [(float(v), 0.0) for v in torch.randint(0, 12, (12,), generator=generator)]
        for patience in (1, 2, 3, 5):
            loops = (Loop(None, 12, None, merits[:n], score=lambda value: value) for n in range(1, 13))
            done = next((len(loop.history) for loop in loops if loop.rounds_since_best >= patience), 12)
            assert done == slowly(merits, patience)
            stops.add(done < 12)
    assert stops == {True, False}


@pytest.fixture(scope="module")
def both(make, tmp_path_factory):
    """The same experiment stopped early, and run to its end."""
    folder = tmp_path_factory.mktemp("stopped")
    stopped = run(make({**LONG, "strategy.stop_after": 3}), folder / "early")
    return stopped, run(make(LONG), folder / "long")


@pytest.mark.slow
def test_it_is_the_long_run_cut_short(both):
    early, long = both
    lines = [json.loads(line) for line in (early.path / "selection" / "metrics.jsonl").read_text().splitlines()]
    whole = [json.loads(line) for line in (long.path / "selection" / "metrics.jsonl").read_text().splitlines()]
    merits = [(line["gzsl_harmonic"], line["gzsl_seen"]) for line in whole]
    assert len(lines) == slowly(merits, 3) < 30
    for a, b in zip(lines, whole, strict=False):
        assert {k: v for k, v in a.items() if k != "seconds"} == {k: v for k, v in b.items() if k != "seconds"}
    best = max(range(len(lines)), key=lambda i: (*merits[i], i)) + 1
    assert early.result["selected_round"] == early.result["rounds"] == len(early.metrics) == best
    assert early.result["stopped"] == {
        "round": len(lines),
        "of": 30,
        "why": "no gain on validation classes in 3 rounds",
    }
    assert "stopped" not in long.result
    for a, b in zip(early.metrics, long.metrics, strict=False):
        assert a["losses"] == b["losses"]


def test_report_and_terminal_say_where_and_why(both):
    early, long = both
    sentence = (
        f"It stopped after round {early.result['stopped']['round']} of 30: no gain on validation classes in 3 rounds."
    )
    page = write_report(early).read_text("utf-8")
    assert page.count(sentence) == 2  # beside the numbers, and where the choice is drawn
    assert "more rounds may give more" not in page
    assert "Train for more rounds" not in page
    assert "It stopped" not in write_report(long).read_text("utf-8")


def test_few_shot_stops_on_its_validation_episodes(tmp_path):
    settings = {**FEW, "evaluation.selection": "validation", "strategy.rounds": 12, "strategy.stop_after": 1}
    done = run(Experiment.load("digit-pairs", settings), tmp_path / "run")
    merits = [(line["few_shot"], 0.0) for line in done.metrics]
    assert done.result["rounds"] == slowly(merits, 1) < 12
    assert done.result["stopped"]["round"] == done.result["rounds"]
    assert "It stopped after round" in write_report(done).read_text("utf-8")
