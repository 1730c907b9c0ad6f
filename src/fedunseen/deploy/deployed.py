"""What a deployment does by default where a simulation does something else, and the sentences about
it.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fedunseen.core.registry import find
from fedunseen.data import Benchmark
from fedunseen.data.benchmark import draw_test
from fedunseen.experiment.scales import fitted_steps
from fedunseen.experiment.schema import Experiment

# How notes on the calibration begin.
CALIBRATED = "The offset in favor of unseen classes comes from classes left out of the merged sums"
UNCALIBRATED = "No offset favors unseen classes, so seen classes may win too often"
_SHARE = (
    0.8  # of the coordinator's samples of a seen class is tested where the others fit the scaling
)


def deployed(experiment: Experiment, overrides: Mapping[str, Any]) -> Experiment:
    """Return the experiment as a deployment runs it.

    A run on validation classes asks every party twice, needs samples of these classes at the
    coordinator, and refuses a party that holds no other class. So it takes place on demand. A
    method that can calibrate itself on classes left out of the merged sums does so instead.
    """
    if experiment.evaluation.selection != "validation" or "evaluation.selection" in overrides:
        return experiment
    changes: dict[str, Any] = {"evaluation.selection": "last"}
    if _calibrates_itself(experiment) and "method.calibration" not in overrides:
        changes["method.calibration"] = True
    return experiment.with_overrides(changes)


def _calibrates_itself(experiment: Experiment) -> bool:
    """Return whether the method has an offset from classes left out of the sums: Gaussian classes
    alone have one.
    """
    method = experiment.method
    return isinstance(getattr(method, "calibration", None), bool) and getattr(
        method, "form", None
    ) in (None, "gaussian")


def tested(experiment: Experiment, benchmark: Benchmark) -> Benchmark:
    """Return the coordinator's benchmark with all otherwise unused samples as tests.

    Only of its own part (``data.part``): parties may train on the training samples of a whole
    benchmark. Where a scaling is fitted, a fifth of each class's training samples remain for that.
    """
    method = find("method", experiment.method.name)
    free = (
        not method.trained
        and experiment.evaluation.selection == "last"
        and experiment.growth.name == "none"
    )
    if not (benchmark.part and free and len(benchmark.train)):
        return benchmark
    as_tests = np.ones(len(benchmark.train), dtype=bool)
    if fitted_steps(experiment):
        classes = benchmark.space.seen
        as_tests = draw_test(
            benchmark.labels[benchmark.train], classes, _SHARE, experiment.run.seed
        )
    moved = benchmark.train[as_tests]
    return replace(
        benchmark,
        train=benchmark.train[~as_tests],
        test_seen=np.union1d(benchmark.test_seen, moved),
    )


def notes(experiment: Experiment, benchmark: Benchmark | None = None) -> list[str]:
    """Return what the user of a deployment has to know of its calibration and tests, in
    sentences.
    """
    remarks = []
    method = find("method", experiment.method.name)
    if experiment.evaluation.selection == "last" and method.zero_shot:
        how = (
            "; --set evaluation.selection=validation chooses one on validation classes in another "
            "run with all parties"
        )
        if experiment.engine.name == "offline":  # each party answers once
            how = ""
        if _calibrates_itself(experiment) and getattr(experiment.method, "calibration", False):
            remarks.append(f"{CALIBRATED}{how}.")
        elif experiment.evaluation.factor is None:
            remarks.append(f"{UNCALIBRATED}{how}.")
    if benchmark is not None and (unused := len(benchmark.train)):
        total = unused + len(benchmark.test_seen) + len(benchmark.test_unseen)
        remarks.append(
            f"{unused} of the coordinator's {total} samples are not tested: "
            f"{_use(experiment, benchmark)}."
        )
    return remarks


def _use(experiment: Experiment, benchmark: Benchmark) -> str:
    """Say what the coordinator's training samples are for."""
    if experiment.evaluation.selection == "validation":
        return "round and offset are chosen on them"
    if benchmark.part:
        return "features are scaled by them, or rates chosen"
    remedy = (
        "; if no party trains on them, data.part = true tests them too"
        if hasattr(experiment.data, "part")
        else ""
    )
    return f"they are training samples{remedy}"
