"""Honest parties of a masked sum, and the requests of a coordinator that may lie."""

from functools import partial

import numpy as np

from fedunseen.core.errors import FedUnseenError
from fedunseen.deploy.secagg.driver import InOneProcess
from fedunseen.deploy.secagg.enrolment import in_memory
from fedunseen.deploy.secagg.ledger import Ledger
from fedunseen.deploy.secagg.party import SecAggClient
from fedunseen.deploy.secagg.plan import Plan
from fedunseen.deploy.secagg.primitives import SecAggError
from fedunseen.deploy.secagg.ring import Field, Layout
from refusals import message_of

ZERO = "00" * 32


class Parties:
    """A federation whose clients can be restarted. ``folder``: ledgers are files."""

    def __init__(self, count, folder=None, consent=(), names=None, **plan):
        self.names = names or [f"p{k}" for k in range(count)]
        self.credentials = in_memory(self.names)
        self.enrolment = self.credentials[self.names[0]].enrolment
        self.folder, self.consent = folder, consent
        self.ledgers = {name: self.ledger(name) for name in self.names}
        self.clients = {
            name: SecAggClient(own, self.ledgers[name], consent)
            for name, own in self.credentials.items()
        }
        self.layout = Layout(
            (Field("total", (5,), "whole"), Field("w", (2,), "number", 4.0)), count
        )
        rng = np.random.default_rng(count)
        self.values = {
            name: {"total": rng.integers(-1000, 1000, 5), "w": rng.integers(-16, 16, 2) / 8}
            for name in self.names
        }
        self.samples = {name: [f"{name} {k}".encode() for k in range(3)] for name in self.names}
        self.plan = self.new_plan(**plan)
        self.agree(self.plan)

    def ledger(self, name):
        return Ledger(self.folder / name if self.folder else None, name)

    def new_plan(self, **changes):
        settings = {
            "federation": self.enrolment.digest, "experiment": ZERO, "space": ZERO, "quantization": "none",
            "layout": self.layout.digest(), "weights": {}, "model": ZERO, "sums": 3, "once": False, "dropouts": False,
            "removing": [],
        }  # fmt: skip
        return Plan(**{**settings, **changes})

    def sign(self, name, plan):
        """Sign a plan for all own samples; one that removes none of them names none."""
        return self.clients[name].sign(
            plan, self.samples[name] if name in (plan.removing or self.names) else ()
        )

    def agree(self, plan):
        signatures = {name: self.sign(name, plan) for name in self.names}
        for client in self.clients.values():
            client.accept(plan, signatures)

    def restart(self, *names):
        """End the processes of some parties, or of all: what is in memory is lost."""
        for name in names or self.names:
            if self.folder is not None:
                self.ledgers[name] = self.ledger(name)
            self.clients[name] = SecAggClient(
                self.credentials[name], self.ledgers[name], self.consent
            )
            self.sign(name, self.plan)

    def encode(self, name, rho, extra=()):
        return self.layout.encode(self.values[name], rho)

    def total(self, roster):
        return {key: sum(self.values[name][key] for name in roster) for key in ("total", "w")}

    def sum(self, drops=lambda stage, name: False, change=lambda stage, name, answer: answer):
        """Run a sum, some of whose answers are dropped or changed."""
        carried = InOneProcess(self.clients, self.encode)
        honest = carried.answer
        carried.answer = lambda stage, name, request: (
            None if drops(stage, name) else change(stage, name, honest(stage, name, request))
        )
        return carried.sum(self.plan, 0, ZERO)

    # Requests

    def keys(self, k=0, attempt=0, names=None, instruction=ZERO, plan=None):
        digest = (plan or self.plan).digest
        return {
            name: self.clients[name].keys(digest, k, attempt, instruction)
            for name in names or self.names
        }

    def shares(self, keys, names=None):
        settings = {"keys": list(keys.values())}
        return {name: self.clients[name].shares(settings) for name in names or keys}

    def masked_request(self, name, shares):
        return {
            "rho": shares[name]["rho"],
            "encrypted_shares": {
                d: one["encrypted_shares"][name] for d, one in shares.items() if d != name
            },
            "share_commitments": {
                d: one["share_commitments"][name] for d, one in shares.items() if d != name
            },
        }

    def mask(self, name, request, values=None):
        client = self.clients[name]
        elements = self.layout.encode(values or self.values[name], bytes.fromhex(client.rho))
        return client.masked(request, elements)

    def up_to_masked(self, k=0, attempt=0, names=None, plan=None):
        """Return rho and the masked elements of an honest attempt."""
        shares = self.shares(self.keys(k, attempt, names, plan=plan))
        masked = {name: self.mask(name, self.masked_request(name, shares)) for name in shares}
        return next(iter(shares.values()))["rho"], masked

    def open(self, rho, k=0, names=None, plan=None):
        request = {"plan": (plan or self.plan).digest, "k": k, "rho": rho}
        return {name: self.clients[name].open(request) for name in names or self.names}

    def release(self, k=0, names=None, plan=None):
        """Open an honest sum; return rho and what each party reveals."""
        rho, _ = self.up_to_masked(k, 0, names, plan)
        return rho, self.open(rho, k, names, plan)


refusal = partial(message_of, error=(SecAggError, FedUnseenError))
