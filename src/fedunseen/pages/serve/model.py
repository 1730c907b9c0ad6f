"""A run at work: one thread at a time may ask its model, and classes come and go while it
serves.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel
from torch import Tensor

from fedunseen.core.errors import DataError, ExperimentError, FedUnseenError, unknown
from fedunseen.core.files import write_tensors
from fedunseen.core.parameters import Params
from fedunseen.data.columns import Column
from fedunseen.data.io.features import FEATURE_SUFFIXES
from fedunseen.data.io.images import ImageBytes
from fedunseen.data.io.tables import Table
from fedunseen.data.names import is_visible, plain
from fedunseen.encoders.backbone import Backbone
from fedunseen.experiment.class_descriptions import semantics_of_names
from fedunseen.experiment.inputs import read_sample
from fedunseen.experiment.new_names import near_names, outlooks, shown_by_examples
from fedunseen.experiment.result.reader import RunReader
from fedunseen.experiment.result.run import Run
from fedunseen.federation.run_directory import load_params
from fedunseen.methods import Method
from fedunseen.methods.closed_form.gaussian import Gaussian
from fedunseen.methods.closed_form.incremental import IncrementalModel
from fedunseen.methods.closed_form.shown import mostly_shown
from fedunseen.methods.closed_form.unlabelled import Arriving
from fedunseen.model import Calibration, ClassSum, Model
from fedunseen.pages.report.svg import picture_address
from fedunseen.tasks.any_shot import summed
from fedunseen.tasks.zero_shot import ZeroShotPredictor, added_classes

Among = Literal["all", "unseen", "given"]
Kind = Literal["pictures", "text", "rows", "features"]

ADDED = 1000  # classes at most that can be added
# characters
LONGEST_NAME = 100
LONGEST_WORDS = 1000
LASTING = "added-classes.safetensors"  # in the run directory
_DRAWN = {
    "digit-pairs": 2,
    "digits": 1,
}  # benchmarks of scikit-learn's digits: how many stand side by side
_KINDS: dict[bool, Literal["seen", "unseen"]] = {True: "seen", False: "unseen"}
_STATED = {"name", "kind", "values", "bounds"}  # of a column, for a form
_DEEPEST = 8  # dimensions of inputs, which have four at most
_STEPS = 32  # on the way from the mean of all descriptions to a class's


@dataclass(slots=True)  # made and written in a fraction of a Pydantic model's time
class ClassScore:
    """One class of a ranking."""

    name: str
    score: float
    """In the method's own units; seen classes are lowered by the run's calibration offset."""
    probability: float
    """Among the classes that were ranked. Calibrated: of answers with the probability p, a share p
    is right. Otherwise the softmax of scores, which is not how often an answer is right.
    """
    kind: Literal["seen", "unseen", "added"]
    """In training, or added since."""


class AttributeEffect(BaseModel):
    """What an attribute adds to a class's score, compared with a class that has the mean of all
    classes.
    """

    attribute: str
    value: float
    effect: float


class ClassShare(BaseModel):
    """What the training samples of a class speak for an answer."""

    name: str
    share: float
    """Of all that speaks for or against it, in percent; negative where they speak against it."""


@dataclass(slots=True)
class Answer:
    """What the model returns for one sample."""

    input: str
    """The file, or the place of the sample: ``cat.png``, ``table.csv[3]``, ``[0]``."""
    classes: list[ClassScore]
    """Best first."""
    set: list[str] | None = None
    """With ``coverage``: the classes that cannot be ruled out, best first."""
    unfamiliar: float | None = None
    """The share of known samples that are at least as far from every class; with ``gaussian``."""
    why: dict[str, list[AttributeEffect]] | None = None
    """With ``explain``: of the first three classes, the attributes that speak most for or against
    each.
    """

    because: list[ClassShare] | None = None
    """With ``explain``: the seen classes that speak most for the first class."""
    place: str | None = None
    """With ``explain``, of a picture: where most of what speaks for the first class is."""
    heat: str | None = None
    """With ``explain``, of a picture: a ``data:`` address of the picture, orange where it speaks for
    the first class and blue where against it.
    """

    def content(self) -> dict[str, Any]:
        """Return its parts, without those that it has not."""
        parts = {
            "input": self.input,
            "classes": self.classes,
            "set": self.set,
            "unfamiliar": self.unfamiliar,
            "why": self.why,
            "because": self.because,
            "place": self.place,
            "heat": self.heat,
        }
        return {name: part for name, part in parts.items() if part is not None}


@dataclass(frozen=True, eq=False)
class Added:
    """A class that was added."""

    name: str
    attributes: NDArray[np.float64] | None = None
    examples: NDArray[Any] | None = None
    lasting: bool = False


@dataclass(frozen=True, eq=False)
class _Known:
    """What scores the classes of a run and then the added ones: of arrays, because there may be
    many classes.

    Attributes:
        names: their names.
        seen: (C,) which ones had training samples.
        described: (C, attributes) scaled semantics.
        incremental: what adds the next class, made when one was added.
    """

    names: list[str]
    seen: NDArray[np.bool_]
    described: Tensor
    params: Params
    method: Method
    incremental: IncrementalModel | None = None

    @cached_property
    def shown(self) -> NDArray[np.bool_]:
        """(C,) which ones had training samples, or enough examples since."""
        learned = mostly_shown(self.params).numpy()
        return self.seen | learned if len(learned) else self.seen

    @cached_property
    def _scorer(self) -> Callable[[NDArray[np.float32]], NDArray[np.float64]] | None:
        method = self.method
        if isinstance(method, Gaussian) and type(method.backbone) is Backbone:
            return method.scorer(self.params) if method.knows(self.params, self.described) else None
        return None

    def scores(self, model: Model, samples: NDArray[Any], seen: bool) -> NDArray[Any]:
        """Return the scores (n, C) of samples before calibration; ``seen``: seen classes
        compete.
        """
        if self._scorer is not None and len(samples) == 1:
            return self._scorer(model.scaler(samples))
        return replace(model, method=self.method, params=self.params).raw_scores(
            samples, self.described, seen
        )

    def with_class(
        self,
        name: str,
        described: NDArray[np.float32] | None,
        shown: ClassSum | None,
        offset: float,
    ) -> "_Known":
        """Add a class, without solving for the others again; see
        :class:`~fedunseen.methods.closed_form.incremental`.
        """
        row = (
            self.described.new_zeros(1, self.described.shape[1])
            if described is None
            else torch.from_numpy(described)
        )
        incremental = self.incremental
        if "dual_coefficients" in self.params:
            incremental = incremental or IncrementalModel.of(self.params, self.described, offset)
            shown = shown or ClassSum(0.0, torch.zeros_like(self.params["centre"]))
            incremental = incremental.add(
                None if described is None else row[0], shown.count, shown.total
            )
        return replace(
            self, names=[*self.names, name], seen=np.append(self.seen, False), incremental=incremental,
            described=torch.cat([self.described, row]), params=incremental.params if incremental else self.params,
        )  # fmt: skip


class Recognizer:
    """A run's model, and the classes that were added to it."""

    def __init__(self, run: Run, adapts: bool = False) -> None:
        self.whole = run
        self.run = run.first
        experiment = self.run.experiment
        self.run.check_one_model("to serve", choosable=True)
        self.model = self.run.model  # read now, not with the first question
        method = self.model.method
        self.from_examples_alone = method.task == "few-shot"
        self.by_examples = method.task in ("few-shot", "any-shot")
        self.by_attributes = not self.from_examples_alone and method.zero_shot
        self.by_sentence = (
            self.by_attributes
            and self.run.space.from_texts
            and getattr(experiment.data, "text_encoder", None) is not None
        )
        self.kind = _kind_of(self.run.reader)
        self.added: dict[str, Added] = {}
        self.examples: dict[str, NDArray[Any]] = {}  # of the run's own unseen classes
        self._own = {
            plain(name): name for name in (() if self.from_examples_alone else self.run.space.names)
        }
        self._known: _Known | None = self._rebuilt({})  # None: the task ranks classes itself
        self._path = run.path / LASTING
        if self._path.exists():
            self._restore()
        self._trained = self.model
        self._arriving = None
        if adapts:
            self._arriving = Arriving(method, self.model.params, self.model.calibration.offset)

    def warm(self) -> None:
        """Load what the first question would wait for: the encoders of pictures and of classes'
        names.
        """
        if shape := self.run.manifest.get("picture_shape"):
            self.run.encoded(np.zeros((1, *shape), dtype=np.uint8))
        if self.by_sentence:
            self.imagine(self.run.space.names[0])

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample, as the model takes it."""
        return tuple(self.run.manifest["input_shape"])

    @property
    def columns(self) -> list[dict[str, Any]]:
        """Say of each column of a row its name, its kind, and its values or bounds; nothing where
        samples are no rows.
        """
        if self.kind != "rows":
            return []
        columns: Sequence[Column] = self.run.experiment.data.columns  # type: ignore[attr-defined]
        return [
            column.model_dump(include=_STATED, exclude_defaults=True, mode="json")
            for column in columns
        ]

    @property
    def drawn(self) -> dict[str, int] | None:
        """How a picture is drawn by hand: digits side by side, height and width in pixels; None
        where it is not.
        """
        count = _DRAWN.get(self.run.experiment.data.name)
        return None if count is None else {"digits": count, "height": 8, "width": 8 * count}

    def attribute_values(self) -> list[dict[str, Any]]:
        """Say of each attribute its name, its group, its least and greatest value, and whether it
        is yes or no.
        """
        space = self.run.space
        group_of = {
            column: group for group, columns in space.attribute_groups.items() for column in columns
        }
        described = np.delete(space.semantics, space.undescribed, axis=0)
        return [
            {
                "name": name, "group": group_of.get(column), "least": float(values.min()),
                "greatest": float(values.max()), "binary": bool(np.isin(values, (0.0, 1.0)).all()),
            }
            for column, (name, values) in enumerate(zip(space.attribute_names, described.T, strict=True))
        ]  # fmt: skip

    def classes(self, attributes: bool = False) -> list[dict[str, Any]]:
        """List the classes of the model: name, kind, whether all that is known of it lasts, and its
        attributes if asked for.
        """
        space = self.run.space
        seen = set(space.seen.tolist())
        undescribed = set(space.undescribed.tolist())
        entries: list[dict[str, Any]] = []
        for c, name in enumerate(() if self.from_examples_alone else space.names):
            described = attributes and c not in undescribed
            attribute_entry = {"attributes": space.semantics[c].tolist()} if described else {}
            entries.append(
                {
                    "name": name,
                    "kind": "seen" if c in seen else "unseen",
                    "lasting": name not in self.examples,
                    **({"examples": len(self.examples[name])} if name in self.examples else {}),
                    **attribute_entry,
                }
            )
        return entries + [self.entry(added, attributes) for added in self.added.values()]

    @staticmethod
    def entry(added: Added, attributes: bool = False) -> dict[str, Any]:
        """Return what :meth:`classes` lists of an added class."""
        item: dict[str, Any] = {"name": added.name, "kind": "added", "lasting": added.lasting}
        if added.examples is not None:
            item["examples"] = len(added.examples)
        if attributes and added.attributes is not None:
            item["attributes"] = added.attributes.tolist()
        return item

    def imagine(self, words: str) -> NDArray[np.float64]:
        """Return what the run's text encoder makes of a class's name or a few words
        (attributes,).
        """
        if len(words) > LONGEST_WORDS:
            raise DataError(f"a class is described in at most {LONGEST_WORDS} characters")
        return semantics_of_names([words], self.run.space, self.run.describing)[words]

    def outlook(self, name: str, words: str) -> str | None:
        """Say what to expect of a new class that is known by its name, or a few words, alone."""
        by_name = plain(words) == plain(name)
        expected = outlooks(self.run, [name if by_name else words])
        if not expected:
            return None
        return expected[0]._replace(name=name, words="" if by_name else words).sentence()

    def outlook_shown(self, name: str, examples: int) -> str | None:
        """Say what to expect of a new class that is known by so many examples."""
        return next(iter(shown_by_examples(self.run, {name: examples})), None)

    def near_name(self, name: str) -> str:
        """Say that a new class's name may be a misspelling of a known one; "" where it is none."""
        return "".join(near_names(self.run, [name])).removeprefix("warning: ")

    def describe(self, attributes: Mapping[str, Any] | Sequence[Any]) -> NDArray[np.float64]:
        """Return a class's attributes (attributes,), from all values or from those that are not 0
        by name.
        """
        space = self.run.space
        if isinstance(attributes, Mapping):
            for name in attributes:
                if name not in space.attribute_names:
                    raise DataError(unknown("attribute", str(name), space.attribute_names))
            values = [attributes.get(name, 0.0) for name in space.attribute_names]
        else:
            values = list(attributes)
        if len(values) != space.attributes:
            raise DataError(
                f"there are {len(values)} attributes, but this run's classes have "
                f"{space.attributes}"
            )
        for name, value in zip(space.attribute_names, values, strict=True):
            if (
                isinstance(value, bool)
                or not isinstance(value, (int, float))
                or not abs(value) < 1e30
            ):
                raise DataError(f"the attribute {name!r} must be a finite number")
        row = np.array(values, dtype=np.float64)
        if not row.any():
            raise DataError("all attributes are 0: a class needs at least one that it has")
        return row

    def add(self, added: Added) -> None:
        """Add a class; it competes from the next question on."""
        self._check(added)
        with_new = {**self.added, added.name: added}
        self._keep(with_new, added.lasting, self._extended(added) or self._rebuilt(with_new))

    def show(self, name: str, examples: NDArray[Any]) -> None:
        """Add examples (n, ...) of an added class, or of one of the run's unseen classes, to what
        is known of it; the latter until the service ends.
        """
        if not self.by_examples:
            raise ExperimentError(
                f"method.name = {self.run.method_name!r} learns no class from examples: describe it"
            )
        added = self.added.get(name)
        before = self.examples.get(name) if added is None else added.examples
        if before is not None:
            examples = np.concatenate([before, examples])
        if added is None:
            self._keep_examples({**self.examples, name: examples})
        else:
            with_more = {**self.added, name: replace(added, examples=examples)}
            self._keep(with_more, added.lasting, self._rebuilt(with_more))

    def hide(self, name: str) -> None:
        """Take the examples of one of the run's unseen classes away."""
        self._keep_examples({key: rows for key, rows in self.examples.items() if key != name})

    def _keep_examples(self, examples: dict[str, NDArray[Any]]) -> None:
        """Take these as the examples of the run's own classes."""
        self._known = self._rebuilt(self.added, examples)
        self.examples = examples

    def _check(self, added: Added) -> None:
        """Refuse a class with a name, a description or examples that the model cannot take."""
        name = added.name
        if (
            not name
            or name != name.strip()
            or len(name) > LONGEST_NAME
            or not is_visible(name)
            or "/" in name
            or name in (".", "..")
        ):
            raise DataError(
                f"a class's name has 1 to {LONGEST_NAME} printable characters, no slash, no "
                "space around it, and is not . or .."
            )
        by_plain = {**self._own, **{plain(added_name): added_name for added_name in self.added}}
        if existing := by_plain.get(plain(name)):
            raise DataError(
                f"there is a class {existing!r} already: choose another name, or take that "
                "one away first"
            )
        if len(self.added) >= ADDED:
            raise DataError(
                f"{ADDED} classes have been added, which is the most: take one away first"
            )
        for content, able, instead, how in (
            (
                added.attributes,
                self.by_attributes,
                self.by_examples,
                "from examples: give pictures or samples of it",
            ),
            (added.examples, self.by_examples, self.by_attributes, "from attributes: describe it"),
        ):
            if content is not None and not able:
                how = how if instead else "only in training"
                raise ExperimentError(
                    f"method.name = {self.run.method_name!r} learns classes {how}"
                )
        if added.attributes is None and added.examples is None:
            raise DataError("nothing describes the class: give attributes, or examples")

    def remove(self, name: str) -> None:
        """Take an added class away."""
        remaining = {key: added for key, added in self.added.items() if key != name}
        self._keep(remaining, self.added[name].lasting, self._rebuilt(remaining))

    def _keep(self, added: dict[str, Added], lasting: bool, with_added: _Known | None) -> None:
        """Take these as the added classes; write those that last if one of them came or went."""
        if lasting:
            tensors: dict[str, NDArray[Any]] = {}
            for i, item in enumerate(item for item in added.values() if item.lasting):
                for part, values in (("attributes", item.attributes), ("examples", item.examples)):
                    if values is not None:
                        tensors[f"{i:04d}/{part}/{item.name}"] = values
            write_tensors(self._path, tensors or {"none": np.zeros(1)})
        self.added = added
        self._known = with_added

    def _rebuilt(
        self, added: dict[str, Added], examples: dict[str, NDArray[Any]] | None = None
    ) -> _Known | None:
        """Return what knows the run's classes and these, made from the run itself.

        ``examples``: of the run's own classes; None: those that were shown.
        """
        model = self.model
        described = _described(added)
        predictor = self.run.experiment.task.predictor
        if not issubclass(predictor, ZeroShotPredictor) or model.method.generates:
            return None
        examples = self.examples if examples is None else examples
        if (added or examples) and self.by_examples:
            shown = {
                **examples,
                **{i.name: i.examples for i in added.values() if i.examples is not None},
            }
            model = model.learn(described, shown or None)
            described = None
        names, semantics, seen, _ = added_classes(model.space, described)
        rows = model.method.semantics if described is None else model.described(semantics)
        return _Known(names, seen, rows, model.params, model.method)

    def _extended(self, added: Added) -> _Known | None:
        """Return what knows one more class; None where all must be built again."""
        if self._known is None or (
            added.examples is not None and "dual_coefficients" not in self.model.params
        ):
            return None
        rows = (
            None
            if added.attributes is None
            else self.model.semantics_scaler(added.attributes[None])
        )
        if rows is not None and not rows.any():
            return None  # which says what is wrong
        shown = None
        method = self._known.method
        if added.examples is not None:
            assert isinstance(method, Gaussian)
            shown = summed(self.model, method, added.name, added.examples)
        offset = self.model.calibration.offset
        return self._known.with_class(added.name, rows, shown, offset)

    def _restore(self) -> None:
        """Read the lasting classes of an earlier service; each is checked as one that is added."""
        try:
            restored = dict[str, Added]()
            for key, tensor in sorted(load_params(self._path).items()):
                _, part, name = (*key.split("/", 2), "", "")[:3]
                before = restored.get(name, Added(name, lasting=True))
                if part == "attributes":
                    restored[name] = replace(before, attributes=self.describe(tensor.tolist()))
                elif part == "examples":
                    restored[name] = replace(before, examples=self.samples(tensor.numpy()))
            for added in restored.values():
                self._check(added)
                self.added[added.name] = added
            self._known = self._rebuilt(self.added)
        except (FedUnseenError, LookupError, RuntimeError, TypeError, ValueError):
            raise DataError(
                f"{self._path} is damaged: delete it, and add the lasting classes again"
            ) from None

    def read(self, file: Path | Table | ImageBytes) -> NDArray[Any]:
        """Read a file or a table as samples (n, ...), as the run takes them."""
        if isinstance(file, Path | Table):
            inputs: Any = file
            return self.run.read_inputs(inputs)
        if self.kind == "features":
            ends = ", ".join(FEATURE_SUFFIXES)
            raise DataError(
                f"{file}: this run takes feature vectors: give a file that ends in {ends}"
            )
        rows = read_sample(self.run, file)
        return self.run.read_inputs(
            self.run.encoded(rows) if self.run.manifest.get("picture_shape") else rows
        )

    def read_texts(self, texts: Sequence[str]) -> NDArray[Any]:
        """Return texts as samples (n, ...), as the run takes them."""
        return self.run.read_inputs(self.run.reader.read_texts(texts))

    def samples(self, rows: Any) -> NDArray[Any]:
        """Return samples (n, ...) from numbers, or from rows of a table by the names of its
        columns.
        """
        if isinstance(rows, list) and rows and all(isinstance(row, dict) for row in rows):
            return self.run.read_inputs(rows)
        return self.run.read_inputs(_numbers(rows))

    @property
    def each_frame(self) -> bool:
        """Whether each frame of a picture is a sample."""
        return getattr(self.run.experiment.data, "frames", "middle") == "each"

    @property
    def calibrated(self) -> bool:
        """Whether probabilities say how often answers are right."""
        return self.model.confidence is not None

    @property
    def adapts(self) -> bool:
        """Whether samples that it is asked about can move the model."""
        return self._arriving is not None

    def rank(
        self,
        samples: NDArray[Any],
        among: Among = "all",
        top: int | None = None,
        adapt: bool = True,
        coverage: float | None = None,
    ) -> list[Answer]:
        """Rank the classes for each sample of :meth:`read`, best first; at equal scores an added
        class comes first.

        Args:
            samples: (n, ...).
            among: which classes are ranked.
            top: how many of each ranking are returned, None for all.
            adapt: the model adapts to the samples afterwards, if it adapts at all.
            coverage: how often the right class is in each answer's set; None: no sets.

        Raises:
            ArgumentError: the coverage is not between 0 and 1.
            ExperimentError: the model has no confidence for sets, or cannot rank these classes.
        """
        model = self.model
        names, scores, seen, shown = self._scores(samples, among)
        odds = model.chances(scores, ~shown)
        inside = None
        if coverage is not None:
            confidence = model.checked_confidence()
            inside = confidence.sets(scores.astype(np.float64), ~shown, coverage)
        far = model.unfamiliar(samples).tolist() if model.finds_unfamiliar else [None] * len(odds)
        if self._arriving is not None and adapt:
            self._adapt(self._arriving, samples)
        is_added = np.zeros(len(names), dtype=bool)
        if self.added:
            is_added = np.array([name in self.added for name in names])
        answers = []
        for i, (row, share) in enumerate(zip(scores, odds, strict=True)):
            order = np.lexsort((~is_added, -row))
            best = order[:top]
            ranking = [
                ClassScore(
                    names[c], score, probability, "added" if is_added[c] else _KINDS[bool(seen[c])]
                )
                for c, score, probability in zip(
                    best.tolist(), row[best].tolist(), share[best].tolist(), strict=True
                )
            ]
            kept = None
            if inside is not None:
                inside[i, order[0]] = True  # of equal scores, sets hold the first column alone
                kept = [names[c] for c in order[inside[i, order]].tolist()]
            answers.append(Answer(f"[{i}]", ranking, kept, far[i]))
        return answers

    def _scores(
        self, samples: NDArray[Any], among: Among
    ) -> tuple[list[str], NDArray[Any], NDArray[np.bool_], NDArray[np.bool_]]:
        """Return the names of the classes that compete, their scores (n, C), which ones are seen,
        and which ones are so or were shown since (:attr:`fedunseen.Model.shown_mask`).
        """
        if self.from_examples_alone:
            if among != "all":
                raise ExperimentError(
                    f"among {among}: this run learns all classes from examples: leave it out"
                )
            if len(self.added) < 2:
                raise ExperimentError(
                    f"this run learns classes from examples, and there are {len(self.added)}: add "
                    "at least two first"
                )
        elif among == "given" and not self.added:
            raise ExperimentError("among given: no class has been added yet")
        model = self.model
        with_added = self._known
        if with_added is None:
            support = {
                item.name: item.examples
                for item in self.added.values()
                if item.examples is not None
            }
            rankings = model.rank(
                samples, _described(self.added), among=among, examples=support or None
            )
            names = [prediction.name for prediction in rankings[0]]
            by_name = [
                {prediction.name: prediction.score for prediction in ranking}
                for ranking in rankings
            ]
            seen_names = (
                set()
                if self.from_examples_alone
                else {model.space.names[c] for c in model.space.seen}
            )
            seen = np.array([n in seen_names for n in names])
            return names, np.array([[r[n] for n in names] for r in by_name]), seen, seen
        kept: Any = slice(0 if among == "all" else len(with_added.names) - len(self.added), None)
        if among == "unseen":
            kept = np.flatnonzero(~with_added.seen)
        seen = with_added.seen[kept]
        scores = with_added.scores(model, samples, bool(seen.any()))
        scores = model.calibration(scores, with_added.seen)[:, kept]
        scores = np.asfortranarray(
            scores
        )  # softmax adds in the order of memory: the last bits of a sum
        names = (
            with_added.names
            if among == "all"
            else np.array(with_added.names, dtype=object)[kept].tolist()
        )
        return names, scores, seen, with_added.shown[kept]

    def _adapt(self, arriving: Arriving, samples: NDArray[Any]) -> None:
        """Count samples; the next question is answered by the model with them."""
        content = arriving.add(self._trained.scaled(samples))
        calibration = Calibration(arriving.offset * content.offset_share)
        self.model = replace(self._trained, params=content.params, calibration=calibration)
        self._known = self._rebuilt(self.added)

    def add_reasons(
        self, answer: Answer, sample: NDArray[Any], picture: ImageBytes | None = None
    ) -> None:
        """Add to an answer why one sample (1, ...) gets its first class, if that is a class of the
        run; ``picture``: the file that it was read from.
        """
        name = answer.classes[0].name
        if name in self.added or not self.model.explains:
            return
        rows = self.run.read_inputs(sample)
        pixels = self.run.pixels(rows)
        if picture is not None and self.run.manifest.get("picture_shape"):
            picture.seek(0)
            pixels = read_sample(self.run, picture)
        (explanation,) = self.model.explain(rows, classes=[name], maps=self.run.maps_of(pixels))
        shares = [ClassShare(name=part.name, share=part.value) for part in explanation.shares()]
        answer.because = shares or None
        if explanation.places is not None and pixels is not None:
            answer.place = explanation.places.sentence()
            answer.heat = picture_address(explanation.places.over(pixels[0]))

    def explain(
        self, sample: NDArray[Any], names: Sequence[str], most: int = 6
    ) -> dict[str, list[AttributeEffect]]:
        """Say which attributes speak most for or against classes, given one sample (1, ...).

        An attribute's effect is the slope of the class's score in it, times by how much the class
        has more of it than the mean of all classes. The slope is the mean one on the way from that
        mean to the class (integrated gradients, Sundararajan et al. 2017), so that the effects add
        up to the class's lead over the mean description, before calibration. A method that scores
        by classifiers, not by attributes, gives none.
        """
        model = self.model
        method = self.model.method
        if not self.by_attributes or method.generates:
            return {}
        class_names, semantics, _, _ = added_classes(model.space, _described(self.added))
        scaled = model.scaled(self.run.read_inputs(sample))
        described = model.described(semantics).requires_grad_()
        with torch.enable_grad():
            scores = method.scores(model.params, scaled, described)
            if not scores.requires_grad:
                return {}
            effects = {}
            shown = {model.space.names[c] for c in model.space.undescribed}
            unshown = [c for c, name in enumerate(class_names) if name not in shown]
            mean = described.detach()[unshown].mean(0)
            steps = (torch.arange(_STEPS) + 0.5)[:, None] / _STEPS
            for name in names:
                if name not in class_names or name in shown:  # it was only shown, in examples
                    continue
                c = class_names.index(name)
                (slope,) = torch.autograd.grad(scores[0, c], described, retain_graph=True)
                if slope[c].any():  # otherwise it is known by its examples
                    difference = described[c].detach() - mean
                    way = (mean + steps * difference).requires_grad_()
                    (slopes,) = torch.autograd.grad(
                        method.scores(model.params, scaled, way).sum(), way
                    )
                    effect = (slopes.mean(0) * difference).numpy()
                else:
                    effect = np.zeros(len(mean), dtype=np.float32)
                order = np.argsort(-np.abs(effect), kind="stable")[:most]
                effects[name] = [
                    AttributeEffect(
                        attribute=model.space.attribute_names[j],
                        value=semantics[c, j],
                        effect=effect[j],
                    )
                    for j in order
                    if effect[j] != 0
                ]
        return effects


def _numbers(rows: Any) -> NDArray[np.float64]:
    """Return numbers from JSON as an array; nothing else, since one long text among numbers would
    make each of them as long.
    """
    listed = np.asarray(rows, dtype=object)
    if listed.ndim > _DEEPEST:
        raise DataError("the inputs are lists in lists in lists: give a list of numbers for each")
    others = {kind.__name__ for kind in set(map(type, listed.flat))} - {"bool", "float", "int"}
    if others & {"list", "dict"}:
        raise DataError("the samples are not equally long: give a list of numbers for each")
    if others:
        raise DataError(f"the inputs are of type {min(others)}: give real numbers")
    try:
        return listed.astype(np.float64)
    except OverflowError:
        raise DataError("the inputs hold a number that no float can: leave it out") from None


def _kind_of(reader: RunReader) -> Kind:
    """Return what one sample of a run is."""
    if reader.takes_texts:
        return "text"
    if reader.loader.reads_tables:
        return "rows"
    return "pictures" if reader.takes_pictures else "features"


def _described(added: Mapping[str, Added]) -> dict[str, Sequence[float]] | None:
    described = {
        item.name: item.attributes.tolist()
        for item in added.values()
        if item.attributes is not None
    }
    return described or None
