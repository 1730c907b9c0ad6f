"""A finished run at work on new inputs, and on classes that it was never trained on."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedunseen.confidence.explanation import Explanation
from fedunseen.core.arrays import to_float32
from fedunseen.core.errors import DataError
from fedunseen.core.files import free_folder
from fedunseen.data.benchmark import check_unlabelled
from fedunseen.evaluation import diagnosis
from fedunseen.experiment.changed import adapt_run, write_changed
from fedunseen.experiment.hub_models import SCHEME, fetched_model
from fedunseen.experiment.inputs import Batch, batches
from fedunseen.experiment.measured_again import counts_of, measured_again
from fedunseen.experiment.result.stored import StoredRun
from fedunseen.experiment.tables import Table, tables
from fedunseen.methods.closed_form.unlabelled import adaptable
from fedunseen.model import Classes, ClassSum, Model, Prediction, Question
from fedunseen.tasks.base import Examples, Inputs, Shown
from fedunseen.tasks.few_shot import examples_of


@dataclass(frozen=True, eq=False)
class Run(StoredRun):
    """A complete run, read from its directory; see
    :class:`~fedunseen.experiment.result.stored.StoredRun`.
    """

    def tables(self) -> dict[str, Table]:
        """Return the numbers as tables, each a dictionary of columns; see
        ``fedunseen.experiment.tables``.
        """
        return tables(self)

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
            inputs: samples as the benchmark's raw ones, (n, d) features or (n, channels, height,
                width) maps or images; or paths of images or feature files. Of a run on a table: a
                table's path, a data frame, or a list of rows, each a mapping of column -> cell.
            classes: classes to add, or to replace by name: a CSV file (name, attributes...) or
                ``{name: attributes}``; of a run whose classes a text encoder describes, a list of
                names or a file of names alone, too.
            top: how many classes of each ranking; all by default.
            among: rank ``all`` classes, only ``unseen`` ones (added ones included), or only the
                ``given`` ones.
            support: examples of classes: a folder with a folder of examples for each class, or
                ``{name: examples}``; of a run on a table, a table with the column of classes.

        Returns:
            For each input its ranking, best first. Seen classes are lowered by the run's
            calibration offset; scores of classes learned from examples alone are logits.

        Raises:
            DataError: an input, a class or an example is wrong.
            ExperimentError: the run's model cannot do this.
        """
        if self.seeds:
            return self.first.predict(inputs, classes, top, among, support)
        self.check_one_model("to predict with", choosable=True)
        question = Question(
            lambda: self.read_inputs(inputs),
            self.described(classes),
            self.read_examples(support),
            top,
            among,
        )
        return self.model.answer(question)

    def explain(self, inputs: Inputs, top: int | None = 3) -> list[Explanation]:
        """Return why each input gets its answer; see :meth:`fedunseen.Model.explain`.

        Pictures have ``places`` where the run's encoder ends in an average over places, or where
        samples are pixels.

        Args:
            inputs: as for :meth:`predict`.
            top: how many seen classes and attributes are named; all by default.

        Raises:
            DataError: an input is wrong.
            ExperimentError: the method's scores cannot be split.
        """
        run = self.first
        run.check_one_model("to explain", choosable=True)
        if isinstance(inputs, (str, Path)):
            inputs = [inputs]
        if isinstance(inputs, np.ndarray) or not all(
            isinstance(item, (str, Path)) for item in inputs
        ):
            rows = run.read_inputs(inputs)
            return run.model.explain(rows, top, maps=run.pixels(rows))
        return [
            item
            for batch in run.batches(inputs)
            for item in run.model.explain(batch.rows, top, maps=run.maps_of(batch.pictures))
        ]

    def learn(
        self,
        classes: Classes | Sequence[str] | None = None,
        examples: Shown | None = None,
        out: str | Path | None = None,
    ) -> Run:
        """Return this run with classes that it has learned since: nothing is trained again.

        Args:
            classes: descriptions of new classes, or better ones of known classes, as for
                :meth:`predict`.
            examples: examples of classes, new or known, as ``support`` for :meth:`predict`; or the
                sums of them.
            out: write the new run there; by default it exists in memory alone.

        Returns:
            A run whose class space has the new classes, as unseen ones. With ``out``, a closed
            form is measured again where the run's test samples are here, without those that are
            among the examples; otherwise its accuracies are those of this run.

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
        examples_read = run.read_examples(examples)
        learned = run.model.learn(run.described(classes), examples_read)
        result = {name: value for name, value in run.result.items() if name != "learn_effect"}
        if folder is None:
            return run.of_model(learned, result=result)
        added = [name for name in learned.space.names if name not in run.space.names]
        numbers, answers = measured_again(run, learned, examples_read)
        result |= {**numbers, "learnt": added}
        result["shown"] = _shown(run.result.get("shown", {}), examples_read or {})
        write_changed(run, learned, folder, result, answers=answers)
        for sign in diagnosis.learned(result["learn_effect"]) if "learn_effect" in result else ():
            warnings.warn(f"{sign.what} {sign.remedy}", stacklevel=2)
        return run.reopened(folder)

    def adapt(self, inputs: Inputs, out: str | Path | None = None, among: str = "all") -> Run:
        """Return this run adapted to unlabelled samples, which may be of seen and of unseen
        classes.

        Prototypes of unseen classes move to where samples lie
        (:mod:`fedunseen.methods.closed_form.unlabelled`). Samples that the model rules out do not
        count, with a warning.

        Args:
            inputs: at least ten samples, as for :meth:`predict`, or a folder of them.
            out: write the new run there; by default it exists in memory alone.
            among: the classes that samples may be of: ``all``, or ``unseen`` ones alone.

        Returns:
            The adapted run; ``result["adapted"]`` says what each class got. Where the run's test
            samples are here, they are measured again; otherwise its accuracies are those of this
            run.

        Raises:
            DataError: the samples cannot be used.
            ExperimentError: the run's method has no class means to adapt.
            RunDirectoryError: ``out`` holds something.
        """
        run = self.first
        run.check_one_model("to adapt", choosable=True)
        adaptable(run.method, run.params)
        folder = None if out is None else free_folder(out)
        if not isinstance(inputs, (str, Path)) and not len(inputs):
            check_unlabelled(0)
        rows = run.read_inputs(inputs)
        check_unlabelled(len(rows), str(inputs) if isinstance(inputs, (str, Path)) else "")
        return adapt_run(run, rows, folder, among)

    def batches(self, paths: Sequence[str | Path]) -> Iterator[Batch]:
        """Yield samples of files, of folders of files and of arrays, some dozens at a time.

        Args:
            paths: pictures, texts or feature files as the benchmark has them; folders, whose files
                are read however deep they lie; ``.npy`` and ``.npz`` files of pictures, (n, height,
                width), (n, height, width, 3) or (n, 3, height, width), bytes or numbers from 0
                to 1. What is not a picture in a folder is left out with a warning.
        """
        return batches(self, paths)

    def read_examples(self, examples: Shown | None) -> dict[str, NDArray[Any] | ClassSum] | None:
        """Return the examples of each class as the model takes them, before scaling."""
        if examples is None:
            return None
        if (labelled := self.reader.examples(examples)) is not None:
            return dict(labelled)
        return {
            name: class_examples
            if isinstance(class_examples, ClassSum)
            else self.read_inputs(class_examples)
            for name, class_examples in examples_of(examples).items()
        }

    def read_inputs(self, inputs: Inputs) -> NDArray[Any]:
        """Return samples (n, ...) as the model takes them, before scaling."""
        if isinstance(inputs, (str, Path)):
            inputs = [inputs]
        if (blocks := self.reader.tabular(inputs)) is not None:
            inputs = np.concatenate(list(blocks))
        if not len(inputs):
            raise DataError("there is nothing to predict: give at least one input")
        if not isinstance(inputs, np.ndarray) and all(
            isinstance(item, (str, Path)) for item in inputs
        ):
            inputs = np.concatenate([batch.rows for batch in batches(self, inputs)])
        array: NDArray[Any] = np.asarray(inputs)
        sample = tuple(self.manifest["input_shape"])
        rows = array[None] if array.shape == sample else array
        if rows.shape[1:] != sample or rows.ndim == 0:
            shape = ", ".join(["n", *map(str, sample)])
            raise DataError(
                f"the inputs have the shape {array.shape}, but this run's model takes ({shape}): "
                "give such inputs"
            )
        if rows.dtype.kind not in "fiub":
            raise DataError(f"the inputs are of type {rows.dtype}: give real numbers")
        if rows.dtype == np.uint8 and rows.ndim > 2:
            return rows  # images
        rows = to_float32(rows, "the inputs")
        if not np.isfinite(rows).all():
            raise DataError("the inputs hold values that are not finite: leave those rows out")
        return rows


def _shown(
    before: Mapping[str, int], examples: Mapping[str, NDArray[Any] | ClassSum]
) -> dict[str, int]:
    """Return how many examples each class has had since training."""
    counts = dict(before)
    for name, count in counts_of(examples).items():
        counts[name] = counts.get(name, 0) + count
    return counts


def load_run(
    path: str | Path, encoder: str | Path | None = None, overrides: Mapping[str, Any] | None = None
) -> Run:
    """Read a complete run.

    Args:
        path: the run directory.
        encoder: where the weights of its encoder are, where they are not found by their content.
        overrides: settings of ``[data]`` and ``[encoder]`` that say where things are on this
            machine.

    Raises:
        ExperimentError: an override changes more than where things are.
        RunDirectoryError: ``path`` is not a run directory, or its run is not complete.
    """
    return Run.open(path, encoder, overrides)


def load_model(path: str | Path, encoder: str | Path | None = None) -> Model:
    """Read a model: the file that :meth:`Model.save` wrote, a saved classifier, or a complete run.

    Args:
        path: the file, the run directory, or ``hf://OWNER/NAME@REVISION``, which is downloaded.
            Nothing else is.
        encoder: where the files of an encoder are, if they are not where the model had them.

    Raises:
        DataError: the file is not a model, is damaged, or a later version wrote it.
        RunDirectoryError: the folder is not a run directory, or its run is not complete.
        ExperimentError: every client of the run has a model of its own.
    """
    if isinstance(path, str) and path.startswith(SCHEME):
        path = fetched_model(path)
    if not Path(path).is_dir():
        return Model.load(path, encoder)
    run = load_run(path, encoder)
    return replace(run.model, statistics=run.statistics)
