"""A finished run: its numbers, and its model at work on new inputs and on classes that it was never trained on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedunseen.core.arrays import to_float32
from fedunseen.core.errors import DataError, ExperimentError, RunDirectoryError, unknown
from fedunseen.core.files import free_folder
from fedunseen.core.parameters import Params, of_each_client
from fedunseen.core.registry import find
from fedunseen.core.runs import check_where, complete_result, read_manifest
from fedunseen.data import Benchmark, ClassSpace, DataSettings, Scaler, fit_semantics
from fedunseen.encoders.backbone import Encoder
from fedunseen.experiment.class_descriptions import names_in, semantics_of_names
from fedunseen.experiment.encoding import found, found_text, make_backbone, make_encoder
from fedunseen.experiment.inputs import batches
from fedunseen.experiment.parsing import check_known, located
from fedunseen.experiment.schema import Experiment
from fedunseen.federation.run_directory import RunDirectory, load_params, parameter_sizes
from fedunseen.methods import Method
from fedunseen.methods.closed_form.base import ClosedForm
from fedunseen.tasks.base import Classes, Examples, Inputs, Prediction, Question, Shown

if TYPE_CHECKING:
    from fedunseen.experiment.tables import Table


@dataclass(frozen=True, eq=False)
class Run:
    """A complete run, read from its directory.

    Attributes:
        path: the run directory.
        manifest: experiment, versions, data fingerprint, seed.
        result: the final numbers, in percent; with several seeds, means and ``..._sd``.
        weights: where the encoder's weights are, if they are not where the run had them.
        overrides: settings of ``[data]`` and ``[encoder]`` that say where things are on this machine.
        client: whose own model answers; None: the one for all. See :meth:`of_client`.
    """

    path: Path
    manifest: Mapping[str, Any]
    result: Mapping[str, Any]
    weights: Path | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)
    client: int | None = None

    @cached_property
    def experiment(self) -> Experiment:
        """The experiment, with the settings that were chosen on validation classes in force."""
        check_known(self.manifest["experiment"], self.manifest.get("plugins"))
        chosen = self.result.get("chosen_on_validation", {}).get("settings", {})
        return Experiment.from_dict(self.manifest["experiment"]).with_overrides({**chosen, **self.overrides})

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """The line of every round; with several seeds, each of ``seeds`` has its own."""
        self._check_made_here()
        lines = RunDirectory(self.path).metrics()
        if "seeds" not in self.result and len(lines) != self.result["rounds"]:
            raise RunDirectoryError(f"{self.path / 'metrics.jsonl'} is damaged: resume the run to make it again")
        return lines

    @cached_property
    def evaluation(self) -> dict[str, NDArray[Any]]:
        """What a run recorded of its tests for pages and comparisons: answers, similarities, who held what."""
        self._check_made_here()
        stored = load_params(self.path / "evaluation.safetensors")
        return {name: value.numpy() for name, value in stored.items()}

    @property
    def brought_home(self) -> bool:
        """It is a party's: the model, its numbers and its classes, without the coordinator's tests and rounds."""
        return bool(self.manifest.get("brought_home", False))

    def _check_made_here(self) -> None:
        if self.brought_home:
            raise RunDirectoryError(
                f"{self.path} is the model that a party took home: its rounds, tests and page are in the coordinator's "
                "run directory"
            )

    def headline(self) -> str:
        """Say the run's numbers on one line."""
        return self.experiment.task.headline(self.result)

    @cached_property
    def seeds(self) -> list[Run]:
        """The runs of the single seeds; none if this is one."""
        paths = [self.path / f"seed-{seed}" for seed in self.result.get("seeds", [])]
        return [replace(load_run(path, self.weights, self.overrides), client=self.client) for path in paths]

    @property
    def first(self) -> Run:
        """The run of the first seed; this one if there is one seed alone."""
        return self.seeds[0] if self.seeds else self

    @cached_property
    def space(self) -> ClassSpace:
        """The class space; of several seeds, the first one's."""
        if self.seeds:
            return self.first.space
        return ClassSpace.load(self.path / "classes.csv", of_run=True)

    @cached_property
    def params(self) -> Params:
        """The merged model of the chosen round; where each client has its own, all of them, under ``client/K/``.

        With ``client``, that client's own.
        """
        if self.seeds:
            raise RunDirectoryError(f"{self.path} holds a model for each seed: take the params of one of its seeds")
        if self.client is None:
            return load_params(self.path / "model.safetensors")
        return load_params(self._own_path, under=f"client/{self.client}/")

    def tables(self) -> dict[str, Table]:
        """Return the numbers as tables, each a dictionary of columns; see ``fedunseen.experiment.tables``."""
        from fedunseen.experiment.tables import tables  # which reads runs itself

        return tables(self)

    @cached_property
    def method(self) -> Method:
        """The method, made for the run's class space."""
        settings = self.experiment.method
        semantics = torch.from_numpy(self.scaled_semantics(self.space.semantics))
        backbone = make_backbone(self._placed, tuple(self.manifest["input_shape"]), self.manifest.get("image_shape"))
        made: Method = find("method", settings.name)(settings, self.space, semantics, backbone)
        if isinstance(made, ClosedForm):
            made.quantization = self.scaler.quantization
        return made

    @cached_property
    def _placed(self) -> Experiment:
        """The experiment with the encoder's weights where they are now, the same as the run had."""
        entry = self.manifest.get("encoder")
        return self.experiment.with_overrides(
            found(entry, self.path, lambda: self._made_encoder(self.experiment), self.weights)
        )

    def _made_encoder(self, experiment: Experiment) -> Encoder | None:
        return make_encoder(experiment, self.manifest.get("picture_shape") or self.manifest.get("image_shape"))

    @cached_property
    def _encoder(self) -> Encoder | None:
        """The run's encoder, with the weights that it had."""
        return self._made_encoder(self._placed)

    @cached_property
    def describing(self) -> DataSettings:
        """The settings of data, with the text encoder that described the classes where it is now."""
        return found_text(self.manifest.get("text_encoder"), self.path, self.experiment.data)

    @property
    def encoder_files(self) -> list[Path]:
        """The weights of the run's encoder, where they are now; none if every installation has them."""
        encoder = self._encoder if self.manifest.get("encoder") else None
        return [] if encoder is None or encoder.installed else encoder.files()

    def encoded(self, images: NDArray[Any]) -> NDArray[Any]:
        """Return what the run's frozen encoder makes of images (n, channels, height, width)."""
        assert self._encoder is not None
        return self._encoder.encode(images)

    def features_of(self, benchmark: Benchmark, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return samples of a party's benchmark as the run's model takes them, before scaling."""
        images = benchmark.images() if self.manifest.get("picture_shape") is not None else None
        return (
            benchmark.features[rows] if images is None or benchmark.pictures is not None else self.encoded(images[rows])
        )

    @property
    def method_name(self) -> str:
        """The method's name in the experiment."""
        return self.experiment.method.name

    @property
    def pooled(self) -> bool:
        """All training data lay in one place."""
        return bool(find("strategy", self.experiment.strategy.name).pools)

    @cached_property
    def scaled_semantics(self) -> Scaler:
        """Scales the semantics (C, attributes) of classes as those of the run were scaled."""
        return fit_semantics(self.space, self.experiment.data.semantics)

    def predict(
        self,
        inputs: Inputs,
        classes: Classes | Sequence[str] | None = None,
        top: int | None = None,
        among: str = "all",
        support: Examples | None = None,
    ) -> list[list[Prediction]]:
        """Rank classes for new inputs.

        Args:
            inputs: samples as the benchmark's raw ones, (n, d) features or (n, channels, height, width) maps or images;
                or paths of images or feature files.
            classes: classes to add, or to replace by name: a CSV file (name, attributes...) or ``{name: attributes}``;
                of a run whose classes a text encoder describes, a list of names or a file of names alone, too.
            top: how many classes of each ranking; all by default.
            among: rank ``all`` classes, only ``unseen`` ones (added ones included), or only the ``given`` ones.
            support: examples of classes: a folder with a folder of examples for each class, or ``{name: examples}``.

        Returns:
            For each input its ranking, best first. Seen classes are lowered by the run's calibration factor; scores of
            classes learned from examples alone are logits.

        Raises:
            DataError: an input, a class or an example is wrong.
            ExperimentError: the run's model cannot do this.
        """
        if self.seeds:
            return self.first.predict(inputs, classes, top, among, support)
        self.check_one_model("to predict with", choosable=True)
        return self.experiment.task.predictor.predict(
            self, Question(inputs, self.described(classes), support, top, among)
        )

    def of_client(self, client: int) -> Run:
        """Return this run with the own model of one client, counted from 0; the numbers stay those of the run.

        Every client has its own where nothing is merged or heads stay, and the clients that are measured have one under
        ``strategy.personal_epochs``.
        """
        having = self.first.own_models
        if not having:
            raise ExperimentError(f"{self.path} has one model for all clients: leave out the client")
        if client not in having:
            raise ExperimentError(f"{self.path}: {unknown('client', str(client), map(str, having))}")
        return replace(self, client=client)

    @property
    def _own_path(self) -> Path:
        """The file of clients' own models."""
        personal = RunDirectory(self.path).personal_path
        return personal if personal.exists() else self.path / "model.safetensors"

    @cached_property
    def own_models(self) -> list[int]:
        """The clients that have a model of their own here."""
        return list(of_each_client(parameter_sizes(self._own_path)))

    @cached_property
    def one_model(self) -> bool:
        """Whether there is one model for all, or that of one client was taken; otherwise every client has its own."""
        return self.client is not None or not of_each_client(parameter_sizes(self.path / "model.safetensors"))

    def check_one_model(self, use: str, choosable: bool = False) -> None:
        """Refuse a ``use`` that needs one model where each client has its own; ``choosable``: one client's would do."""
        if self.one_model:
            return
        strategy = self.experiment.strategy
        alone = tuple(strategy.shared) == ("*",)
        why = f"strategy.name = {strategy.name!r}" if alone else f"strategy.shared = {list(strategy.shared)}"
        raise ExperimentError(
            f"{self.path}: under {why} every client keeps its own model, so there is none {use}: "
            + (f"name a client, --client {self.own_models[0]}, or " if choosable else "")
            + "run with "
            + ("a strategy that merges" if alone else "strategy.shared = ['*']")
        )

    def learn(
        self,
        classes: Classes | Sequence[str] | None = None,
        examples: Shown | None = None,
        out: str | Path | None = None,
    ) -> Run:
        """Return this run with classes that it has learned since: nothing is trained again.

        Args:
            classes: descriptions of new classes, or better ones of known classes, as for :meth:`predict`.
            examples: examples of classes, new or known, as ``support`` for :meth:`predict`; or the sums of them.
            out: write the new run there; by default it exists in memory alone.

        Returns:
            A run whose class space has the new classes, as unseen ones. Its accuracies are those of this run.

        Raises:
            DataError: a class or an example is wrong.
            ExperimentError: the run's model cannot learn so.
            RunDirectoryError: ``out`` holds something.
        """
        if classes is None and examples is None:
            raise DataError("there is nothing to learn: give classes, examples, or both")
        run = self.first
        run.check_one_model("to add classes to", choosable=True)
        folder = free_folder(out) if out is not None else None
        learned = run.experiment.task.predictor.learn(run, run.described(classes), examples)
        changed = replace(run)
        vars(changed).update(space=learned.space, params=learned.params)
        _ = changed.method  # refuses what no later prediction could use
        if folder is None:
            return changed
        from fedunseen.experiment.changed import write_changed  # which makes runs itself

        added = [name for name in learned.space.names if name not in run.space.names]
        write_changed(run, learned, folder, {**run.result, "learnt": added})
        return run.reopened(folder)

    def reopened(self, path: Path) -> Run:
        """Return the run of another directory, with encoders and data where this one's are."""
        return load_run(path, self.weights, self.overrides)

    def adapt(self, inputs: Inputs, out: str | Path | None = None, among: str = "all") -> Run:
        """Return this run adapted to unlabelled samples, which may be of seen and of unseen classes.

        Prototypes of unseen classes move to where samples lie (:mod:`fedunseen.methods.closed_form.unlabelled`).
        Samples that the model rules out do not count, with a warning.

        Args:
            inputs: at least ten samples, as for :meth:`predict`, or a folder of them.
            out: write the new run there; by default it exists in memory alone.
            among: the classes that samples may be of: ``all``, or ``unseen`` ones alone.

        Returns:
            The adapted run; ``result["adapted"]`` says what each class got. Where the run's test samples are here, they
            are measured again; otherwise its accuracies are those of this run.

        Raises:
            DataError: the samples cannot be used.
            ExperimentError: the run's method has no class means to adapt.
            RunDirectoryError: ``out`` holds something.
        """
        from fedunseen.experiment.changed import adapt_run  # which makes runs itself

        return adapt_run(self, inputs, out, among)

    def described(self, classes: Classes | Sequence[str] | None) -> Classes | None:
        """Return classes with their semantics: names alone are described as the run's own were."""
        names = names_in(Path(classes)) if isinstance(classes, (str, Path)) else classes
        if names is None or isinstance(names, Mapping):
            return classes  # type: ignore[return-value]
        return semantics_of_names(names, self.space, self.describing)  # type: ignore[return-value]

    def batches(self, paths: Sequence[str | Path]) -> Iterator[tuple[list[str], NDArray[Any]]]:
        """Yield names and samples of files, of folders of files and of arrays, some dozens at a time.

        Args:
            paths: pictures, texts or feature files as the benchmark has them; folders, whose files are read however
                deep they lie; ``.npy`` and ``.npz`` files of pictures, (n, height, width), (n, height, width, 3) or
                (n, 3, height, width), bytes or numbers from 0 to 1. What is not a picture in a folder is left out with
                a warning.
        """
        return batches(self, [Path(path) for path in paths])

    @cached_property
    def scaler(self) -> Scaler:
        """How vectors are scaled."""
        stored = load_params(self.path / "scaling.safetensors")
        statistics = {name: value.numpy() for name, value in stored.items() if name != "none"}
        return Scaler(self.experiment.data.features or (), statistics)

    def read_inputs(self, inputs: Inputs) -> NDArray[Any]:
        """Return samples (n, ...) as the model takes them, before scaling."""
        if isinstance(inputs, (str, Path)):
            inputs = [inputs]
        if not len(inputs):
            raise DataError("there is nothing to predict: give at least one input")
        if not isinstance(inputs, np.ndarray) and all(isinstance(one, (str, Path)) for one in inputs):
            inputs = np.concatenate([rows for _, rows in self.batches(inputs)])
        given: NDArray[Any] = np.asarray(inputs)
        sample = tuple(self.manifest["input_shape"])
        rows = given[None] if given.shape == sample else given
        if rows.shape[1:] != sample or rows.ndim == 0:
            shape = ", ".join(["n", *map(str, sample)])
            raise DataError(
                f"the inputs have the shape {given.shape}, but this run's model takes ({shape}): give such inputs"
            )
        if rows.dtype.kind not in "fiub":
            raise DataError(f"the inputs are of type {rows.dtype}: give real numbers")
        if rows.dtype == np.uint8 and rows.ndim > 2:
            return rows  # images
        rows = to_float32(rows, "the inputs")
        if not np.isfinite(rows).all():
            raise DataError("the inputs hold values that are not finite: leave those rows out")
        return rows


def load_run(path: str | Path, encoder: str | Path | None = None, overrides: Mapping[str, Any] | None = None) -> Run:
    """Read a complete run.

    Args:
        path: the run directory.
        encoder: where the weights of its encoder are, where they are not found by their content.
        overrides: settings of ``[data]`` and ``[encoder]`` that say where things are on this machine.

    Raises:
        ExperimentError: an override changes more than where things are.
        RunDirectoryError: ``path`` is not a run directory, or its run is not complete.
    """
    manifest, result = read_manifest(Path(path)), complete_result(Path(path))
    manifest = {**manifest, "experiment": located(manifest["experiment"], Path(path))}
    check_where(list(overrides or {}))
    return Run(Path(path), manifest, result, None if encoder is None else Path(encoder), dict(overrides or {}))
