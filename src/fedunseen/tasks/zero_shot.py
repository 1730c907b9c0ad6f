"""Zero-shot: judged by ZSL and generalized accuracies of test samples; predicts classes from their
descriptions.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedunseen.confidence import offset_for
from fedunseen.confidence.priors import PRIORS, asked_unseen
from fedunseen.core.errors import DataError, ExperimentError
from fedunseen.core.files import write_tensors
from fedunseen.core.parameters import Params
from fedunseen.core.runs import check_question
from fedunseen.data import ClassSpace, read_classes
from fedunseen.data.class_space import check_semantics
from fedunseen.evaluation.measures import ZERO_SHOT
from fedunseen.evaluation.settings import EvaluationSettings
from fedunseen.federation.evaluator import Choice, Evaluator, ModelsOf
from fedunseen.federation.loop import Loop
from fedunseen.methods import Candidates, Method
from fedunseen.methods.base import AttributePredictor
from fedunseen.methods.closed_form.base import ClosedForm
from fedunseen.methods.closed_form.left_out import estimates
from fedunseen.metrics import (
    Answers,
    accuracies,
    forgetting,
    group_accuracies,
    over_all,
    per_class,
)
from fedunseen.model import Calibration, Classes, Examples, Model, Prediction, Question
from fedunseen.tasks import zero_shot_summary
from fedunseen.tasks.base import Predictor, Task, percent

_OWN_CURVE = (
    5  # rounds in which clients' own models are measured, beside the first and the reported one
)
_ESTIMATED = (
    "left_out_offset",
    "left_out_accuracy",
    "left_out_rivals",
    "form",
)  # in closed form, from the sums
_BLOCK = 64  # samples scored at once: images may take much memory on their way


class ZeroShotEvaluator(Evaluator):
    """Measures ZSL and generalized accuracies on test samples."""

    accuracies = ZERO_SHOT
    generalised: ClassVar[tuple[str, ...]] = accuracies[1:]  # those that calibration changes

    @classmethod
    def chooses_apart(cls, evaluation: EvaluationSettings) -> bool:
        """Choose in a run where validation classes play the unseen ones and no test sample takes
        part.
        """
        return evaluation.selection == "validation"

    @classmethod
    def choice(
        cls,
        evaluation: EvaluationSettings,
        method: type[Method],
        rounds: int,
        selecting: bool = False,
    ) -> Choice:
        """Leave the round and the calibration offset open, unless the last round is to be
        reported.
        """
        free = selecting or evaluation.selection == "best-on-test"
        calibrates = free and evaluation.calibration == "stacking" and method.zero_shot
        offset = evaluation.factor
        return Choice(
            None if free else rounds, offset if offset is not None else None if calibrates else 0.0
        )

    @classmethod
    def order(
        cls, line: Mapping[str, Any], evaluation: EvaluationSettings, method: type[Method]
    ) -> tuple[float, float]:
        """Order by the criterion, then by seen accuracy; by that alone if the method knows no
        unseen class.

        Such a method recognizes unseen classes by chance alone. Early in training its outputs for
        them are not low yet and win now and then, so that the criterion would choose the least
        trained round.
        """
        if not method.zero_shot:
            return (line["gzsl_seen"], 0.0)
        return (
            line["zsl" if evaluation.criterion == "zsl" else "gzsl_harmonic"],
            line["gzsl_seen"],
        )

    def measure(self, loop: Loop, models: Sequence[Params], choice: Choice) -> dict[str, Any]:
        """Measure the run's models, and clients' own before merging: at most 50 of each,
        ``measured`` says whose.
        """
        federation = self.federation
        result = loop.result
        round = loop.state.round
        assert result is not None
        replies = result.replies
        measured_models = [models[k] for k in zero_shot_summary.some(range(len(models)))]
        many = [federation.answers(model) for model in measured_models]
        offset = choice.offset
        offsets: dict[str, Any] = {}
        if offset is None:
            space = self.benchmark.space
            *others, offset = (
                offset_for(many, prior, asked_unseen(prior, space))
                for prior in (*PRIORS, self.evaluation.prior)
            )
            offsets = {"offsets": dict(zip(PRIORS, others, strict=True))}
        line: dict[str, Any] = self._means(many, offset) | offsets
        line["gzsl_accuracy"] = float(np.mean([over_all(answers, offset) for answers in many]))
        own_offset = float(np.mean([federation.method.own_offset(m) for m in measured_models]))
        plain = self._means(many, -own_offset)
        line |= {f"uncalibrated_{name}": plain[name] for name in self.generalised}
        line["calibration_factor"] = offset
        line |= {"left_out_offset": own_offset} if own_offset else {}
        method = federation.method
        if isinstance(method, ClosedForm) and federation.strategy.one_model and not self.groups:
            line |= method.choice(models[0])
            line |= estimates(method, result.params, models[0]) if choice.offset is not None else {}
        if self.groups:
            line["stages"] = group_accuracies(many[0], self.groups, offset)
        for monitor in federation.monitors:
            line |= monitor.line(federation, round - 1, result, models, offset)
        if result.masked is None and self.measures_clients(round, loop.rounds, choice):
            if federation.strategy.one_model:
                chosen = zero_shot_summary.some(range(len(replies)))
                of_clients = [
                    federation.answers(federation.fit_heads(result.models(i))) for i in chosen
                ]
            else:  # ``models`` are the clients' own
                answers = dict(
                    zip(zero_shot_summary.some(sorted(loop.state.clients)), many, strict=True)
                )
                chosen = [i for i, reply in enumerate(replies) if reply.client in answers]
                of_clients = [answers[replies[i].client] for i in chosen]
            if len(chosen) < len(replies):
                line["measured"] = [replies[i].client for i in chosen]
            measured = [accuracies(client_answers, offset) for client_answers in of_clients]
            if (
                measured
            ):  # of many clients with a model each, perhaps none of those measured has taken part
                line["clients"] = {
                    name: [getattr(of_client, name) for of_client in measured]
                    for name in self.accuracies
                }
        return line

    def measures_clients(self, round: int, rounds: int, choice: Choice) -> bool:
        """Say whether clients' own models are measured in ``round``, counted from 1:
        ``evaluation.clients``.
        """
        setting = self.evaluation.clients
        method = self.federation.method
        if setting is not None or not method.trained or method.generates:
            return bool(setting)
        if (
            choice.round is None or not self.federation.strategy.one_model
        ):  # any round may be the reported one
            return True
        return round in (1, choice.round, rounds) or round % math.ceil(rounds / _OWN_CURVE) == 0

    def unmeasured(self, loop: Loop) -> dict[str, Any]:
        """Return what ``[screening]`` counted in a round whose models are not measured."""
        assert loop.result is not None
        line: dict[str, Any] = {}
        for monitor in self.federation.monitors:
            line |= monitor.line(self.federation, loop.state.round - 1, loop.result, (), 0.0)
        return line

    def _means(self, many: Sequence[Answers], offset: float) -> dict[str, float]:
        each = [asdict(accuracies(answers, offset)) for answers in many]
        return {
            name: float(np.mean([numbers[name] for numbers in each])) for name in self.accuracies
        }

    def observe(self, loop: Loop, path: Path) -> None:
        """Write similarities after some rounds, and what an attack does."""
        federation = self.federation
        round = loop.state.round
        params = loop.state.params
        mapped = self.evaluation.theory and round in (*zero_shot_summary.MAPPED, loop.rounds)
        if (
            mapped
            and federation.strategy.one_model
            and isinstance(federation.method, AttributePredictor)
        ):
            tensors = zero_shot_summary.compatibility(federation, params)
            write_tensors(path / "similarity" / f"round-{round}.safetensors", tensors)
        for monitor in federation.monitors:
            monitor.observe(federation, loop.rounds, path, round - 1, params)

    def personal(
        self, merged: Params | None, models: ModelsOf, line: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Measure at most 50 clients' own models, on all test samples and on those of the client's
        own classes.
        """
        federation = self.federation
        offset = line["calibration_factor"]
        labels = federation.benchmark.labels
        holding = [k for k, rows in enumerate(federation.partition.clients) if len(rows)]
        plain = None if merged is None else federation.answers(merged)
        personal: dict[str, Any] = {
            "clients": [],
            **({} if plain is None else {"merged": {}}),
            "own": {},
        }

        def note(kind: str, answers: Answers, classes: NDArray[np.int64]) -> None:
            numbers = asdict(accuracies(answers, offset))
            right = per_class(answers.labels, answers.generalised(offset), classes)
            tested = right[~np.isnan(right)]
            numbers["held"] = float(tested.mean()) if len(tested) else None
            for name in (*self.accuracies, "held"):
                personal[kind].setdefault(name, []).append(numbers[name])

        for client, model in models(set(zero_shot_summary.some(holding))):
            classes = np.unique(labels[federation.partition.clients[client]])
            personal["clients"].append(client)
            if plain is not None:
                note("merged", plain, classes)
            note("own", federation.answers(model), classes)
        return personal

    def numbers(
        self, lines: Sequence[Mapping[str, Any]], selected: int, model_path: Path
    ) -> dict[str, Any]:
        """Return the accuracies of the chosen round, calibrated and not, and what threats did."""
        names = (
            *self.accuracies,
            *(f"uncalibrated_{name}" for name in self.generalised),
            "calibration_factor",
        )
        line = lines[selected - 1]
        optional = ("gzsl_accuracy", "offsets", *_ESTIMATED)  # older lines lack the first
        numbers = {
            name: line[name] for name in (*names, *(name for name in optional if name in line))
        }
        for monitor in self.federation.monitors:
            numbers |= monitor.result(self.federation, lines, selected)
        if "stages" in lines[-1]:
            numbers["stages"] = lines[-1]["stages"]
            fallen = forgetting([line["stages"] for line in lines])
            numbers["forgetting"] = {
                name: fall for name, fall in fallen.items() if name.startswith("from round ")
            }
        if self.federation.method.generates:
            real = "real seen and synthetic unseen features"
            numbers["gzsl_head"] = (
                real if self.federation.strategy.pools else "synthetic features of all classes"
            )
        return numbers

    def summary(self, params: Params, result: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
        """Return answers, who held what, similarities, pictures and embeddings."""
        return zero_shot_summary.summary_tensors(
            self.federation, params, result["calibration_factor"], self.evaluation.embedding
        )


class ZeroShotPredictor(Predictor):
    """Ranks classes by their descriptions."""

    @classmethod
    def predict(cls, model: Model, question: Question) -> list[list[Prediction]]:
        """Rank classes by their descriptions; seen classes are lowered by the calibration
        offset.
        """
        method = model.method
        among = question.among
        if question.examples is not None:
            raise ExperimentError(
                f"method.name = {model.method_name!r} learns classes from descriptions: give "
                "--classes instead of --support"
            )
        names, semantics, seen, in_question = added_classes(model.space, question.classes)
        if question.classes is not None or among != "all":
            _check_descriptions(model, "predict")
        allowed = candidates(question, seen, in_question)
        rows = question.read()
        described = model.described(semantics)
        if (
            method.generates and question.classes is not None
        ):  # its classifiers know only the model's classes
            if model.pooled and seen[allowed].any():
                # The offset was chosen for another classifier.
                model = replace(model, calibration=Calibration())
                warnings.warn(
                    "this run's classifier saw real samples of seen classes, which are not here; "
                    "with classes given, one is trained on generated features alone, and not "
                    "calibrated",
                    stacklevel=5,
                )
            ids = np.arange(len(names))
            params = method.fit_heads(
                model.params, Candidates(names, described, ids[seen], ids[~seen]), model.seed
            )
            model = replace(model, params=params)
        scores = model.raw_scores(rows, described, bool(seen[allowed].any()))
        return ranked(model, names, model.calibration(scores, seen), seen, allowed, question.top)

    @classmethod
    def learn(cls, model: Model, classes: Classes | None, examples: Examples | None) -> Model:
        """Add classes by their descriptions; the model is not trained again."""
        method = model.method
        if examples is not None:
            raise ExperimentError(
                f"method.name = {model.method_name!r} cannot learn from examples once it is "
                "trained: run method.name = 'gaussian', on the same features or on those of this "
                "run (encoder.name = 'run')"
            )
        _check_descriptions(model, "add")
        space = expand_space(model.space, *added_classes(model.space, classes)[:2])
        params = model.params
        if method.generates:
            among = Candidates(
                space.names, model.described(space.semantics), space.seen, space.unseen
            )
            params = method.fit_heads(params, among, model.seed)
        return model.with_classes(space, params)


def _check_descriptions(model: Model, to: str) -> None:
    if not model.method.zero_shot:
        raise ExperimentError(
            f"method.name = {model.method_name!r} knows only the classes that it was trained on: "
            f"run a zero-shot method, for example fedzsl, to {to} others"
        )


class ZeroShot(Task):
    """Recognizes classes by their descriptions, those that no client holds too."""

    name = "zero-shot"
    evaluator = ZeroShotEvaluator
    predictor = ZeroShotPredictor
    also_averaged = ("uncalibrated_*", "gzsl_accuracy", "backdoor*")
    personalizes = True

    @classmethod
    def headline(cls, result: Mapping[str, Any]) -> str:
        """Return ZSL and the generalized accuracies, and the backdoor accuracy if there is one, as
        one line.
        """
        zsl, unseen, seen, harmonic = (percent(result, name) for name in ZERO_SHOT)
        triggers = f"   backdoor {percent(result, 'backdoor')}" if "backdoor" in result else ""
        overall = f"  all {percent(result, 'gzsl_accuracy')}" if "gzsl_accuracy" in result else ""
        return (
            f"ZSL {zsl}   GZSL unseen {unseen}  seen {seen}  harmonic {harmonic}{overall}{triggers}"
        )


def candidates(
    question: Question, seen: NDArray[np.bool_], in_question: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Return which classes (C,) are ranked."""
    among = question.among
    check_question(among, question.top)
    allowed = {"all": np.ones(len(seen), dtype=bool), "unseen": ~seen, "given": in_question}[among]
    if not allowed.any():
        raise ExperimentError(f"--among {among}: there is no such class; give some with --classes")
    return allowed


def ranked(
    model: Model,
    names: Sequence[str],
    scores: NDArray[Any],
    seen: NDArray[np.bool_],
    allowed: NDArray[np.bool_],
    top: int | None,
) -> list[list[Prediction]]:
    """Rank the allowed classes of each row of calibrated scores (n, C), best first; equal ones in
    their order.
    """
    kept = np.flatnonzero(allowed)
    places = np.argsort(-scores[:, kept], axis=1, kind="stable")[:, :top]
    shown = seen.copy()
    shown[: len(model.shown_mask)] |= model.shown_mask
    chances = model.chances(scores[:, kept], ~shown[kept])
    return [
        [Prediction(names[kept[c]], float(row[kept[c]]), float(chance[c])) for c in best]
        for row, chance, best in zip(scores, chances, places, strict=True)
    ]


def expand_space(
    space: ClassSpace,
    names: Sequence[str],
    semantics: NDArray[np.float64],
    undescribed: Sequence[int] | NDArray[Any] = (),
) -> ClassSpace:
    """Return a class space with these classes: its own first, perhaps described again, then new,
    unseen ones.
    """
    unseen = np.concatenate([space.unseen, np.arange(len(space.names), len(names))])
    return replace(
        space,
        names=tuple(names),
        semantics=semantics,
        unseen=unseen,
        undescribed=np.asarray(undescribed),
    )


def added_classes(
    space: ClassSpace, classes: Classes | None
) -> tuple[list[str], NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_]]:
    """Add classes to those of a class space; one with a known name replaces the class of that
    name.
    """
    names = list(space.names)
    semantics = space.semantics.copy()
    seen = np.isin(np.arange(len(names)), space.seen)
    if classes is None:
        return names, semantics, seen, np.zeros(len(names), dtype=bool)
    new, rows = _described(space, classes)
    place = {name: c for c, name in enumerate(names)}
    places = [place.setdefault(name, len(place)) for name in new]
    added = len(place) - len(names)
    names = list(place)
    semantics = np.concatenate([semantics, np.zeros((added, space.attributes))])
    semantics[places] = rows
    in_question = np.isin(np.arange(len(names)), places)
    return names, semantics, np.concatenate([seen, np.zeros(added, dtype=bool)]), in_question


def _described(space: ClassSpace, classes: Classes) -> tuple[Sequence[str], NDArray[np.float64]]:
    if isinstance(classes, (str, Path)):
        return read_classes(Path(classes), space)
    for name, values in classes.items():
        if len(values) != space.attributes:
            raise DataError(
                f"class {name!r} has {len(values)} attributes, but this run's classes have "
                f"{space.attributes}"
            )
    try:
        semantics = np.array([list(values) for values in classes.values()], dtype=np.float64)
    except (TypeError, ValueError):
        raise DataError(
            "the attributes of a class must be numbers, as many as the run's classes have"
        ) from None
    semantics = semantics.reshape(len(classes), space.attributes)
    check_semantics(list(classes), semantics)
    return list(classes), semantics
