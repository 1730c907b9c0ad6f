"""Random schedules of drops, restarts, duplicates, reorderings and lies."""

import random
from collections import defaultdict

import numpy as np
import pytest

from fedunseen.core.errors import RefusedError
from fedunseen.deploy.secagg.party import SecAggClient
from fedunseen.deploy.secagg.primitives import SecAggError
from masked_parties import ZERO, Parties


class Schedule:
    """A coordinator that sends honest, old, swapped and changed requests in any order."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        loose = self.rng.random() < 0.5
        self.parties = Parties(
            self.rng.randint(3, 10), consent=["dropouts"] if loose else [], dropouts=loose
        )
        self.trouble = self.rng.choice([0.0, 0.01, 0.05])
        self.requests = defaultdict(list)  # party -> stage, request: all that was ever sent to it
        self.keys, self.shares = {}, {}
        self.opened = defaultdict(lambda: defaultdict(dict))  # sum -> rho -> party -> reply
        self.rosters, self.masked = {}, defaultdict(dict)  # rho -> roster, party -> elements

    def send(self, name, stage, request):
        """Send a request; a lie changes it, a drop loses it or its answer."""
        rng, client = self.rng, self.parties.clients[name]
        self.requests[name].append((stage, request))
        if rng.random() < self.trouble:
            self.parties.restart(name)
            client = self.parties.clients[name]
        if rng.random() < self.trouble:
            return None
        if rng.random() < 2 * self.trouble:
            request = self.lie(request)
        try:
            if stage == "keys":
                answer = client.keys(**request)
            elif stage == "masked":
                answer = client.masked(
                    request, self.parties.encode(name, bytes.fromhex(client.rho))
                )
            else:
                answer = getattr(client, stage)(request)
        except (SecAggError, RefusedError, KeyError, TypeError):
            return None
        if isinstance(answer, np.ndarray):
            known = self.masked[client.rho].setdefault(name, answer)
            assert known.tobytes() == answer.tobytes()  # never two vectors under the same masks
            self.rosters[client.rho] = sorted(client._attempt.roster)
        elif stage == "open":
            assert self.opened[request["k"]][request["rho"]].setdefault(name, answer) == answer
        return None if rng.random() < self.trouble else answer

    def lie(self, request):
        rng, changed = self.rng, dict(request)
        key = rng.choice(sorted(changed))
        value = changed[key]
        if isinstance(value, list) and value:
            changed[key] = rng.choice(
                [value[:-1], [*value, value[0]], rng.sample(value, len(value))]
            )
        elif isinstance(value, dict) and value:
            name = rng.choice(sorted(value))
            changed[key] = rng.choice(
                [{n: v for n, v in value.items() if n != name}, {**value, name: "00" * 44}]
            )
        elif isinstance(value, int):
            changed[key] = max(0, value + rng.choice([-1, 1]))
        elif self.rosters and key == "rho":
            changed[key] = rng.choice(sorted(self.rosters))
        else:
            changed[key] = "11" * 32
        return changed

    def attempt(self, k, number):
        rng, parties = self.rng, self.parties
        count = (
            rng.randint(len(parties.names) - 2, len(parties.names))
            if rng.random() < 0.3
            else len(parties.names)
        )
        names = rng.sample(parties.names, count)
        request = {"plan": parties.plan.digest, "k": k, "attempt": number, "instruction": ZERO}
        known = {name: answer for name in names if (answer := self.send(name, "keys", request))}
        self.keys |= known
        if rng.random() < 0.1 and self.keys:  # keys of another attempt
            name = rng.choice(sorted(self.keys))
            known[name] = self.keys[name]
        halves = [sorted(known)] if rng.random() < 0.9 else [sorted(known)[:-1], sorted(known)[1:]]
        shares = {}
        for roster in halves:
            request = {"keys": [known[one] for one in roster]}
            shares |= {
                name: answer for name in roster if (answer := self.send(name, "shares", request))
            }
        self.shares |= shares
        if rng.random() < 0.1 and self.shares:
            shares[rng.choice(sorted(self.shares))] = self.shares[rng.choice(sorted(self.shares))]
        rho = None
        for name in rng.sample(sorted(shares), len(shares)):
            try:
                request = parties.masked_request(name, shares)
            except KeyError:
                continue
            self.send(name, "masked", request)
            rho = shares[name]["rho"]
        for name in rng.sample(parties.names, rng.randint(0, len(parties.names))) if rho else ():
            self.send(name, "open", {"plan": parties.plan.digest, "k": k, "rho": rho})

    def replay(self):
        """Send old requests again, in any order."""
        for _ in range(self.rng.randint(0, 6)):
            name = self.rng.choice(self.parties.names)
            if self.requests[name]:
                self.send(name, *self.rng.choice(self.requests[name]))

    def run(self):
        number = 0
        for k in range(2):
            for _ in range(self.rng.randint(1, 3)):
                number += 1
                self.attempt(k, number)
                self.replay()
        for rho, k in [
            (rho, k) for k in range(2) for rho in list(self.rosters)
        ]:  # at last everything is asked for
            for name in self.parties.names:
                self.send(name, "open", {"plan": self.parties.plan.digest, "k": k, "rho": rho})

    def check(self):
        """No sum was opened twice, none of few parties, and what can be opened is right."""
        parties, t, opened = self.parties, self.parties.enrolment.threshold, 0
        for k, by_rho in self.opened.items():
            whole = [rho for rho, replies in by_rho.items() if len(replies) >= t]
            assert len(whole) <= 1, (k, whole)
            assert all(len(self.rosters[rho]) >= t for rho in by_rho)
            assert sum(map(len, by_rho.values())) <= len(parties.names), (
                k
            )  # one opening a party and a sum
            opened += sum(set(self.masked[rho]) == set(self.rosters[rho]) for rho in whole)
        return opened


def honest(seed):
    """Parties drop out, restart and lie: an honest coordinator gets the right sum, or a sentence
    that names who.
    """
    rng = random.Random(seed)
    loose, trouble = rng.random() < 0.5, rng.choice([0.0, 0.01, 0.03])
    parties = Parties(rng.randint(3, 10), consent=["dropouts"] if loose else [], dropouts=loose)
    stages = ["keys", "shares", "masked", "open"]
    lies = {name: rng.choice(stages) for name in parties.names if rng.random() < 3 * trouble}
    gone = {name for name in parties.names if rng.random() < trouble}

    def drops(stage, name):
        if rng.random() < trouble / 3:
            parties.restart(name)
        return name in gone or rng.random() < trouble / 3

    def change(stage, name, message):
        if lies.get(name) != stage:
            return message
        return (
            message[:-1]
            if isinstance(message, np.ndarray)
            else {**message, rng.choice(sorted(message)): ZERO}
        )

    try:
        done = parties.sum(drops, change)
    except (SecAggError, RefusedError) as error:
        why = str(error)
        assert any(name in why for name in parties.names), why
        return False
    assert len(done.roster) >= parties.enrolment.threshold
    found = parties.layout.decode(done.elements, len(done.roster), bytes.fromhex(done.rho))
    assert all(
        np.array_equal(found[key], value) for key, value in parties.total(done.roster).items()
    )
    return True


def search(seeds):
    opened = right = 0
    for seed in seeds:
        schedule = Schedule(seed)
        schedule.run()
        opened += schedule.check()
        right += honest(seed)
    return opened, right


@pytest.mark.parametrize(
    ("seeds", "least"),
    [(range(16), 5), pytest.param(range(1000, 3000), 500, marks=pytest.mark.slow)],
)
def test_random_schedules_open_no_sum_twice_and_none_of_few_parties(seeds, least):
    assert min(search(seeds)) > least  # the search reaches openings, and right sums


def test_the_search_finds_a_party_that_opens_twice(monkeypatch):
    """Without the ledger's rule the search fails: it can find what it looks for."""
    real_open, real_masked = SecAggClient.open, SecAggClient.masked

    def masked(self, *given):
        answer = real_masked(self, *given)
        plans = [record["waiting"] for record in self.ledger.plans.values() if record["waiting"]]
        self.__dict__.setdefault("kept", {}).update({one["rho"]: one for one in plans})
        return answer

    def careless(self, settings):
        if settings["plan"] in self.ledger.plans and settings["rho"] in self.__dict__.get(
            "kept", {}
        ):
            self.ledger.plans[settings["plan"]].update(
                opened=None, waiting=self.kept[settings["rho"]]
            )
        return real_open(self, settings)

    monkeypatch.setattr(SecAggClient, "masked", masked)
    monkeypatch.setattr(SecAggClient, "open", careless)
    with pytest.raises(AssertionError):
        search(range(16))
