"""A task of its own, and a method for it."""

from fedunseen.federation.evaluator import Choice, Evaluator
from fedunseen.methods import FedZSL
from fedunseen.tasks.base import Prediction, Predictor, Task


class HalvesEvaluator(Evaluator):
    """Measures how many samples are put into the right half."""

    accuracies = ("halves",)

    @classmethod
    def choice(cls, evaluation, method, rounds, selecting=False):
        return Choice(rounds, None)  # the last round, no calibration

    @classmethod
    def order(cls, line, evaluation, method):
        return (line["halves"], 0.0)  # of two rounds or runs, the higher is better

    def measure(self, loop, models, choice):
        answers = self.federation.answers(models[0])
        middle = len(self.benchmark.space.names) / 2
        right = (answers.generalised(0.0) < middle) == (answers.labels < middle)
        return {"halves": 100 * float(right.mean())}

    def numbers(self, lines, selected, model_path):
        return {"halves": lines[selected - 1]["halves"]}

    def summary(self, params, result):
        counts = self.federation.partition.counts(
            self.benchmark.labels, len(self.benchmark.space.names)
        )
        return {"client_counts": counts}


class HalvesPredictor(Predictor):
    """Names the half."""

    @classmethod
    def predict(cls, model, question):
        scores = model.raw_scores(question.read(), model.described(model.space.semantics))
        best, where = scores.max(axis=1), scores.argmax(axis=1)
        middle = len(model.space.names) / 2
        names = ["first" if place < middle else "second" for place in where]
        return [[Prediction(name, float(score))] for name, score in zip(names, best, strict=True)]


class Halves(Task):
    """Tells whether a sample is of the first half of the classes."""

    name = "halves"
    evaluator = HalvesEvaluator
    predictor = HalvesPredictor


class Half(FedZSL, name="half"):
    """FedZSL, judged by halves."""

    task = "halves"
