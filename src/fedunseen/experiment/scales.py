"""Where the scales of features come from, and what of them follows from samples.

Scales are known beforehand (unit length, gray values), stated in the experiment (``data.bounds``),
or fitted to training samples, of each of which they keep a trace. :func:`scaler_of` makes them all.
"""

from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from fedunseen.core.extensions import added, at
from fedunseen.core.registry import find
from fedunseen.core.samples import slice_of
from fedunseen.data import Benchmark, Quantization, Scaler
from fedunseen.data.benchmark import DataSettings
from fedunseen.data.kernel import Kernel
from fedunseen.data.scaling import FITTED

_BOUNDS = 2048  # training samples that bounds of features are fitted to


class Sections(Protocol):
    """The sections of an experiment that scales depend on."""

    @property
    def data(self) -> DataSettings: ...  # noqa: D102
    @property
    def method(self) -> Any: ...  # noqa: D102


class SeededSections(Sections, Protocol):
    """Those that fitted scales depend on: a kernel's features are drawn."""

    @property
    def run(self) -> Any: ...  # noqa: D102


def bits_of(experiment: Sections) -> int:
    """Return how many bits a feature is quantized to; 0 for none."""
    bits = experiment.data.quantization
    trained = find("method", experiment.method.name).trained
    return bits if isinstance(bits, int) and not trained else 0


def fitted_steps(experiment: Sections) -> list[str]:
    """Return the scalings that are fitted to training samples; those of stated bounds are not."""
    steps = experiment.data.features
    if steps is None:
        steps = find("method", experiment.method.name).scaling
    stated = ("min-max", "kernel") if experiment.data.bounds else ()
    return [step for step in steps if step in FITTED and step not in stated]


def fitted_scales(experiment: Sections, image_shape: object = None) -> tuple[str, ...]:
    """Return what follows from training samples: ``scaling``, ``quantization``, both or nothing.

    Args:
        experiment: with its defaults resolved.
        image_shape: that of the benchmark, whose gray values have a known range; otherwise None.
    """
    scaling = ("scaling",) if fitted_steps(experiment) else ()
    fits = bits_of(experiment) > 0 and ranges_of(experiment, image_shape) == "samples"
    return (*scaling, *(("quantization",) if fits else ()))


def ranges_of(
    experiment: Sections, image_shape: object
) -> Literal["unit length", "kernel", "gray values", "clip", "bounds", "samples"]:
    """Return where the range of scaled features comes from."""
    steps = experiment.data.features or ()
    if steps[-1:] == ("l2",):
        return "unit length"
    if steps[-1:] == ("kernel",):
        return "kernel"
    if not steps and image_shape is not None:
        return "gray values"
    if _clip(experiment) is not None:
        return "clip"
    return "bounds" if experiment.data.bounds else "samples"


def _clip(experiment: Sections) -> float | None:
    """Return the length to which samples are clipped before they are summed; None: they are not."""
    norms = (at(place).sample_norm(experiment) for place in added("HOOKS"))
    return next((norm for norm in norms if norm is not None), None)


def fit_scalings(experiment: SeededSections, benchmark: Benchmark) -> Scaler:
    """Return the scalings of features, not yet rounded."""
    data = experiment.data
    kernel = Kernel(data.kernel_features, experiment.run.seed, stated=bool(data.bounds))
    rows = _extremes(experiment, benchmark, bool(fitted_steps(experiment)))
    return Scaler.fit(rows, data.features or (), kernel)


def scaler_of(experiment: SeededSections, benchmark: Benchmark, sampled: bool = False) -> Scaler:
    """Return how the features of vectors are scaled and, in a closed form, rounded to whole
    numbers; ``sampled``: more samples than the benchmark has will follow.
    """
    scaler = fit_scalings(experiment, benchmark)
    quantization = _quantization(experiment, benchmark, scaler, sampled)
    return scaler if quantization is None else scaler.quantized(quantization)


def _extremes(experiment: Sections, benchmark: Benchmark, fits: bool) -> NDArray[Any]:
    """Return the rows (n, d) that scalings are fitted to: the stated bounds, or all training
    samples.
    """
    if bounds := experiment.data.bounds:
        ends = np.array(bounds, dtype=np.float32).T
        return np.broadcast_to(ends, (2, benchmark.features.shape[1]))
    rows: NDArray[Any] = benchmark.features
    return rows[slice_of(benchmark.train)] if fits else rows[:1]


def _quantization(
    experiment: Sections, benchmark: Benchmark, scaler: Scaler, sampled: bool = False
) -> Quantization | None:
    """Return how scaled features become whole numbers, if they do.

    The range is that of unit length, a kernel, gray values or bounds, which no data say; other
    features have bounds for each, fitted to training samples. Where samples are clipped, it is that
    of samples of this length instead.
    """
    if not (bits := bits_of(experiment)):
        return None
    reach = experiment.data.quantization_range
    width = benchmark.features.shape[1]
    ranges = ranges_of(experiment, benchmark.image_shape)
    clip = _clip(experiment)
    if ranges == "unit length":
        return Quantization.of_unit_length(bits, reach, width)
    if ranges == "kernel":
        return Quantization.of_kernel(bits, experiment.data.kernel_features)
    if ranges == "gray values":
        quantization = Quantization.of_grey_values(bits)
    elif ranges == "clip" and clip is not None:
        quantization = Quantization.of_unit_length(bits, clip * reach, width)
    elif ranges == "bounds":
        quantization = Quantization.of_bounds(bits, _extremes(experiment, benchmark, False), scaler)
    else:
        places = np.linspace(
            0, len(benchmark.train) - 1, min(len(benchmark.train), _BOUNDS)
        ).astype(np.int64)
        rows = benchmark.features[benchmark.train[places]]
        quantization = Quantization.of_rows(bits, reach, rows, scaler, sampled)
    shifts = getattr(find("method", experiment.method.name), "shift_invariant", True)
    # The clip is about samples as they are.
    return quantization if shifts and clip is None else quantization.around_zero()
