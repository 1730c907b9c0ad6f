"""A zero-shot classifier with the interface of scikit-learn: fit on arrays that several parties
hold, predict anything.

The parties hold classes of their own, and the table of classes describes more of them than anybody
holds. Federated training in this process makes one model, which recognizes those too. No folder, no
file, no experiment is needed.
"""

import json
import warnings
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import _safe_indexing, check_random_state
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from fedunseen import metrics
from fedunseen.confidence import HeldOut, Prior, UncalibratedWarning, fit, offset_for
from fedunseen.confidence.drawn import drawn_folds
from fedunseen.confidence.explanation import Explanation
from fedunseen.confidence.priors import asked_unseen
from fedunseen.core.arrays import to_float32
from fedunseen.core.errors import ArgumentError, DataError, unknown
from fedunseen.core.model_file import DAMAGED, read_model_file, refusing_damage, write_model_file
from fedunseen.core.parameters import Params
from fedunseen.core.random import stream
from fedunseen.core.registry import find
from fedunseen.data import Benchmark, ClassSpace
from fedunseen.data.benchmark import check_unlabelled, described
from fedunseen.data.columns import Column, Treatment
from fedunseen.data.columns.first_look import look
from fedunseen.data.io.tables import is_frame, of_frame, plain_numbers
from fedunseen.data.labels import check_one_type, read_labels
from fedunseen.data.names import class_name
from fedunseen.data.scaling import in_several_units
from fedunseen.evaluation.diagnosis import adapted as diagnosed
from fedunseen.evaluation.diagnosis import bounded_calibration, outdone
from fedunseen.experiment.assemble import assemble, resolve_defaults, twins
from fedunseen.experiment.calibration_folds import FEW, ChosenOffset, choose_offset
from fedunseen.experiment.changed import adaptation_note
from fedunseen.experiment.held_out import folds_of, held_out_of
from fedunseen.experiment.planned import empty_model, of_rows
from fedunseen.experiment.scales import fitted_scales, scaler_of
from fedunseen.experiment.schema import Experiment
from fedunseen.experiment.suited_features import suited_features
from fedunseen.experiment.traces import in_order, sentences
from fedunseen.federation import loop
from fedunseen.federation.federation import Federation, State
from fedunseen.federation.partition import Partition
from fedunseen.methods import Candidates, Method
from fedunseen.methods.closed_form.base import ClosedForm
from fedunseen.methods.closed_form.left_out import estimates
from fedunseen.methods.closed_form.unlabelled import Adaptation, adaptable
from fedunseen.model import Calibration, Model
from fedunseen.plans import StatisticsPlan, exact_method
from fedunseen.statistics import Statistics

__all__ = ["ZeroShotClassifier"]

_LEAST = 3  # seen classes of which one can play an unseen one
_ONE_CLASS = "there is only one class, so that there is nothing to tell apart: give at least two"
_CLIPPED = 0.01  # of the features, beyond which the range of the first call is too narrow
_STEPS = 16  # of the mean weight of a sample
_MOST_TIMES = 100  # that samples count on average
_FIRST = 16  # columns by which samples are ordered first
_SORTED = 2**26  # numbers of samples that are sorted: any thousand of more say much the same


def _sums_samples(classifier: "ZeroShotClassifier") -> bool:
    """Return whether the method is one of statistics, to which samples can be added."""
    return not find("method", classifier.method).trained


class ZeroShotClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Federated zero-shot classification of feature vectors.

    Args:
        method: what the parties learn: the name of a zero-shot method on vectors. ``gaussian``
            takes one round and has nothing to tune; most others are trained, for example
            ``fedzsl``.
        strategy: what they share and how it merges: the name of a strategy that merges.
        rounds: communication rounds; by default 50, or 1 for a method in closed form.
        method_params: settings of the method, as ``[method]`` has them, for example
            ``{"lr": 0.1}``.
        strategy_params: settings of the strategy, as ``[strategy]`` has them, for example
            ``{"local_epochs": 1}``.
        features: scalings of the features, in order, fitted on all training samples
            (``data.features``). By default ``("standard",)`` for a trained method and for columns
            in several units, where the largest standard deviation is at least fifteen times the
            median; ``("standard", "kernel")`` in a closed form where held-out samples and left-out
            classes say that boundaries curve (at most 256 columns are compared); and none
            otherwise.
        semantics: scalings of the classes' attributes, in order, fitted on the seen classes
            (``data.semantics``).
        calibration: what the scores of seen classes are lowered by. ``"validation"`` chooses it: a
            first training sets a fifth of the seen classes aside and takes them for unseen. If
            these are fewer than five, all seen classes take turns (closed forms), and each keeps
            most of its training samples. Without unseen classes, or with fewer than three seen
            ones, it is 0.
        prior: which questions to expect, on which the calibration is chosen. ``"auto"``: the most
            right answers over all classes, of the offsets that keep at least half of what
            ``"balanced"`` recognizes of unseen classes. ``"balanced"``: the highest harmonic mean
            of the accuracies on unseen and on seen classes, as the literature compares methods.
            ``"uniform"``: over classes. A number: the share of questions about unseen classes. A
            mapping: class -> how often it is asked for.
        classes: what describes each class, where ``fit`` is not given it. ``clone``, ``load`` and a
            later ``fit`` keep this table, and not one that ``fit`` was given.
        random_state: what every random choice depends on. Closed forms make none: neither it nor
            the order of samples changes them.

    Attributes:
        classes_: (C,) all classes of the table, sorted, then those of :meth:`learn`: the columns of
            :meth:`predict_proba`.
        seen_: (C,) bool, someone holds samples of the class.
        calibration_: what the scores of seen classes are lowered by.
        stays_: codes of what :meth:`forget` could not fit again: ``scaling``, ``quantization``,
            ``calibration``, ``confidence``.
        curve_: name -> (rounds,) the mean of each loss over the parties, round by round; empty
            without a loss.
        n_features_in_: numbers of a sample, once its columns are features.
        columns_: how the columns of a data frame become features (``fedunseen.data.columns``).
            Later frames are read by the names of their columns. A category of fewer than five rows,
            and one that is new later, counts as ``other``. Empty for arrays, and for frames of
            numbers alone, none of them missing.

    Example:
        Three parties hold two kinds of animals each. No one holds a zebra or an orca.

        >>> animals = {"horse": [0, 1, 0], "tiger": [1, 1, 0], "seal": [0, 0, 1], "eel": [1, 0, 1], "cow": [0, 1, 0.2],
        ...            "otter": [0.2, 0.6, 1], "zebra": [1, 1, 0.2], "orca": [0.2, 0, 1]}
        >>> rng = np.random.default_rng(0)
        >>> y = np.repeat(["horse", "tiger", "seal", "eel", "cow", "otter"], 20)
        >>> X = np.array([animals[name] for name in y]) + 0.1 * rng.standard_normal((120, 3))
        >>> party = np.repeat(["me", "you", "them"], 40)
        >>> model = ZeroShotClassifier().fit(X, y, classes=animals, groups=party)
        >>> model.predict([[0.9, 1.1, 0.2]], classes=["zebra", "orca"])
        array(['zebra'], dtype='<U5')
    """

    curve_: dict[str, list[float]]
    stays_: tuple[str, ...]
    _fitted: tuple[str, ...]  # to samples, beside the statistics
    _statistics: Statistics  # of all samples, while they are here
    _partial: bool  # they are of partial_fit, without which no model follows
    _solved: Model | None  # None: the statistics have changed since

    def __init__(
        self,
        method: str = "gaussian",
        strategy: str = "fedavg",
        *,
        rounds: int | None = None,
        method_params: Mapping[str, Any] | None = None,
        strategy_params: Mapping[str, Any] | None = None,
        features: Sequence[str] | None = None,
        semantics: Sequence[str] = (),
        calibration: float | Literal["validation"] = "validation",
        prior: Prior = "auto",
        classes: Any = None,
        random_state: int | np.random.RandomState | None = 0,
    ) -> None:
        self.method = method
        self.strategy = strategy
        self.rounds = rounds
        self.method_params = method_params
        self.strategy_params = strategy_params
        self.features = features
        self.semantics = semantics
        self.calibration = calibration
        self.prior = prior
        self.classes = classes
        self.random_state = random_state

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        classes: Any = None,
        groups: ArrayLike | None = None,
        unlabelled: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Train one model on the samples of all parties.

        Args:
            X: (n, d) features; or a data frame, whose columns may be numbers, categories, booleans
                and dates (``columns_``).
            y: (n,) class names. None, NaN and ``pandas.NA`` mark an unlabelled sample, and so does
                -1 where ``classes`` is given and has no such class.
            classes: a mapping of class name -> attributes, numbers or a mapping of attribute name
                -> number; or a data frame with a class a row and an attribute a column, whose names
                are the column ``name`` or the index. It may have more classes than ``y``: the
                unseen ones. By default the constructor's, or else the classes of ``y``, each
                described by itself alone.
            groups: (n,) which party holds each sample. By default one party holds all.
            unlabelled: (m, d) samples that the model is adapted to (:meth:`adapt`).
            sample_weight: (n,) how often each sample counts, at least 0; equal samples count
                together. Fractions, which closed forms alone take, are rounded to a sixteenth of
                the mean weight.

        Returns:
            The estimator. Warnings: a better closed form, an emptied class, no confidence.

        Raises:
            ValueError: an array is of the wrong shape or type.
            FedUnseenError: no combination that makes sense, or the training diverged.
        """
        table = self._table(classes)
        arrays = X, y, groups, unlabelled, sample_weight
        X = self._learned_columns(X)
        X, y, pool, groups, weights = _without_unlabelled(X, y, table, groups, sample_weight)
        trained = find("method", self.method).trained
        once = isinstance(X, np.memmap) and not trained  # read by quantizing alone
        rows, labels = self._validated(X, y, ensure_min_samples=2, ensure_all_finite=not once)
        pools = [self._unlabelled(part) for part in (pool, unlabelled) if part is not None]
        check_classification_targets(labels)
        times, worth = _times(weights, rows, trained)
        if not times.all():
            rows, labels, groups, times = _that_count(times, rows, labels, groups)
        table = _Table.of_labels(labels) if table is None else table
        benchmark, times = self._benchmark(rows, labels, groups, table, once, times)
        federation = assemble(self._experiment, benchmark, _of_users(benchmark, times))
        if isinstance(federation.method, ClosedForm):
            federation.method.worth = worth
        _check_pools(federation.method, pools)
        self._train(federation, benchmark)
        parties = np.unique([0] if groups is None else groups).tolist()
        self._clients = {name: k for k, name in enumerate(parties)}
        self._fitted_on = (*arrays, table) if len(parties) > 1 and not trained else None
        self.seen_ = np.isin(np.arange(len(self.classes_)), benchmark.space.seen)
        if pools:
            self._adapt(pools)
        return self

    @available_if(_sums_samples)  # type: ignore[untyped-decorator]  # scikit-learn has no types
    def partial_fit(self, X: ArrayLike, y: ArrayLike, classes: Any = None) -> Self:
        """Add samples to the model's statistics; samples of earlier calls are not read again.

        The first call fixes the scalings and the range of whole numbers, so that its samples should
        be like all others. Any order of further calls gives the same bits. The offset is chosen on
        samples that are drawn from the sums.

        Args:
            X: (n, d) features, or a data frame, as for :meth:`fit`.
            y: (n,) class names, each of ``classes``.
            classes: the table of classes, as for :meth:`fit`, or a list of their names; needed in
                the first call, unless the constructor has it.

        Returns:
            The estimator. After :meth:`fit` its samples stay in the sums; a classifier that was
            loaded, adapted, or has learned classes begins anew.

        Raises:
            ValueError: there is no table, another one than before, or an array is wrong.
        """
        begun = hasattr(self, "_statistics")
        table = _named_classes(self.classes if classes is None else classes)
        if not begun and table is None:
            raise ArgumentError(
                "classes: the first call of partial_fit needs all classes: give their table, or a "
                "list of their names"
            )
        X = self._featured(X) if begun else self._learned_columns(X)
        rows, labels = self._validated(X, y, reset=not begun)
        check_classification_targets(labels)
        if begun and classes is not None and not np.array_equal(_sorted(table)[0], self.classes_):
            raise ArgumentError(
                "classes are others than in the first call of partial_fit: leave them out"
            )
        statistics = self._statistics if begun else self._planned(rows, labels, table)
        try:
            statistics.add(rows, labels, mark=f"call {len(statistics.marks)}")
        except DataError as error:
            raise ArgumentError(str(error), error.code) from None
        self._statistics = statistics
        self._solved = None
        self._clients = {0: 0}
        self._fitted_on = None
        self._partial = True
        self.seen_ = statistics.count.numpy() > 0
        _warn_if_clipped(statistics)
        return self

    def _planned(self, rows: NDArray[Any], labels: NDArray[Any], table: Any) -> Statistics:
        """Return empty statistics whose scaling is fitted to the first samples."""
        self.classes_, ordered = _sorted(table)
        if len(self.classes_) < 2:
            raise ArgumentError(_ONE_CLASS)
        self._seed = _seed_of(self.random_state)
        seen = np.sort(_places(np.unique(labels), self.classes_))
        unseen = np.setdiff1d(np.arange(len(self.classes_)), seen)
        names = tuple(map(class_name, ordered.index))
        space = ClassSpace(
            names, ordered.semantics, tuple(ordered.columns), seen, unseen[:0], unseen
        )
        first = of_rows(space, rows)
        steps = self.features
        if steps is None:
            steps = ("standard",) if in_several_units(rows) else ()
        self._experiment = resolve_defaults(self._make_experiment(steps), first)
        scaler = scaler_of(self._experiment, first, sampled=True)
        model = empty_model(self._experiment, space, scaler, rows.shape[1:])
        offset = 0.0 if self.calibration == "validation" else float(self.calibration)
        model = replace(model, calibration=Calibration(offset))
        self.curve_ = {}
        self.stays_ = ()
        self._fitted = ()
        return Statistics(StatisticsPlan(exact_method(model.method), scaler, model, "sample"))

    @property
    def _model(self) -> Model:
        """The model; that of statistics is solved once it is asked for."""
        if self._solved is None:
            self._solved = self._of_statistics(self._statistics.solve())
        return self._solved

    @_model.setter
    def _model(self, model: Model) -> None:
        self._solved = model
        self.__dict__.pop("_statistics", None)

    def _of_statistics(self, model: Model) -> Model:
        """Return a model with an offset and confidence that follow from samples drawn from its
        sums.
        """
        method = model.method
        assert isinstance(method, ClosedForm)
        seed = self._experiment.run.seed
        folds = drawn_folds(method, model.params, self._statistics.params, seed)
        if not folds:
            return model
        prior = self._prior()
        share = asked_unseen(prior, model.space)
        if self.calibration == "validation" and len(model.space.unseen):
            answers = [fold.answers() for fold in folds]
            offset = offset_for(answers, prior, share)
            model = replace(model, calibration=Calibration(offset))
        offset = model.calibration.offset + method.own_offset(model.params)
        return replace(model, confidence=fit(folds, offset, share))

    @property
    def model_(self) -> Model:
        """The :class:`fedunseen.Model`."""
        return self._model

    @property
    def calibration_(self) -> float:
        """What the scores of seen classes are lowered by."""
        return self._model.calibration.offset

    def plan_statistics(self, sample: Any = None) -> StatisticsPlan:
        """Return what statistics are of; see :meth:`fedunseen.Statistics.plan`."""
        check_is_fitted(self)
        return replace(self._model.plan_statistics(sample), prior=self._prior())

    def _table(self, classes: Any) -> Any:
        """Return the table of classes for a fit; None: there is none.

        As scikit-learn has it, what an earlier fit was given does not count. A table that is then
        missing would be missed late, so that this is said.
        """
        if classes is None and self.classes is None and getattr(self, "_given_table", False):
            warnings.warn(
                "classes: this fit has no table of classes, and the one that an earlier fit was "
                "given does not count: give it again, or to the constructor, which keeps it",
                stacklevel=3,
            )
        self._given_table = classes is not None
        return self.classes if classes is None else classes

    def _benchmark(
        self,
        rows: NDArray[Any],
        labels: NDArray[Any],
        groups: ArrayLike | None,
        table: Any,
        once: bool,
        times: NDArray[np.int64],
    ) -> tuple[Benchmark, NDArray[np.int64]]:
        """Return samples and classes as a benchmark, with validation classes where an offset is to
        be chosen, and how often each sample counts; class space and settings are checked.
        """
        self.classes_, ordered = _sorted(table)
        if len(self.classes_) < 2:
            raise ArgumentError(_ONE_CLASS)
        self._seed = _seed_of(self.random_state)
        self._experiment = self._make_experiment(self.features or ())  # is refused first
        seen = len(np.unique(labels))
        chooses = self.calibration == "validation" and 3 <= seen < len(self.classes_)
        benchmark = (_ReadOnce if once else Benchmark).from_arrays(
            rows,
            labels.tolist(),
            ordered,
            groups=np.zeros(len(labels)) if groups is None else groups,
            validation=max(1, round(seen / 5)) if chooses else (),
            seed=self._seed,
        )
        method = find("method", self.method)
        _warn_of_twins(benchmark.space, method)
        if not (method.trained or once):
            benchmark, times = _in_own_order(benchmark, times)
        if self.features is None:
            semantics = self._experiment.data.semantics
            suited = ("standard",) if method.trained else suited_features(benchmark, semantics)[0]
            self._experiment = self._make_experiment(suited)
        return benchmark, times

    def _train(self, federation: Federation, benchmark: Benchmark) -> None:
        """Train the model, with its calibration, and note what is fitted to samples."""
        _check_one_model(federation)
        chooses = len(benchmark.space.validation) > 0
        selection = benchmark.for_selection(self._seed) if chooses else None
        offset = 0.0 if self.calibration == "validation" else float(self.calibration)
        state, params, folds = self._trained(federation, selection)
        prior = self._prior()
        if chooses and folds:
            few = len(benchmark.space.validation) < FEW
            answers = [fold.answers() for fold in folds]
            chosen = choose_offset(answers, federation, params if few else None, prior)
            offset = chosen.offset
            _warn_if_bounded(chosen)
            _warn_if_outdone(federation.method, state.params, params)
        on_cpu = {name: value.cpu() for name, value in params.items()}
        several = len(federation.partition.clients) > 1 and not federation.method.trained
        # a file does not say what once is worth
        exact = getattr(federation.method, "worth", 1.0) == 1
        kept = state.server if several and exact else {}
        kept = {name: value.cpu() for name, value in kept.items()}
        sure = None
        if folds:
            whole = offset + federation.method.own_offset(params)
            sure = fit(folds, whole, asked_unseen(prior, benchmark.space))
        shape = (self.n_features_in_,)
        self._model = replace(
            empty_model(self._experiment, benchmark.space, federation.scaler, shape),
            params=on_cpu,
            calibration=Calibration(offset),
            statistics=kept,
            confidence=sure,
        )
        _warn_if_uncalibrated(self._model)
        self._partial = False
        method = self._model.method
        if exact and isinstance(method, ClosedForm) and StatisticsPlan(method).exact:
            self._statistics = Statistics(self.plan_statistics(), state.params)
        self.stays_ = ()
        self._fitted = ()
        if several:
            scales = fitted_scales(resolve_defaults(self._experiment, benchmark))
            self._fitted = (
                *scales,
                *(("calibration",) if chooses else ()),
                *(("confidence",) if folds else ()),
                *(("columns",) if self.columns_ else ()),
            )

    def _trained(
        self, federation: Federation, selection: Benchmark | None
    ) -> tuple[State, Params, list[HeldOut]]:
        """Return the final state, the model, and what held-out samples say.

        In closed form all seen classes take turns as unseen ones. A trained method is trained a
        first time on ``selection``; without it no sample is held out.
        """
        rounds = self._experiment.strategy.rounds
        done = loop.fit(federation, rounds)
        self.curve_ = _curve(done)
        model = federation.fit_heads(done.state.params)
        folds = folds_of(federation, done.state.params, model)
        if not folds and selection is not None:
            part = federation.partition.restricted_to(selection.train)
            chosen = assemble(self._experiment, selection, part)
            first = loop.fit(chosen, rounds).state.params
            folds = [held_out_of(chosen, chosen.fit_heads(first))]
        return done.state, model, folds

    def _prior(self) -> Prior:
        """Return the prior; the classes of a mapping have the names of the class space."""
        if isinstance(self.prior, Mapping):
            return {class_name(name): value for name, value in self.prior.items()}
        return self.prior

    def adapt(
        self,
        X: ArrayLike,
        among: Literal["all", "unseen"] = "all",
        settings: Adaptation | None = None,
    ) -> Self:
        """Return a copy that is adapted to unlabelled samples, which may be of seen and of unseen
        classes.

        The model's scores assign the samples to classes in part; prototypes of unseen classes move
        to theirs, or those of all classes where each is seen. Samples that the model rules out are
        refused with a warning (``fedunseen.methods.closed_form.unlabelled``). The copy has
        ``soft_counts_`` (C,), how many samples each class got.

        Args:
            X: (n, d) features, at least ten samples.
            among: the classes that they may be of: ``all``, or ``unseen`` ones alone.
            settings: how much samples count; by default, what held up on other class splits.

        Raises:
            FedUnseenError: the method has no class means to adapt, or there are too few samples.
        """
        check_is_fitted(self)
        adapted = copy(self)
        adapted._adapt([self._unlabelled(X)], among, settings)
        return adapted

    def _rows(self, X: ArrayLike) -> NDArray[np.float32]:
        """Return samples (n, d) that the model can score."""
        return to_float32(self._validated(X, reset=False), "X")

    def _learned_columns(self, X: Any) -> Any:
        """Find out the columns of a data frame; return it as :meth:`_featured` does."""
        self.columns_ = _columns_of(X)
        return self._featured(X)

    def _featured(self, X: Any) -> Any:
        """Return a data frame of several kinds of columns as features (n, d); all else as it is."""
        if not self.columns_ or not is_frame(X):
            return X
        try:
            parts = list(Treatment(self.columns_).read(of_frame(X, "X")))
        except DataError as error:
            raise ArgumentError(str(error), error.code) from None
        return np.concatenate([part.features for part in parts])

    def _validated(self, X: ArrayLike, *labels: ArrayLike, **settings: Any) -> Any:
        """Return samples, and labels if they are given, as scikit-learn checks them."""
        X = self._featured(X)
        try:
            checked = validate_data(self, X, *labels, **settings)
        except (TypeError, ValueError):
            _check_columns(X)
            raise
        if (checked[0] if labels else checked).dtype.kind not in "fiub":
            _check_columns(X)
        return checked

    def _unlabelled(self, X: ArrayLike) -> NDArray[Any]:
        """Return unlabelled samples (m, d) as an array of finite numbers."""
        try:
            rows = to_float32(
                self._validated(X, reset=False, ensure_min_samples=0), "the unlabelled samples"
            )
        except (TypeError, ValueError) as error:
            reason = str(error).splitlines()[0].rstrip(".:")
            place = f"the unlabelled samples cannot be used ({reason})"
            raise ArgumentError(
                f"{place}: give (m, {self.n_features_in_}) finite numbers"
            ) from None
        return rows

    def _adapt(
        self, pools: Sequence[NDArray[Any]], among: str = "all", settings: Adaptation | None = None
    ) -> None:
        """Adapt in place."""
        self._model, adapted = self._model.adapted(pools, among, settings)
        for sign in diagnosed(adaptation_note(adapted, self.classes_.tolist())):
            warnings.warn(f"{sign.what} {sign.remedy}", stacklevel=3)
        self.soft_counts_ = adapted.samples.numpy()

    def learn(self, classes: Any = None, examples: Mapping[Any, ArrayLike] | None = None) -> Self:
        """Return a copy that has learned classes: by descriptions, by examples, or by both. Nothing
        is trained.

        Args:
            classes: a table as for :meth:`fit`, of new classes, or of known ones that are described
                again.
            examples: class name -> (n, d) samples, of new or known classes. The method ``gaussian``
                takes them; a new class that has them needs no description.

        Returns:
            The copy. Its ``classes_`` end with the new classes, which count as unseen.

        Raises:
            ValueError: examples have another width, or are not finite.
            FedUnseenError: there is nothing to learn, the method cannot learn so, or a class is
                described wrongly.

        Example:
            >>> X = np.array([[0.0, 0.1], [0.1, 0.0], [2.0, 2.1], [2.1, 2.0]])
            >>> model = ZeroShotClassifier().fit(X, ["near", "near", "far", "far"])
            >>> model.learn(examples={"left": [[0.1, 2.0], [0.0, 2.1]]}).predict([[0.0, 2.0], [2.0, 2.0]]).tolist()
            ['left', 'far']
        """
        check_is_fitted(self)
        if classes is None and not examples:
            raise DataError("there is nothing to learn: give classes, examples, or both")
        table = {} if classes is None else dict(zip(*self._described(classes), strict=True))
        keys = {
            class_name(name): name
            for name in (*table, *(examples or {}))
            if class_name(name) not in self._model.space.names
        }
        shown = {
            class_name(name): self._rows(class_rows)
            for name, class_rows in (examples or {}).items()
        }
        descriptions = {class_name(name): row.tolist() for name, row in table.items()}
        learned = self._model.learn(descriptions or None, shown or None)
        changed = copy(self)
        changed._model = learned
        added = [keys[name] for name in learned.space.names[len(self.classes_) :]]
        changed.classes_ = np.array([*self.classes_.tolist(), *added])
        if changed.classes_.dtype.kind != self.classes_.dtype.kind:
            raise ArgumentError(
                f"{added[0]!r} is of another type than the names in classes_: name classes alike"
            )
        changed.seen_ = learned.seen_mask
        return changed

    def forget(self, group: Any) -> Self:
        """Return a copy with the bits of :meth:`fit` without a party's samples, calibration
        included.

        The arrays that ``fit`` was given are read again, so they must not have changed. No file
        holds them: a copy that was loaded or unpickled subtracts the party's statistics instead,
        exactly. ``stays_`` and a warning then name what was fitted with the party and stays.
        Classes that the party alone held become unseen.

        Args:
            group: the party, as ``groups`` of :meth:`fit` names it.

        Returns:
            The copy.

        Raises:
            ArgumentError: there is no such party, or no other; or no sums of parties are here: the
                method is trained, or the classifier was loaded without them, adapted, or has
                learned classes.

        Example:
            >>> X = np.array([[0.0, 0.1], [0.1, 0.0], [2.0, 2.1], [2.1, 2.0]])
            >>> model = ZeroShotClassifier().fit(X, ["near", "near", "far", "far"], groups=["a", "a", "b", "b"])
            >>> model.seen_.tolist(), model.forget("b").seen_.tolist()
            ([True, True], [False, True])
        """
        check_is_fitted(self)
        if find("method", self.method).trained:
            raise ArgumentError(
                f"method = {self.method!r} is trained, so that every party is in every parameter: "
                "fit again without the samples of that party"
            )
        if len(self._clients) == 1:
            raise ArgumentError("there is one party: without it nothing is left")
        arrays = getattr(self, "_fitted_on", None)
        if arrays is None and not self._model.statistics:
            raise ArgumentError(
                "no sums of single parties are here: call forget after fit, before learn, adapt "
                "and save, or save the statistics too"
            )
        if group not in self._clients:
            raise ArgumentError("groups: " + unknown("party", str(group), map(str, self._clients)))
        return self._subtracted(group) if arrays is None else self._fitted_without(group, *arrays)

    def _fitted_without(
        self, group: Any, X: Any, y: Any, groups: Any, unlabelled: Any, weights: Any, table: Any
    ) -> Self:
        """Return a copy that is fitted to the samples of the other parties."""
        remaining = np.asarray(groups) != group
        changed = copy(self)
        changed.random_state = self._seed  # one that was drawn would be drawn anew
        labels = np.asarray(y, dtype=object) if isinstance(y, (list, tuple)) and None in y else y
        changed.fit(
            _safe_indexing(X, remaining),
            _safe_indexing(labels, remaining),
            classes=table,
            groups=_safe_indexing(groups, remaining),
            unlabelled=unlabelled,
            sample_weight=None if weights is None else _safe_indexing(weights, remaining),
        )
        changed.random_state = self.random_state
        return changed

    def _subtracted(self, group: Any) -> Self:
        """Return a copy with the statistics of the others; what was fitted to samples stays."""
        changed = copy(self)
        changed._model = self._model.forget(self._clients[group])
        changed._clients = {name: k for name, k in self._clients.items() if name != group}
        changed.stays_ = tuple(in_order([*self.stays_, *self._fitted]))
        for sentence in sentences(changed.stays_):
            warnings.warn(f"{sentence}: fit again to remove it", stacklevel=3)
        changed.seen_ = changed._model.seen_mask
        return changed

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy or a pickle holds: never the samples of :meth:`fit`."""
        state: dict[str, Any] = super().__getstate__()
        gone = ("_fitted_on",) if state.get("_partial") else ("_fitted_on", "_statistics")
        return {name: value for name, value in state.items() if name not in gone}

    def predict(self, X: ArrayLike, classes: Any = None) -> NDArray[Any]:
        """Return (n,) the class of each sample.

        Args:
            X: (n, d) features.
            classes: the classes to choose among: names out of ``classes_``, or a table as for
                :meth:`fit`, of classes that need not have been there. By default all of
                ``classes_``.

        Raises:
            FedUnseenError: a class is unknown or not described as those of the training are.
        """
        names, scores = self._scores(X, classes)
        return np.asarray(names[scores.argmax(1)])

    def predict_proba(self, X: ArrayLike, classes: Any = None) -> NDArray[np.float64]:
        """Return (n, C) how probable each class is; arguments and errors as for :meth:`predict`.

        Of answers with the probability p, a share p is right, over all classes weighing the same;
        held-out samples of classes that played unseen ones say so. Without them (fewer than three
        seen classes) it is the softmax of :meth:`scores`. The columns are those of ``classes_``, or
        the given classes, sorted.
        """
        names, scores = self._scores(X, classes)
        return self._model.chances(scores, ~np.isin(names, self.classes_[self._model.shown_mask]))

    def predict_set(self, X: ArrayLike, coverage: float = 0.9) -> NDArray[np.bool_]:
        """Return (n, C) which of ``classes_`` cannot be ruled out; the answer is one of them.

        What is promised: :meth:`fedunseen.confidence.Confidence.sets`.

        Args:
            X: (n, d) features.
            coverage: of the samples, the share whose class is to be in its set, between 0 and 1.

        Raises:
            ArgumentError: the coverage is not between 0 and 1.
            ExperimentError: there were fewer than three seen classes, or no class with two samples.
        """
        _, scores = self._scores(X, None)
        return self._model.checked_confidence().sets(scores, ~self._model.shown_mask, coverage)

    def unfamiliar(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return (n,) p-values: a small one says that a sample is unlike all known ones.

        Of samples of seen classes, a share of at most alpha has a p-value of at most alpha. It
        finds things of another kind, and not an unlisted class of the same kind.

        Raises:
            ExperimentError: nothing was held out, or the method has no distances.
        """
        check_is_fitted(self)
        return self._model.unfamiliar(self._rows(X))

    def explain(self, X: ArrayLike, top: int | None = 3) -> list[Explanation]:
        """Return why each sample gets its answer; see :meth:`fedunseen.Model.explain`."""
        check_is_fitted(self)
        return self._model.explain(self._rows(X), top)

    def predict_log_proba(self, X: ArrayLike, classes: Any = None) -> NDArray[np.float64]:
        """Return (n, C) the logarithms of :meth:`predict_proba`."""
        with np.errstate(divide="ignore"):  # of a share too small for a number
            return np.asarray(np.log(self.predict_proba(X, classes)))

    def decision_function(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return (n, C) the :meth:`scores`; of two classes, (n,) the log-odds of the second one, as
        scikit-learn's tools expect.
        """
        check_is_fitted(self)
        if len(self.classes_) != 2:
            return self.scores(X)
        odds = np.log(np.maximum(self.predict_proba(X), np.finfo(np.float64).tiny))
        return np.asarray(odds[:, 1] - odds[:, 0])

    def scores(self, X: ArrayLike, classes: Any = None) -> NDArray[np.float64]:
        """Return (n, C) how well each class fits, seen classes lowered by ``calibration_``; as
        :meth:`predict_proba`.

        ``fedunseen.metrics`` takes them:
        ``metrics.zsl(model.scores(X), model.ids(y), ~model.seen_)``.
        """
        return self._scores(X, classes)[1]

    def ids(self, y: ArrayLike) -> NDArray[np.int64]:
        """Return (n,) the columns of ``classes_`` that class names stand for.

        Raises:
            ArgumentError: a name is none of them.
        """
        check_is_fitted(self)
        return _places(np.asarray(y), self.classes_)

    def per_class(self, X: ArrayLike, y: ArrayLike) -> dict[str, list[Any]]:
        """Return how many samples each class has and how many percent of them are recognized, as
        columns of a table.

        ``pandas.DataFrame`` takes it as it is. Classes without a sample have NaN.
        """
        labels = np.asarray(y)
        answers = self.predict(X)
        return {
            "class": self.classes_.tolist(),
            "seen": self.seen_.tolist(),
            "samples": [int((labels == name).sum()) for name in self.classes_],
            "accuracy": metrics.per_class(labels, answers, self.classes_).tolist(),
        }

    def confusion(self, X: ArrayLike, y: ArrayLike) -> dict[str, list[Any]]:
        """Return for each true class (a row) how many percent of its samples get each answer (the
        columns).
        """
        table = metrics.confusion(np.asarray(y), self.predict(X), self.classes_)
        answers = {
            str(name): column.tolist() for name, column in zip(self.classes_, table.T, strict=True)
        }
        return {"class": self.classes_.tolist(), **answers}

    def save(self, path: str | Path, statistics: bool = False) -> None:
        """Write the classifier to one safetensors file, which :meth:`load` reads; nothing is
        pickled.

        Args:
            path: the file.
            statistics: write each party's statistics too, for :meth:`forget` once it is loaded.

        Raises:
            ArgumentError: there are no statistics of single parties.
        """
        check_is_fitted(self)
        if statistics and not self._model.statistics:
            raise ArgumentError(
                "statistics: no sums of single parties are here: save the classifier without them"
            )
        content, tensors = self._model.content(statistics)
        content["classifier"] = {
            "arguments": self._arguments(),
            "classes": self.classes_.tolist(),
            "feature_names": list(getattr(self, "feature_names_in_", [])),
            "columns": [column.model_dump(mode="json") for column in self.columns_],
            "curve": self.curve_,
            "stays": list(self.stays_),
            "fitted": list(self._fitted),
            "parties": list(self._clients.items()) if statistics else [],
            "given_table": self._given_table,
        }
        write_model_file(Path(path), content, tensors)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a classifier that :meth:`save` has written.

        Raises:
            DataError: there is no such file, it holds no classifier, it is damaged, or a later
                version wrote it.
        """
        place = Path(path)
        content, tensors = read_model_file(place)
        if "classifier" not in content:
            raise DataError(
                f"{path} holds a model without a classifier: read it with fedunseen.load_model",
                DAMAGED,
            )
        with refusing_damage(place):
            classifier = cls(**_with_table(content["classifier"]["arguments"]))
            classifier._restore(content["classifier"], Model.of_content(place, content, tensors))
        return classifier

    def _restore(self, about: Mapping[str, Any], model: Model) -> None:
        """Take over what :meth:`save` has written."""
        self._model = model
        drawn = self.random_state is None
        self._seed = model.seed if drawn else _seed_of(self.random_state)
        self._experiment = self._make_experiment(model.scaler.steps)
        self.classes_ = np.array(about["classes"])
        if tuple(map(class_name, self.classes_.tolist())) != model.space.names:
            raise ValueError("its classes are not those of the model")
        self.seen_ = model.seen_mask
        self._clients = {name: int(k) for name, k in about["parties"]}
        self._fitted = tuple(about["fitted"])
        self.stays_ = tuple(about["stays"])
        self._given_table = bool(about.get("given_table", False))
        self.curve_ = {
            str(name): [float(value) for value in values] for name, values in about["curve"].items()
        }
        self.n_features_in_ = int(model.sample_shape[0])
        self.columns_ = tuple(Column.model_validate(item) for item in about.get("columns", ()))
        if about["feature_names"]:
            self.feature_names_in_ = np.array(about["feature_names"], dtype=object)

    def _arguments(self) -> dict[str, Any]:
        """Return the constructor's arguments as JSON values."""
        arguments = self.get_params(deep=False)
        if self.random_state is not None:
            arguments["random_state"] = self._seed
        if self.classes is not None:
            ids, attributes, semantics = described(self.classes)
            arguments["classes"] = {
                "names": list(ids),
                "attributes": attributes,
                "semantics": semantics.tolist(),
            }
        plain: dict[str, Any] = json.loads(json.dumps(arguments, default=_plain))
        return plain

    def _make_experiment(self, features: Sequence[str]) -> Experiment:
        """Return the settings as those of an experiment, which refuses what makes no sense.

        Args:
            features: scalings of the features.

        Raises:
            ExperimentError: naming the setting.
        """
        if find("method", self.method).task == "few-shot":
            raise ArgumentError(
                f"method = {self.method!r} learns classes from examples: name a zero-shot method"
            )
        if not find("strategy", self.strategy).merges:
            raise ArgumentError(
                f"strategy = {self.strategy!r} merges nothing, so that there is no model: name "
                "another"
            )
        rounds = {} if self.rounds is None else {"rounds": self.rounds}
        tree = {
            "data": {
                "name": "arrays",
                "features": list(features),
                "semantics": list(self.semantics),
            },
            "method": {**(self.method_params or {}), "name": self.method},
            "strategy": {**(self.strategy_params or {}), "name": self.strategy, **rounds},
            "evaluation": {"selection": "last"},
            # a kernel is drawn, too, and of a closed form no number depends on random_state
            "run": {"seed": self._seed if find("method", self.method).trained else 0},
        }
        return Experiment.from_dict(tree)

    def _scores(self, X: ArrayLike, classes: Any) -> tuple[NDArray[Any], NDArray[np.float64]]:
        """Return the candidates' names (C,), sorted, and the samples' calibrated scores of them (n,
        C).
        """
        check_is_fitted(self)
        rows = self._rows(X)
        names, semantics, columns = self._candidates(classes)
        seen = np.isin(names, self.classes_[self.seen_])
        model = self._model
        method = self._model.method
        params = self._model.params
        scaled = model.described(semantics)
        if (
            method.generates and classes is not None
        ):  # its classifiers know the training's classes only
            scaled = scaled[columns]
            columns = np.arange(len(names))
            places = columns
            among = Candidates(
                [class_name(name) for name in names], scaled, places[seen], places[~seen]
            )
            params = method.fit_heads(params, among, self._seed)
        inputs = model.scaled(rows)
        # In double precision a sample's scores do not depend on what else it is scored with.
        exact = {
            name: value.double() if value.is_floating_point() else value
            for name, value in params.items()
        }
        score = method.scores if seen.any() else method.unseen_scores
        with torch.no_grad():
            blocks = [
                score(exact, part.double(), scaled.double()) for part in torch.split(inputs, 4096)
            ]
        scores = torch.cat(blocks).numpy()[:, columns]
        one_kind = seen.all() or not seen.any()
        return names, scores if one_kind else model.calibration(scores, seen)

    def _candidates(
        self, classes: Any
    ) -> tuple[NDArray[Any], NDArray[np.float64], NDArray[np.int64]]:
        """Return the classes to choose among: names (C',), and raw semantics with the row of each.

        The model's own classes are the first rows, in its order: it knows more of them than their
        descriptions.
        """
        model_classes = np.arange(len(self.classes_))
        if classes is None:
            return self.classes_, self._model.space.semantics, model_classes
        if isinstance(classes, Mapping) or hasattr(classes, "columns"):
            if not find("method", self.method).zero_shot:
                raise ArgumentError(
                    f"method = {self.method!r} knows only the classes that it was trained on: name "
                    "a zero-shot method, for example fedzsl, to predict others"
                )
            names, rows = self._described(classes)
            semantics = np.concatenate([self._model.space.semantics, rows])
            columns = len(model_classes) + np.arange(len(names))
            for i in np.flatnonzero(np.isin(names, self.classes_)):
                place = _places(names[i : i + 1], self.classes_)[0]
                columns[i] = (
                    place
                    if np.array_equal(rows[i], self._model.space.semantics[place])
                    else columns[i]
                )
            return names, semantics, columns
        chosen = np.unique(_places(np.asarray(classes), self.classes_))
        return self.classes_[chosen], self._model.space.semantics, chosen

    def _described(self, classes: Any) -> tuple[NDArray[Any], NDArray[np.float64]]:
        """Return the names of a table of classes, sorted, and their attributes in the order of the
        training's.

        Raises:
            ArgumentError: they have other attributes.
        """
        names, ordered = _sorted(classes)
        _, attributes, semantics = described(ordered)
        missing = set(self._model.space.attribute_names) ^ set(attributes)
        if missing:
            raise ArgumentError(
                "the classes have other attributes than those of the training (the first is "
                f"{min(missing)!r}): describe them alike"
            )
        return names, semantics[
            :, [attributes.index(name) for name in self._model.space.attribute_names]
        ]


class _ReadOnce(Benchmark):
    """Features that are not read to look for NaN and infinity: quantizing them refuses those."""

    def _check_finite(self) -> None:
        pass


def _in_own_order(
    benchmark: Benchmark, times: NDArray[np.int64]
) -> tuple[Benchmark, NDArray[np.int64]]:
    """Return the benchmark with each different sample once, in an order that follows from their
    content, and how often each counts: so the order in which they are given changes no bit. Very
    many stay as they are.
    """
    rows = benchmark.features
    users = benchmark.users
    if users is None or rows.size > _SORTED:
        return benchmark, times
    by_class = np.lexsort((users, benchmark.labels))
    head = _as_bytes(rows[:, :_FIRST][by_class])
    order = np.argsort(head, kind="stable")
    new = np.ones(len(order), dtype=bool)
    new[1:] = head[order[1:]] != head[order[:-1]]
    if not new.all():  # all of their numbers tell those apart that begin alike
        alike = np.flatnonzero(~new | ~np.r_[new[1:], True])
        whole = _as_bytes(rows[by_class[order[alike]]])
        by_whole = np.argsort(whole, kind="stable")
        order[alike] = order[alike[by_whole]]
        new[alike[1:]] = whole[by_whole[1:]] != whole[by_whole[:-1]]
    order = by_class[order]
    for values in (benchmark.labels[order], users[order]):
        new[1:] |= values[1:] != values[:-1]
    times = np.add.reduceat(times[order], np.flatnonzero(new))
    order = order[new]
    # the first ones of a class stand for all of it
    drawn = stream(4, "order of samples").permutation(len(order))
    order = order[drawn]
    parts = {name: getattr(benchmark, name)[order] for name in ("features", "labels", "users")}
    return replace(benchmark, train=np.arange(len(order)), **parts), times[drawn]


def _as_bytes(rows: NDArray[Any]) -> NDArray[np.void]:
    """Return each of the rows (n, d) as one value (n,) that sorts by its bytes."""
    rows = np.ascontiguousarray(rows)
    values: NDArray[np.void] = rows.view(np.dtype((np.void, rows[0].nbytes)))[:, 0]
    return values


def _that_count(times: NDArray[np.int64], *arrays: Any) -> tuple[Any, ...]:
    """Return arrays and times without the samples of weight 0."""
    some = times > 0
    return *(None if a is None else _safe_indexing(a, some) for a in arrays), times[some]


def _times(
    weights: ArrayLike | None, rows: NDArray[Any], trained: bool
) -> tuple[NDArray[np.int64], float]:
    """Return how often each sample counts (n,), and what once is worth."""
    if weights is None:
        return np.ones(len(rows), dtype=np.int64), 1.0
    checked = _check_sample_weight(weights, rows, dtype=np.float64, ensure_non_negative=True)
    whole = np.rint(checked)
    if (whole == checked).all() and whole.sum() <= _MOST_TIMES * len(rows):
        return whole.astype(np.int64), 1.0
    if trained:
        raise ArgumentError(
            "sample_weight has fractions, or numbers in the hundreds: give how often a trained "
            "method is to see each sample, in whole numbers"
        )
    unit = float(checked[checked > 0].mean()) / _STEPS
    return np.rint(checked / unit).clip(min=checked > 0).astype(np.int64), unit


def _with_table(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return saved arguments of the constructor, with the table of classes as a mapping and lists
    as tuples.
    """
    arguments = {k: tuple(v) if isinstance(v, list) else v for k, v in arguments.items()}
    table = arguments.get("classes")
    if table is None:
        return arguments
    rows = zip(table["names"], table["semantics"], strict=True)
    classes = {name: dict(zip(table["attributes"], row, strict=True)) for name, row in rows}
    return {**arguments, "classes": classes}


def _plain(value: Any) -> Any:
    """Return an argument of another library's type as a JSON value."""
    if isinstance(value, Mapping):
        return dict(value)
    return value.tolist() if hasattr(value, "tolist") else str(value)


def _seed_of(state: int | np.random.RandomState | None) -> int:
    return (
        int(state)
        if isinstance(state, (int, np.integer))
        else int(check_random_state(state).randint(2**31))
    )


def _without_unlabelled(
    X: ArrayLike, y: ArrayLike, table: Any, *beside: ArrayLike | None
) -> tuple[Any, ...]:
    """Return X and y of labeled samples, the unlabelled samples (None: there are none), and what is
    given beside, of labeled samples.
    """
    labels, without = read_labels(y)
    if labels.ndim != 1:
        return X, y, None, *beside
    if table is not None and labels.dtype.kind in "Oif" and -1 not in described(table)[0]:
        without[~without] = labels[~without] == -1
    if not without.any():
        return X, y, None, *beside
    if without.all():
        raise ArgumentError("y has no label at all: name the class of some samples")
    kept = ~without
    return (
        _safe_indexing(X, kept),
        np.array(labels[kept].tolist()),
        _safe_indexing(X, without),
        *(None if values is None else _safe_indexing(values, kept) for values in beside),
    )


def _columns_of(X: Any) -> tuple[Column, ...]:
    """Return how the columns of a data frame become features; none where all are numbers."""
    if not is_frame(X):
        return ()
    table = of_frame(X, "X")
    if plain_numbers(table):
        return ()
    try:
        table_facts = look(table, labelled=False)
    except DataError as error:
        raise ArgumentError(str(error), error.code) from None
    for note in table_facts.notes:
        if "missing cell" not in note.what:
            warnings.warn(f"{note.what}: {note.why}", stacklevel=4)
    return table_facts.columns


def _check_columns(X: Any) -> None:
    """Refuse a column of a data frame or of an array of objects that is no number, by its name."""
    frame = hasattr(X, "columns")
    array = None if frame else np.asarray(X)
    if array is not None and (array.ndim != 2 or array.dtype.kind not in "OU"):
        return
    for column in X.columns if array is None else range(array.shape[1]):
        values = np.asarray(X[column]) if array is None else array[:, column]
        try:
            values.astype(
                np.float64, casting="unsafe" if values.dtype.kind in "OU" else "same_kind"
            )
        except (TypeError, ValueError) as error:
            if array is not None and isinstance(error, TypeError):
                return  # scikit-learn's own error says what such an object is
            bad = next((value for value in values if not _is_number(value)), values[0])
            raise ArgumentError(
                f"the column {column!r} of X holds {bad!s}, which is no number: leave the "
                "column out, or make numbers of it",
                "no-numbers",
            ) from None


def _is_number(value: Any) -> bool:
    """Return whether a cell can be read as a number."""
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def _check_one_model(federation: Federation) -> None:
    """Refuse settings that leave each client a model of its own."""
    if not federation.strategy.one_model:
        shared = list(federation.strategy.settings.shared)
        raise ArgumentError(
            f"strategy_params['shared'] = {shared} leaves each client a model of its own, so "
            "that there is none for all: leave it out"
        )


def _curve(done: loop.Loop) -> dict[str, list[float]]:
    """Return the losses of each round, by name."""
    lines = [line["losses"] for line in done.history]
    names = dict.fromkeys(name for line in lines for name in line)
    return {name: [line.get(name, float("nan")) for line in lines] for name in names}


def _named_classes(classes: Any) -> Any:
    """Return a table of classes; names alone are each described by themselves."""
    if classes is None or isinstance(classes, Mapping) or hasattr(classes, "columns"):
        return classes
    return _Table.of_labels(np.asarray(classes))


def _warn_if_clipped(statistics: Statistics) -> None:
    """Warn where many features are beyond the range that the first samples have fixed."""
    features = statistics.samples * statistics.planned.method.width
    share = int(statistics.params["clipped"]) / max(1, features)
    if share > _CLIPPED:
        warnings.warn(
            f"{100 * share:.0f} % of the features are beyond the range that the first call of "
            "partial_fit has fixed: begin with samples that are like all others",
            stacklevel=3,
        )


def _warn_if_bounded(chosen: ChosenOffset) -> None:
    """Warn of an offset that few classes asked for and that a seen class cannot bear."""
    if chosen.bounded_by:
        note = {
            "factor": chosen.offset,
            "wanted": chosen.wanted,
            "bounded_by": chosen.bounded_by,
        }
        finding = bounded_calibration(note)
        warnings.warn(f"{finding.what} {finding.remedy}", stacklevel=4)


def _warn_if_uncalibrated(model: Model) -> None:
    """Warn where classes or their samples are too few for calibrated probabilities."""
    few = int(model.seen_mask.sum()) < _LEAST
    if model.confidence is None and (few or isinstance(model.method, ClosedForm)):
        why = "there are fewer than three seen classes" if few else "seen classes lack samples"
        warnings.warn(
            f"probabilities are not calibrated, since {why}: predict_proba says how classes share "
            "100 %, not how often an answer is right, and predict_set and unfamiliar are refused. "
            "Give samples of more classes",
            UncalibratedWarning,
            stacklevel=4,
        )


def _warn_of_twins(space: ClassSpace, method: type[Method]) -> None:
    """Warn of two classes that nothing tells apart."""
    if said := twins(space, method):
        warnings.warn(said, stacklevel=4)


def _warn_if_outdone(method: Method, sums: Params, model: Params) -> None:
    """Warn, by the rule of runs, where another closed form recognizes left-out classes clearly
    better.
    """
    if not isinstance(method, ClosedForm) or not len(method.space.unseen):
        return
    finding = outdone(estimates(method, sums, model, examples=False))
    if finding is not None:
        warnings.warn(
            f"{finding.what} {finding.remedy.replace('method.name', 'method')}", stacklevel=4
        )


def _of_users(benchmark: Benchmark, times: NDArray[np.int64]) -> Partition:
    """Return the partition in which each user is a party, and holds samples several times."""
    assert benchmark.users is not None
    ids = np.repeat(np.arange(len(times)), times)
    users = benchmark.users[ids]
    return Partition.of([ids[users == party] for party in np.unique(users)])


def _check_pools(method: Method, pools: Sequence[NDArray[Any]]) -> None:
    """Refuse before anything is trained what cannot be adapted, if there are pools."""
    if pools:
        adaptable(method)
        check_unlabelled(sum(map(len, pools)))


@dataclass(frozen=True, eq=False)
class _Table:
    """A table of classes in the form of a data frame: of many classes a mapping takes gigabytes.

    Attributes:
        index: the names of the classes.
        columns: the names of the attributes.
        semantics: (C, a).
    """

    index: list[Any]
    columns: list[str]
    semantics: NDArray[np.float64]

    @classmethod
    def of_labels(cls, labels: NDArray[Any]) -> "_Table":
        """Return the classes of labels, each described by itself alone."""
        names = np.unique(labels).tolist()
        return cls(names, [f"attribute {i}" for i in range(len(names))], np.eye(len(names)))

    def to_numpy(self) -> NDArray[np.float64]:
        """Return the attributes, as a data frame does."""
        return self.semantics


def _sorted(table: Any) -> tuple[NDArray[Any], _Table]:
    """Return the names of a table of classes, sorted, and the table in that order."""
    ids, attributes, semantics = described(table)
    check_one_type(ids)
    order = sorted(ids)
    rows = semantics[[ids[key] for key in order]]
    return np.array(order), _Table(order, list(attributes), rows)


def _places(names: NDArray[Any], class_names: NDArray[Any]) -> NDArray[np.int64]:
    """Return the place of each name (n,) among the known ones.

    Raises:
        ArgumentError: a name is unknown, or there is none.
    """
    if names.ndim != 1 or not len(names):
        raise ArgumentError("give class names as a list, (n,), with at least one")
    unknown = ~np.isin(names, class_names)
    if unknown.any():
        raise ArgumentError(
            f"{names[unknown].tolist()[0]!r} is not a class of this classifier: name some of its "
            "classes_"
        )
    order = np.argsort(class_names)
    return order[np.searchsorted(class_names, names, sorter=order)]
