"""Run the cells of a sweep: each is a run with its own directory, and several run at once in worker
processes.

A sweep's directory has ``sweep.json`` (the cells and their experiments), ``cells/NAME/`` (run
directories), ``failed/NAME.json`` (why a cell failed, until a later attempt succeeds) and
``results.csv``. A worker is a process that runs cell after cell: if it crashes, its cell has
failed; if the sweep is killed, its workers end with it.

On several machines, an executor of ``concurrent.futures`` runs the cells, such as that of a Ray
cluster. One process at a time works in a directory.
"""

import itertools
import json
import multiprocessing
import os
import shutil
import signal
import threading
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from fedunseen.core.errors import ExperimentError, FedUnseenError, RunDirectoryError
from fedunseen.core.files import check_unlinked, holding, is_occupied, parse_json, write_json
from fedunseen.core.registry import find
from fedunseen.data import Benchmark
from fedunseen.experiment.assemble import check, load_data
from fedunseen.experiment.running import run
from fedunseen.experiment.schema import Experiment
from fedunseen.federation.run_directory import differences
from fedunseen.research.sweep.results import Row, row, write_csv
from fedunseen.research.sweep.schema import Cell, Sweep

OnCell = Callable[[Row, int], None]
"""Called for every cell that is done or has failed, with its row and the number of cells left."""


def _check_cells(sweep: Sweep, cells: Sequence[Cell]) -> dict[str, str]:
    """Build what each cell names, before one trains; return folder -> why a cell is refused. Data
    are loaded once.
    """
    alike: dict[str, list[Cell]] = {}
    for cell in cells:
        if (experiment := cell.experiment) is not None:
            shared = [experiment.data, experiment.encoder]
            takes = find(
                "method", experiment.method.name
            ).takes  # of a network, features are its maps or their means
            key = json.dumps(
                [*(part.model_dump(mode="json") for part in shared), takes, experiment.run.seed]
            )
            alike.setdefault(key, []).append(cell)
    refused: dict[str, str] = {}
    for group in alike.values():
        benchmark: Benchmark | None = None
        for cell in group:
            assert cell.experiment is not None
            try:
                benchmark = benchmark or load_data(cell.experiment, cell.experiment.run.seed)
                check(cell.experiment, benchmark)
            except FedUnseenError as error:
                if not (sweep.file.skip_refused and isinstance(error, ExperimentError)):
                    raise error.reworded(f"{sweep.name}: {cell.key}: {error}") from None
                refused[cell.folder] = str(error)
    return refused


def run_sweep(
    sweep: Sweep,
    out: str | Path,
    resume: bool = False,
    cells: Sequence[Cell] | None = None,
    jobs: int | None = None,
    on_cell: OnCell | None = None,
    warn: Callable[[str], None] | None = None,
    executor: Executor | None = None,
) -> list[Row]:
    """Run the cells of a sweep that are not done yet; a cell that fails does not stop the others.

    Args:
        sweep: what :func:`read_sweep` returned.
        out: the sweep's directory.
        resume: continue with the sweep that ``out`` holds: finished cells are not run again, failed
            ones are.
        cells: which of the sweep's cells to run; by default all.
        jobs: how many run at once; by default one for each core, one in all where a CUDA device is
            used.
        on_cell: called for every cell that is done or has failed.
        warn: called with every warning of a worker.
        executor: runs the cells, in place of processes of its own; its workers reach ``out``.

    Returns:
        A row for each cell of the sweep, in order.

    Raises:
        RunDirectoryError: the directory cannot be used.
        ExperimentError: a cell cannot be built (:func:`fedunseen.experiment.assemble.check`).
        DataError: a folder with data is missing, or the data of a cell do not suit it.
    """
    path = Path(out)
    wanted = sweep.cells if cells is None else cells
    with alone_in(sweep, path, resume):
        _prepare(sweep, path, resume, wanted)
        rows = _Rows(sweep, path)
        rows.read()
        waiting = [cell for cell in wanted if rows.status(cell) not in ("done", "refused")]
        remaining = itertools.count(len(waiting) - 1, -1)

        def cell_ended(cell: Cell) -> None:
            rows.read()
            if on_cell is not None:
                on_cell(rows.rows[cell.folder], next(remaining))

        told = cell_ended, warn or (lambda words: None)
        if waiting and executor is None:
            limit = min(jobs or _default_jobs(waiting), len(waiting))
            _Pool(sweep, path, limit, *told).run(waiting)
        elif executor is not None:
            _submit(executor, sweep, path, waiting, *told)
        return list(rows.rows.values())


@contextmanager
def alone_in(sweep: Sweep, out: Path, resume: bool) -> Iterator[None]:
    """Hold the directory of a sweep or bench against a second process.

    Raises:
        RunDirectoryError: another process has it, or it holds something else.
    """
    _check(sweep, out, resume)
    new = not out.exists()
    out.mkdir(parents=True, exist_ok=True)
    try:
        with holding(out) as ours:
            if not ours:
                raise RunDirectoryError(
                    f"{out} is in use by another process: wait for it, or choose another --out"
                )
            yield
    finally:
        if new and not is_occupied(out, lambda name: name.startswith(".")):
            shutil.rmtree(out)


@dataclass(eq=False)
class _Rows:
    """The rows of a sweep's table: folder -> row, as the directory has them."""

    sweep: Sweep
    path: Path
    rows: dict[str, Row] = field(default_factory=dict)

    def status(self, cell: Cell) -> str:
        """Return how far a cell was when its row was read."""
        return self.rows[cell.folder].status

    def read(self) -> None:
        """Read the rows of cells that were not done yet, and write the table."""
        for cell in self.sweep.cells:
            if cell.folder not in self.rows or self.status(cell) != "done":
                self.rows[cell.folder] = row(self.sweep, cell, self.path)
        write_csv(self.sweep, self.rows.values(), self.path / "results.csv")


def _prepare(sweep: Sweep, path: Path, resume: bool, wanted: Sequence[Cell]) -> None:
    """Check everything that can be checked before a cell runs, and write what the sweep is."""
    _check(sweep, path, resume)
    open_cells = [
        cell for cell in wanted if row(sweep, cell, path).status not in ("done", "refused")
    ]
    refused = _check_cells(sweep, open_cells)
    begin(sweep, path, resume)
    for folder, problem in refused.items():
        write_json(path / "failed" / f"{folder}.json", {"problem": problem, "refused": True})


def begin(sweep: Sweep, path: Path, resume: bool) -> None:
    """Refuse a directory that holds something else; write what the sweep is, unless that stands
    there.
    """
    _check(sweep, path, resume)
    if not (path / "sweep.json").exists():
        write_json(path / "sweep.json", _manifest(sweep))


def _check(sweep: Sweep, path: Path, resume: bool) -> None:
    """Refuse a directory that holds something else, before anything is written."""
    manifest = path / "sweep.json"
    if not manifest.exists():
        if is_occupied(path, lambda name: name.startswith(".")):
            raise RunDirectoryError(
                f"{path} exists and is not a sweep's directory: choose another --out"
            )
        return
    if not resume:
        raise RunDirectoryError(
            f"{path} already holds a sweep: add --resume to continue with it, or choose another "
            "--out"
        )
    check_unlinked(path)
    try:
        cells = {str(cell["folder"]): cell for cell in parse_json(manifest.read_bytes())["cells"]}
    except (OSError, ValueError, KeyError, TypeError):
        raise RunDirectoryError(
            f"{manifest} is damaged: run the sweep again in another --out"
        ) from None
    if difference := _difference(
        cells, {str(cell["folder"]): cell for cell in _manifest(sweep)["cells"]}
    ):
        raise RunDirectoryError(
            f"{path} holds another sweep ({difference}): choose another --out, or resume it with "
            "the file and the settings that it was started with"
        )


def _manifest(sweep: Sweep) -> dict[str, Any]:
    trees = [cell.experiment.to_dict() if cell.experiment else None for cell in sweep.cells]
    cells = [
        {"folder": cell.folder, "values": dict(cell.values), "experiment": tree}
        for cell, tree in zip(sweep.cells, trees, strict=True)
    ]
    # In the form in which a resume reads it, to be compared with that: JSON makes lists of tuples.
    manifest: dict[str, Any] = json.loads(
        json.dumps({"sweep": sweep.name, "title": sweep.file.title, "cells": cells})
    )
    return manifest


def _difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> str | None:
    """Say one thing that differs between the cells of two sweeps, None if nothing does."""
    if missing := [name for name in old if name not in new]:
        return f"it has the cell {missing[0]}"
    if added := [name for name in new if name not in old]:
        return f"it lacks the cell {added[0]}"
    differing = {
        name: differences(cell["experiment"] or {}, new[name]["experiment"] or {})
        for name, cell in old.items()
    }
    return next(
        (f"{name}: {settings[0]}" for name, settings in differing.items() if settings), None
    )


@dataclass(eq=False)
class _Pool:
    """The workers of a sweep."""

    # Own code: of executors (concurrent.futures, loky) a dead worker ends all tasks.
    sweep: Sweep
    path: Path
    limit: int
    ended: Callable[[Cell], None]
    warn: Callable[[str], None]
    workers: dict[Connection, BaseProcess] = field(default_factory=dict)
    running: dict[Connection, Cell] = field(default_factory=dict)

    def run(self, cells: Sequence[Cell]) -> None:
        """Run cells in order, as many at once as ``limit`` says."""
        waiting = deque(cells)
        try:
            with _threads(self.limit):
                while waiting or self.running:
                    while waiting and len(self.running) < self.limit:
                        self._start(waiting.popleft())
                    for worker in wait(self.workers) if self.running else []:
                        assert isinstance(worker, Connection)
                        self._hear(worker)
        finally:
            for (
                process
            ) in self.workers.values():  # a run that is killed here loses at most one round
                process.kill()
                process.join()

    def _start(self, cell: Cell) -> None:
        idle = [worker for worker in self.workers if worker not in self.running]
        worker = idle[0] if idle else self._hire()
        self.running[worker] = cell
        with suppress(OSError):  # the worker has died: `_hear` notices it next
            worker.send_bytes(json.dumps(_task(cell, self.path)).encode())

    def _hire(self) -> Connection:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        self.workers[ours] = process = context.Process(target=_work, args=(theirs,), daemon=True)
        process.start()
        theirs.close()
        return ours

    def _hear(self, worker: Connection) -> None:
        """Act on a worker's message, or on its death."""
        try:
            message = json.loads(worker.recv_bytes())
        except (EOFError, OSError):
            message = {"problem": _end_of(self.workers.pop(worker)), "refused": False}
        if "warning" in message:
            self.warn(message["warning"])
            return
        cell = self.running.pop(worker, None)
        if cell is not None:
            _record(self.sweep, self.path, cell, message)
            self.ended(cell)


def _task(cell: Cell, path: Path) -> dict[str, Any]:
    """Return what a worker needs to know of a cell, as JSON."""
    assert cell.experiment is not None
    tree = cell.experiment.to_dict()
    return {"experiment": tree, "out": str(path.resolve()), "cell": cell.folder}


def _record(sweep: Sweep, path: Path, cell: Cell, message: Mapping[str, Any]) -> None:
    """Keep why a cell has failed, or that it has not."""
    record = path / "failed" / f"{cell.folder}.json"
    if "problem" in message:
        refused = message["refused"] and sweep.file.skip_refused
        write_json(record, {**message, "refused": refused})
    else:
        record.unlink(missing_ok=True)


def _submit(
    executor: Executor,
    sweep: Sweep,
    path: Path,
    cells: Sequence[Cell],
    ended: Callable[[Cell], None],
    warn: Callable[[str], None],
) -> None:
    """Run cells on an executor; a worker that dies fails its cell."""
    futures = {executor.submit(run_cell, _task(cell, path)): cell for cell in cells}
    for future in as_completed(futures):
        try:
            message = future.result()
        except Exception as error:  # of the executor: run_cell returns its own
            words = str(error).strip().splitlines() or [type(error).__name__]
            message = {"problem": f"its worker has failed: {words[0]}", "refused": False}
        for words in message.pop("warnings", ()):
            warn(words)
        _record(sweep, path, futures[future], message)
        ended(futures[future])


def run_cell(task: Mapping[str, Any]) -> dict[str, Any]:
    """Run a cell, or continue with it; return why it failed, and its warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        message = _attempt(task)
    return {**message, "warnings": sorted({str(warning.message) for warning in caught})}


def _end_of(process: BaseProcess) -> str:
    """Say how a worker has ended."""
    process.join()
    code = process.exitcode or 0
    if code >= 0:
        return f"its process ended with exit code {code}"
    name = signal.Signals(-code).name
    return f"its process was ended by {name}" + (
        "; perhaps memory ran out: try --jobs 1" if name == "SIGKILL" else ""
    )


def _default_jobs(cells: Sequence[Cell]) -> int:
    import torch

    wishes = {cell.experiment.run.device for cell in cells if cell.experiment}
    if torch.cuda.is_available() and wishes != {"cpu"}:
        return 1  # several runs on one device would only compete for its memory
    return _cores()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def _threads(jobs: int) -> Iterator[None]:
    """Let the workers that are started in this context share the cores, unless the user has set
    OMP_NUM_THREADS.
    """
    old = os.environ.get("OMP_NUM_THREADS")
    if old is None:
        os.environ["OMP_NUM_THREADS"] = str(max(_cores() // jobs, 1))
    try:
        yield
    finally:
        if old is None:
            del os.environ["OMP_NUM_THREADS"]


def _work(connection: Connection) -> None:
    """Run cells as they come, in a worker process, until the sweep closes the connection or has
    ended.
    """
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C reaches all processes, and the sweep's own ends this one
    threading.Thread(target=_end_with_parent, daemon=True).start()

    def say(**message: Any) -> None:
        connection.send_bytes(json.dumps(message).encode())

    warnings.showwarning = lambda message, *place, **options: say(warning=str(message))
    while True:
        try:
            task = json.loads(connection.recv_bytes())
        except EOFError:
            return
        say(**_attempt(task))


def _attempt(task: Mapping[str, Any]) -> dict[str, Any]:
    """Run a cell, or continue with it; return why it failed, empty where it has not."""
    try:
        run(
            Experiment.from_dict(task["experiment"]),
            Path(task["out"]) / "cells" / task["cell"],
            resume=True,
        )
    except FedUnseenError as error:
        return {"problem": str(error), "refused": isinstance(error, ExperimentError)}
    except (
        Exception
    ) as error:  # an error in a method, perhaps another package's: the other cells continue
        words = str(error).strip().splitlines()
        return {
            "problem": f"{type(error).__name__}: {words[0]}" if words else type(error).__name__,
            "refused": False,
            "traceback": traceback.format_exc(),
        }
    return {}


def _end_with_parent() -> None:
    """Wait until the sweep's process has ended, for any reason, and end this one at once."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)
