"""A finished run as its directory stores it: settings, numbers, class space, model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedunseen.core.errors import ExperimentError, RunDirectoryError, unknown
from fedunseen.core.model_file import read_model_file, refusing_damage
from fedunseen.core.parameters import Params, of_each_client
from fedunseen.core.registry import find
from fedunseen.core.runs import check_where, read_manifest, read_result
from fedunseen.data import Benchmark, ClassSpace, DataSettings, Scaler, fit_semantics
from fedunseen.data.base import BenchmarkLoader
from fedunseen.encoders.backbone import Encoder, FrozenEncoder
from fedunseen.encoders.hub import local_files_only
from fedunseen.experiment.class_descriptions import names_in, semantics_of_names
from fedunseen.experiment.encoding import (
    as_images,
    features_from,
    found_text,
    locate_weights,
    make_backbone,
    make_encoder,
)
from fedunseen.experiment.parsing import check_known, located
from fedunseen.experiment.result.agreement import check_agreement
from fedunseen.experiment.result.reader import RunReader
from fedunseen.experiment.run_model import MODEL_FILES, older_confidence
from fedunseen.experiment.schema import Experiment
from fedunseen.federation.run_directory import RunDirectory, is_model, load_params, parameter_sizes
from fedunseen.methods import Method
from fedunseen.methods.closed_form.base import ClosedForm
from fedunseen.methods.episodic import Episodic
from fedunseen.model import Calibration, Classes, Model

_REMEDY = "restore it, or run the experiment again in another --out"


@dataclass(frozen=True, eq=False)
class StoredRun:
    """A complete run, read from its directory.

    Attributes:
        path: the run directory.
        manifest: experiment, versions, data fingerprint, seed.
        result: the final numbers, in percent; with several seeds, means and ``..._sd``.
        weights: where the encoder's weights are, if they are not where the run had them.
        overrides: settings of ``[data]`` and ``[encoder]`` that say where things are on this
            machine.
        client: whose own model answers; None: the one for all. See :meth:`of_client`.
    """

    path: Path
    manifest: Mapping[str, Any]
    result: Mapping[str, Any]
    weights: Path | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)
    client: int | None = None

    @classmethod
    def open(
        cls,
        path: str | Path,
        encoder: str | Path | None = None,
        overrides: Mapping[str, Any] | None = None,
    ) -> Self:
        """Read a complete run; see :func:`fedunseen.load_run`."""
        manifest = read_manifest(Path(path))
        result = read_result(Path(path))
        if result is None:
            raise RunDirectoryError(
                f"{path}: this run is not complete: resume it with --out {path} --resume"
            )
        accuracies = set(manifest["traits"].get("accuracies", ()))
        if accuracies - result.keys() and not manifest.get("brought_home"):
            raise RunDirectoryError(
                f"{Path(path) / 'result.json'} lacks accuracies: delete it and resume the run"
            )
        manifest = {**manifest, "experiment": located(manifest["experiment"], Path(path))}
        check_where(list(overrides or {}))
        return cls(
            Path(path),
            manifest,
            result,
            None if encoder is None else Path(encoder),
            dict(overrides or {}),
        )

    @cached_property
    def experiment(self) -> Experiment:
        """The experiment, with the settings that were chosen on validation classes in force."""
        tree = self.manifest["experiment"]
        chosen = self.result.get("chosen_on_validation", {}).get("settings", {})
        try:
            return Experiment.from_dict(
                tree,
                {**chosen, **self.overrides},
                asks_rules=bool(self.overrides),  # otherwise the run has asked them
            )
        except ExperimentError:
            check_known(tree, self.manifest.get("plugins"))
            raise

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """The line of every round; with several seeds, each of ``seeds`` has its own."""
        self._check_made_here()
        lines = RunDirectory(self.path).metrics()
        if "seeds" not in self.result and len(lines) != self.result["rounds"]:
            raise RunDirectoryError(
                f"{self.path / 'metrics.jsonl'} is damaged: resume the run to make it again"
            )
        return lines

    @cached_property
    def evaluation(self) -> dict[str, NDArray[Any]]:
        """What a run recorded of its tests for pages and comparisons: answers, similarities, who
        held what.
        """
        self._check_made_here()
        stored = load_params(self.path / "evaluation.safetensors", classes=len(self.space.names))
        return {name: value.numpy() for name, value in stored.items()}

    @property
    def brought_home(self) -> bool:
        """It is a party's: the model, its numbers and its classes, without the coordinator's tests
        and rounds.
        """
        return bool(self.manifest.get("brought_home", False))

    def _check_made_here(self) -> None:
        if self.manifest.get("brought_home"):
            raise RunDirectoryError(
                f"{self.path} is the model that a party took home: its rounds, tests and page are "
                "in the coordinator's run directory"
            )

    def headline(self) -> str:
        """Say the run's numbers on one line."""
        return self.experiment.task.headline(self.result)

    @cached_property
    def seeds(self) -> list[Self]:
        """The runs of the single seeds; none if this is one."""
        paths = [self.path / f"seed-{seed}" for seed in self.result.get("seeds", [])]
        return [
            replace(self.open(path, self.weights, self.overrides), client=self.client)
            for path in paths
        ]

    @property
    def first(self) -> Self:
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
        """The merged model of the chosen round; where each client has its own, all of them, under
        ``client/K/``.

        With ``client``, that client's own.
        """
        if self.seeds:
            raise RunDirectoryError(
                f"{self.path} holds a model for each seed: take the params of one of its seeds"
            )
        if self.client is not None:
            return load_params(self._own_path, under=f"client/{self.client}/")
        merged = self._merged
        return load_params(self.path / MODEL_FILES[0]) if merged is None else merged.params

    @cached_property
    def _merged(self) -> Model | None:
        """The model of the run's file; None: the file has parameters alone, of an older version or
        of several clients.
        """
        path = self.path / MODEL_FILES[0]
        if not is_model(path):
            return None
        # these say where a plugin is missing, or weights are given that nothing needs
        _ = self.experiment if self.weights is None else self._placed
        with refusing_damage(path, _REMEDY):
            content, tensors = read_model_file(path, _REMEDY)
            encoder = content["backbone"]["encoder"]
            if encoder is None or encoder["files"] is None:
                place = None
            else:
                setting = find("encoder", encoder["settings"]["name"]).setting
                place = getattr(self._placed.encoder, setting.rpartition(".")[2])
            model = Model.template(content, tensors, place)
        check_agreement(self.path, self.experiment, model)
        return model

    @cached_property
    def method(self) -> Method:
        """The method, made for the run's class space."""
        if self._merged is not None:
            return self._merged.method
        settings = self.experiment.method
        semantics = torch.from_numpy(self.scaled_semantics(self.space.semantics))
        raw = tuple(self.manifest["input_shape"])
        shape = (self.scaler.width(raw[0]),) if len(raw) == 1 else raw
        with local_files_only():
            backbone = make_backbone(self._placed, shape, self.manifest.get("image_shape"))
            kind: type[Method] = find("method", settings.name)
            method = kind(settings, self.space, semantics, backbone)
        if isinstance(method, ClosedForm):
            method.quantization = self.scaler.quantization
        if isinstance(method, Episodic) and "answers" in self.manifest:
            method.answers = np.array(self.manifest["answers"])
        return method

    @cached_property
    def model(self) -> Model:
        """The model of :attr:`params`, with all that it takes to ask it."""
        self.check_one_model("to use", choosable=True)
        model = self._merged
        if model is None:
            model = self._assembled()
        elif self.client is not None:
            model = replace(model, params=self.params, confidence=None)
        with refusing_damage(self.path / MODEL_FILES[0], _REMEDY):
            model.check()
        return model

    def _assembled(self) -> Model:
        """Return the model from the parts that the directory keeps in files of their own."""
        return Model(
            self.space,
            self.method,
            self.params,
            self.scaler,
            self.scaled_semantics,
            Calibration(float(self.result.get("calibration_factor", 0.0))),
            self.manifest["seed"],
            self.pooled,
            self._features_from,
            confidence=older_confidence(self.path) if self.client is None else None,
        )

    @property
    def statistics(self) -> Params:
        """Each party's statistics of a closed form, under ``client/K/``, from the last checkpoint.

        There are none where masks or ``method.retention = "total"`` kept their total alone.
        """
        if self.method.trained or self.client is not None:
            return {}
        last = RunDirectory(self.path).newest_checkpoint(torch.device("cpu"))
        state = last.server if last is not None else {}
        return {name: value for name, value in state.items() if name.startswith("client/")}

    @property
    def _features_from(self) -> dict[str, Any] | None:
        """Which frozen encoder made the features, and the digest of its weights, if it has any."""
        name = self.experiment.encoder.name
        if name == "none" or self.method.backbone.encoder is not None:
            return None
        return features_from(name, self.manifest.get("encoder"))

    def of_model(self, model: Model, **changes: Any) -> Self:
        """Return this run with another model, in memory alone; ``changes``: of its attributes."""
        changed = replace(self, **changes)
        vars(changed).update(
            model=model,
            space=model.space,
            params=model.params,
            method=model.method,
            scaled_semantics=model.semantics_scaler,
            scaler=model.scaler,
            _merged=model,
        )
        return changed

    @cached_property
    def _placed(self) -> Experiment:
        """The experiment with the encoder's weights where they are now, the same as the run had."""
        entry = self.manifest.get("encoder")
        moved = locate_weights(
            entry, self.path, lambda: self._made_encoder(self.experiment), self.weights
        )
        return self.experiment.with_overrides(moved) if moved else self.experiment

    def _made_encoder(self, experiment: Experiment) -> Encoder | None:
        shape = self.manifest.get("picture_shape") or self.manifest.get("image_shape")
        with local_files_only():
            return make_encoder(experiment, shape)

    @cached_property
    def _encoder(self) -> Encoder | None:
        """The run's encoder, with the weights that it had."""
        return self._made_encoder(self._placed)

    @cached_property
    def describing(self) -> DataSettings:
        """The settings of data, with the text encoder that described the classes where it is
        now.
        """
        with local_files_only():
            return found_text(self.manifest.get("text_encoder"), self.path, self.experiment.data)

    @cached_property
    def reader(self) -> RunReader:
        """What reads samples that the run is asked about."""
        data = self.describing if "text_encoder" in self.manifest else self.experiment.data
        return RunReader(find("data", data.name), data)

    @property
    def sample(self) -> str:
        """What one sample is, in a sentence: a picture, a text, a row, or a sample."""
        if self.manifest.get("picture_shape") or self.manifest.get("image_shape"):
            return "picture"
        loader: type[BenchmarkLoader] = find("data", self.experiment.data.name)
        return loader.sample

    @property
    def encoder_files(self) -> list[Path]:
        """The weights of the run's encoder, where they are now; none if an extra of this package
        brings them.
        """
        encoder = self._encoder if self.manifest.get("encoder") else None
        return [] if encoder is None or encoder.installed else encoder.files()

    def encoded(self, images: NDArray[Any]) -> NDArray[Any]:
        """Return what the run's frozen encoder makes of images (n, channels, height, width)."""
        assert self._encoder is not None
        return self._encoder.encode(images)

    def graph_encoder(self) -> nn.Module | None:
        """Return the run's frozen encoder as one module, from pictures in bytes to features; None
        where it has none.
        """
        encoder = self._encoder
        return encoder.graph() if isinstance(encoder, FrozenEncoder) else None

    def pixels(self, rows: NDArray[Any]) -> NDArray[Any] | None:
        """Return samples as pictures (n, channels, height, width) where they list pixels, or are
        pictures; else None.
        """
        shape = self.manifest.get("image_shape")
        return None if shape is None else as_images(rows, shape)

    def maps_of(self, pictures: NDArray[Any] | None) -> NDArray[Any] | None:
        """Return maps of pictures, whose means over places are the samples, or whose cells are the
        pixels that samples list; None: samples say nothing of places.
        """
        if pictures is None or self.manifest.get("picture_shape") is None:
            return pictures
        return None if self._map_encoder is None else self._map_encoder.compute(pictures)

    @cached_property
    def _map_encoder(self) -> FrozenEncoder | None:
        encoder = self._encoder
        return encoder.with_maps() if isinstance(encoder, FrozenEncoder) else None

    def features_of(self, benchmark: Benchmark, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return samples of a party's benchmark as the run's model takes them, before scaling."""
        images = benchmark.images() if self.manifest.get("picture_shape") is not None else None
        return (
            benchmark.features[rows]
            if images is None or benchmark.pictures is not None
            else self.encoded(images[rows])
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
        if self._merged is not None:
            return self._merged.semantics_scaler
        return fit_semantics(self.space, self.experiment.data.semantics)

    def of_client(self, client: int) -> Self:
        """Return this run with the own model of one client, counted from 0; the numbers stay those
        of the run.

        Every client has its own where nothing is merged or heads stay, and the clients that are
        measured have one under ``strategy.personal_epochs``.
        """
        having = self.first.own_models
        if not having:
            raise ExperimentError(
                f"{self.path} has one model for all clients: leave out the client"
            )
        if client not in having:
            raise ExperimentError(
                f"{self.path}: {unknown('client', str(client), map(str, having))}"
            )
        return replace(self, client=client)

    @property
    def _own_path(self) -> Path:
        """The file of clients' own models."""
        personal = RunDirectory(self.path).personal_path
        return personal if personal.exists() else self.path / MODEL_FILES[0]

    @cached_property
    def own_models(self) -> list[int]:
        """The clients that have a model of their own here."""
        return list(of_each_client(parameter_sizes(self._own_path)))

    @cached_property
    def one_model(self) -> bool:
        """Whether there is one model for all, or that of one client was taken; otherwise every
        client has its own.
        """
        return self.client is not None or not of_each_client(
            parameter_sizes(self.path / MODEL_FILES[0])
        )

    def check_one_model(self, use: str, choosable: bool = False) -> None:
        """Refuse a ``use`` that needs one model where each client has its own; ``choosable``: one
        client's would do.
        """
        if self.one_model:
            return
        strategy = self.experiment.strategy
        alone = tuple(strategy.shared) == ("*",)
        why = (
            f"strategy.name = {strategy.name!r}"
            if alone
            else f"strategy.shared = {list(strategy.shared)}"
        )
        raise ExperimentError(
            f"{self.path}: under {why} every client keeps its own model, so there is none {use}: "
            + (f"name a client, --client {self.own_models[0]}, or " if choosable else "")
            + "run with "
            + ("a strategy that merges" if alone else "strategy.shared = ['*']")
        )

    def reopened(self, path: Path) -> Self:
        """Return the run of another directory, with encoders and data where this one's are."""
        return self.open(path, self.weights, self.overrides)

    def described(self, classes: Classes | Sequence[str] | None) -> Classes | None:
        """Return classes with their semantics: names alone are described as the run's own were."""
        names = names_in(Path(classes)) if isinstance(classes, (str, Path)) else classes
        if names is None or isinstance(names, Mapping):
            return classes  # type: ignore[return-value]
        return semantics_of_names(names, self.space, self.describing)  # type: ignore[return-value]

    @cached_property
    def scaler(self) -> Scaler:
        """How vectors are scaled."""
        if self._merged is not None:
            return self._merged.scaler
        path = self.path / "scaling.safetensors"
        with refusing_damage(path, _REMEDY):
            stored = load_params(path)
            statistics = {name: value.numpy() for name, value in stored.items() if name != "none"}
            scaler = Scaler(self.experiment.data.features or (), statistics)
            shape = self.manifest["input_shape"]
            if len(shape) == 1:  # which fails where statistics are missing, or of another size
                scaler(np.zeros((1, *shape), dtype=np.float32))
        return scaler
