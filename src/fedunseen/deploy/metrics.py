"""The numbers of a federation for Prometheus, without a page: ``--metrics`` of ``host`` and
``join``.

They are read when they are asked for. The names are those of the live page's
``/metrics``; ``deploy/alerts.yml`` has rules for them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedunseen.core import validity
from fedunseen.federation.callbacks import scalars
from fedunseen.federation.engine import PartyStatus

if TYPE_CHECKING:
    from prometheus_client import Metric

    from fedunseen.deploy.site import Site

Samples = Iterable[tuple[str, str, Mapping[str, str], float]]
"""Name without prefix, help, labels, value."""


class Numbers:
    """What Prometheus collects; subclasses say which samples there are now."""

    def samples(self) -> Samples:
        """Yield the samples of this moment."""
        raise NotImplementedError

    def collect(self) -> Iterator[Metric]:
        """Yield all numbers, those of one name together."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        families: dict[str, Any] = {}
        for name, words, labels, value in self.samples():
            if not math.isfinite(value):
                continue
            if name not in families:
                kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
                families[name] = kind(f"fedunseen_{name}", words, labels=list(labels))
            families[name].add_metric(list(labels.values()), value)
        yield from families.values()


def _ends(folder: Path) -> Samples:
    for holder, valid in validity.read(folder).items():
        words = "When a certificate ends, in Unix time."
        last = valid.last.timestamp()
        yield "certificate_ends_seconds", words, {"holder": holder}, last


class RunNumbers(Numbers):
    """A coordinator's numbers; ``out``: its run directory."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.parties: Sequence[PartyStatus] = ()
        self.stage = "waiting"
        self.round = self.rounds = 0
        self.line: Mapping[str, Any] = {}
        self.bytes = {"down": 0, "up": 0}

    def meet(self, parties: Sequence[PartyStatus]) -> None:
        """Take who the parties are."""
        self.parties = parties

    def on_round(self, stage: str, round: int, rounds: int, line: Mapping[str, Any] | None) -> None:
        """Take the metrics of a round."""
        self.stage = stage
        self.round = round
        self.rounds = rounds
        if line is not None:
            self.line = dict(line)
            for way in self.bytes:
                self.bytes[way] += int(line.get(f"bytes_{way}", 0))

    def samples(self) -> Samples:
        """Yield the samples of this moment."""
        line = self.line
        yield "round", "Rounds done in this stage.", {}, self.round
        yield "rounds", "Rounds of this stage.", {}, self.rounds
        yield "phase", "1 for what the coordinator does now.", {"stage": self.stage}, 1
        connected = sum(party.connected for party in self.parties)
        yield "parties_connected", "Parties that are there.", {}, connected
        may = sum(not party.revoked for party in self.parties)
        yield "parties", "Parties that may take part.", {}, may
        left_out = len({*line.get("dropped", {}), *line.get("defence", {}).get("dropped", {})})
        yield "replies_left_out", "Replies of the last round that were left out.", {}, left_out
        for way, count in self.bytes.items():
            yield "bytes_total", "Bytes of updates, by direction.", {"way": way}, count
        yield from self._of_parties()
        for name, value in line.get("losses", {}).items():
            yield "loss", "Mean losses of the last round.", {"name": name}, float(value)
        for name, value in scalars(line).items():
            if isinstance(value, int | float) and name not in ("round", "bytes_down", "bytes_up"):
                yield "measure", "Numbers of the last round.", {"name": name}, float(value)
        if "privacy" in line:
            yield "epsilon", "Privacy spent in this run.", {}, float(line["privacy"]["epsilon"])
        yield from _ends(self.out / "engine")

    def _of_parties(self) -> Samples:
        now = time.time()
        for party in self.parties:
            who = {"party": party.name}
            yield "party_connected", "1 if a party is there.", who, party.connected
            yield "party_rounds", "Rounds in which a party took part.", who, party.rounds
            yield "party_seconds", "Seconds of a party's last local update.", who, party.seconds
            refused = bool(party.refused)
            yield "party_refused", "1 if its last answer was refused.", who, refused
            traffic = party.traffic
            if traffic.heard:
                words = "Seconds since a party's last answer."
                yield "party_silent_seconds", words, who, now - traffic.heard
            for way, count in (("down", traffic.sent), ("up", traffic.received)):
                words = "Bytes of all messages of a party, by direction."
                yield "party_bytes_total", words, {**who, "way": way}, count
            yield "party_asked_total", "Messages to a party.", who, traffic.asked
            yield "party_lost_total", "Messages without an answer.", who, traffic.lost


class SiteNumbers(Numbers):
    """A party's numbers."""

    def __init__(self, site: Site) -> None:
        self.site = site

    def samples(self) -> Samples:
        """Yield the samples of this moment."""
        site = self.site
        yield "connected", "1 if the coordinator is reached.", {}, site.connected
        if site.heard:
            words = "Seconds since the coordinator's last message."
            yield "silent_seconds", words, {}, time.time() - site.heard
        for way, count in (("down", site.received), ("up", site.sent)):
            yield "bytes_total", "Bytes of all messages, by direction.", {"way": way}, count
        last = site.events[-1] if site.events else {}
        yield "rounds", "Rounds of the run.", {}, site.rounds
        yield "round", "The last round answered.", {}, int(last.get("round", 0))
        for name, value in last.get("losses", {}).items():
            yield "loss", "Losses of the last local update.", {"name": name}, float(value)
        limit = site.releases.limit
        yield "epsilon", "Privacy spent in all runs.", {}, site.releases.spent()[0]
        if limit is not None:
            left = limit - site.releases.spent()[0]
            yield "epsilon_left", "Privacy left of the owner's limit.", {}, left
        yield from _ends(site.state / "engine")
