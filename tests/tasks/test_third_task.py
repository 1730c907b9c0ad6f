"""A task of another package: one class and one entry point, and nothing of this package changes."""

import textwrap

import pytest

from fedunseen import Experiment, load_run, run
from fedunseen.cli.main import main
from fedunseen.report.page import write_report

MODULE = """
    from typing import Literal

    from fedunseen.federation.evaluator import Choice
    from fedunseen.methods.fedzsl import FedZSL, FedZSLSettings
    from fedunseen.tasks import Evaluator, Prediction, Predictor, Task

    class HalvesEvaluator(Evaluator):
        accuracies = ("halves",)

        @classmethod
        def choice(cls, evaluation, method, rounds, selecting=False):
            return Choice(rounds, None)

        @classmethod
        def order(cls, line, evaluation, method):
            return (line["halves"], 0.0)

        def measure(self, loop, models, choice):
            answers = self.federation.answers(models[0])
            middle = len(self.benchmark.space.names) / 2
            right = (answers.generalised(0.0) < middle) == (answers.labels < middle)
            return {"halves": 100 * float(right.mean())}

        def numbers(self, lines, selected, model_path):
            return {"halves": lines[selected - 1]["halves"]}

        def summary(self, params, result):
            counts = self.federation.partition.counts(self.benchmark.labels, len(self.benchmark.space.names))
            return {"client_counts": counts}

    class HalvesPredictor(Predictor):
        @classmethod
        def predict(cls, run, question):
            return [[Prediction("first", 1.0)] for _ in run.read_inputs(question.inputs)]

    class Halves(Task):  # tells whether a sample is of the first half of the classes
        name = "halves"
        evaluator = HalvesEvaluator
        predictor = HalvesPredictor

    class HalfSettings(FedZSLSettings):
        name: Literal["half"] = "half"

    class Half(FedZSL):
        Settings = HalfSettings
        task = "halves"
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Put a package with a task, and a method for it, on the path."""
    folder = tmp_path / "site"
    info = folder / "halves-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "my_halves.py").write_text(textwrap.dedent(MODULE))
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: halves\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[fedunseen.tasks]\nhalves = my_halves:Halves\n[fedunseen.methods]\nhalf = my_halves:Half\n"
    )
    monkeypatch.syspath_prepend(folder)


@pytest.mark.slow
@pytest.mark.usefixtures("package")
def test_a_third_task_runs_reports_and_predicts(tmp_path, capsys, monkeypatch):
    few = {"data.train_per_class": 4, "data.test_per_class": 2, "strategy.rounds": 2, "method.name": "half"}
    experiment = Experiment.load("digit-pairs", few)
    done = run(experiment, tmp_path / "run")
    assert done.result["halves"] == done.metrics[-1]["halves"]
    assert done.headline() == f"halves {done.result['halves']:.1f} %"
    assert load_run(tmp_path / "run").predict([[0.0] * 128] * 2) == [[("first", 1.0)]] * 2
    page = write_report(done).read_text("utf-8")
    assert "A run of the task <strong>halves</strong>" in page
    assert f"{done.result['halves']:.1f}&nbsp;%" in page
    several = run(experiment.with_overrides({"run.seeds": 2}), tmp_path / "seeds")
    assert several.result["halves"] == pytest.approx(sum(one.result["halves"] for one in several.seeds) / 2)
    words = [f"--set={key}={value}" for key, value in few.items()]
    out = str(tmp_path / "again")
    monkeypatch.setattr("sys.argv", ["fedunseen", "run", "digit-pairs", *words, "--out", out, "--json"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    assert '"halves":' in capsys.readouterr().out
