"""A run at work: one thread at a time may ask its model, and classes come and go while it serves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel

from fedunseen.core.errors import DataError, ExperimentError, RunDirectoryError, unknown
from fedunseen.core.files import write_tensors
from fedunseen.core.registry import find
from fedunseen.data.base import BenchmarkLoader
from fedunseen.data.io.features import FEATURE_SUFFIXES
from fedunseen.data.names import plain
from fedunseen.experiment import Run
from fedunseen.experiment.class_descriptions import semantics_of_names
from fedunseen.federation.run_directory import load_params
from fedunseen.methods.closed_form.unlabelled import Arriving
from fedunseen.tasks import shares
from fedunseen.tasks.zero_shot import added_classes

Among = Literal["all", "unseen", "given"]
Kind = Literal["pictures", "text", "features"]

ADDED = 1000  # classes at most that can be added
LONGEST_NAME = 100  # characters
LASTING = "added-classes.safetensors"  # in the run directory
_DRAWN = {"digit-pairs": 2, "digits": 1}  # benchmarks of scikit-learn's digits: how many stand side by side
_STEPS = 32  # on the way from the mean of all descriptions to a class's


class ClassScore(BaseModel):
    """One class of a ranking."""

    name: str
    score: float
    """In the method's own units; seen classes are lowered by the run's calibration factor."""
    probability: float
    """The softmax of the scores of all classes that were ranked: not how often the model is right."""
    kind: Literal["seen", "unseen", "added"]
    """In training, or added since."""


class AttributeEffect(BaseModel):
    """What an attribute adds to a class's score, compared with a class that has the mean of all classes."""

    attribute: str
    value: float
    effect: float


@dataclass(frozen=True, eq=False)
class Added:
    """A class that was added."""

    name: str
    attributes: NDArray[np.float64] | None = None
    examples: NDArray[Any] | None = None
    lasting: bool = False


class Recognizer:
    """A run's model, and the classes that were added to it."""

    def __init__(self, run: Run, adapts: bool = False) -> None:
        self.whole, self.run = run, run.seeds[0] if run.seeds else run
        experiment = self.run.experiment
        self.run.check_one_model("to serve", choosable=True)
        method = self.run.method
        self.from_examples_alone = method.task == "few-shot"
        self.by_examples = method.task in ("few-shot", "any-shot")
        self.by_attributes = not self.from_examples_alone and method.zero_shot
        self.by_sentence = self.by_attributes and getattr(experiment.data, "text_encoder", None) is not None
        loader: type[BenchmarkLoader] = find("data", experiment.data.name)
        own = loader.read.__func__ is not BenchmarkLoader.read.__func__  # type: ignore[attr-defined]
        self.kind: Kind = "text" if hasattr(loader, "read_texts") else "pictures" if own else "features"
        self.added: dict[str, Added] = {}
        self._asked: Run = self.run  # with the added classes in its model, where examples are a part of that
        self._path = run.path / LASTING
        if self._path.exists():
            self._restore()
        _ = self.run.params, self.run.scaler  # read now, not with the first question
        self._trained, self._arriving = self.run, None
        if adapts:
            self._arriving = Arriving(method, self.run.params, float(self.run.result.get("calibration_factor", 0.0)))

    def warm(self) -> None:
        """Load what the first question would wait for: the encoders of pictures and of classes' names."""
        if shape := self.run.manifest.get("picture_shape"):
            self.run.encoded(np.zeros((1, *shape), dtype=np.uint8))
        if self.by_sentence:
            self.imagine(self.run.space.names[0])

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample, as the model takes it."""
        return tuple(self.run.manifest["input_shape"])

    @property
    def drawn(self) -> dict[str, int] | None:
        """How a picture is drawn by hand: digits side by side, height and width in pixels; None where it is not."""
        count = _DRAWN.get(self.run.experiment.data.name)
        return None if count is None else {"digits": count, "height": 8, "width": 8 * count}

    def attribute_values(self) -> list[dict[str, Any]]:
        """Say of each attribute its name, its group, its least and greatest value, and whether it is yes or no."""
        space = self.run.space
        group_of = {column: group for group, columns in space.attribute_groups.items() for column in columns}
        described = np.delete(space.semantics, space.undescribed, axis=0)
        return [
            {
                "name": name, "group": group_of.get(column), "least": float(values.min()),
                "greatest": float(values.max()), "binary": bool(np.isin(values, (0.0, 1.0)).all()),
            }
            for column, (name, values) in enumerate(zip(space.attribute_names, described.T, strict=True))
        ]  # fmt: skip

    def classes(self, attributes: bool = False) -> list[dict[str, Any]]:
        """List the classes of the model: name, kind, whether it lasts, and its attributes if asked for."""
        space = self.run.space
        entries: list[dict[str, Any]] = []
        for c, name in enumerate(() if self.from_examples_alone else space.names):
            described = attributes and c not in space.undescribed
            more = {"attributes": space.semantics[c].tolist()} if described else {}
            entries.append({"name": name, "kind": "seen" if c in space.seen else "unseen", "lasting": True, **more})
        for added in self.added.values():
            item: dict[str, Any] = {"name": added.name, "kind": "added", "lasting": added.lasting}
            if added.examples is not None:
                item["examples"] = len(added.examples)
            if attributes and added.attributes is not None:
                item["attributes"] = added.attributes.tolist()
            entries.append(item)
        return entries

    def imagine(self, words: str) -> NDArray[np.float64]:
        """Return what the run's text encoder makes of a class's name or a few words (attributes,)."""
        return semantics_of_names([words], self.run.space, self.run.describing)[words]

    def describe(self, attributes: Mapping[str, Any] | Sequence[Any]) -> NDArray[np.float64]:
        """Return a class's attributes (attributes,), from all values or from those that are not 0 by name."""
        space = self.run.space
        if isinstance(attributes, Mapping):
            for name in attributes:
                if name not in space.attribute_names:
                    raise DataError(unknown("attribute", str(name), space.attribute_names))
            values = [attributes.get(name, 0.0) for name in space.attribute_names]
        else:
            values = list(attributes)
        if len(values) != space.attributes:
            raise DataError(f"there are {len(values)} attributes, but this run's classes have {space.attributes}")
        for name, value in zip(space.attribute_names, values, strict=True):
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 1e30:
                raise DataError(f"the attribute {name!r} must be a finite number")
        row = np.array(values, dtype=np.float64)
        if not row.any():
            raise DataError("all attributes are 0: a class needs at least one that it has")
        return row

    def add(self, added: Added) -> None:
        """Add a class; it competes from the next question on."""
        name = added.name
        if not name or name != name.strip() or not name.isprintable() or len(name) > LONGEST_NAME or "/" in name:
            raise DataError(
                f"a class's name has 1 to {LONGEST_NAME} printable characters, no slash, and no space around it"
            )
        for other in (*(() if self.from_examples_alone else self.run.space.names), *self.added):
            if plain(other) == plain(name):
                raise DataError(f"there is a class {other!r} already: choose another name, or take that one away first")
        if len(self.added) >= ADDED:
            raise DataError(f"{ADDED} classes have been added, which is the most: take one away first")
        for given, able, instead, how in (
            (added.attributes, self.by_attributes, self.by_examples, "from examples: give pictures or samples of it"),
            (added.examples, self.by_examples, self.by_attributes, "from attributes: describe it"),
        ):
            if given is not None and not able:
                how = how if instead else "only in training"
                raise ExperimentError(f"method.name = {self.run.method_name!r} learns classes {how}")
        if added.attributes is None and added.examples is None:
            raise DataError("nothing describes the class: give attributes, or examples")
        if added.attributes is not None:  # the run's own check: scaling must leave something of it
            self.run.scaled_semantics(np.concatenate([self.run.space.semantics, added.attributes[None]]))
        self._keep({**self.added, name: added}, added.lasting)

    def remove(self, name: str) -> None:
        """Take an added class away."""
        self._keep({key: added for key, added in self.added.items() if key != name}, self.added[name].lasting)

    def _keep(self, added: dict[str, Added], lasting: bool) -> None:
        """Take these as the added classes; write those that last if one of them came or went."""
        asked = self._with(added)
        if lasting:
            tensors: dict[str, NDArray[Any]] = {}
            for i, item in enumerate(item for item in added.values() if item.lasting):
                for what, values in (("attributes", item.attributes), ("examples", item.examples)):
                    if values is not None:
                        tensors[f"{i:04d}/{what}/{item.name}"] = values
            write_tensors(self._path, tensors or {"none": np.zeros(1)})
        self.added, self._asked = added, asked

    def _with(self, added: dict[str, Added]) -> Run:
        """Return the run that is asked with these classes: one that has learned them, where it learns in both ways."""
        if self.from_examples_alone or not self.by_examples or not added:
            return self.run
        described = _described(added)
        shown = {item.name: item.examples for item in added.values() if item.examples is not None}
        return self.run.learn(described, shown or None)

    def _restore(self) -> None:
        """Read the lasting classes of an earlier service."""
        try:
            tensors = load_params(self._path)
        except RunDirectoryError:
            raise DataError(f"{self._path} is damaged: delete it, and add the lasting classes again") from None
        for key, tensor in sorted(tensors.items()):
            _, what, name = (*key.split("/", 2), "", "")[:3]
            given: dict[str, Any] = {what: tensor.numpy()}
            if what in ("attributes", "examples"):
                self.added[name] = replace(self.added.get(name, Added(name, lasting=True)), **given)
        self._asked = self._with(self.added)

    def read(self, path: Path) -> NDArray[Any]:
        """Read a file as samples (n, ...), as the run takes them."""
        if self.kind == "features" and path.suffix.lower() not in FEATURE_SUFFIXES:
            ends = ", ".join(FEATURE_SUFFIXES)
            raise DataError(f"{path}: this run takes feature vectors: give a file that ends in {ends}")
        return self.run.read(path)

    def samples(self, rows: Any) -> NDArray[Any]:
        """Return samples (n, ...) from numbers."""
        try:
            given = np.asarray(rows)
        except ValueError:
            raise DataError("the samples are not equally long: give a list of numbers for each") from None
        return self.run.read_inputs(given)

    def rank(self, samples: NDArray[Any], among: Among = "all", top: int | None = None) -> list[list[ClassScore]]:
        """Rank the classes for each sample, best first; at equal scores an added class comes first."""
        if self.from_examples_alone:
            if among != "all":
                raise ExperimentError(f"among {among}: this run learns all classes from examples: leave it out")
            if len(self.added) < 2:
                raise ExperimentError(
                    f"this run learns classes from examples, and there are {len(self.added)}: add at least two first"
                )
            support = {item.name: item.examples for item in self.added.values() if item.examples is not None}
            rankings = self.run.predict(samples, support=support)
        else:
            if among == "given" and not self.added:
                raise ExperimentError("among given: no class has been added yet")
            if self._asked is self.run:
                rankings = self.run.predict(samples, _described(self.added), among=among)
            else:  # its added classes are unseen ones of its own
                rankings = self._asked.predict(samples, among="all" if among == "all" else "unseen")
                if among == "given":
                    rankings = [[item for item in ranking if item.name in self.added] for ranking in rankings]
        if self._arriving is not None:
            self._adapt(self._arriving, samples)
        seen = {self.run.space.names[c] for c in self.run.space.seen}
        answers = []
        for ranking in rankings:
            ranked = sorted(zip(ranking, shares(ranking), strict=True),
                            key=lambda pair: (-pair[0].score, pair[0].name not in self.added))  # fmt: skip
            answers.append([
                ClassScore(name=item.name, score=item.score, probability=share,
                           kind="added" if item.name in self.added else "seen" if item.name in seen else "unseen")
                for item, share in ranked[:top]
            ])  # fmt: skip
        return answers

    def _adapt(self, arriving: Arriving, samples: NDArray[Any]) -> None:
        """Count samples; the next question is answered by the model with them."""
        rows = self._trained.scaler(samples) if samples.ndim == 2 else samples
        content = arriving.add(torch.from_numpy(rows))
        factor = arriving.offset * content.offset_share
        self.run = replace(self._trained, result={**self._trained.result, "calibration_factor": factor})
        vars(self.run).update(params=content.params)
        self._asked = self._with(self.added)

    def explain(self, sample: NDArray[Any], names: Sequence[str], most: int = 6) -> dict[str, list[AttributeEffect]]:
        """Say which attributes speak most for or against classes, given one sample (1, ...).

        An attribute's effect is the slope of the class's score in it, times by how much the class has more of it than
        the mean of all classes. The slope is the mean one on the way from that mean to the class (integrated gradients,
        Sundararajan et al. 2017), so that the effects add up to the class's lead over the mean description, before
        calibration. A method that scores by classifiers, not by attributes, gives none.
        """
        if not self.by_attributes or self.run.method.generates:
            return {}
        run, method = self.run, self.run.method
        known, semantics, _, _ = added_classes(run.space, _described(self.added))
        rows = run.read_inputs(sample)
        scaled = torch.from_numpy(run.scaler(rows) if rows.ndim == 2 else rows)
        described = torch.from_numpy(run.scaled_semantics(semantics)).requires_grad_()
        with torch.enable_grad():
            scores = method.scores(run.params, scaled, described)
            if not scores.requires_grad:
                return {}
            effects = {}
            shown = {run.space.names[c] for c in run.space.undescribed}
            unshown = [c for c, name in enumerate(known) if name not in shown]
            mean, steps = described.detach()[unshown].mean(0), (torch.arange(_STEPS) + 0.5)[:, None] / _STEPS
            for name in names:
                if name not in known or name in shown:  # it was only shown, in examples
                    continue
                c = known.index(name)
                (slope,) = torch.autograd.grad(scores[0, c], described, retain_graph=True)
                if slope[c].any():  # otherwise it is known by its examples
                    more = described[c].detach() - mean
                    way = (mean + steps * more).requires_grad_()
                    (slopes,) = torch.autograd.grad(method.scores(run.params, scaled, way).sum(), way)
                    effect = (slopes.mean(0) * more).numpy()
                else:
                    effect = np.zeros(len(mean), dtype=np.float32)
                order = np.argsort(-np.abs(effect), kind="stable")[:most]
                effects[name] = [
                    AttributeEffect(attribute=run.space.attribute_names[j], value=semantics[c, j], effect=effect[j])
                    for j in order
                    if effect[j] != 0
                ]
        return effects


def _described(added: Mapping[str, Added]) -> dict[str, Sequence[float]] | None:
    described = {item.name: item.attributes.tolist() for item in added.values() if item.attributes is not None}
    return described or None
