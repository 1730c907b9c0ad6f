"""Any-shot: classes that are described, shown by examples, or both, at any time after training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedunseen.core.errors import DataError
from fedunseen.core.parameters import Params
from fedunseen.core.random import stream
from fedunseen.data.names import lookalike
from fedunseen.evaluation.summary import EXAMPLES, weak_unseen
from fedunseen.methods.closed_form.gaussian import Gaussian
from fedunseen.methods.closed_form.shown import counted_as, worth
from fedunseen.methods.closed_form.statistics import few_threads
from fedunseen.metrics import per_class
from fedunseen.model import Classes, ClassSum, Examples, Model, Prediction, Question, Rows
from fedunseen.tasks import zero_shot

_BLOCK = 64  # samples scored at once: images may take much memory on their way
_SHOTS = (0, 1, 2, 5, 10, 20)  # examples of each unseen class in the report's curve
_DRAWS = 5  # of examples, in that curve
_NUMBERS = 2**22  # of sums and scores at once, to bound memory
_SUPPORTING = 5  # classes named beside each prototype


class AnyShotEvaluator(zero_shot.ZeroShotEvaluator):
    """Also measures what a few examples of the unseen classes would add."""

    def summary(self, params: Params, result: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
        """Return what zero-shot runs draw, and what examples of unseen classes add."""
        tensors = super().summary(params, result)
        method = self.federation.method
        benchmark = self.benchmark
        if (
            not self.federation.strategy.one_model
            or not isinstance(method, Gaussian)
            or "count" not in params
        ):
            return tensors
        observed = torch.nonzero(params["count"] > 0)[:, 0].cpu().numpy()
        weights = method.support(params, method.semantics).cpu().numpy()
        best = np.argsort(-np.abs(weights), axis=1, kind="stable")[:, :_SUPPORTING]
        tensors |= {
            "prototype_deviation": params["variance"].sqrt().cpu().numpy(),
            "support_classes": observed[best],
            "support_weights": np.take_along_axis(weights, best, axis=1),
        }
        rows = benchmark.test_unseen
        with torch.no_grad():
            parts = [
                method.backbone(params, inputs).double().cpu()
                for inputs in self.federation.batches(rows)
            ]
        rng = stream(self.federation.seed, "examples of unseen classes")
        features = torch.cat(parts)
        labels = benchmark.labels[rows]
        with few_threads(method.width):
            tensors |= curve(method, params, features, labels, _SHOTS, rng)
            loses = weak_unseen(tensors, self.benchmark.space.names, self.benchmark.space.unseen)[1]
            if loses and EXAMPLES in tensors["curve_shots"]:
                tensors |= self._among_all(
                    params, features, labels, float(result["calibration_factor"])
                )
        return tensors

    def _among_all(
        self, params: Params, features: Tensor, labels: NDArray[np.int64], offset: float
    ) -> dict[str, NDArray[np.float64]]:
        """Measure U and S (draws,) after ``EXAMPLES`` examples of each unseen class, which are left
        out of the test, and the accuracy of each unseen class (classes,).

        Args:
            params: the model.
            features: (n, d) of test samples of unseen classes.
            labels: (n,) their classes.
            offset: what the scores of seen classes are lowered by.
        """
        method = self.federation.method
        assert isinstance(method, Gaussian)
        space = self.benchmark.space
        candidates = torch.from_numpy(np.sort(np.concatenate([space.seen, space.unseen])))
        lowered = offset * torch.from_numpy(np.isin(candidates.numpy(), space.seen)).double()
        rng = stream(self.federation.seed, "examples beside seen classes")
        classes = np.unique(labels)
        count = torch.zeros(len(params["count"]), dtype=torch.float64)
        count[torch.from_numpy(classes)] = float(EXAMPLES)
        draws = max(1, min(_DRAWS, _NUMBERS // params["bias"].numel() // features.shape[1]))
        tested = np.ones((draws, len(labels)))
        total = torch.zeros(draws, *params["weight"].shape, dtype=torch.float64)
        for place in range(draws):
            order = [rng.permutation(np.flatnonzero(labels == c))[:EXAMPLES] for c in classes]
            rows = np.concatenate(order)
            tested[place, rows] = 0.0
            total[place].index_add_(0, torch.from_numpy(labels[rows]), features[rows])
        each = worth(params)  # all are of unseen classes
        extended = method.extend(
            params, method.semantics, each * count, each * total, offset=offset
        )

        def answered(rows: Tensor) -> NDArray[np.int64]:
            scores = _scores(extended, rows, candidates) - lowered
            return np.asarray(candidates[scores.argmax(-1)])

        of_seen = self.benchmark.test_seen
        blocks = [answered(block) for block in torch.split(features, _BLOCK)]
        with torch.no_grad():
            others = [
                answered(method.backbone(params, inputs).double().cpu())
                for inputs in self.federation.batches(of_seen)
            ]
        truth = self.benchmark.labels[of_seen]
        seen = [per_class(truth, said, np.unique(truth)) for said in np.concatenate(others, 1)]
        unseen = [
            per_class(labels[rows], said[rows], classes)
            for said, rows in zip(np.concatenate(blocks, 1), tested > 0, strict=True)
        ]
        return {
            "examples_unseen": np.mean(unseen, axis=1),
            "examples_each": np.mean(unseen, axis=0),
            "examples_seen": np.mean(seen, axis=1),
        }


class AnyShotPredictor(zero_shot.ZeroShotPredictor):
    """Ranks classes by descriptions, by examples, or by both."""

    @classmethod
    def predict(cls, model: Model, question: Question) -> list[list[Prediction]]:
        """Rank classes; those of ``question.examples`` are learned first, for this question
        alone.
        """
        if question.examples is None:
            return super().predict(model, question)
        learned = cls.learn(model, question.classes, question.examples)
        space = learned.space
        method = model.method
        assert isinstance(method, Gaussian)
        described = zero_shot.added_classes(model.space, question.classes)
        names = {
            *question.examples,
            *(
                name
                for name, is_described in zip(described[0], described[3], strict=True)
                if is_described
            ),
        }
        seen = learned.seen_mask
        allowed = zero_shot.candidates(
            question, seen, np.array([name in names for name in space.names])
        )
        rows = model.scaled(question.read())
        with torch.no_grad():
            blocks = [
                method.known_scores(learned.params, part) for part in torch.split(rows, _BLOCK)
            ]
        scores = learned.calibration(torch.cat(blocks).numpy(), seen)
        return zero_shot.ranked(learned, space.names, scores, seen, allowed, question.top)

    @classmethod
    def learn(cls, model: Model, classes: Classes | None, examples: Examples | None) -> Model:
        """Add classes, or add to classes: descriptions, examples, or both."""
        if (
            "described" not in model.params
        ):  # the automatic choice was a closed form that cannot take examples
            return super().learn(model, classes, examples)
        method = model.method
        assert isinstance(method, Gaussian)
        names, semantics, _, _ = zero_shot.added_classes(model.space, classes)
        examples = examples or {}
        before = len(names)
        for name in examples:
            if name not in names:
                if similar := lookalike(name, names):
                    raise DataError(
                        f"the examples are of {name!r}, and there is a class {similar!r}: name the "
                        f"folder {similar!r} if they are the same, and otherwise something else"
                    )
                names.append(name)
        described = np.ones(len(names), dtype=bool)
        described[before:] = False
        flags = model.params["described"].cpu().numpy() > 0
        again = (semantics[: len(flags)] != model.space.semantics).any(axis=1)  # described since
        described[: len(flags)] = flags | again
        shown = np.zeros((len(names) - before, model.space.attributes))
        space = zero_shot.expand_space(
            model.space, names, np.concatenate([semantics, shown]), np.flatnonzero(~described)
        )
        count = torch.zeros(len(names), dtype=torch.float64)
        total = torch.zeros(len(names), method.width).double()
        for name, class_examples in examples.items():
            class_sum = (
                class_examples
                if isinstance(class_examples, ClassSum)
                else summed(model, method, name, class_examples)
            )
            place = names.index(name)
            count[place] = class_sum.count
            total[place] = class_sum.total
        shows = bool(examples) or "raised" in model.params
        offset = model.calibration.offset if shows else None
        counted = counted_as(model.params, count, total)
        params = method.extend(
            model.params, model.described(space.semantics), *counted, described, offset
        )
        return model.with_classes(space, params)


class AnyShot(zero_shot.ZeroShot):
    """Recognizes classes by descriptions, by examples, or by both."""

    name = "any-shot"
    evaluator = AnyShotEvaluator
    predictor = AnyShotPredictor


def summed(model: Model, method: Gaussian, name: str, rows: Rows) -> ClassSum:
    """Return the sum of a class's samples (n, ...), as the method takes them."""
    with torch.no_grad():
        features = method.backbone(model.params, model.scaled(rows)).double()
    if not bool(torch.isfinite(features).all()):
        raise DataError(
            f"the examples of {name!r} hold numbers that are not finite: leave those out"
        )
    return ClassSum(len(features), features.sum(0))


def curve(
    method: Gaussian,
    params: Params,
    features: Tensor,
    labels: NDArray[np.int64],
    shots: Sequence[int],
    rng: np.random.Generator,
) -> dict[str, NDArray[np.float64]]:
    """Measure the accuracy among unseen classes after some examples of each, which are left out of
    the test.
    """
    classes, counts = np.unique(labels, return_counts=True)
    shots = [k for k in shots if k < counts.min()] if len(classes) > 1 else []
    result = {
        f"curve_{kind}": np.full((len(shots), _DRAWS), np.nan)
        for kind in ("both", "examples", "nearest")
    }
    total_classes = len(params["count"])
    width = features.shape[1]
    ids = torch.from_numpy(classes)
    undescribed = np.isin(np.arange(total_classes), classes, invert=True)
    forgotten = params | {"described": params["described"].index_fill(0, ids, 0.0)}
    each = worth(params)  # all are of unseen classes
    at_once = max(1, _NUMBERS // (total_classes * width + len(labels) * len(classes)))
    for draws in np.split(np.arange(_DRAWS), range(at_once, _DRAWS, at_once)):
        orders = [[rng.permutation(np.flatnonzero(labels == c)) for c in classes] for _ in draws]
        for place, k in enumerate(shots):
            shown = np.array(
                [np.concatenate([class_rows[:k] for class_rows in order]) for order in orders]
            )
            tested = np.ones((len(draws), len(labels)))
            np.put_along_axis(tested, shown, 0.0, axis=1)
            if not k:
                result["curve_both"][place, draws] = _accuracies(
                    _scores(params, features, ids), labels, tested
                )
                continue
            count = torch.zeros(total_classes, dtype=torch.float64).index_fill(0, ids, float(k))
            total = torch.zeros(len(draws), total_classes, width, dtype=torch.float64)
            for sums, rows in zip(total, shown, strict=True):
                sums.index_add_(0, torch.from_numpy(labels[rows]), features[torch.from_numpy(rows)])
            counted = each * count, each * total
            extended = method.extend(params, method.semantics, *counted)
            alone = method.extend(forgotten, method.semantics, *counted, undescribed)
            for kind, scores in (
                ("both", _scores(extended, features, ids)),
                ("examples", _scores(alone, features, ids)),
                ("nearest", -torch.cdist(features, total[:, ids] / k)),
            ):
                result[f"curve_{kind}"][place, draws] = _accuracies(scores, labels, tested)
    return {"curve_shots": np.array(shots, dtype=np.float64), **result}


def _scores(model: Params, features: Tensor, ids: Tensor) -> Tensor:
    """Return (..., n, k) the scores of some classes."""
    weight = model["weight"][..., ids, :]
    bias = model["bias"][..., None, ids]
    return (features - model["centre"]) @ weight.mT + bias


def _accuracies(
    scores: Tensor, labels: NDArray[np.int64], tested: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return (draws,) the mean accuracy of classes in percent, where ``tested`` (draws, n) is 1."""
    classes, truth = np.unique(labels, return_inverse=True)
    member = (truth[:, None] == np.arange(len(classes))).astype(np.float64)
    right = tested * (scores.argmax(-1).numpy() == truth)
    mean: NDArray[np.float64] = (100.0 * (right @ member) / (tested @ member)).mean(1)
    return mean
