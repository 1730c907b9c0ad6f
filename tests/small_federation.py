"""Three parties with folders of features, and a coordinator whose messages can be kept or
changed.
"""

import csv
from contextlib import nullcontext

import numpy as np

from fedunseen import Experiment, run
from fedunseen.deploy.client_data import PartyData
from fedunseen.deploy.remote.party import Party
from fedunseen.deploy.remote.wire import pack, unpack
from fedunseen.deploy.site import Owner, Site
from fedunseen.experiment.setup import Setup
from fedunseen.federation.engine import PartyStatus, Session
from links import answered, session

NAMES = ("north", "south", "west")
CLASSES, FEATURES, ATTRIBUTES = 12, 8, 5
HELD = {"north": (0, 1, 2), "south": (3, 4, 5), "west": (6, 7, 8, 9)}
MASKED = {"privacy.aggregation": "masked", "evaluation.selection": "last"}
RUN = "0123456789abcdef"


def write_party(folder, labels, seed, split="train", pool=0, scale=1.0):
    """Write a folder with a sample of each class in ``labels``, which may repeat, and ``pool``
    unlabelled ones.
    """
    fixed, rng = np.random.default_rng(0), np.random.default_rng(seed)
    attributes = (fixed.random((CLASSES, ATTRIBUTES)) > 0.5).astype(float)
    attributes[:, 0] = np.arange(1, CLASSES + 1) / CLASSES
    mixing = fixed.normal(size=(ATTRIBUTES, FEATURES))
    folder.mkdir(parents=True)
    with open(folder / "classes.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["name", "split", *(f"a{i}" for i in range(ATTRIBUTES))])
        for c in range(CLASSES):
            rows.writerow([f"class {c}", "unseen" if c >= 10 else "seen", *attributes[c]])
    drawn = [*labels, *rng.integers(CLASSES, size=pool)]
    features = np.array([attributes[c] @ mixing for c in drawn]) + rng.normal(
        scale=0.3, size=(len(drawn), FEATURES)
    )
    named = [f"class {c}" for c in labels] + [""] * pool
    splits = [split if isinstance(split, str) else split[i] for i in range(len(labels))]
    np.savez(
        folder / "features.npz",
        features=(scale * features).astype(np.float32),
        labels=np.array(named),
        split=np.array(splits + ["train"] * pool),
    )
    return folder


def write_all(folder, pool=0):
    """Write the folders of the coordinator and of all parties."""
    for number, (name, classes) in enumerate(HELD.items(), 1):
        write_party(folder / name, np.repeat(classes, 6), number, pool=pool)
    labels = np.repeat(range(CLASSES), 4)
    split = ["train" if c < 10 and i % 2 else "test" for i, c in enumerate(labels)]
    write_party(folder / "coordinator", labels, 9, split)
    return folder


def experiment(data, method="gaussian", **settings):
    """Return an experiment of a deployment; two bars in a name are a dot."""
    given = {key.replace("__", "."): value for key, value in settings.items()}
    tree = {
        "data": {"name": "folder", "root": str(data / "coordinator"), "part": True},
        "method": {"name": method},
        "strategy": {"name": "fedavg", "rounds": 1, "weights": "uniform"},
        "partition": {"clients": len(NAMES)},
        "evaluation": {"theory": False, "embedding": False},
        "engine": {"name": "nvflare", "mode": "deployment", "patience": 0.2},
        "run": {"device": "cpu"},
    }
    return Experiment.from_dict(tree, {**MASKED, **given})


def greeting(chosen, folder, client=0):
    """Return the header and the tensors of the coordinator's greeting."""
    setup = Setup.of(chosen, folder, lambda *messages: None).assembled()
    clients = setup.federation.engine.clients
    clients.seat(Session(None, [PartyStatus(name) for name in NAMES], run=RUN))
    header, tensors = clients.hello()
    return {**header, "client": client}, dict(tensors)


def party(data, state, said, kit=None, guarded=True, consent=()):
    """Return a party as ``fedunseen join --masked`` makes it."""
    held = PartyData(data, masked=guarded)
    return Party(held.prepare, Site(state, Owner(data, kit, tuple(consent), guarded), said.append))


class Recorder:
    """A link to parties in this process that keeps what the coordinator sends to each of them."""

    def __init__(self, parties, change=lambda name, header: None):
        self.parties, self.change = parties, change
        self.sent = {name: [] for name in parties}

    def present(self):
        return dict.fromkeys(self.parties, "first")

    def ask(self, name, message):
        header, tensors = unpack(message)
        self.change(name, header)
        message = pack(header, tensors)
        self.sent[name].append(message)
        return answered(self.parties[name].answer(message))


def host(chosen, link, out, kits):
    met = session(link, NAMES, kit=kits / "coordinator")
    return run(chosen, out, meeting=lambda: nullcontext(met))
