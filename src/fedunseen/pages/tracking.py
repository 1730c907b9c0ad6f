"""Curves for TensorBoard and MLflow (extra ``track``): the numbers of ``metrics.jsonl``, as a run
writes them.
"""

import os
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from fedunseen.core.errors import ExperimentError, MissingDependencyError, unknown
from fedunseen.core.files import parse_json, write_json
from fedunseen.experiment.result.run import load_run
from fedunseen.experiment.schema import Experiment
from fedunseen.federation.callbacks import Progress, scalars
from fedunseen.pages.mlflow_model import save_pyfunc


class _TensorBoard:
    """Event files in ``tensorboard/`` of the run directory, a folder a stage."""

    def __init__(self, out: Path, experiment: Experiment) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            needed = "--track tensorboard needs TensorBoard: pip install 'fedunseen[track]'"
            raise MissingDependencyError(needed) from None
        self.make = SummaryWriter
        self.out = out / "tensorboard"
        self.writers: dict[str, Any] = {}

    def log(self, stage: str, round: int, numbers: Mapping[str, float]) -> None:
        if stage not in self.writers:
            folder = self.out / stage.replace("/", "-of-").replace(" ", "-").replace(":", "")
            # Drops what an interrupted run has written of this round and later ones.
            self.writers[stage] = self.make(str(folder), purge_step=round)
        for name, value in numbers.items():
            self.writers[stage].add_scalar(name, value, round)
        self.writers[stage].flush()

    def close(self) -> None:
        for writer in self.writers.values():
            writer.close()


class _MLflow:
    """A run in the store that ``MLFLOW_TRACKING_URI`` names, by default ``mlruns/`` of the run
    directory.

    A run that is resumed continues in the same MLflow run, whose number is in ``mlflow.json``.
    """

    def __init__(self, out: Path, experiment: Experiment) -> None:
        try:
            from mlflow.entities import Metric, Param
            from mlflow.tracking import MlflowClient
        except ImportError:
            raise MissingDependencyError(
                "--track mlflow needs MLflow: pip install 'fedunseen[track]'"
            ) from None
        self.metric = Metric
        self.param = Param
        self.make = MlflowClient
        self.out = out
        self.experiment = experiment
        self.run = ""

    def log(self, stage: str, round: int, numbers: Mapping[str, float]) -> None:
        if not self.run:
            self.run = self._start()
        prefix = "" if stage == "training" else f"{stage}/".replace(":", "")
        now = int(time.time() * 1000)
        metrics = [self.metric(prefix + name, value, now, round) for name, value in numbers.items()]
        self.client.log_batch(self.run, metrics=metrics)

    def _start(self) -> str:
        """Return the id of the MLflow run, which is found or made once the run directory exists."""
        # Without a server MLflow writes plain files, which it refuses unless this variable allows
        # it.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        uri = os.environ.get("MLFLOW_TRACKING_URI") or (self.out / "mlruns").resolve().as_uri()
        self.client = self.make(tracking_uri=uri)
        path = self.out / "mlflow.json"
        try:
            return str(parse_json(path.read_bytes())["run"])
        except (OSError, ValueError, KeyError):
            pass
        name = self.experiment.name
        experiment = self.client.get_experiment_by_name(name)
        place = experiment.experiment_id if experiment else self.client.create_experiment(name)
        run = self.client.create_run(
            place, run_name=f"{name}-seed{self.experiment.run.seed}"
        ).info.run_id
        sections = [
            (name, content)
            for name, content in self.experiment.to_dict().items()
            if isinstance(content, dict)
        ]
        flat = [
            (f"{name}.{key}", str(value)[:500])
            for name, content in sections
            for key, value in content.items()
        ]
        self.client.log_batch(run, params=[self.param(*setting) for setting in flat])
        write_json(path, {"run": run})
        return str(run)

    def close(self) -> None:
        if self.run:
            if (self.out / "result.json").exists():
                self._log_model()
            self.client.set_terminated(self.run)

    def _log_model(self) -> None:
        """Log the model of a complete run, for ``mlflow.pyfunc.load_model``."""
        first = load_run(self.out).first
        if not first.one_model or first.model.method.task == "few-shot":
            return  # no single model answers without examples
        try:
            with tempfile.TemporaryDirectory() as place:
                save_pyfunc(first.model, Path(place) / "model")
                self.client.log_artifacts(self.run, str(Path(place) / "model"), "model")
        except Exception as error:  # of a library or its server: must not end the run
            warnings.warn(
                f"--track does not log the model ({type(error).__name__}: {error})", stacklevel=2
            )


TRACKERS: dict[str, type[_TensorBoard | _MLflow]] = {"tensorboard": _TensorBoard, "mlflow": _MLflow}


@contextmanager
def tracked(
    on_round: Progress | None, names: Sequence[str], out: Path, experiment: Experiment
) -> Iterator[Progress | None]:
    """Yield a progress function that passes every round on to ``on_round`` and to the named
    trackers.
    """
    for name in names:
        if name not in TRACKERS:
            raise ExperimentError("--track: " + unknown("tracker", name, TRACKERS))
    with ExitStack() as stack:
        trackers = [TRACKERS[name](out, experiment) for name in names]
        for tracker in trackers:
            stack.callback(tracker.close)

        def each_round(stage: str, round: int, rounds: int, line: Mapping[str, Any] | None) -> None:
            if on_round is not None:
                on_round(stage, round, rounds, line)
            if line is not None:
                for tracker in list(trackers):
                    try:
                        tracker.log(stage, round, scalars(line))
                    except (
                        Exception
                    ) as error:  # an error of a tracking library or its server must not end the run
                        trackers.remove(tracker)
                        warnings.warn(
                            f"--track stops writing ({type(error).__name__}: {error})", stacklevel=2
                        )

        yield each_round if trackers else on_round
