"""The live page of a federation as one of its sites sees it: what was received and sent, and what that has spent."""

from __future__ import annotations

import math
from typing import Any

from fedunseen.engines.remote.releases import Site
from fedunseen.evaluation.measures import SHORT
from fedunseen.serve.run_monitor import Monitor, Phase

_RELEASES = 200  # lines of the history that the page shows


class SiteMonitor(Monitor):
    """Shows a party's connection, rounds, traffic and history of releases."""

    def __init__(self, name: str, samples: int, classes: int, site: Site) -> None:
        super().__init__()
        self.name, self.samples, self.classes, self.site = name, samples, classes, site

    def _now_phase(self) -> Phase:
        if self._phase == "preparing":
            return "training" if self.site.experiment else "waiting"
        return self._phase

    def _numbers(self) -> dict[str, int]:
        done = self.site.events[-1]["round"] if self.site.events else 0
        connected = int(bool(self.site.experiment))
        return {"round": done, "rounds": self.site.rounds, "connected": connected, "clients": 1, "left_out": 0}

    def _facts(self) -> dict[str, Any]:
        experiment = self.site.experiment
        for event in self.site.events[len(self._events) :]:
            self._count += 1
            more = {"seq": self._count, "stage": "training", "accuracies": {}, "merged": 1, "out": [], "out_count": 0}
            self._events.append({**event, **more, "rounds": self._numbers()["rounds"], "epsilon": None})
        named = ("data", "method", "strategy", "privacy", "engine")
        result = self.site.result
        own = {"name": self.name, "connected": bool(experiment), "classes": self.classes, "samples": self.samples}
        own |= {"rounds": len(self._events), "seconds": None, "refused": "", "missed": None}
        return {
            "experiment": f"{self.name}: {experiment.get('method', {}).get('name', 'no coordinator yet')}",
            "choices": {key: experiment[key]["name"] for key in named if experiment.get(key, {}).get("name")},
            "run": "",
            "stage": "training",
            "deployed": True,
            "parties": [own],
            "budget": self.site.limit,
            "site": self._history() | {"result": {SHORT[key]: result[key] for key in SHORT if key in result}},
        }

    def _history(self) -> dict[str, Any]:
        """Return traffic, spent privacy and the newest lines of the history; infinite epsilon is None."""
        epsilon = self.site.releases.spent(self.site.data)[0]
        return {
            "received": self.site.received,
            "sent": self.site.sent,
            "epsilon": None if math.isinf(epsilon) else epsilon,
            "releases": self.site.releases.lines[-_RELEASES:],
        }
