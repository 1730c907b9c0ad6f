"""What a plan says of samples: how they are read and encoded, and for which model they are counted.

A plan is a run, an experiment, or the file of a model or classifier, as
:meth:`fedunseen.Statistics.plan` takes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedunseen.core.array_cache import keeping_nothing
from fedunseen.core.errors import ExperimentError
from fedunseen.core.registry import find
from fedunseen.data import ClassSpace
from fedunseen.experiment.assemble import load_data
from fedunseen.experiment.encoding import features_from, record_weights
from fedunseen.experiment.manifest import encoder_of
from fedunseen.experiment.result.reader import RunReader
from fedunseen.experiment.result.run import load_model, load_run
from fedunseen.experiment.result.stored import StoredRun
from fedunseen.experiment.schema import Experiment
from fedunseen.model import Model
from fedunseen.statistics import Statistics

Rows = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Planned:
    """What a plan says.

    Attributes:
        name: what the user calls it.
        space: the classes.
        settings: of ``[data]``, with which a party's folder is read.
        encoded: turns pictures (n, channels, height, width) into features; None: no frozen encoder.
        features_from: which encoder that is; None: none.
        reader: reads picture files; None: of a model's file, which has no encoder.
        empty: makes empty statistics.
    """

    name: str
    space: ClassSpace
    settings: Mapping[str, Any]
    encoded: Callable[[Rows], Rows] | None
    features_from: Mapping[str, Any] | None
    reader: RunReader | None
    empty: Callable[[], Statistics]

    def features(self, benchmark: Any, rows: NDArray[np.int64]) -> Rows:
        """Return samples of a party's folder as the model takes them, before scaling."""
        lacking = self.reader is None and self.features_from is not None
        images = benchmark.images() if self.encoded is not None or lacking else None
        if images is None or benchmark.pictures is not None:
            features: Rows = benchmark.features[rows]
            return features
        if self.encoded is None:
            raise self._without_encoder()
        return self.encoded(images[rows])

    def see(self, pictures: Sequence[Any]) -> Rows:
        """Return what picture files are as the model takes them, before scaling."""
        if self.reader is None:
            raise self._without_encoder()
        if not self.reader.takes_pictures:
            raise ExperimentError(
                f"{self.name} takes no pictures, and SOURCE has some: name another --plan"
            )
        images = np.concatenate([self.reader.read(picture) for picture in pictures])
        if self.encoded is None:
            return images.reshape(len(images), -1)
        with keeping_nothing():  # the features go to the new file
            return self.encoded(images)

    def _without_encoder(self) -> ExperimentError:
        return ExperimentError(
            f"{self.name} holds a model without its encoder, and SOURCE has pictures: name the "
            "model's run, or an experiment with that encoder, with --plan"
        )


def planned(plan: str | Path) -> Planned:
    """Read a plan: the directory of a run, the file of a model or classifier, or an experiment, by
    the name of its preset or as a TOML file.

    Raises:
        FedUnseenError: it is none of these, or is damaged.
    """
    place = Path(plan)
    if place.is_dir():
        return _of_run(load_run(place).first)
    if place.is_file() and place.suffix != ".toml":
        return _of_model(str(plan), load_model(place))
    return _of_experiment(Experiment.load(plan))


def absolute(plan: str | Path) -> str:
    """Return a plan as workers elsewhere find it: presets have names."""
    return str(Path(plan).resolve()) if Path(plan).exists() else str(plan)


def _of_run(run: StoredRun) -> Planned:
    return Planned(
        str(run.path),
        run.space,
        run.experiment.data.model_dump(exclude_none=True),
        None if run.manifest.get("picture_shape") is None else run.encoded,
        run.model.features_from,
        run.reader,
        partial(Statistics.plan, run.model),
    )


def _of_model(name: str, model: Model) -> Planned:
    empty = partial(Statistics.plan, model)
    return Planned(name, model.space, {}, None, model.features_from, None, empty)


def _of_experiment(experiment: Experiment) -> Planned:
    whole = load_data(experiment, experiment.run.seed)
    encoder = encoder_of(experiment, whole)
    data = experiment.data
    weights = record_weights(encoder, data).get("encoder")
    frozen = encoder is not None and not encoder.trained
    return Planned(
        experiment.name,
        whole.space,
        data.model_dump(exclude_none=True),
        encoder.encode if frozen and encoder is not None else None,
        features_from(experiment.encoder.name, weights) if frozen else None,
        RunReader(find("data", data.name), data),
        partial(Statistics.plan, experiment),
    )
