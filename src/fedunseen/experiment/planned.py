"""What statistics for an experiment are of, before anything is summed."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedunseen.core.errors import DataError
from fedunseen.core.registry import find
from fedunseen.data import Benchmark, ClassSpace, Scaler, fit_semantics
from fedunseen.experiment.assemble import deal, load_data, resolve_defaults
from fedunseen.experiment.encoding import features_from, make_backbone, record_weights
from fedunseen.experiment.hooks import hooks
from fedunseen.experiment.manifest import encoder_of
from fedunseen.experiment.scales import fitted_scales, ranges_of, scaler_of
from fedunseen.experiment.schema import Experiment
from fedunseen.methods import Method
from fedunseen.methods.closed_form.base import ClosedForm
from fedunseen.model import Model
from fedunseen.plans import Source, StatisticsPlan, exact_method


def plan_of(experiment: Experiment, sample: NDArray[Any] | None = None) -> StatisticsPlan:
    """Return what statistics for an experiment are of.

    Args:
        experiment: its data are read for the classes and, unless bounds or known ranges say it all,
            for the scaling.
        sample: (n, d) features that scaling and quantization are fitted to, in place of all
            training samples.

    Raises:
        DataError: there is no sample to fit them to (code ``no-samples``).
        ExperimentError: the method's statistics are not whole numbers that add up.
    """
    whole = load_data(experiment, experiment.run.seed)
    dealt = deal(experiment, whole)[0] if len(whole.train) else whole
    held = experiment.task.client_data(dealt)
    experiment = resolve_defaults(experiment, held)
    fitted = fitted_scales(experiment, held.image_shape)
    if fitted and sample is None and not len(held.train):
        raise DataError(
            "the scaling of features follows from samples, and none are here: give sample=, or "
            "state data.bounds",
            "no-samples",
        )
    fits_to = held if sample is None else of_rows(held.space, sample, held.image_shape)
    scaler = scaler_of(experiment, fits_to, sampled=sample is not None)
    source: Source = "known"
    if fitted:
        source = "first pass" if sample is None else "sample"
    elif experiment.data.bounds and ranges_of(experiment, held.image_shape) == "bounds":
        source = "bounds"
    model = empty_model(experiment, held.space, scaler, held.features.shape[1:], held.image_shape)
    model = replace(model, features_from=_features_from(experiment, held, model))
    prior = experiment.evaluation.prior
    return StatisticsPlan(exact_method(model.method), scaler, model, source, prior)


def of_rows(
    space: ClassSpace, rows: NDArray[Any], image_shape: tuple[int, ...] | None = None
) -> Benchmark:
    """Return a benchmark of rows (n, d) to which scalings are fitted; their classes say nothing."""
    labels = np.full(len(rows), space.seen[0])
    none = np.array([], dtype=np.int64)
    train = np.arange(len(rows))
    return Benchmark("sample", space, rows, labels, train, none, none, image_shape, part=True)


def empty_model(
    experiment: Experiment,
    space: ClassSpace,
    scaler: Scaler,
    shape: tuple[int, ...],
    image_shape: tuple[int, ...] | None = None,
) -> Model:
    """Return a model without parameters.

    Args:
        experiment: of its sections ``data``, ``method``, ``encoder`` and ``run``.
        space: its classes.
        scaler: scales and rounds features.
        shape: of a sample before scaling.
        image_shape: of samples that are gray images.
    """
    scaling = fit_semantics(space, experiment.data.semantics)
    if len(shape) == 1:
        shape = (scaler.width(shape[0]),)
    method: Method = find("method", experiment.method.name)(
        experiment.method,
        space,
        torch.from_numpy(scaling(space.semantics)),
        make_backbone(experiment, shape, image_shape),
    )
    if isinstance(method, ClosedForm):
        method.quantization = scaler.quantization
        for kind in hooks(experiment):
            kind.prepare_method(experiment, method, scaler.quantization)
    return Model(space, method, {}, scaler, scaling, seed=experiment.run.seed)


def _features_from(
    experiment: Experiment, benchmark: Benchmark, model: Model
) -> dict[str, Any] | None:
    """Return which frozen encoder makes the features, and the digest of its weights."""
    name = experiment.encoder.name
    if name == "none" or model.method.backbone.encoder is not None:
        return None
    recorded = record_weights(encoder_of(experiment, benchmark), experiment.data)
    return features_from(name, recorded.get("encoder"))
