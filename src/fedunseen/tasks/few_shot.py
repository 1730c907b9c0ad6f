"""Few-shot: judged by episodes of validation classes after every round, and by 600 test episodes in
the end.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedunseen.core.errors import DataError, ExperimentError
from fedunseen.core.files import write_tensors
from fedunseen.core.parameters import Params
from fedunseen.core.random import stream
from fedunseen.core.runs import check_question
from fedunseen.core.samples import Inputs
from fedunseen.core.text import decoded
from fedunseen.data import Benchmark
from fedunseen.data.episodes import (
    Episodes,
    Size,
    Tasks,
    for_episodes,
    split,
    too_few,
    validation_samples,
)
from fedunseen.evaluation.answers import episode_answers, nearest_support
from fedunseen.evaluation.measures import FEW_SHOT
from fedunseen.evaluation.settings import EvaluationSettings
from fedunseen.federation.evaluator import Choice, Evaluator
from fedunseen.federation.federation import Federation
from fedunseen.federation.loop import Loop
from fedunseen.federation.partition import Partition
from fedunseen.federation.run_directory import load_params, of_clients
from fedunseen.methods import Method
from fedunseen.methods.episodic import Episodic
from fedunseen.methods.maml import MAML
from fedunseen.methods.maml_mi import MAMLMI
from fedunseen.methods.protonet import prototype_logits
from fedunseen.metrics import confidence, episode_accuracies, t_critical
from fedunseen.model import ClassSum, Model, Prediction, Question, softmax
from fedunseen.tasks.base import Predictor, Shown, Task
from fedunseen.tasks.zero_shot_summary import small

_BLOCK = 8  # episodes answered at once
_SCORED = 64  # samples scored at once in `predict`: images may take much memory on their way
_SHOWN_QUERIES = 6  # of each class of the episode that the report shows
_DRAWN = (
    1,
    5,
    10,
    20,
    50,
)  # rounds after which the plane of an episode is drawn, beside the last (FedFSL, Fig. 6)
_GRID = 120  # cells along a side of the plane of an episode
_POINTS = 200  # samples of each class in that plane


@dataclass(frozen=True, eq=False)
class Pool:
    """Episodes of some classes."""

    rows: NDArray[np.int64]
    episodes: Episodes

    def first(self, count: int, start: int = 0, step: int = 1) -> Pool:
        """Return some of its first ``count`` episodes: from ``start`` on every ``step``-th."""
        chosen = slice(start, count, step)
        e = self.episodes
        return Pool(
            self.rows, Episodes(e.index[chosen], e.classes[chosen], e.quarters[chosen], e.shots)
        )


class FewShotEvaluator(Evaluator):
    """Measures accuracy in episodes of classes that no client trained on."""

    accuracies = ("few_shot",)

    def __init__(
        self,
        federation: Federation,
        benchmark: Benchmark,
        evaluation: EvaluationSettings | None = None,
    ) -> None:
        super().__init__(federation, benchmark, evaluation)
        evaluation = self.evaluation
        method = federation.method
        assert isinstance(method, Episodic)
        self.method = method
        self.final: list[NDArray[np.int64]] = []
        self.tests = self._pool("test", benchmark.test_unseen, evaluation.episodes)
        self.base = None
        if len(federation.benchmark.test_seen):
            self.base = self._pool(
                "training", federation.benchmark.test_seen, evaluation.validation_episodes
            )
        if evaluation.selection != "validation":
            self.watched = self.tests.first(evaluation.validation_episodes)
            self.of = "test"
            return
        rows = validation_samples(benchmark)
        if not len(rows):
            raise ExperimentError(
                f"{benchmark.name} has no validation classes to choose the round on: set "
                "evaluation.selection = 'last'"
            )
        self.watched = self._pool("validation", rows, evaluation.validation_episodes)
        self.of = "validation"

    def _pool(self, purpose: str, rows: NDArray[np.int64], count: int) -> Pool:
        rng = stream(self.federation.seed, f"episodes {purpose}")
        try:
            return Pool(
                rows, self.method.draw(self.benchmark.labels[rows], count, rng, training=False)
            )
        except DataError as error:
            raise DataError(
                f"{self.benchmark.name}, {purpose} classes: {error}: lower method.ways, or shots "
                "and queries"
            ) from None

    @classmethod
    def choice(
        cls,
        evaluation: EvaluationSettings,
        method: type[Method],
        rounds: int,
        selecting: bool = False,
    ) -> Choice:
        """Leave the round open, unless the last one is to be reported; nothing is calibrated."""
        return Choice(rounds if evaluation.selection == "last" else None, None)

    @classmethod
    def order(
        cls, line: Mapping[str, Any], evaluation: EvaluationSettings, method: type[Method]
    ) -> tuple[float, float]:
        """Order by the accuracy in episodes."""
        return (line["few_shot"], 0.0)

    def answers(self, params: Params, pool: Pool) -> NDArray[np.int64]:
        """Return (E, N, Q) a model's answers to the queries of a pool's episodes."""
        return self._answers(lambda tasks: self.method.classify(params, tasks), pool)

    def _answers(
        self, classify: Callable[[Tasks], Tensor], pool: Pool, inputs: Inputs | None = None
    ) -> NDArray[np.int64]:
        inputs = self.federation.inputs if inputs is None else inputs
        with torch.no_grad():
            return episode_answers(classify, inputs, pool.rows, pool.episodes, _BLOCK)

    def measure(self, loop: Loop, models: Sequence[Params], choice: Choice) -> dict[str, Any]:
        """Measure the merged model; where every client keeps its own, each on its share of the
        episodes.
        """
        count = len(self.watched.episodes)
        parts = [
            episode_accuracies(self.answers(model, self.watched.first(count, k, len(models))))
            for k, model in enumerate(models[:count])
        ]
        accuracy, half = confidence(np.concatenate(parts))
        return {"few_shot": accuracy, "few_shot_ci95": half, "episodes_of": self.of}

    def observe(self, loop: Loop, path: Path) -> None:
        """Write the plane of an episode after some rounds: ``plane/round-N.safetensors``."""
        if loop.state.round in (*_DRAWN, loop.rounds):
            plane = self.plane(loop.state.params) if self.federation.strategy.one_model else None
            if plane is not None:
                write_tensors(path / "plane" / f"round-{loop.state.round}.safetensors", plane)

    def numbers(
        self, lines: Sequence[Mapping[str, Any]], selected: int, model_path: Path
    ) -> dict[str, Any]:
        """Measure the chosen model, and the baselines, on the test episodes."""
        device = self.federation.device
        models = [client_model for _, client_model in of_clients(model_path, device)] or [
            load_params(model_path, device)
        ]
        self.final[:] = [self.answers(model, self.tests) for model in models]
        pictures = (
            self.federation.benchmark.pictures
        )  # the samples before a frozen encoder made features of them
        raw = self.federation.inputs if pictures is None else torch.from_numpy(pictures)
        each = _mean_accuracies(self.final)
        accuracies = {"few_shot": each}
        if self.base is not None:
            accuracies["few_shot_base"] = _mean_accuracies(
                [self.answers(model, self.base) for model in models]
            )
        nearest = self._answers(nearest_support(self.method.settings.ways), self.tests, raw)
        accuracies["few_shot_pixels"] = episode_accuracies(nearest)
        accuracies["few_shot_random"] = episode_accuracies(
            self._answers(self._untrained, self.tests)
        )
        measures: dict[str, Any] = {}
        for name, values in accuracies.items():
            measures[name], measures[f"{name}_ci95"] = confidence(values)
        measures["few_shot_episode_sd"] = float(each.std(ddof=1))
        measures["few_shot_episode_max"] = float(each.max())
        if isinstance(self.method, MAMLMI):
            measures["mi_share"] = self.method.share([line["losses"] for line in lines])
        measures[f"few_shot_{self.of}"] = lines[selected - 1]["few_shot"]
        measures["test_episodes"] = len(self.tests.episodes)
        return measures

    def _untrained(self, tasks: Tasks) -> Tensor:
        """Answer by the nearest class mean of the features before training."""
        start = self.federation.start()
        first = {
            **start.params,
            **self.federation.client_params(start, 0),
        }  # what stays with a client begins alike everywhere
        backbone = self.method.backbone
        ways = self.method.settings.ways
        each = [
            prototype_logits(
                backbone(first, s, training=True), backbone(first, q, training=True), ways
            )
            for s, q in zip(*tasks, strict=True)
        ]
        return torch.stack(each)

    def summary(self, params: Params, result: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
        """Return what the report draws, once :meth:`numbers` has measured the chosen model."""
        federation = self.federation
        e = self.tests.episodes
        benchmark = federation.benchmark
        counts = federation.partition.counts(benchmark.labels, len(benchmark.space.names))
        tensors: dict[str, NDArray[Any]] = {"client_counts": counts}
        tensors["episode_accuracies"] = _mean_accuracies(self.final)
        if len(self.final) > 1:
            return tensors
        (answers,) = self.final
        episode = np.arange(len(e))[:, None, None]
        tensors["labels"] = np.broadcast_to(e.classes[:, :, None], answers.shape).ravel()
        tensors["answers"] = e.classes[episode, answers].ravel()
        images = benchmark.images()
        if images is not None:
            first = self.tests.rows[e.index[0]]
            shown = np.stack([[small(images[image]) for image in row] for row in first])
            q = min(_SHOWN_QUERIES, shown.shape[1] - e.shots)
            tensors |= {
                "support_images": shown[:, : e.shots],
                "query_images": shown[:, e.shots : e.shots + q],
                "query_answers": answers[0, :, :q],
                "episode_classes": e.classes[0],
            }
        return tensors

    def plane(self, params: Params) -> dict[str, NDArray[Any]] | None:
        """Return the plane of two features after adaptation to the first test episode (FedFSL, Fig.
        6).
        """
        method = self.method
        e = self.tests.episodes
        if not isinstance(method, MAML) or method.backbone.shape != (2,):
            return None
        inputs = self.federation.inputs
        rows = self.tests.rows
        labels = self.federation.benchmark.labels[rows]
        support = split(
            inputs[torch.from_numpy(rows[e.index[:1]]).to(inputs.device)], e.shots
        ).support[0]
        adapted = method.adapted(params, support, "none", steps=method.settings.test_steps)
        unused = np.ones(len(labels), dtype=bool)
        unused[e.index[0, :, : e.shots]] = (
            False  # the examples it has learned from would flatter it
        )
        chosen = np.concatenate(
            [np.flatnonzero((labels == c) & unused)[:_POINTS] for c in e.classes[0]]
        )
        with torch.no_grad():
            points = method.backbone(
                adapted, inputs[torch.from_numpy(rows[chosen]).to(inputs.device)], training=True
            )
            low = points.amin(0)
            high = points.amax(0)
            margin = 0.05 * (high - low).clamp_min(1e-6)
            low = low - margin
            high = high + margin
            steps = torch.linspace(0, 1, _GRID, device=points.device)
            sides = [low[i] + steps * (high[i] - low[i]) for i in (0, 1)]
            x, y = torch.meshgrid(*sides, indexing="xy")
            grid = method.answer_features(
                adapted, torch.stack([x.flatten(), y.flatten()], 1)
            ).argmax(1)
            answered = method.answer_features(adapted, points).argmax(1).cpu().numpy()
        right = e.classes[0][answered] == labels[chosen]
        return {
            "points": points.cpu().numpy(), "labels": labels[chosen], "classes": e.classes[0],
            "grid": grid.reshape(_GRID, _GRID).cpu().numpy(), "low": low.cpu().numpy(), "high": high.cpu().numpy(),
            "accuracy": np.array(100 * right.mean()),
        }  # fmt: skip


class FewShotPredictor(Predictor):
    """Learns the classes of a question from their examples."""

    @classmethod
    def predict(cls, model: Model, question: Question) -> list[list[Prediction]]:
        """Learn the classes of ``question.examples`` from their examples and rank them; scores are
        logits.
        """
        if question.examples is None:
            raise ExperimentError(
                f"method.name = {model.method_name!r} learns classes from examples: give a folder "
                "with a folder of examples for each class, --support FOLDER"
            )
        if question.classes is not None or question.among != "all":
            raise ExperimentError(
                f"method.name = {model.method_name!r} learns classes from examples alone, "
                "--support FOLDER: leave out --classes, --class and --among"
            )
        check_question(question.among, question.top)
        method = model.method
        assert isinstance(method, Episodic)
        examples = dict(question.examples)
        if len(examples) < 2:
            raise DataError(
                f"the examples are of {len(examples)} classes: give some of at least two"
            )
        if method.limited and len(examples) > method.settings.ways:
            raise DataError(
                f"this run's model separates {method.settings.ways} classes, and there are "
                f"examples of {len(examples)}: give fewer, or train with more method.ways, or with "
                "method.name = 'protonet'"
            )
        if fixed := _fixed_names(model, method):
            if sorted(examples) != sorted(fixed):
                raise DataError(
                    f"this run's answers are always {', '.join(fixed)}, and there are examples of "
                    f"{', '.join(sorted(examples))}: call them the same"
                )
            examples = {name: examples[name] for name in fixed}
        rows = [
            class_examples
            for class_examples in examples.values()
            if not isinstance(class_examples, ClassSum)
        ]
        answers = torch.tensor([n for n, class_examples in enumerate(rows) for _ in class_examples])
        support = model.scaled(np.concatenate(rows))
        blocks = torch.split(model.scaled(question.read()), _SCORED)
        logits = torch.cat(
            [method.recognise(model.params, support, answers, block) for block in blocks]
        ).numpy()
        names = list(examples)
        top = question.top
        chances = softmax(logits)
        return [
            [
                Prediction(names[n], float(row[n]), float(chance[n]))
                for n in np.argsort(-row, kind="stable")[:top]
            ]
            for row, chance in zip(logits, chances, strict=True)
        ]


class FewShot(Task):
    """Learns classes from one to a few examples each."""

    name = "few-shot"
    evaluator = FewShotEvaluator
    predictor = FewShotPredictor
    also_averaged = (
        *FEW_SHOT[1:],
        "few_shot_validation",
        "few_shot_base",
        "few_shot_episode_*",
        "mi_share",
    )
    needs_descriptions = False
    chooses_settings = False
    attackable = False

    @classmethod
    def client_data(cls, benchmark: Benchmark) -> Benchmark:
        """Take the validation classes out: they only choose."""
        return for_episodes(benchmark)

    @classmethod
    def eligible_clients(cls, partition: Partition, benchmark: Benchmark, method: Any) -> Partition:
        """Leave out the clients that cannot make an episode; warn of them, and of classes with too
        few samples.
        """
        if partition.remote:
            return partition
        kept = list(partition.clients)
        reasons = []
        scarce: list[int] = []
        size = Size(method.ways, method.shots, method.queries, method.rotations)
        for k, rows in enumerate(partition.clients):
            few, reason = too_few(benchmark.labels[rows], size)
            if reason is not None and len(rows):
                kept[k] = rows[:0]
                reasons.append(f"client {k}: {reason}")
            scarce += [k] if len(few) else []
        if not any(map(len, kept)):
            raise ExperimentError(
                "no client can make an episode "
                f"({reasons[0] if reasons else 'no client has a sample'}): lower method.ways, "
                "method.shots, method.queries or partition.clients"
            )
        if reasons:
            warnings.warn(
                f"{len(reasons)} of {len(kept)} clients are left out ({reasons[0]})", stacklevel=2
            )
        limited = [k for k in scarce if len(kept[k])]
        if limited:
            warnings.warn(
                f"{len(limited)} of {len(kept)} clients, the first of them client {limited[0]}, make "
                f"no episodes of classes with fewer than {method.shots + method.queries} samples",
                stacklevel=2,
            )
        return replace(partition, clients=tuple(kept))

    @classmethod
    def prepare(cls, method: Method, benchmark: Benchmark) -> None:
        """Tell the method which answers are fixed."""
        assert isinstance(method, Episodic)
        method.answers = benchmark.answers

    @classmethod
    def of_seeds(
        cls, results: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return half of the 95 % interval over the seeds; a single run's is over its episodes."""
        spread = summary["few_shot_sd"] / len(results) ** 0.5
        return {"few_shot_ci95": float(t_critical(len(results) - 1) * spread)}

    @classmethod
    def headline(cls, result: Mapping[str, Any]) -> str:
        """Return the accuracy with its interval, and the baselines that need no training, as one
        line.
        """
        worse = (
            "   (worse than raw samples)" if result["few_shot"] < result["few_shot_pixels"] else ""
        )
        return (
            f"few-shot {result['few_shot']:.1f} ± {result['few_shot_ci95']:.1f} % (95 % interval)  "
            f" nearest support in raw samples {result['few_shot_pixels']:.1f} %   "
            f"untrained features {result['few_shot_random']:.1f} %{worse}"
        )


def _fixed_names(model: Model, method: Episodic) -> list[str]:
    """Return the names of the answers in order, if every episode has the same ones; else an empty
    list.
    """
    answers = method.answers
    space = model.space
    if answers is None or method.settings.permute_labels:
        return []
    return [space.names[c] for c in sorted(space.train.tolist(), key=lambda c: int(answers[c]))]


def examples_of(support: Shown) -> dict[str, Any]:
    """Return the examples of each class: those given, or the files in each folder of a folder."""
    if not isinstance(support, (str, Path)):
        if not support:
            raise DataError("there are no examples: give some of at least one class")
        return dict(support)
    path = Path(support)
    if not path.is_dir():
        raise DataError(
            f"{path} is not a folder: give one with a folder of examples for each class"
        )
    files = {
        decoded(p.name): sorted(f for f in p.iterdir() if not f.name.startswith("."))
        for p in sorted(path.iterdir())
        if p.is_dir() and not p.name.startswith(".")
    }
    if not files:
        raise DataError(
            f"{path} holds no folders: put the examples of each class in a folder with its name"
        )
    empty = [name for name, class_files in files.items() if not class_files]
    if empty:
        raise DataError(f"{path / empty[0]} is empty: put at least one example of the class there")
    return files


def _mean_accuracies(answers: Sequence[NDArray[np.int64]]) -> NDArray[np.float64]:
    """Return (E,) the accuracy in each episode, the mean over some models' answers (E, N, Q)."""
    return np.asarray(
        np.mean([episode_accuracies(model_answers) for model_answers in answers], axis=0)
    )
