"""Links in tests: answers that are there at once."""

from concurrent.futures import Future
from contextlib import nullcontext

from fedunseen import run
from fedunseen.deploy.client_data import simulated
from fedunseen.deploy.remote.link import PartyGone, complete
from fedunseen.deploy.remote.wire import unpack
from fedunseen.federation.engine import PartyStatus, Session


def answered(answer):
    """Return the completed future of an answer; None: the party is gone."""
    future = Future()
    complete(future, PartyGone("in a test") if answer is None else answer)
    return future


def disturbed(kind, who, do, times=(1,)):
    """Do something at some of a party's answers of a kind, counted from 1; its answer is what that
    returns.
    """
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
        self.answer, self.there, self.change = (
            simulated(),
            dict.fromkeys(map(str, range(parties)), "first"),
            change,
        )
        self.asked = []

    def present(self):
        return self.there

    def ask(self, name, message):
        header, _ = unpack(message)
        self.asked.append((header["round"], name))
        return answered(
            self.change(name, header, self.answer(name, message)) if name in self.there else None
        )


def session(link, names, **more):
    """Return a coordinator's session with parties of these names."""
    return Session(link, [PartyStatus(name) for name in names], **more)


def elsewhere(chosen, out, link=None, resume=False):
    """Run an experiment over a link to the worker processes of a simulation."""
    parties = chosen.partition.clients
    met = session(link or Inline(parties), map(str, range(parties)))
    chosen = chosen.with_overrides({"engine.name": "flower", "engine.mode": "simulation"})
    return run(chosen, out, resume, meeting=lambda: nullcontext(met))
