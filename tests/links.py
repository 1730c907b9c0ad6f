"""Links in tests: answers that are there at once, and the small experiments that run over them."""

from concurrent.futures import Future
from contextlib import nullcontext

from fedunseen import Experiment, run
from fedunseen.engines.remote.coordinator import PartyStatus, Session
from fedunseen.engines.remote.link import PartyGone, complete
from fedunseen.engines.remote.wire import unpack
from fedunseen.experiment.client_data import simulated
from known_names import DIGITS_MAML
from processes import TRAINED

SMALL = {**TRAINED, "partition.clients": 3, "strategy.rounds": 2}
CLOSED = {key: value for key, value in SMALL.items() if not key.startswith(("strategy", "method"))}
FEW_SHOT = {
    "strategy.rounds": 3, "partition.clients": 2, "encoder.widths": [4], "method.episodes": 4,
    "method.inner_steps": 1, "method.test_steps": 2, "evaluation.episodes": 20, "evaluation.validation_episodes": 6,
}  # fmt: skip


def experiment(preset="digit-pairs", **more):
    """Return a preset that runs in a second, other than these two a closed form; two bars in a name are a dot."""
    small = {"digit-pairs": SMALL, DIGITS_MAML: FEW_SHOT}.get(preset, CLOSED)
    return Experiment.load(preset, {**small, **{key.replace("__", "."): value for key, value in more.items()}})


def answered(answer):
    """Return the completed future of an answer; None: the party is gone."""
    future = Future()
    complete(future, PartyGone("in a test") if answer is None else answer)
    return future


class KilledError(Exception):
    pass


def kill(*given):
    """Kill the coordinator, whatever it was given."""
    raise KilledError


def disturbed(kind, who, do, times=(1,)):
    """Do something at some of a party's answers of a kind, counted from 1; its answer is what that returns."""
    seen = []

    def change(name, header, answer):
        if (name, header["kind"]) != (who, kind):
            return answer
        seen.append(name)
        return do(answer) if len(seen) in times else answer

    return change


class Inline:
    """A link with the worker process of a simulation at its other end, which is a function."""

    def __init__(self, parties=3, change=lambda name, header, answer: answer):
        self.answer, self.there, self.change = simulated(), dict.fromkeys(map(str, range(parties)), "first"), change
        self.asked = []

    def present(self):
        return self.there

    def ask(self, name, message):
        header, _ = unpack(message)
        self.asked.append((header["round"], name))
        return answered(self.change(name, header, self.answer(name, message)) if name in self.there else None)


def session(link, names, **more):
    """Return a coordinator's session with parties of these names."""
    return Session(link, [PartyStatus(name) for name in names], **more)


def elsewhere(chosen, out, link=None, resume=False):
    """Run an experiment over a link to the worker processes of a simulation."""
    parties = chosen.partition.clients
    met = session(link or Inline(parties), map(str, range(parties)))
    chosen = chosen.with_overrides({"engine.name": "flower", "engine.mode": "simulation"})
    return run(chosen, out, resume, meeting=lambda: nullcontext(met))
