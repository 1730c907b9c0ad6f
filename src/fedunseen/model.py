"""A trained model: classes, method, parameters, scalings and calibration, and everything that is
asked of it.

A run, a classifier with scikit-learn's interface, the service and an export each hold one. Samples
come in as arrays, before scaling; reading files is the run's work.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedunseen.confidence import Confidence, Prior
from fedunseen.confidence.confidence import log_lengths
from fedunseen.confidence.counted import fit_counts
from fedunseen.confidence.explanation import Asked, Explanation
from fedunseen.confidence.places import split_places
from fedunseen.confidence.priors import asked_unseen
from fedunseen.core.array_cache import content_digest
from fedunseen.core.errors import (
    ArgumentError,
    DataError,
    ExperimentError,
    FedUnseenError,
    unknown,
)
from fedunseen.core.model_file import Content, read_model_file, refusing_damage, write_model_file
from fedunseen.core.parameters import Params, of_each_client, under, within
from fedunseen.core.registry import find
from fedunseen.data import ClassSpace, Scaler, fit_semantics
from fedunseen.encoders.backbone import Backbone, Encoder, Output, make_backbone
from fedunseen.encoders.hub import local_files_only
from fedunseen.methods import Candidates, Method
from fedunseen.methods.closed_form.base import ClosedForm
from fedunseen.methods.closed_form.shown import mostly_shown
from fedunseen.methods.closed_form.unlabelled import Adaptation, Adapted, adapt, adaptable
from fedunseen.methods.episodic import Episodic
from fedunseen.metrics import lowered
from fedunseen.plans import StatisticsPlan, exact_method
from fedunseen.statistics import without_party
from fedunseen.strategies.summed import added

_BLOCK = 4096  # samples scored at once
_WIDEST = 2**26  # numbers of a sample that a file may ask for
_ALIGNED = 64  # bytes; PyTorch allocates so
_SPLITS = ("seen", "validation", "unseen", "undescribed")

Rows = NDArray[Any]
"""(n, ...) samples as the model takes them, before scaling: (n, d) features, or (n, channels,
height, width).
"""

Classes = str | Path | Mapping[str, Sequence[float]]
"""Classes and their attributes: a CSV file (name, attributes...) or ``{name: attributes}``."""


Scores = TypeVar("Scores", NDArray[Any], Tensor)


class Prediction(NamedTuple):
    """One class of a ranking.

    Attributes:
        name: of the class.
        score: in the method's own units; those of seen classes are lowered by the offset.
        probability: how probable the class is among those that compete, from 0 to 1.
    """

    name: str
    score: float
    probability: float = float("nan")


@dataclass(frozen=True, eq=False)
class ClassSum:
    """The sufficient statistics of one class's samples.

    Attributes:
        count: how many samples.
        total: (d,) the sum of their features, as the method takes them.
    """

    count: float
    total: Tensor


Examples = Mapping[str, Rows | ClassSum]
"""Class name -> its examples, or the sum of them."""


@dataclass(frozen=True, eq=False)
class Question:
    """What a model is asked.

    Attributes:
        read: returns the samples; called once the rest of the question makes sense.
        classes: classes to add, or to replace by name.
        examples: examples of classes.
        top: how many classes of each ranking, None for all.
        among: which classes are ranked: ``all``, ``unseen`` ones, or only the ``given`` ones.
    """

    read: Callable[[], Rows]
    classes: Classes | None = None
    examples: Examples | None = None
    top: int | None = None
    among: str = "all"


@dataclass(frozen=True)
class Calibration:
    """What is done to scores before classes are compared.

    Attributes:
        offset: what the scores of seen classes are lowered by, in the method's own units.
    """

    offset: float = 0.0

    def __call__(self, scores: Scores, seen: Any) -> Scores:
        """Return scores (n, C) that can be compared; ``seen`` (C,): classes with training
        samples.
        """
        calibrated: Scores = lowered(scores, seen, self.offset)
        return calibrated


def softmax(scores: NDArray[Any]) -> NDArray[np.float64]:
    """Return the softmax of finite scores (..., C).

    Raises:
        DataError: a score is not finite.
    """
    if not np.isfinite(scores).all():
        raise DataError("the model's scores of a sample are not finite: its numbers are too large")
    odds = np.exp(scores.astype(np.float64) - scores.max(-1, keepdims=True, initial=-np.inf))
    return np.asarray(odds / odds.sum(-1, keepdims=True))


@dataclass(frozen=True, eq=False)
class Model:
    """A trained model.

    Attributes:
        space: its classes: names, semantics (C, attributes), which are seen.
        method: how a class is scored, made for these classes.
        params: of the method; of a closed form, its solution.
        scaler: scales features.
        semantics_scaler: scales semantics.
        calibration: what makes scores of seen and unseen classes comparable.
        seed: what the classifiers of a generative method depend on.
        pooled: all training data lay in one place, so that such classifiers saw real samples of
            seen classes.
        features_from: which frozen encoder made the features: its ``name``, and the SHA-256
            (``digest``) and sizes (``files``) of its weights, which no model holds. None: no
            encoder did.
        statistics: of a closed form, each party's, under ``client/K/``, for :meth:`forget`; empty
            where they are not kept, and after classes or samples came in.
        confidence: what held-out samples say of its answers; None: nothing was held out.
    """

    space: ClassSpace
    method: Method
    params: Params
    scaler: Scaler
    semantics_scaler: Scaler
    calibration: Calibration = Calibration()
    seed: int = 0
    pooled: bool = False
    features_from: Mapping[str, Any] | None = None
    statistics: Params = field(default_factory=dict)
    confidence: Confidence | None = None

    def __post_init__(self) -> None:
        """Lay out parameters as a file's are once they are read: products round by alignment."""
        object.__setattr__(self, "params", {n: _laid_out(v) for n, v in self.params.items()})

    @property
    def method_name(self) -> str:
        """The method's name in the experiment."""
        return str(self.method.settings.name)

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """The shape of one sample as the model takes it."""
        return self.scaler.sample_shape(self.method.backbone.input_shape)

    @property
    def seen_mask(self) -> NDArray[np.bool_]:
        """(C,) which classes have training samples."""
        return np.isin(np.arange(len(self.space.names)), self.space.seen)

    @property
    def shown_mask(self) -> NDArray[np.bool_]:
        """(C,) which classes have training samples, or examples that say more than descriptions:
        probabilities and sets take these for seen.
        """
        shown = mostly_shown(self.params).numpy()
        return self.seen_mask | shown if len(shown) else self.seen_mask

    def scaled(self, rows: Rows) -> Tensor:
        """Return samples (n, ...) as the method takes them: vectors are scaled."""
        return torch.from_numpy(self.scaler(rows) if rows.ndim == 2 else rows)

    def described(self, semantics: NDArray[np.float64]) -> Tensor:
        """Return the semantics (C, attributes) of classes as the method takes them."""
        return torch.from_numpy(self.semantics_scaler(semantics))

    def raw_scores(self, rows: Rows, described: Tensor, seen: bool = True) -> NDArray[Any]:
        """Return scores (n, C) of classes before calibration.

        Args:
            rows: (n, ...) samples.
            described: (C, attributes) scaled semantics; the model's own classes come first.
            seen: seen classes compete, too.
        """
        score = self.method.scores if seen else self.method.unseen_scores
        samples = self.scaled(rows)
        with torch.no_grad():
            scores = [score(self.params, part, described) for part in torch.split(samples, _BLOCK)]
            return (torch.cat(scores) if len(scores) > 1 else scores[0]).numpy()

    def scores(self, rows: Rows) -> NDArray[Any]:
        """Return the calibrated scores (n, C) of the model's classes; the largest one is the
        answer.
        """
        return self.calibration(self.raw_scores(rows, self.method.semantics), self.seen_mask)

    def probabilities(self, rows: Rows) -> NDArray[np.float64]:
        """Return how probable (n, C) each of the model's classes is; a row adds up to 1.

        With a ``confidence``, of answers with the probability p a share p is right
        (:meth:`fedunseen.confidence.Confidence.probabilities`). Without one it is the softmax of
        :meth:`scores`, which says how classes share 100 % and not how often an answer is right.
        """
        return self.chances(self.scores(rows), ~self.shown_mask)

    def chances(self, scores: NDArray[Any], unseen: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Return the probabilities (n, T) of any candidates.

        Args:
            scores: (n, T) calibrated scores.
            unseen: (T,) bool, which candidates are not in :attr:`shown_mask`.

        Raises:
            DataError: a score is not finite.
        """
        if self.confidence is None or not np.isfinite(scores).all():
            return softmax(scores)
        return self.confidence.probabilities(scores.astype(np.float64), unseen)

    def predict_set(self, rows: Rows, coverage: float = 0.9) -> NDArray[np.bool_]:
        """Return (n, C) which classes cannot be ruled out.

        What is promised: :meth:`fedunseen.confidence.Confidence.sets`.

        Raises:
            ArgumentError: the coverage is not between 0 and 1.
            ExperimentError: the model has no confidence.
        """
        confidence = self.checked_confidence()
        scores = self.scores(rows).astype(np.float64)
        return confidence.sets(scores, ~self.shown_mask, coverage)

    def unfamiliar(self, rows: Rows) -> NDArray[np.float64]:
        """Return (n,) p-values: a small one says that a sample is unlike all known ones.

        Raises:
            ExperimentError: the model has no confidence, or its method has no distances.
        """
        confidence = self.checked_confidence()
        if "centre" in self.params and not len(confidence.distances):
            raise ExperimentError(
                "no distance of a held-out sample is known, so that no sample can be called "
                "unfamiliar: give more samples of each class, or take evaluation.confidence = "
                "'histograms' between machines",
                "no-distance",
            )
        distance = self.distance(rows) if self.finds_unfamiliar else None
        if distance is None:
            raise ExperimentError(
                f"method.name = {self.method_name!r} has no distance to what is known: use "
                "gaussian to be warned of unfamiliar samples",
                "no-distance",
            )
        return confidence.unfamiliar(distance)

    @property
    def finds_unfamiliar(self) -> bool:
        """Whether :meth:`unfamiliar` can be asked: only a Gaussian model has a ``centre``, from
        which samples have distances.
        """
        sure = self.confidence
        return sure is not None and len(sure.distances) > 0 and "centre" in self.params

    @property
    def explains(self) -> bool:
        """Whether :meth:`explain` can be asked."""
        method = self.method
        return (
            isinstance(method, ClosedForm)
            and type(method).discriminants is not ClosedForm.discriminants
        )

    def explain(
        self,
        rows: Rows,
        top: int | None = 3,
        classes: Sequence[str] | None = None,
        maps: NDArray[np.float32] | None = None,
    ) -> list[Explanation]:
        """Return why each sample gets its answer: which seen classes speak for it, which
        attributes, and which places of a picture.

        Args:
            rows: (n, ...) samples.
            top: how many seen classes and attributes are named, others as one part; None: all.
            classes: the class of each sample that is explained; None: its answer.
            maps: (n, channels, height, width) feature maps whose means over places are the samples,
                or the pixels that the samples list; None: no places are told apart, unless samples
                are maps themselves.

        Raises:
            ExperimentError: the method's scores are no sums over any of these.
            DataError: a class is unknown.
        """
        method = self.method
        if not (self.explains and isinstance(method, ClosedForm)):
            raise ExperimentError(
                f"method.name = {self.method_name!r} has scores that cannot be split: use "
                "gaussian, ridge, eszsl or sae for explanations",
                "no-explanation",
            )
        samples = self.scaled(rows)
        scores = self.scores(rows)
        answers = scores.argmax(1)
        if classes is not None:
            answers = np.array([self._place(name) for name in classes], dtype=np.int64)
        class_ids = torch.from_numpy(answers)
        linear = method.discriminants(self.params, samples, method.semantics, class_ids)
        offset = self.calibration.offset * self.seen_mask
        offset = offset + method.own_offset(self.params) * self.seen_mask
        if "raised" in self.params:  # scores of classes shown by examples, of a Gaussian model
            offset = offset - self.params["raised"].numpy()  # an offset lowers
        class_scores = scores[np.arange(len(answers)), answers].astype(np.float64)
        places = None
        if rows.ndim == 4:
            whole = rows.mean((2, 3), dtype=np.float64)
            places = split_places(rows, whole, Scaler((), {}), linear, class_scores)
        elif maps is not None and "kernel" not in self.scaler.steps:  # its features have no place
            places = split_places(maps, rows, self.scaler, linear, class_scores)
        return Asked(
            method,
            self.params,
            self.space.names,
            self.space.attribute_names if self.space.names_say_something else (),
            samples,
            answers,
            class_scores,
            offset[answers],
            places,
        ).explained(top)

    def _place(self, name: str) -> int:
        """Return the place of a class of the model."""
        if name not in self.space.names:
            raise DataError(unknown("class", name, self.space.names))
        return self.space.names.index(name)

    def checked_confidence(self) -> Confidence:
        """Return what was held out; raise an ExperimentError where nothing was."""
        if self.confidence is None and not self.method.zero_shot:
            raise ExperimentError(
                f"method.name = {self.method_name!r} has no calibrated probabilities, sets of "
                "classes or alarms: take a zero-shot method for these, such as gaussian",
                "not-calibrated",
            )
        if self.confidence is None:
            raise ExperimentError(
                "this model's answers were not compared with held-out samples, so that it has no "
                "calibrated probabilities: train it again from its samples, with at least three "
                "seen classes",
                "not-calibrated",
            )
        return self.confidence

    def distance(self, rows: Rows) -> NDArray[np.float64] | None:
        """Return (n,) how far samples are from the nearest prototype, and farther where their
        features are unusually short or long; None: there is no such distance.
        """
        if not isinstance(self.method, ClosedForm):
            return None
        sure = self.confidence
        with torch.no_grad():
            distances = [
                self.method.distances(self.params, part, self.method.semantics)
                for part in torch.split(self.scaled(rows), _BLOCK)
            ]
        parts = [part.double().numpy() for part in distances if part is not None]
        if not parts:
            return None
        distance = np.concatenate(parts)
        return distance if sure is None else sure.farther(distance, log_lengths(rows))

    def rank(
        self,
        rows: Rows,
        classes: Classes | None = None,
        top: int | None = None,
        among: str = "all",
        examples: Examples | None = None,
    ) -> list[list[Prediction]]:
        """Return for each sample its ranking of classes, best first; see :class:`Question`.

        Raises:
            DataError: a class or an example is wrong.
            ExperimentError: the method cannot do this.
        """
        return self.answer(Question(lambda: rows, classes, examples, top, among))

    def answer(self, question: Question) -> list[list[Prediction]]:
        """Return what :meth:`rank` does; the question reads its samples once the rest of it makes
        sense.
        """
        ranking: list[list[Prediction]] = self._predictor.predict(self, question)
        return ranking

    def learn(self, classes: Classes | None = None, examples: Examples | None = None) -> Model:
        """Return a model that has learned classes from descriptions, examples, or both; nothing is
        trained.

        Raises:
            DataError: there is nothing to learn, or a class or an example is wrong.
            ExperimentError: the method cannot learn so.
        """
        if classes is None and not examples:
            raise DataError("there is nothing to learn: give classes, examples, or both")
        learned: Model = self._predictor.learn(self, classes, examples)
        return learned.with_lengths_of(classes, examples)

    def with_lengths_of(self, classes: Classes | None, examples: Examples | None) -> Model:
        """Return the model that takes the lengths of the examples' features for usual.

        Where a class has come in by its description or as a sum, its samples may have any.
        """
        sure = self.confidence
        if sure is None:
            return self
        shown = [None] if classes else list((examples or {}).values())
        lengths = [log_lengths(np.asarray(rows)) for rows in shown if isinstance(rows, np.ndarray)]
        known = [values for values in lengths if values is not None]
        usual = sure.lengths_with(known) if len(known) == len(shown) else np.empty(0)
        return replace(self, confidence=replace(sure, lengths=usual))

    def adapted(
        self,
        pools: Sequence[Rows],
        among: str = "all",
        settings: Adaptation | None = None,
    ) -> tuple[Model, Adapted]:
        """Return the model adapted to unlabelled samples, and what each class got.

        Args:
            pools: the samples of each party.
            among: the classes that samples may be of: ``all``, or ``unseen`` ones alone.
            settings: how much samples count.

        Raises:
            ExperimentError: the method has no class means to adapt.
        """
        adaptable(self.method, self.params)
        rows = [self.scaled(pool) for pool in pools]
        adapted = adapt(
            self.method, self.params, rows, self.calibration.offset, settings or Adaptation(), among
        )
        offset = self.calibration.offset * adapted.offset_share
        model = replace(self, params=adapted.params, calibration=Calibration(offset), statistics={})
        return model.no_surer_than(self, pools), adapted

    def no_surer_than(self, before: Model, pools: Sequence[Rows]) -> Model:
        """Return the model with probabilities that are no larger, on average over samples spread
        over pools, than those of the model before.
        """
        if self.confidence is None:
            return self
        step = -(-sum(map(len, pools)) // _BLOCK)
        rows = np.concatenate([pool[:: max(1, step)] for pool in pools])
        stated = float(before.probabilities(rows).max(1).mean())
        scores = self.scores(rows).astype(np.float64)
        return replace(self, confidence=self.confidence.no_surer(stated, scores, ~self.shown_mask))

    def adapt(self, rows: Rows, among: str = "all") -> Model:
        """Return the model adapted to unlabelled samples (n, ...); see :meth:`adapted`."""
        return self.adapted([rows], among)[0]

    def with_classes(self, space: ClassSpace, params: Params) -> Model:
        """Return the model of another class space, whose first classes are this one's.

        Raises:
            DataError: the scalings leave a class only zeros.
        """
        scaling = fit_semantics(space, self.semantics_scaler.steps)
        method = type(self.method)(
            self.method.settings,
            space,
            torch.from_numpy(scaling(space.semantics)),
            self.method.backbone,
        )
        if isinstance(method, ClosedForm):
            method.quantization = self.scaler.quantization
        return replace(
            self,
            space=space,
            params=params,
            method=method,
            semantics_scaler=scaling,
            statistics={},
        )

    def forget(self, client: int, part: Params | None = None) -> Model:
        """Return the model without a party, or some of its samples, whose :attr:`statistics` are
        subtracted.

        It is exact: the parameters are those of the other samples alone. Classes without a sample
        become unseen. Scalings, quantization and calibration stay as they were fitted.

        Args:
            client: the place of the party.
            part: the statistics of some of its samples; None: all of them.

        Raises:
            FedUnseenError: the party's statistics are not here, or it is the only one.
            DataError: ``part`` was never among them.
            ExperimentError: the method is trained, or its sums are not whole numbers.
        """
        if self.method.trained:
            raise ExperimentError(
                f"method.name = {self.method_name!r} is trained, so that every party is in every "
                "parameter: train again without it"
            )
        parts = list(of_each_client(self.statistics).values())
        if not parts:
            raise FedUnseenError(
                "no sums of single parties are kept, only the model: train again without the "
                "party, or save the model with statistics=True beforehand",
                "no-statistics",
            )
        statistics, total = without_party(self.method, self.statistics, added(parts), client, part)
        return replace(self.solved(total), statistics=statistics)

    def solved(self, total: Params) -> Model:
        """Return the model of added statistics; classes without a sample become unseen."""
        seen = torch.nonzero(total["count"] > 0)[:, 0].numpy()
        remaining = replace(
            self.space,
            seen=seen,
            validation=np.intersect1d(self.space.validation, seen),
            unseen=np.setdiff1d(np.arange(len(self.space.names)), seen),
        )
        model = self.with_classes(remaining, self.params)
        among = Candidates(
            remaining.names, model.method.semantics, remaining.seen, remaining.unseen
        )
        return replace(model, params=model.method.fit_heads(total, among, self.seed))

    @property
    def sha256(self) -> str:
        """The digest of all that its answers depend on."""
        about, tensors = self.content()
        content = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
        for name, value in sorted(tensors.items()):
            content.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
            content.update(value.detach().cpu().contiguous().numpy().tobytes())
        return content.hexdigest()

    def with_params(self, params: Params, offset: float) -> Model:
        """Return the model with other parameters and another offset."""
        return replace(self, params=params, calibration=Calibration(offset), statistics={})

    def with_counts(
        self, counts: Params, scales: NDArray[np.float64], prior: Prior = "auto"
    ) -> Model:
        """Return the model with the confidence that follows from counted answers
        (:mod:`fedunseen.confidence.counted`).

        Raises:
            DataError: no answer was counted.
        """
        share = asked_unseen(prior, self.space)
        sure = fit_counts(counts, scales, share, self.method.width)
        if sure is None:
            raise DataError(
                "no answer was counted, since classes have too few samples: keep the model as it is"
            )
        return replace(self, confidence=sure)

    def plan_statistics(self, sample: Rows | None = None) -> StatisticsPlan:
        """Return what statistics for this model are of: see :meth:`fedunseen.Statistics.plan`."""
        if sample is not None:
            raise ArgumentError(
                "sample: a model's scaling and quantization are fixed: leave the sample out"
            )
        method = exact_method(self.method)
        return StatisticsPlan(method, self.scaler, replace(self, params={}, statistics={}))

    def save(self, path: str | Path, statistics: bool = False) -> None:
        """Write the model to one safetensors file, whole or not at all; nothing is pickled.

        Each party's :attr:`statistics` are in it only with ``statistics``.

        :meth:`load` scores with the same bits. Two things stay outside, named by their SHA-256:
        the weights of a frozen encoder, since a model takes features (``features_from``), and the
        files of a trained one that reads its architecture from them.
        """
        write_model_file(Path(path), *self.content(statistics))

    @classmethod
    def load(cls, path: str | Path, encoder: str | Path | None = None) -> Model:
        """Read a model that :meth:`save` wrote, or that of a saved classifier.

        Args:
            path: the file.
            encoder: where the files of a trained encoder are, if they were moved.

        Raises:
            DataError: there is no such file, it is not a model, it is damaged, or a later version
                wrote it; or the encoder's files are others than the model's.
        """
        content, tensors = read_model_file(Path(path))
        return cls.of_content(Path(path), content, tensors, encoder)

    def content(self, statistics: bool = False) -> Content:
        """Return what a file holds: :mod:`fedunseen.core.model_file` lists it."""
        space = self.space
        about: dict[str, Any] = {
            "method": self.method.settings.model_dump(mode="json"),
            "backbone": _backbone_content(self.method.backbone),
            "classes": {
                "names": list(space.names),
                "attributes": list(space.attribute_names),
                "groups": {name: list(ids) for name, ids in space.attribute_groups.items()},
                **{split: getattr(space, split).tolist() for split in _SPLITS},
            },
            "scaling": {
                "features": list(self.scaler.steps),
                "semantics": list(self.semantics_scaler.steps),
            },
            "calibration": {"offset": self.calibration.offset},
            "seed": self.seed,
            "pooled": self.pooled,
        }
        sure = self.confidence
        held = {} if sure is None else {k: torch.from_numpy(v) for k, v in sure.arrays().items()}
        answers = getattr(self.method, "answers", None)
        about |= {} if answers is None else {"answers": answers.tolist()}
        about |= {} if self.features_from is None else {"features_from": dict(self.features_from)}
        scaling = {name: torch.from_numpy(value) for name, value in self.scaler.statistics.items()}
        tensors = under("params/", self.params) | under("scaling/", scaling)
        tensors |= under("statistics/", self.statistics) if statistics else {}
        tensors |= under("confidence/", held)
        return about, tensors | {"semantics": torch.from_numpy(space.semantics)}

    @classmethod
    def of_content(
        cls,
        path: Path,
        content: Mapping[str, Any],
        tensors: Mapping[str, Tensor],
        encoder: str | Path | None = None,
    ) -> Model:
        """Return the model that the file at ``path`` holds; the rest is as for :meth:`load`."""
        with refusing_damage(path):
            model = cls.template(content, tensors, encoder)
            model.check()
        return model

    @classmethod
    def template(
        cls,
        content: Mapping[str, Any],
        tensors: Mapping[str, Tensor],
        encoder: str | Path | None = None,
    ) -> Model:
        """Return what :meth:`of_content` does, of which parameters may be missing; any error says
        that the content is damaged.
        """
        classes = content["classes"]
        space = ClassSpace(
            tuple(classes["names"]),
            tensors["semantics"].numpy(),
            tuple(classes["attributes"]),
            attribute_groups=classes["groups"],
            **{split: np.array(classes[split], dtype=np.int64) for split in _SPLITS},
        )
        steps = content["scaling"]
        statistics = {name: v.numpy() for name, v in within("scaling/", tensors).items()}
        scaler = Scaler(tuple(steps["features"]), statistics)
        scaling = fit_semantics(space, tuple(steps["semantics"]))
        method = _method_of(content, space, scaling, encoder)
        if isinstance(method, ClosedForm):
            method.quantization = scaler.quantization
        if isinstance(method, Episodic) and "answers" in content:
            method.answers = np.array(content["answers"], dtype=np.int64)
        offset = float(content["calibration"]["offset"])
        if not np.isfinite(offset):
            raise ValueError("the calibration offset is not finite")
        held = {name: v.numpy() for name, v in within("confidence/", tensors).items()}
        return cls(
            space,
            method,
            within("params/", tensors),
            scaler,
            scaling,
            Calibration(offset),
            int(content["seed"]),
            bool(content["pooled"]),
            content.get("features_from"),
            within("statistics/", tensors),
            Confidence.of_arrays(held) if held else None,
        )

    def check(self) -> None:
        """Score one sample, which fails where parameters do not go with method and classes."""
        if isinstance(self.method, ClosedForm):
            for name, value in self.params.items():
                if not (value.is_floating_point() and bool(value.isfinite().all())):
                    raise ValueError(f"the parameter {name!r} has numbers that are not finite")
            self.method.check_model(self.params)
        if (numbers := math.prod(self.sample_shape)) > _WIDEST:
            raise ValueError(f"a sample would have {numbers:,} numbers")
        sample = np.zeros((1, *self.sample_shape), dtype=np.float32)
        if isinstance(self.method, Episodic):
            with torch.no_grad():
                self.method.represent(self.params, self.scaled(sample))
            return
        shape = self.raw_scores(sample, self.method.semantics).shape
        if shape != (1, len(self.space.names)):
            raise ValueError(f"it has scores of {shape[-1]} classes, not {len(self.space.names)}")

    @property
    def _predictor(self) -> Any:
        """What ranks and learns classes for the method's task."""
        return find("task", self.method.task).predictor


def _laid_out(value: Tensor) -> Tensor:
    """Return a tensor without gaps that begins where allocated memory does."""
    if value.is_contiguous() and value.data_ptr() % _ALIGNED == 0:
        return value
    return value.clone(memory_format=torch.contiguous_format)


def _backbone_content(backbone: Backbone) -> dict[str, Any]:
    """Return what a file says of what turns samples into features."""
    encoder = backbone.encoder
    about: dict[str, Any] = {"input_shape": list(backbone.input_shape), "encoder": None}
    if encoder is not None:
        files = encoder.files()
        about["encoder"] = {
            "settings": encoder.settings.model_dump(mode="json"),
            "image_shape": list(encoder.image_shape),
            "files": content_digest(files) if files else None,
        }
    return about


def _method_of(
    content: Mapping[str, Any], space: ClassSpace, scaling: Scaler, encoder: str | Path | None
) -> Method:
    """Return the method of a file, made for its classes."""
    settings = content["method"]
    kind = find("method", settings["name"])
    saved = content["backbone"]
    shape = saved["input_shape"]
    if not shape or not all(type(length) is int and length > 0 for length in shape):
        raise ValueError("the shape of a sample must be a list of whole numbers above 0")
    for key, value in settings.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"method.{key} is not finite")
    trained = None
    if saved["encoder"] is not None or encoder is not None:
        trained = _encoder_of(saved["encoder"], kind.takes, encoder)
    with local_files_only():
        method: Method = kind(
            kind.Settings.model_validate(settings),
            space,
            torch.from_numpy(scaling(space.semantics)),
            make_backbone(trained, shape, kind.takes),
        )
    return method


def _encoder_of(
    saved: Mapping[str, Any] | None, takes: Output, place: str | Path | None
) -> Encoder | None:
    """Return the trained encoder of a file, with the files that the model had; None without one."""
    if saved is None or saved["files"] is None:
        if place is not None:
            raise DataError(f"encoder: {place}: this model needs no files of one: leave it out")
        if saved is None:
            return None
    settings = saved["settings"]
    kind = find("encoder", settings["name"])
    if place is not None:
        settings = {**settings, kind.setting.rpartition(".")[2]: str(place)}
    with local_files_only():
        encoder: Encoder = kind(
            kind.Settings.model_validate(settings), tuple(saved["image_shape"]), takes
        )
    if saved["files"] is not None and content_digest(encoder.files()) != saved["files"]:
        raise DataError(
            f"the files of the encoder {settings['name']!r} are others than those of this model "
            f"(SHA-256 {saved['files'][:12]}): name the folder of those with encoder="
        )
    return encoder
