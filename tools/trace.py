"""Count the package's own functions on three ways, and print them as a tree of first calls.

- ``run``: ``fedunseen run digit-pairs-gaussian``, from the command line to the report
- ``predict``: one picture, by a run that is loaded; the first prediction
- ``message``: a round of ``digit-pairs-gaussian`` between a coordinator and three parties. Counted
  are the engine's round, and what a party does for the request. No network is between them.

A function counts once, however often it is called. Lambdas and comprehensions belong to the
function around them; what runs while a module is imported does not count. Each way runs in a
process of its own with one thread, an empty cache and PyTorch's plain kernels, so that every
machine counts the same. ``trace.toml`` holds the limits; a limit may only fall::

    python tools/trace.py               # the numbers
    python tools/trace.py predict       # the tree of a way; several may be named
    python tools/trace.py --check       # exit code 1 where a limit is exceeded
    python tools/trace.py --tighten     # lower every limit to what is measured
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

from structure import ROOT, judge

LIMITS = Path(__file__).with_suffix(".toml")
PICTURE = ROOT / "examples" / "digit-pairs" / "47.png"
PRESET = "digit-pairs-gaussian"
PARTIES = ("north", "south", "west")
SMALL = {
    "data.train_per_class": 6, "data.test_per_class": 3, "partition.clients": len(PARTIES),
    "evaluation.selection": "last", "evaluation.theory": False, "evaluation.embedding": False,
}  # fmt: skip
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1", "ATEN_CPU_CAPABILITY": "default", "FEDUNSEEN_PLUGINS": "",
    "COLUMNS": "80", "TERM": "dumb",
}  # fmt: skip
_OPTIMIZED = 1  # of a code object's flags: a function's, and no class's body


class Place(NamedTuple):
    """A function on a way: how deep in the tree, the side, the file and the qualified name."""

    depth: int
    side: str
    file: str
    name: str


class Trace:
    """Collects the functions of a package that are called while it is on.

    Attributes:
        places: in the order of first calls.
    """

    def __init__(self, package: Path, side: str = "") -> None:
        self.places: list[Place] = []
        self._package = f"{package}{os.sep}"
        self._side = side
        self._seen: dict[tuple[str, str], int] = {}  # function -> its depth
        self._stacks: dict[int, list[tuple[str, str] | None]] = {}  # of each thread
        self._names: dict[CodeType, tuple[str, str] | None] = {}

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """Collect within the context, in this thread and those that it starts."""
        before = sys.getprofile()
        threading.setprofile(self._event)
        sys.setprofile(self._event)
        try:
            yield
        finally:
            sys.setprofile(before)
            threading.setprofile(before)

    def _event(self, frame: FrameType, event: str, _: Any) -> None:
        if event not in ("call", "return"):
            return
        code = frame.f_code
        if not code.co_filename.startswith(self._package):
            return
        stack = self._stacks.setdefault(threading.get_ident(), [])
        if event == "return":
            if stack:
                stack.pop()
            return
        stack.append(None if code.co_name == "<module>" else self._function(code))
        if None not in stack:  # no module is being imported
            self._add(stack)

    def _function(self, code: CodeType) -> tuple[str, str]:
        if code not in self._names:
            file = code.co_filename.removeprefix(self._package)
            name = holder(code.co_qualname) if code.co_flags & _OPTIMIZED else ""
            self._names[code] = file, name
        return self._names[code]

    def _add(self, stack: list[tuple[str, str] | None]) -> None:
        function = stack[-1]
        if function is None or not function[1] or function in self._seen:
            return
        above = [self._seen[one] for one in stack[:-1] if one in self._seen]
        depth = above[-1] + 1 if above else 0
        self._seen[function] = depth
        self.places.append(Place(depth, self._side, *function))


def holder(name: str) -> str:
    """Return the qualified name of the function that a lambda or a comprehension is written in.

    It is "" for one that is written in no function.
    """
    parts = name.split(".")
    while parts and parts[-1].startswith("<"):
        parts.pop()
        if not parts or parts.pop() != "<locals>":
            return ""
    return ".".join(parts)


def package() -> Path:
    """Return the folder of the package."""
    import fedunseen

    return Path(fedunseen.__file__).parent


def command(*words: str) -> None:
    """Run a command of ``fedunseen`` in this process, without what it prints."""
    from fedunseen.__main__ import command as fedunseen

    sys.argv = ["fedunseen", *words]
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
        contextlib.suppress(SystemExit),
    ):
        fedunseen()


def run(folder: Path) -> list[Place]:
    """Trace the command."""
    trace = Trace(package())
    with trace.on():
        command("run", PRESET, "--out", str(folder / "run"))
    return trace.places


def predict(folder: Path) -> list[Place]:
    """Trace the first prediction of a run that is loaded."""
    from fedunseen import load_run

    command("run", PRESET, "--out", str(folder / "run"))
    loaded = load_run(folder / "run")
    trace = Trace(package())
    with trace.on():
        loaded.predict([PICTURE])
    return trace.places


def message(folder: Path) -> list[Place]:
    """Trace a round's engine at the coordinator, and the answer of the party that is asked first."""
    from fedunseen import Callback, Experiment
    from fedunseen import run as run_experiment
    from fedunseen.deploy.client_data import PartyData
    from fedunseen.deploy.remote.party import Party
    from fedunseen.deploy.remote.wire import unpack
    from fedunseen.deploy.site import Site
    from fedunseen.experiment.deal import deal
    from fedunseen.federation.engine import PartyStatus, Session

    experiment = Experiment.load(PRESET, SMALL)
    deal(experiment, folder / "data", PARTIES)
    parties = {
        name: Party(PartyData(folder / "data" / name).prepare, Site(folder / name))
        for name in PARTIES
    }
    coordinator = Trace(package(), "coordinator")
    party = Trace(package(), "party")

    class Link:
        """Hands a message to a party, and its answer back."""

        def present(self) -> dict[str, str]:
            return dict.fromkeys(PARTIES, "present")

        def ask(self, name: str, message: bytes) -> Future[bytes]:
            before = sys.getprofile()
            sys.setprofile(None)
            traced = unpack(message)[0]["kind"] == "round" and not party.places
            with party.on() if traced else contextlib.nullcontext():
                answer = parties[name].answer(message)
            future: Future[bytes] = Future()
            future.set_result(answer)
            sys.setprofile(before)
            return future

    class Traced(Callback):
        """Traces the round of the engine."""

        def before_round(self, loop: Any) -> None:
            engine = loop.federation.engine
            within = engine.round

            def round(*given: Any, **settings: Any) -> Any:
                with coordinator.on():
                    return within(*given, **settings)

            engine.round = round

    deployed = experiment.with_overrides({"engine.name": "websocket", "engine.mode": "deployment"})
    session = Session(Link(), [PartyStatus(name) for name in PARTIES])
    run_experiment(
        deployed,
        folder / "run",
        callbacks=[Traced()],
        meeting=lambda: contextlib.nullcontext(session),
    )
    return coordinator.places + party.places


WAYS: dict[str, Callable[[Path], list[Place]]] = {
    "run": run,
    "predict": predict,
    "message": message,
}


def traced(way: str) -> list[Place]:
    """Return the functions of a way, traced in a process of its own."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, **ENVIRONMENT, "FEDUNSEEN_CACHE": cache}
        line = [sys.executable, "-W", "ignore", __file__, "--one", way]
        done = subprocess.run(line, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return [Place(*place) for place in json.loads(done.stdout.splitlines()[-1])]


def tree(places: list[Place]) -> Iterator[str]:
    """Yield the lines of a tree: below each function those that it was the first to call."""
    side = ""
    for place in places:
        if place.side != side:
            side = place.side
            yield f"{side}:"
        yield f"{'  ' * place.depth}{place.name}  {place.file}"


def main() -> None:
    """Print the numbers or trees, and check or lower the limits."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("ways", nargs="*", choices=[[], *WAYS], help="print the trees of these")
    parser.add_argument("--check", action="store_true", help="fail where a limit is exceeded")
    parser.add_argument(
        "--tighten", action="store_true", help="lower the limits to what is measured"
    )
    parser.add_argument("--one", choices=WAYS, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one:
        with tempfile.TemporaryDirectory() as folder:
            places = WAYS[chosen.one](Path(folder))
        print(json.dumps(places))
        return
    found = {way: traced(way) for way in chosen.ways or WAYS}
    for way in chosen.ways:
        print(f"{way}: {len(found[way])} functions", *tree(found[way]), sep="\n")
    if not chosen.ways:
        numbers = {way: len(places) for way, places in found.items()}
        judge(numbers, {}, LIMITS, chosen.check, chosen.tighten)


if __name__ == "__main__":
    main()
