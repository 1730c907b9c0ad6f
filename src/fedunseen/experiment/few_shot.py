"""How a few-shot run is measured: episodes of validation classes after every round, 600 test episodes in the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedunseen.core.errors import DataError, ExperimentError
from fedunseen.core.files import write_tensors
from fedunseen.core.parameters import Params, within
from fedunseen.core.random import stream
from fedunseen.data import Benchmark
from fedunseen.data.episodes import Episodes, Tasks, split, validation_samples
from fedunseen.engines import RoundResult
from fedunseen.evaluation.few_shot import episode_answers, nearest_support
from fedunseen.experiment.directory import RunDirectory, load_params
from fedunseen.experiment.federation import Federation, mean_terms
from fedunseen.experiment.summary import small
from fedunseen.methods.episodic import Episodic
from fedunseen.methods.maml import MAML
from fedunseen.methods.protonet import prototype_logits
from fedunseen.metrics import confidence, episode_accuracies

__all__ = ["FewShot"]

_BLOCK = 8  # episodes answered at once
_SHOWN_QUERIES = 6  # of each class of the episode that the report shows
_GRID = 120  # cells along a side of the plane of an episode
_POINTS = 200  # samples of each class in that plane


@dataclass(frozen=True, eq=False)
class Pool:
    """Episodes of some classes.

    Attributes:
        rows: (n,) the samples that they are made of: their positions in the benchmark.
        episodes: fixed by the run's seed.
    """

    rows: NDArray[np.int64]
    episodes: Episodes

    def first(self, count: int, start: int = 0, step: int = 1) -> Pool:
        """Return some of its first ``count`` episodes: from ``start`` on every ``step``-th."""
        chosen, e = slice(start, count, step), self.episodes
        return Pool(self.rows, Episodes(e.index[chosen], e.classes[chosen], e.quarters[chosen], e.shots))


@dataclass(frozen=True, eq=False)
class FewShot:
    """Judges the rounds of a few-shot run.

    Attributes:
        federation: of the run.
        method: its method.
        watched: the episodes after every round.
        of: what they are of: ``validation`` or ``test``.
        tests: the test episodes.
        base: test episodes of the training classes, if the benchmark has such samples.
        final: the chosen model's (E, N, Q) answers to the test episodes, of several models each one's; once measured.
    """

    federation: Federation
    method: Episodic
    watched: Pool
    of: str
    tests: Pool
    base: Pool | None
    final: list[NDArray[np.int64]] = field(default_factory=list)

    @staticmethod
    def make(federation: Federation, benchmark: Benchmark) -> FewShot:
        """Draw the episodes.

        Args:
            federation: its benchmark is :func:`~fedunseen.data.episodes.for_episodes` of the other.
            benchmark: with its validation classes.

        Raises:
            ExperimentError: there are no validation classes to choose on.
            DataError: too few classes have enough samples.
        """
        method = federation.method
        assert isinstance(method, Episodic)
        evaluation, seed = federation.experiment.evaluation, federation.experiment.run.seed

        def pool(purpose: str, rows: NDArray[np.int64], count: int) -> Pool:
            rng = stream(seed, f"episodes {purpose}")
            try:
                return Pool(rows, method.draw(benchmark.labels[rows], count, rng, training=False))
            except DataError as error:
                raise DataError(
                    f"{benchmark.name}, {purpose} classes: {error}: lower method.ways, or shots and queries"
                ) from None

        tests = pool("test", benchmark.test_unseen, evaluation.episodes)
        base = None
        if len(federation.benchmark.test_seen):
            base = pool("training", federation.benchmark.test_seen, evaluation.validation_episodes)
        if evaluation.selection != "validation":
            return FewShot(federation, method, tests.first(evaluation.validation_episodes), "test", tests, base)
        rows = validation_samples(benchmark)
        if not len(rows):
            raise ExperimentError(
                f"{benchmark.name} has no validation classes to choose the round on: set evaluation.selection = 'last'"
            )
        watched = pool("validation", rows, evaluation.validation_episodes)
        return FewShot(federation, method, watched, "validation", tests, base)

    def answers(self, params: Params, pool: Pool) -> NDArray[np.int64]:
        """Return (E, N, Q) a model's answers to the queries of a pool's episodes."""
        return self._answers(lambda tasks: self.method.classify(params, tasks), pool)

    def _answers(
        self, classify: Callable[[Tasks], Tensor], pool: Pool, inputs: Tensor | None = None
    ) -> NDArray[np.int64]:
        inputs = self.federation.inputs if inputs is None else inputs
        with torch.no_grad():
            return episode_answers(classify, inputs, pool.rows, pool.episodes, _BLOCK)

    def _raw(self) -> Tensor:
        """Return the samples as they were before a frozen encoder made features of them."""
        pictures = self.federation.benchmark.pictures
        return self.federation.inputs if pictures is None else torch.from_numpy(pictures)

    def _every_answer(self, models: Sequence[Params], pool: Pool) -> list[NDArray[np.int64]]:
        return [self.answers(model, pool) for model in models]

    def measure(
        self, round: int, result: RoundResult, models: Sequence[Params], client_states: dict[int, Params]
    ) -> dict[str, Any]:
        """Measure the merged model; where every client keeps its own, each on its share of the episodes."""
        count = len(self.watched.episodes)
        parts = [
            episode_accuracies(self.answers(model, self.watched.first(count, k, len(models))))
            for k, model in enumerate(models[:count])
        ]
        accuracy, half = confidence(np.concatenate(parts))
        replies = result.replies
        return {
            "round": round + 1,
            "few_shot": accuracy,
            "few_shot_ci95": half,
            "episodes_of": self.of,
            "losses": mean_terms(self.federation.engine.strategy.reply_weights(replies), replies),
            "participants": [reply.client for reply in replies],
            "bytes_down": result.bytes_down,
            "bytes_up": result.bytes_up,
        }

    def observe(self, directory: RunDirectory, round: int, result: RoundResult, kept: bool) -> None:
        """Write the plane of an episode after some rounds: ``plane/round-N.safetensors``."""
        experiment = self.federation.experiment
        if round + 1 in (*experiment.evaluation.boundaries, experiment.strategy.rounds):
            plane = self.plane(result.params) if self.federation.engine.strategy.merges else None
            if plane is not None:
                write_tensors(directory.path / "plane" / f"round-{round + 1}.safetensors", plane)

    def merit(self, line: Mapping[str, Any]) -> tuple[float, float]:
        """Order rounds by their accuracy."""
        return (line["few_shot"], 0.0)

    def numbers(self, line: Mapping[str, Any], model_path: Path) -> dict[str, Any]:
        """Measure the chosen model, and the baselines, on the test episodes.

        Returns:
            ``few_shot`` and ``few_shot_ci95``, in percent; ``few_shot_base`` on unseen samples of training classes,
            where there are some; ``few_shot_pixels`` of the nearest support sample as the samples are;
            ``few_shot_random`` of the nearest class mean of the features before training; what was watched.
        """
        models = self.models_of(load_params(model_path, self.federation.device))
        self.final[:] = self._every_answer(models, self.tests)
        accuracy, half = confidence(_mean_accuracies(self.final))
        found: dict[str, Any] = {"few_shot": accuracy, "few_shot_ci95": half}
        if self.base is not None:
            base = _mean_accuracies(self._every_answer(models, self.base))
            found["few_shot_base"], found["few_shot_base_ci95"] = confidence(base)
        ways = self.method.config.ways
        pixels = self._answers(nearest_support(ways), self.tests, self._raw())
        found["few_shot_pixels"], found["few_shot_pixels_ci95"] = confidence(episode_accuracies(pixels))
        random = self._answers(self._untrained, self.tests)
        found["few_shot_random"], found["few_shot_random_ci95"] = confidence(episode_accuracies(random))
        found[f"few_shot_{self.of}"] = line["few_shot"]
        found["test_episodes"] = len(self.tests.episodes)
        return found

    @staticmethod
    def models_of(stored: Params) -> list[Params]:
        """Return the models that a run has written: the merged one, or every client's own."""
        clients = sorted({int(name.split("/")[1]) for name in stored if name.startswith("client/")})
        return [within(f"client/{k}/", stored) for k in clients] or [stored]

    def _untrained(self, tasks: Tasks) -> Tensor:
        """Answer by the nearest class mean of the features before training."""
        first, backbone, ways = self.federation.first, self.method.backbone, self.method.config.ways
        each = [
            prototype_logits(backbone(first, s, training=True), backbone(first, q, training=True), ways)
            for s, q in zip(*tasks, strict=True)
        ]
        return torch.stack(each)

    def summary(self) -> dict[str, NDArray[Any]]:
        """Return what the report draws, once :meth:`numbers` has measured the chosen model.

        Returns:
            ``client_counts`` (K, C); ``episode_accuracies`` (E,) in percent, in each test episode, the mean over models
            if there are several; of one ``labels`` and ``answers`` (m,): of every query of the test episodes its class
            and the class that was answered; for images the first test episode: ``support_images`` (N, P, h, w[, 3]) and
            ``query_images`` (N, q, h, w[, 3]) in [0, 1], ``query_answers`` (N, q), ``episode_classes`` (N,).
        """
        federation, e = self.federation, self.tests.episodes
        classes = len(federation.benchmark.space.names)
        tensors: dict[str, NDArray[Any]] = {
            "client_counts": federation.partition.counts(federation.benchmark.labels, classes),
            "episode_accuracies": _mean_accuracies(self.final),
        }
        if len(self.final) > 1:
            return tensors
        (answers,) = self.final
        episode = np.arange(len(e))[:, None, None]
        tensors["labels"] = np.broadcast_to(e.classes[:, :, None], answers.shape).ravel()
        tensors["answers"] = e.classes[episode, answers].ravel()
        images = federation.benchmark.images()
        if images is not None:
            first = self.tests.rows[e.index[0]]
            shown = np.stack([[small(images[one]) for one in row] for row in first])
            q = min(_SHOWN_QUERIES, shown.shape[1] - e.shots)
            tensors |= {
                "support_images": shown[:, : e.shots],
                "query_images": shown[:, e.shots : e.shots + q],
                "query_answers": answers[0, :, :q],
                "episode_classes": e.classes[0],
            }
        return tensors

    def plane(self, params: Params) -> dict[str, NDArray[Any]] | None:
        """Return the plane of two features after adaptation to the first test episode (FedFSL, Fig. 6), if it is one.

        Returns:
            ``points`` (n, 2) and ``labels`` (n,) of samples of its classes, ``classes`` (N,), ``grid`` (G, G) the
            answer at each cell (rows from low to high in the second feature), ``low`` and ``high`` (2,) its corners,
            and ``accuracy`` (), in percent, on the points. None where there is no such plane.
        """
        method, e = self.method, self.tests.episodes
        if not isinstance(method, MAML) or method.backbone.shape != (2,):
            return None
        inputs, rows = self.federation.inputs, self.tests.rows
        labels = self.federation.benchmark.labels[rows]
        support = split(inputs[torch.from_numpy(rows[e.index[:1]]).to(inputs.device)], e.shots).support[0]
        adapted = method.adapted(params, support, "none", steps=method.maml.test_steps)
        others = np.ones(len(labels), dtype=bool)
        others[e.index[0, :, : e.shots]] = False  # the examples it has learnt from would flatter it
        chosen = np.concatenate([np.flatnonzero((labels == c) & others)[:_POINTS] for c in e.classes[0]])
        with torch.no_grad():
            points = method.backbone(adapted, inputs[torch.from_numpy(rows[chosen]).to(inputs.device)], training=True)
            low, high = points.amin(0), points.amax(0)
            margin = 0.05 * (high - low).clamp_min(1e-6)
            low, high = low - margin, high + margin
            steps = torch.linspace(0, 1, _GRID, device=points.device)
            sides = [low[i] + steps * (high[i] - low[i]) for i in (0, 1)]
            x, y = torch.meshgrid(*sides, indexing="xy")
            grid = method.answer_features(adapted, torch.stack([x.flatten(), y.flatten()], 1)).argmax(1)
            answered = method.answer_features(adapted, points).argmax(1).cpu().numpy()
        right = e.classes[0][answered] == labels[chosen]
        return {
            "points": points.cpu().numpy(),
            "labels": labels[chosen],
            "classes": e.classes[0],
            "grid": grid.reshape(_GRID, _GRID).cpu().numpy(),
            "low": low.cpu().numpy(),
            "high": high.cpu().numpy(),
            "accuracy": np.array(100 * right.mean()),
        }


def _mean_accuracies(answers: Sequence[NDArray[np.int64]]) -> NDArray[np.float64]:
    """Return (E,) the accuracy in each episode, the mean over some models' answers (E, N, Q)."""
    return np.asarray(np.mean([episode_accuracies(one) for one in answers], axis=0))
