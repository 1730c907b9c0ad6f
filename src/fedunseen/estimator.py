"""A zero-shot classifier with the interface of scikit-learn: fit on arrays that several parties hold, predict anything.

The parties hold classes of their own, and the table of classes describes more of them than anybody holds. Federated
training in this process makes one model, which recognizes those too. No folder, no file, no experiment is needed.
"""

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from safetensors import SafetensorError, safe_open
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import _safe_indexing, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from fedunseen import metrics
from fedunseen.core.arrays import to_float32
from fedunseen.core.errors import ArgumentError, DataError, unknown
from fedunseen.core.files import parse_json, write_tensors
from fedunseen.core.memory import keep_pages
from fedunseen.core.parameters import Params, of_each_client, under
from fedunseen.core.registry import find
from fedunseen.core.samples import CodedRows, ScaledSamples
from fedunseen.data import Benchmark, ClassSpace, Scaler, fit_semantics
from fedunseen.data.benchmark import check_unlabelled, described
from fedunseen.evaluation.diagnosis import adapted as diagnosed
from fedunseen.evaluation.diagnosis import bounded_calibration, outdone
from fedunseen.experiment.assemble import assemble
from fedunseen.experiment.calibration_folds import FEW, bounded, calibration_folds
from fedunseen.experiment.changed import adaptation_note
from fedunseen.experiment.encoding import make_backbone
from fedunseen.experiment.schema import Experiment
from fedunseen.federation.federation import Federation, State, mean_losses
from fedunseen.federation.partition import Partition
from fedunseen.methods import Candidates, Method
from fedunseen.methods.closed_form.base import ClosedForm
from fedunseen.methods.closed_form.left_out import estimates
from fedunseen.methods.closed_form.statistics import subtract
from fedunseen.methods.closed_form.unlabelled import Adaptation, adapt, adaptable
from fedunseen.metrics import Answers
from fedunseen.strategies.summed import forget

__all__ = ["ZeroShotClassifier"]

_FORMAT = 1  # of the file that save writes


class ZeroShotClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Federated zero-shot classification of feature vectors.

    Args:
        method: what the parties learn: the name of a zero-shot method on vectors. ``gaussian`` takes one round and has
            nothing to tune; most others are trained, for example ``fedzsl``.
        strategy: what they share and how it merges: the name of a strategy that merges.
        rounds: communication rounds; by default 50, or 1 for a method in closed form.
        method_params: settings of the method, as ``[method]`` has them, for example ``{"lr": 0.1}``.
        strategy_params: settings of the strategy, as ``[strategy]`` has them, for example ``{"local_epochs": 1}``.
        features: scalings of the features, in order, fitted on all training samples (``data.features``). By default
            ``("standard",)`` for a trained method, and none for one in closed form.
        semantics: scalings of the classes' attributes, in order, fitted on the seen classes (``data.semantics``).
        calibration: what the scores of seen classes are lowered by. ``"validation"`` chooses it: a first training sets
            a fifth of the seen classes aside and takes them for unseen. If these are fewer than five, all seen classes
            take turns (closed forms), and each keeps most of its training samples. Without unseen classes, or with
            fewer than three seen ones, it is 0.
        classes: what describes each class, where ``fit`` is not given it.
        random_state: what every random choice depends on.

    Attributes:
        classes_: (C,) all classes of the table, sorted, then those of :meth:`learn`: the columns of
            :meth:`predict_proba`.
        seen_: (C,) bool, someone holds samples of the class.
        calibration_: what the scores of seen classes are lowered by.
        curve_: name -> (rounds,) the mean of each loss over the parties, round by round; empty without a loss.
        n_features_in_: numbers of a sample.

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
        self.classes = classes
        self.random_state = random_state

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        classes: Any = None,
        groups: ArrayLike | None = None,
        unlabelled: ArrayLike | None = None,
    ) -> Self:
        """Train one model on the samples of all parties.

        Args:
            X: (n, d) features.
            y: (n,) class names; None marks an unlabelled sample, and so does -1 where ``classes`` is given and has no
                such class.
            classes: a mapping of class name -> attributes, numbers or a mapping of attribute name -> number; or a data
                frame with a class a row and an attribute a column. It may have more classes than ``y``: the unseen
                ones. By default the constructor's, or else the classes of ``y``, each described by itself alone.
            groups: (n,) which party holds each sample. By default one party holds all.
            unlabelled: (m, d) samples without labels, to which the trained model is adapted (:meth:`adapt`).

        Returns:
            The estimator itself. Warnings name a better closed form, and a class that a calibration would have emptied.

        Raises:
            ValueError: an array is of the wrong shape or type.
            FedUnseenError: a class, a setting or a combination makes no sense, or the training diverged.
        """
        table = self.classes if classes is None else classes
        X, y, groups, pool = _without_unlabelled(X, y, groups, table)
        once = isinstance(X, np.memmap) and not find("method", self.method).trained  # read by quantizing alone
        rows, labels = validate_data(self, X, y, ensure_min_samples=2, ensure_all_finite=not once)
        pools = [self._unlabelled(part) for part in (pool, unlabelled) if part is not None]
        check_classification_targets(labels)
        if table is None:
            table = dict(zip((held := np.unique(labels).tolist()), np.eye(len(held)), strict=True))
        self.classes_, ordered = _sorted(table)
        if len(self.classes_) < 2:
            raise ArgumentError("there is only one class, so that there is nothing to tell apart: give at least two")
        self._seed = _seed_of(self.random_state)
        self._experiment = self._make_experiment()
        seen = len(np.unique(labels))
        chooses = self.calibration == "validation" and 3 <= seen < len(self.classes_)
        benchmark = (_ReadOnce if once else Benchmark).from_arrays(
            rows, labels.tolist(), ordered, groups=np.zeros(len(labels)) if groups is None else groups,
            validation=max(1, round(seen / 5)) if chooses else (), seed=self._seed,
        )  # fmt: skip
        federation = assemble(self._experiment, benchmark, _of_users(benchmark))
        _check_pools(federation.method, pools)
        with keep_pages():  # freshly mapped pages would take a tenth of the time of a closed form
            state, model = self._calibrated(federation, benchmark.for_selection(self._seed) if chooses else None)
            self._check_calibration(federation, state.params, model)
        self._space, self._scaler = benchmark.space, federation.scaler
        self._params = {name: value.cpu() for name, value in model.items()}
        self._clients = {name: k for k, name in enumerate(np.unique([0] if groups is None else groups).tolist())}
        several = len(self._clients) > 1 and not federation.method.trained
        self._sums = {name: value.cpu() for name, value in state.server.items()} if several else {}
        self.seen_ = np.isin(np.arange(len(self.classes_)), benchmark.space.seen)
        if pools:
            self._adapt(pools)
        return self

    def adapt(self, X: ArrayLike, among: Literal["all", "unseen"] = "all", settings: Adaptation | None = None) -> Self:
        """Return a copy that is adapted to unlabelled samples, which may be of seen and of unseen classes.

        The model's scores assign the samples to classes in part; prototypes of unseen classes move to theirs. Samples
        that the model rules out are refused with a warning (``fedunseen.methods.closed_form.unlabelled``). The copy has
        ``soft_counts_`` (C,), how many samples each class got.

        Args:
            X: (n, d) features, at least ten samples.
            among: the classes that they may be of: ``all``, or ``unseen`` ones alone.
            settings: how much samples count; by default, what held up on other class splits.

        Raises:
            FedUnseenError: the method has no class means to adapt, every class is seen, or there are too few samples.
        """
        check_is_fitted(self)
        adapted = copy(self)
        adapted._adapt([self._unlabelled(X)], among, settings)
        return adapted

    def _rows(self, X: ArrayLike) -> NDArray[np.float32]:
        """Return samples (n, d) that the model can score."""
        return to_float32(validate_data(self, X, reset=False), "X")

    def _unlabelled(self, X: ArrayLike) -> NDArray[Any]:
        """Return unlabelled samples (m, d) as an array of finite numbers."""
        try:
            rows = to_float32(validate_data(self, X, reset=False, ensure_min_samples=0), "the unlabelled samples")
        except (TypeError, ValueError) as error:
            what = str(error).splitlines()[0].rstrip(".:")
            place = f"the unlabelled samples cannot be used ({what})"
            raise ArgumentError(f"{place}: give (m, {self.n_features_in_}) finite numbers") from None
        return rows

    def _adapt(self, pools: Sequence[NDArray[Any]], among: str = "all", settings: Adaptation | None = None) -> None:
        """Adapt in place."""
        method = self._method(fit_semantics(self._space, self._experiment.data.semantics))
        rows = [torch.from_numpy(self._scaler(part)) for part in pools]
        found = adapt(method, self._params, rows, self.calibration_, settings or Adaptation(), among)
        for sign in diagnosed(adaptation_note(found, self.classes_.tolist())):
            warnings.warn(f"{sign.what} {sign.remedy}", stacklevel=3)
        self._params, self.soft_counts_, self._sums = found.params, found.samples.numpy(), {}
        self.calibration_ *= found.offset_share

    def learn(self, classes: Any = None, examples: Mapping[Any, ArrayLike] | None = None) -> Self:
        """Return a copy that has learned classes: by descriptions, by examples, or by both. Nothing is trained.

        Args:
            classes: a table as for :meth:`fit`, of new classes, or of known ones that are described again.
            examples: class name -> (n, d) samples, of new or known classes. The method ``gaussian`` takes them; a new
                class that has them needs no description.

        Returns:
            The copy. Its ``classes_`` end with the new classes, which count as unseen.

        Raises:
            ValueError: examples have another width, or are not finite.
            FedUnseenError: there is nothing to learn, the method cannot learn so, or a class is described wrongly.

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
        keys = {str(name): name for name in (*table, *(examples or {})) if str(name) not in self._space.names}
        shown = {str(name): self._rows(some) for name, some in (examples or {}).items()}
        scaling = fit_semantics(self._space, self._experiment.data.semantics)
        run: Any = SimpleNamespace(
            space=self._space, params=self._params, method=self._method(scaling), method_name=self.method,
            scaler=self._scaler, scaled_semantics=scaling, read_inputs=lambda rows: rows, manifest={"seed": self._seed},
        )  # fmt: skip
        descriptions = {str(name): row.tolist() for name, row in table.items()}
        learned = self._experiment.task.predictor.learn(run, descriptions or None, shown or None)
        changed = copy(self)
        changed._space, changed._params, changed._sums = learned.space, learned.params, {}
        added = [keys[name] for name in learned.space.names[len(self.classes_) :]]
        changed.classes_ = np.array([*self.classes_.tolist(), *added])
        if changed.classes_.dtype.kind != self.classes_.dtype.kind:
            raise ArgumentError(f"{added[0]!r} is of another type than the names in classes_: name classes alike")
        changed.seen_ = np.isin(np.arange(len(changed.classes_)), learned.space.seen)
        changed._method(fit_semantics(changed._space, self._experiment.data.semantics))  # refuses what none could use
        return changed

    def forget(self, group: Any) -> Self:
        """Return a copy as if a party had never taken part: exact, from the sums that the others have sent.

        Classes that it alone held become unseen. How features are scaled and quantized stays, and so does
        ``calibration_``.

        Args:
            group: the party, as ``groups`` of :meth:`fit` names it.

        Returns:
            The copy.

        Raises:
            ArgumentError: there is no such party, or no other; or no sums of parties are here: the method is trained,
                or the classifier was loaded, adapted, or has learned classes.

        Example:
            >>> X = np.array([[0.0, 0.1], [0.1, 0.0], [2.0, 2.1], [2.1, 2.0]])
            >>> model = ZeroShotClassifier().fit(X, ["near", "near", "far", "far"], groups=["a", "a", "b", "b"])
            >>> model.seen_.tolist(), model.forget("b").seen_.tolist()
            ([True, True], [False, True])
        """
        check_is_fitted(self)
        if find("method", self.method).trained:
            raise ArgumentError(
                f"method = {self.method!r} is trained, so that every party is in every parameter: fit again without "
                "the samples of that party"
            )
        if len(self._clients) == 1:
            raise ArgumentError("there is one party: without it nothing is left")
        if not of_each_client(self._sums):
            raise ArgumentError(
                "no sums of single parties are here: call forget after fit, before learn, adapt and save, and leave "
                "method_params['retention'] at 'each'"
            )
        if group not in self._clients:
            raise ArgumentError("groups: " + unknown("party", str(group), map(str, self._clients)))
        changed = copy(self)
        changed._sums, total = forget(self._sums, self._clients[group])
        changed._clients = {name: k for name, k in self._clients.items() if name != group}
        space, ids = self._space, np.arange(len(self.classes_))
        seen = np.flatnonzero(total["count"].numpy() > 0)
        held = np.intersect1d(space.validation, seen)
        changed._space = replace(space, seen=seen, validation=held, unseen=np.setdiff1d(ids, seen))
        changed.seen_ = np.isin(ids, seen)
        method = changed._method(fit_semantics(changed._space, self._experiment.data.semantics))
        among = Candidates(space.names, method.semantics, seen, changed._space.unseen)
        changed._params = method.fit_heads(total, among, self._seed)
        return changed

    def predict(self, X: ArrayLike, classes: Any = None) -> NDArray[Any]:
        """Return (n,) the class of each sample.

        Args:
            X: (n, d) features.
            classes: the classes to choose among: names out of ``classes_``, or a table as for :meth:`fit`, of classes
                that need not have been there. By default all of ``classes_``.

        Raises:
            FedUnseenError: a class is unknown or not described as those of the training are.
        """
        names, scores = self._scores(X, classes)
        return np.asarray(names[scores.argmax(1)])

    def predict_proba(self, X: ArrayLike, classes: Any = None) -> NDArray[np.float64]:
        """Return (n, C) the softmax of :meth:`scores`; arguments and errors as for :meth:`predict`.

        The columns are those of ``classes_``, or the given classes, sorted.
        """
        _, scores = self._scores(X, classes)
        powers = np.exp(scores - scores.max(1, keepdims=True))
        return np.asarray(powers / powers.sum(1, keepdims=True))

    def scores(self, X: ArrayLike, classes: Any = None) -> NDArray[np.float64]:
        """Return (n, C) how well each class fits, seen classes lowered by ``calibration_``; as :meth:`predict_proba`.

        ``fedunseen.metrics`` takes them: ``metrics.zsl(model.scores(X), model.ids(y), ~model.seen_)``.
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
        """Return how many samples each class has and how many percent of them are recognized, as columns of a table.

        ``pandas.DataFrame`` takes it as it is. Classes without a sample have NaN.
        """
        labels, answers = np.asarray(y), self.predict(X)
        return {
            "class": self.classes_.tolist(),
            "seen": self.seen_.tolist(),
            "samples": [int((labels == name).sum()) for name in self.classes_],
            "accuracy": metrics.per_class(labels, answers, self.classes_).tolist(),
        }

    def confusion(self, X: ArrayLike, y: ArrayLike) -> dict[str, list[Any]]:
        """Return for each true class (a row) how many percent of its samples get each answer (the columns)."""
        table = metrics.confusion(np.asarray(y), self.predict(X), self.classes_)
        answers = {str(name): column.tolist() for name, column in zip(self.classes_, table.T, strict=True)}
        return {"class": self.classes_.tolist(), **answers}

    def save(self, path: str | Path) -> None:
        """Write the trained classifier to one safetensors file; :meth:`load` reads it. Nothing is pickled."""
        check_is_fitted(self)
        space = self._space
        about = {
            "format": _FORMAT,
            "settings": self._experiment.to_dict(),
            "classes": self.classes_.tolist(),
            "attributes": space.attribute_names,
            "features": self.n_features_in_,
            "feature_names": list(getattr(self, "feature_names_in_", [])),
            "seen": space.seen.tolist(),
            "validation": space.validation.tolist(),
            "undescribed": space.undescribed.tolist(),
            "calibration": self.calibration_,
            "curve": self.curve_,
            "estimator": {"method": self.method, "strategy": self.strategy, "rounds": self.rounds},
        }
        tensors: dict[str, NDArray[Any]] = {f"model/{name}": value.numpy() for name, value in self._params.items()}
        tensors |= {f"scaling/{name}": value for name, value in self._scaler.statistics.items()}
        tensors["semantics"] = space.semantics
        write_tensors(Path(path), tensors, {"fedunseen classifier": json.dumps(about)})

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a classifier that :meth:`save` has written.

        Raises:
            DataError: there is no such file, or it is none of these or damaged.
        """
        try:
            with safe_open(Path(path), "numpy") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # it is not a mapping
        except (OSError, SafetensorError) as error:
            raise DataError(f"{path} cannot be read as a classifier ({error}): give a file that `save` wrote") from None
        try:
            about = parse_json(metadata.get("fedunseen classifier", '{"format": 0}'))
            if about["format"] != _FORMAT:
                raise DataError(
                    f"{path} is not a classifier of this version of FedUnseen: give a file that its `save` wrote"
                )
            made = cls(**about["estimator"])
            made._restore(about, tensors)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(f"{path} is damaged ({error}): save the classifier again") from None
        return made

    def _restore(self, about: dict[str, Any], tensors: dict[str, NDArray[Any]]) -> None:
        """Take over what :meth:`save` has written."""
        tree, classes = about["settings"], about["classes"]
        for part in ("method", "strategy"):
            keep = {key: value for key, value in tree[part].items() if key not in ("name", "rounds")}
            setattr(self, f"{part}_params", keep)
        self.features, self.semantics = tuple(tree["data"]["features"]), tuple(tree["data"]["semantics"])
        self.random_state = self._seed = int(tree["run"]["seed"])
        self._experiment = self._make_experiment()
        self.classes_ = np.array(classes)
        seen, validation = (np.array(about[key], dtype=np.int64) for key in ("seen", "validation"))
        self._space = ClassSpace(
            tuple(map(str, classes)), tensors["semantics"], tuple(about["attributes"]), seen, validation,
            np.setdiff1d(np.arange(len(classes)), seen), undescribed=about.get("undescribed", []),
        )  # fmt: skip
        self._sums, self._clients = {}, {}
        self.seen_ = np.isin(np.arange(len(classes)), seen)
        self._params = {n[6:]: torch.from_numpy(v) for n, v in tensors.items() if n.startswith("model/")}
        statistics = {n[8:]: v for n, v in tensors.items() if n.startswith("scaling/")}
        self._scaler = Scaler(self._experiment.data.features or (), statistics)
        self.calibration = self.calibration_ = float(about["calibration"])
        self.curve_ = {str(name): [float(value) for value in values] for name, values in about["curve"].items()}
        self.n_features_in_ = int(about["features"])
        if about["feature_names"]:
            self.feature_names_in_ = np.array(about["feature_names"], dtype=object)

    def _make_experiment(self) -> Experiment:
        """Return the settings as those of an experiment, which refuses what makes no sense.

        Raises:
            ExperimentError: naming the setting.
        """
        if find("method", self.method).task == "few-shot":
            raise ArgumentError(f"method = {self.method!r} learns classes from examples: name a zero-shot method")
        if not find("strategy", self.strategy).merges:
            raise ArgumentError(f"strategy = {self.strategy!r} merges nothing, so that there is no model: name another")
        features = self.features
        if features is None:
            features = ("standard",) if find("method", self.method).trained else ()
        rounds = {} if self.rounds is None else {"rounds": self.rounds}
        tree = {
            "data": {"name": "arrays", "features": list(features), "semantics": list(self.semantics)},
            "method": {**(self.method_params or {}), "name": self.method},
            "strategy": {**(self.strategy_params or {}), "name": self.strategy, **rounds},
            "evaluation": {"selection": "last"},
            "run": {"seed": self._seed},
        }
        return Experiment.from_dict(tree)

    def _calibrated(self, federation: Federation, selection: Benchmark | None) -> tuple[State, Params]:
        """Return the final state and the model, and choose the calibration on ``selection``."""
        self.calibration_ = 0.0 if self.calibration == "validation" else float(self.calibration)
        if selection is not None and getattr(federation.method, "quantization", None) is not None:
            return self._sum_once(federation, selection)
        if selection is not None:
            chosen = assemble(self._experiment, selection, federation.partition.restricted_to(selection.train))
            state, _ = self._train(chosen)
            self.calibration_ = metrics.best_factor([chosen.answers(chosen.fit_heads(state.params))])
        state, self.curve_ = self._train(federation)
        return state, federation.fit_heads(state.params)

    def _check_calibration(self, federation: Federation, sums: Params, model: Params) -> None:
        """Lower a chosen offset from few classes to what the seen classes bear; warn of it, and of a better method."""
        if not (choosing := len(federation.benchmark.space.validation)):
            return
        wanted = self.calibration_
        if choosing < FEW:
            self.calibration_, at_stake = bounded(wanted, federation, model)
            if at_stake:
                note = {"factor": self.calibration_, "wanted": wanted, "bounded_by": at_stake}
                found = bounded_calibration(note)
                warnings.warn(f"{found.what} {found.remedy}", stacklevel=3)
        _warn_if_outdone(federation.method, sums, model)

    def _sum_once(self, federation: Federation, selection: Benchmark) -> tuple[State, Params]:
        """Do what :meth:`_calibrated` does for a closed form, and read the samples once.

        The statistics without validation classes are a part of all. The model without them has the shrinkage of the
        final one, so that their scores are in one unit.
        """
        method, partition = federation.method, federation.partition
        assert isinstance(method, ClosedForm)
        assert isinstance(federation.inputs, ScaledSamples)
        part = partition.restricted_to(selection.train)
        chosen = assemble(self._experiment, selection, part, scaler=federation.scaler)
        first, self.curve_ = self._train(chosen)
        kept = of_each_client(first.server)
        total, server = dict(first.params), dict[str, torch.Tensor]()
        for k, rows in enumerate(partition.clients):
            rest = torch.from_numpy(np.setdiff1d(rows, selection.train)).to(federation.device)
            more = method.statistics(CodedRows(federation.inputs, rest), federation.labels[rest])
            total = method.merged(total, more)
            if kept:
                server |= under(f"client/{k}/", method.merged(kept[k], more) if k in kept else more)
        model = federation.fit_heads(total)
        chosen.method.settings = chosen.method.settings.model_copy(update=method.units(model) | method.choice(model))
        quick = {name: value.float() for name, value in chosen.fit_heads(first.params).items()}
        turns = self._other_turns(federation, chosen, first.params)
        self.calibration_ = metrics.best_factor([chosen.answers(quick), *turns])
        return State(first.round, server, total, {}), model

    def _other_turns(self, federation: Federation, chosen: Federation, sums: Params) -> Iterator[Answers]:
        """Yield the answers where other seen classes are taken for unseen, if those of ``chosen`` are few.

        Statistics of each turn are ``sums``, those of ``chosen``, with its validation classes and without the turn's.
        """
        method, benchmark = chosen.method, federation.benchmark
        assert isinstance(method, ClosedForm)
        assert isinstance(federation.inputs, ScaledSamples)
        before = chosen.benchmark.train
        for turn in calibration_folds(benchmark, self._seed)[1:]:
            other = turn.for_selection(self._seed)
            back, gone = (
                method.statistics(CodedRows(federation.inputs, rows), federation.labels[rows])
                for rows in map(
                    torch.from_numpy, (np.setdiff1d(other.train, before), np.setdiff1d(before, other.train))
                )
            )
            part = federation.partition.restricted_to(other.train)
            there = assemble(self._experiment, other, part, scaler=federation.scaler)
            there.method.settings = method.settings
            model = there.fit_heads(subtract(method.merged(sums, back), gone, benchmark.space, method.quantization))
            yield there.answers({name: value.float() for name, value in model.items()})

    def _train(self, federation: Federation) -> tuple[State, dict[str, list[float]]]:
        """Return the state after the last round, and the losses of each round."""
        if not federation.strategy.one_model:
            shared = list(federation.strategy.settings.shared)
            raise ArgumentError(
                f"strategy_params['shared'] = {shared} leaves each client a model of its own, so that there is none "
                "for all: leave it out"
            )
        state, lines = federation.start(), []
        for _ in range(self._experiment.strategy.rounds):
            state, result = federation.round(state)
            lines.append(mean_losses(federation.strategy, result))
        names = dict.fromkeys(name for line in lines for name in line)
        curve = {name: [line.get(name, float("nan")) for line in lines] for name in names}
        return state, curve

    def _scores(self, X: ArrayLike, classes: Any) -> tuple[NDArray[Any], NDArray[np.float64]]:
        """Return the candidates' names (C,), sorted, and the samples' calibrated scores of them (n, C)."""
        check_is_fitted(self)
        rows = self._rows(X)
        names, semantics, columns = self._candidates(classes)
        seen = np.isin(names, self.classes_[self.seen_])
        scaling = fit_semantics(self._space, self._experiment.data.semantics)
        method, params = self._method(scaling), self._params
        scaled = torch.from_numpy(scaling(semantics))
        if method.generates and classes is not None:  # its classifiers know the training's classes only
            scaled, columns = scaled[columns], np.arange(len(names))
            places = columns
            among = Candidates([str(name) for name in names], scaled, places[seen], places[~seen])
            params = method.fit_heads(params, among, self._seed)
        inputs = torch.from_numpy(self._scaler(rows))
        # In double precision a sample's scores do not depend on what else it is scored with.
        exact = {name: value.double() if value.is_floating_point() else value for name, value in params.items()}
        score = method.scores if seen.any() else method.unseen_scores
        with torch.no_grad():
            blocks = [score(exact, part.double(), scaled.double()) for part in torch.split(inputs, 4096)]
        scores = torch.cat(blocks).numpy()[:, columns]
        return names, scores - self.calibration_ * seen if seen.any() and not seen.all() else scores

    def _method(self, scaling: Scaler) -> Method:
        """Return the method that was trained."""
        backbone = make_backbone(self._experiment, (self.n_features_in_,), None)
        scaled = torch.from_numpy(scaling(self._space.semantics))
        made: Method = find("method", self.method)(self._experiment.method, self._space, scaled, backbone)
        if isinstance(made, ClosedForm):
            made.quantization = self._scaler.quantization
        return made

    def _candidates(self, classes: Any) -> tuple[NDArray[Any], NDArray[np.float64], NDArray[np.int64]]:
        """Return the classes to choose among: names (C',), and raw semantics with the row of each.

        The model's own classes are the first rows, in its order: it knows more of them than their descriptions.
        """
        own = np.arange(len(self.classes_))
        if classes is None:
            return self.classes_, self._space.semantics, own
        if isinstance(classes, Mapping) or hasattr(classes, "columns"):
            if not find("method", self.method).zero_shot:
                raise ArgumentError(
                    f"method = {self.method!r} knows only the classes that it was trained on: name a zero-shot method, "
                    "for example fedzsl, to predict others"
                )
            names, rows = self._described(classes)
            semantics, columns = np.concatenate([self._space.semantics, rows]), len(own) + np.arange(len(names))
            for i in np.flatnonzero(np.isin(names, self.classes_)):
                place = _places(names[i : i + 1], self.classes_)[0]
                columns[i] = place if np.array_equal(rows[i], self._space.semantics[place]) else columns[i]
            return names, semantics, columns
        chosen = np.unique(_places(np.asarray(classes), self.classes_))
        return self.classes_[chosen], self._space.semantics, chosen

    def _described(self, classes: Any) -> tuple[NDArray[Any], NDArray[np.float64]]:
        """Return the names of a table of classes, sorted, and their attributes in the order of the training's.

        Raises:
            ArgumentError: they have other attributes.
        """
        names, ordered = _sorted(classes)
        _, attributes, semantics = described(ordered)
        missing = set(self._space.attribute_names) ^ set(attributes)
        if missing:
            raise ArgumentError(
                f"the classes have other attributes than those of the training (the first is {min(missing)!r}): "
                "describe them alike"
            )
        return names, semantics[:, [attributes.index(name) for name in self._space.attribute_names]]


class _ReadOnce(Benchmark):
    """Features that are not read to look for NaN and infinity: quantizing them refuses those."""

    def _check_finite(self) -> None:
        pass


def _seed_of(state: int | np.random.RandomState | None) -> int:
    return int(state) if isinstance(state, (int, np.integer)) else int(check_random_state(state).randint(2**31))


def _without_unlabelled(
    X: ArrayLike, y: ArrayLike, groups: ArrayLike | None, table: Any
) -> tuple[ArrayLike, ArrayLike, ArrayLike | None, Any]:
    """Return X, y and groups of labeled samples, and the unlabelled samples (None: there are none)."""
    labels = np.asarray(y, dtype=object) if isinstance(y, (list, tuple)) and None in y else np.asarray(y)
    if labels.ndim != 1 or labels.dtype.kind not in "Oif":
        return X, y, groups, None
    without = np.array([label is None for label in labels], dtype=bool)
    if table is not None and -1 not in described(table)[0]:
        without |= labels == -1
    if not without.any():
        return X, y, groups, None
    kept = ~without
    holders = None if groups is None else _safe_indexing(groups, kept)
    return _safe_indexing(X, kept), np.array(labels[kept].tolist()), holders, _safe_indexing(X, without)


def _warn_if_outdone(method: Method, sums: Params, model: Params) -> None:
    """Warn, by the rule of runs, where another closed form recognizes left-out classes clearly better."""
    if not isinstance(method, ClosedForm) or not len(method.space.unseen):
        return
    found = outdone(estimates(method, sums, model, examples=False))
    if found is not None:
        warnings.warn(f"{found.what} {found.remedy.replace('method.name', 'method')}", stacklevel=4)


def _of_users(benchmark: Benchmark) -> Partition:
    """Return the partition in which each user is a party."""
    users = benchmark.users
    return Partition.of([np.flatnonzero(users == party) for party in np.unique(users)])  # type: ignore[arg-type]


def _check_pools(method: Method, pools: Sequence[NDArray[Any]]) -> None:
    """Refuse before anything is trained what cannot be adapted, if there are pools."""
    if pools:
        adaptable(method)
        check_unlabelled(sum(map(len, pools)))


def _sorted(table: Any) -> tuple[NDArray[Any], dict[Any, dict[str, float]]]:
    """Return the names of a table of classes, sorted, and the table in that order."""
    ids, attributes, semantics = described(table)
    order = sorted(ids)
    return np.array(order), {key: dict(zip(attributes, semantics[ids[key]].tolist(), strict=True)) for key in order}


def _places(names: NDArray[Any], known: NDArray[Any]) -> NDArray[np.int64]:
    """Return the place of each name (n,) among the known ones.

    Raises:
        ArgumentError: a name is unknown, or there is none.
    """
    if names.ndim != 1 or not len(names):
        raise ArgumentError("give class names as a list, (n,), with at least one")
    unknown = ~np.isin(names, known)
    if unknown.any():
        raise ArgumentError(
            f"{names[unknown].tolist()[0]!r} is not a class of this classifier: name some of its classes_"
        )
    order = np.argsort(known)
    return order[np.searchsorted(known, names, sorter=order)]
