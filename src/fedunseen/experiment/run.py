"""A finished run: its numbers, and its model at work on new inputs and on classes that it was never trained on."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedunseen.core.errors import DataError, ExperimentError, RunDirectoryError
from fedunseen.core.parameters import Params
from fedunseen.data import ClassSpace, Scaler, fit_semantics, read_classes
from fedunseen.data.class_space import check_semantics
from fedunseen.data.features import FEATURE_SUFFIXES, read_features
from fedunseen.experiment.directory import RunDirectory, load_params
from fedunseen.experiment.encoding import as_images, make_backbone, make_encoder
from fedunseen.experiment.registry import find
from fedunseen.experiment.schema import Experiment
from fedunseen.methods import Candidates, Method
from fedunseen.methods.episodic import Episodic

__all__ = ["Prediction", "Run", "load_run"]


_BLOCK = 64  # samples scored at once: images may take much memory on their way


class Prediction(NamedTuple):
    """One class of a ranking: its name and its score (the method's own units; seen classes less the calibration)."""

    name: str
    score: float


@dataclass(frozen=True, eq=False)
class Run:
    """A complete run, read from its directory.

    Attributes:
        path: the run directory.
        manifest: experiment, versions, data fingerprint, seed.
        result: the final numbers, in percent; with several seeds, means and ``..._sd``.
    """

    path: Path
    manifest: Mapping[str, Any]
    result: Mapping[str, Any]

    @cached_property
    def experiment(self) -> Experiment:
        """The experiment, with the settings that were chosen on validation classes in force."""
        chosen = self.result.get("chosen_on_validation", {}).get("settings", {})
        return Experiment.from_dict(self.manifest["experiment"]).with_overrides(chosen)

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """The line of every round; with several seeds, each of ``seeds`` has its own."""
        lines = RunDirectory(self.path).metrics()
        if "seeds" not in self.result and len(lines) != self.result["rounds"]:
            raise RunDirectoryError(f"{self.path / 'metrics.jsonl'} is damaged: resume the run to make it again")
        return lines

    @cached_property
    def seeds(self) -> list[Run]:
        """The runs of the single seeds; none if this is one."""
        return [load_run(self.path / f"seed-{seed}") for seed in self.result.get("seeds", [])]

    @cached_property
    def space(self) -> ClassSpace:
        """The class space; of several seeds, the first one's."""
        if self.seeds:
            return self.seeds[0].space
        return ClassSpace.load(self.path / "classes.csv")

    @cached_property
    def params(self) -> Params:
        """The merged model of the chosen round."""
        if self.seeds:
            raise RunDirectoryError(f"{self.path} holds a model for each seed: take the params of one of its seeds")
        return load_params(self.path / "model.safetensors")

    @cached_property
    def _method(self) -> Method:
        data, settings = self.experiment.data, self.experiment.method
        semantics = fit_semantics(self.space, data.semantics)(self.space.semantics)
        backbone = make_backbone(self.experiment, self._shape, self.manifest.get("image_shape"))
        made: Method = find("method", settings.name)(settings, self.space, torch.from_numpy(semantics), backbone)
        return made

    def predict(
        self,
        inputs: NDArray[Any] | str | Path | Sequence[str | Path],
        classes: str | Path | Mapping[str, Sequence[float]] | None = None,
        top: int | None = None,
        among: str = "all",
    ) -> list[list[Prediction]]:
        """Rank classes for new inputs, without any training.

        Args:
            inputs: samples as the benchmark's raw ones, (n, d) features or (n, channels, height, width) maps or images;
                or paths of images or feature files.
            classes: classes to add, or to replace by name: a CSV file (name, attributes...) or ``{name: attributes}``.
            top: how many classes of each ranking; all by default.
            among: rank ``all`` classes, only ``unseen`` ones (added ones included), or only the ``given`` ones.

        Returns:
            For each input its ranking, best first. Seen classes are lowered by the run's calibration factor.

        Raises:
            DataError: an input or a class is wrong.
            ExperimentError: the run's model cannot do this.
        """
        if self.seeds:
            return self.seeds[0].predict(inputs, classes, top, among)
        name = self.experiment.method.name
        if self._few_shot:
            raise ExperimentError(
                f"method.name = {name!r} learns classes from examples: give a folder with a folder of examples for "
                "each class, --support FOLDER"
            )
        if not find("strategy", self.experiment.strategy.name).merges:
            raise ExperimentError(
                f"{self.path}: under strategy.name = {self.experiment.strategy.name!r} every client keeps its own "
                "model, so there is none to predict with: run with a strategy that merges"
            )
        names, semantics, seen = self._classes(classes)
        if (classes is not None or among != "all") and not self._method.zero_shot:
            raise ExperimentError(
                f"method.name = {name!r} knows only the classes that it was trained on: run a zero-shot method, "
                "for example fedzsl, to predict others"
            )
        given = np.zeros(len(names), dtype=bool)
        if classes is not None:
            given[[names.index(n) for n in self._given(classes)[0]]] = True
        allowed = {"all": np.ones(len(names), dtype=bool), "unseen": ~seen, "given": given}.get(among)
        if allowed is None:
            raise ExperimentError(f"--among {among}: choose all, unseen or given")
        if not allowed.any():
            raise ExperimentError(f"--among {among}: there is no such class; give some with --classes")
        if top is not None and top < 1:
            raise ExperimentError(f"--top {top}: ask for at least 1 class")
        data = self.experiment.data
        rows = self._read(inputs)
        scaled = torch.from_numpy(self._scaler(rows) if rows.ndim == 2 else rows)
        scaled_semantics = torch.from_numpy(fit_semantics(self.space, data.semantics)(semantics))
        method, params, factor = self._method, self.params, float(self.result["calibration_factor"])
        if method.generates and classes is not None:  # its classifiers know the run's classes only
            if find("strategy", self.experiment.strategy.name).pools and seen[allowed].any():
                factor = 0.0  # it was chosen for another classifier
                warnings.warn(
                    f"{self.path}: this run's classifier saw real samples of seen classes, which are not here; with "
                    "classes given, one is trained on generated features alone, and not calibrated",
                    stacklevel=2,
                )
            ids = np.arange(len(names))
            params = method.complete(
                params, Candidates(names, scaled_semantics, ids[seen], ids[~seen]), self.manifest["seed"]
            )
        with torch.no_grad():
            score = method.scores if seen[allowed].any() else method.unseen_scores
            blocks = [score(params, part, scaled_semantics) for part in torch.split(scaled, _BLOCK)]
            scores = torch.cat(blocks).numpy()
        scores = scores - factor * seen
        kept = np.flatnonzero(allowed)
        order = kept[np.argsort(-scores[:, kept], axis=1, kind="stable")][:, :top]
        return [[Prediction(names[c], float(row[c])) for c in best] for row, best in zip(scores, order, strict=True)]

    @property
    def _few_shot(self) -> bool:
        return bool(find("method", self.experiment.method.name).episodic)

    @property
    def _fixed_names(self) -> list[str]:
        """The names of the answers in order, where they are the same in every episode; none otherwise."""
        answers = self.manifest.get("answers")
        if answers is None or self.experiment.method.permute_labels:  # type: ignore[attr-defined]
            return []
        return [self.space.names[c] for c in sorted(self.space.train.tolist(), key=lambda c: int(answers[c]))]

    def recognise(
        self,
        inputs: NDArray[Any] | str | Path | Sequence[str | Path],
        support: str | Path | Mapping[str, NDArray[Any] | Sequence[str | Path]],
        top: int | None = None,
    ) -> list[list[Prediction]]:
        """Learn new classes from a few examples, and rank them for inputs (few-shot runs).

        Args:
            inputs: as for :meth:`predict`.
            support: a folder with a folder of examples for each class, or ``{name: examples}``.
            top: how many classes of each ranking; all by default.

        Returns:
            For each input its ranking, best first, scores being logits.

        Raises:
            DataError: an input or an example is wrong, or there are too few or too many classes.
            ExperimentError: the run's method does not learn from examples.
        """
        if self.seeds:
            return self.seeds[0].recognise(inputs, support, top)
        settings = self.experiment.method
        if not self._few_shot:
            raise ExperimentError(
                f"method.name = {settings.name!r} learns classes from descriptions: give --classes instead of --support"
            )
        if not find("strategy", self.experiment.strategy.name).merges:
            raise ExperimentError(
                f"{self.path}: under strategy.name = {self.experiment.strategy.name!r} every client keeps its own "
                "model, so there is none to predict with: run with a strategy that merges"
            )
        if top is not None and top < 1:
            raise ExperimentError(f"--top {top}: ask for at least 1 class")
        method = self._method
        assert isinstance(method, Episodic)
        examples = dict(_folders(Path(support)) if isinstance(support, (str, Path)) else support)
        if len(examples) < 2:
            raise DataError(f"the examples are of {len(examples)} classes: give some of at least two")
        if method.limited and len(examples) > method.config.ways:
            raise DataError(
                f"this run's model tells {method.config.ways} classes apart, and there are examples of "
                f"{len(examples)}: give fewer, or train with more method.ways, or with method.name = 'protonet'"
            )
        if fixed := self._fixed_names:
            if sorted(examples) != sorted(fixed):
                raise DataError(
                    f"this run's answers are always {', '.join(fixed)}, and there are examples of "
                    f"{', '.join(sorted(examples))}: call them the same"
                )
            examples = {name: examples[name] for name in fixed}
        rows = {name: self._read(some) for name, some in examples.items()}
        answers = torch.tensor([n for n, some in enumerate(rows.values()) for _ in some])

        def scaled(samples: NDArray[Any]) -> Tensor:
            return torch.from_numpy(self._scaler(samples) if samples.ndim == 2 else samples)

        learnt = scaled(np.concatenate(list(rows.values())))
        blocks = torch.split(scaled(self._read(inputs)), _BLOCK)
        logits = torch.cat([method.recognise(self.params, learnt, answers, block) for block in blocks]).numpy()
        names = list(rows)
        return [[Prediction(names[n], float(row[n])) for n in np.argsort(-row, kind="stable")[:top]] for row in logits]

    def read(self, path: str | Path) -> NDArray[Any]:
        """Read an image or a feature file as (n, ...) samples: what the model takes, before scaling.

        Raises:
            DataError: it is missing, damaged, or of another shape than the run's samples.
        """
        path, benchmark = Path(path), find("data", self.experiment.data.name)
        if path.suffix.lower() in FEATURE_SUFFIXES:
            if len(self._shape) > 1:
                raise DataError(f"{path}: this run's model takes images, not feature files: give an image")
            return read_features(path, self._shape[0])
        samples = np.asarray(benchmark.read(path, self.experiment.data))
        encoded: list[int] | None = self.manifest.get("picture_shape")
        if samples.ndim == 2 and (encoded is not None or len(self._shape) > 1):
            samples = as_images(samples, encoded or self._shape)  # a flattened image
        if encoded is None:
            return samples
        encoder = make_encoder(self.experiment, encoded)
        assert encoder is not None  # it made the features
        return encoder.encode(samples)

    @cached_property
    def _shape(self) -> tuple[int, ...]:
        """The shape of one sample as the model takes it."""
        return tuple(self.manifest["input_shape"])

    @cached_property
    def _scaler(self) -> Scaler:
        steps = self.experiment.data.features
        stored = load_params(self.path / "scaling.safetensors")
        statistics = {name: value.numpy() for name, value in stored.items() if name != "none"}
        return Scaler(steps, statistics)

    def _read(self, inputs: NDArray[Any] | str | Path | Sequence[str | Path]) -> NDArray[Any]:
        if isinstance(inputs, (str, Path)):
            return self.read(inputs)
        if not len(inputs):
            raise DataError("there is nothing to predict: give at least one input")
        if not isinstance(inputs, np.ndarray) and all(isinstance(one, (str, Path)) for one in inputs):
            return np.concatenate([self.read(path) for path in inputs])
        given: NDArray[Any] = np.asarray(inputs)
        rows = given[None] if given.shape == self._shape else given
        if rows.shape[1:] != self._shape or rows.ndim == 0:
            shape = ", ".join(["n", *map(str, self._shape)])
            raise DataError(f"the inputs have the shape {given.shape}, but this run's model takes ({shape})")
        if rows.dtype.kind not in "fiub":
            raise DataError(f"the inputs are of type {rows.dtype}: give real numbers")
        if rows.dtype == np.uint8 and rows.ndim > 2:
            return rows  # images
        with np.errstate(over="ignore"):
            rows = rows.astype(np.float32)
        if not np.isfinite(rows).all():
            raise DataError("the inputs hold values that are not finite: leave those rows out")
        return rows

    def _given(self, classes: str | Path | Mapping[str, Sequence[float]]) -> tuple[Sequence[str], NDArray[np.float64]]:
        if isinstance(classes, (str, Path)):
            return read_classes(Path(classes), self.space)
        for name, values in classes.items():
            if len(values) != self.space.attributes:
                raise DataError(
                    f"class {name!r} has {len(values)} attributes, but this run's classes have {self.space.attributes}"
                )
        try:
            semantics = np.array([list(values) for values in classes.values()], dtype=np.float64)
        except (TypeError, ValueError):
            raise DataError("the attributes of a class must be numbers, as many as the run's classes have") from None
        semantics = semantics.reshape(len(classes), self.space.attributes)
        check_semantics(list(classes), semantics)
        return list(classes), semantics

    def _classes(
        self, classes: str | Path | Mapping[str, Sequence[float]] | None
    ) -> tuple[list[str], NDArray[np.float64], NDArray[np.bool_]]:
        """Return names, raw semantics and which are seen, with the given classes added or put in place."""
        names, semantics = list(self.space.names), self.space.semantics.copy()
        seen = np.isin(np.arange(len(names)), self.space.seen)
        if classes is None:
            return names, semantics, seen
        added: list[NDArray[np.float64]] = []
        for name, row in zip(*self._given(classes), strict=True):
            if name in self.space.names:
                semantics[names.index(name)] = row
            else:
                names.append(name)
                added.append(row)
        semantics = np.concatenate([semantics, *(row[None] for row in added)])
        return names, semantics, np.concatenate([seen, np.zeros(len(added), dtype=bool)])


def _folders(path: Path) -> dict[str, list[Path]]:
    """Return the files in each folder of a folder.

    Raises:
        DataError: there are none.
    """
    if not path.is_dir():
        raise DataError(f"{path} is no folder: give one with a folder of examples for each class")
    found = {
        p.name: sorted(f for f in p.iterdir() if not f.name.startswith("."))
        for p in sorted(path.iterdir())
        if p.is_dir() and not p.name.startswith(".")
    }
    if not found:
        raise DataError(f"{path} holds no folders: put the examples of each class in a folder with its name")
    empty = [name for name, some in found.items() if not some]
    if empty:
        raise DataError(f"{path / empty[0]} is empty: put at least one example of the class there")
    return found


def load_run(path: str | Path) -> Run:
    """Read a complete run.

    Raises:
        RunDirectoryError: ``path`` is no run directory, or its run is not complete.
    """
    directory = RunDirectory(Path(path))
    manifest = directory.manifest()
    result = directory.result()
    if result is None:
        raise RunDirectoryError(f"{path}: this run is not complete: resume it with --out {path} --resume")
    return Run(Path(path), manifest, result)
