"""FedUnseen as a job of an NVFlare federation: ``deploy/nvflare`` is the folder that
``nvflare job submit`` takes.

The job's configuration names the experiment. What a site decides itself is in
``local/fedunseen.json`` of its workspace, and ``docs/federation.md`` lists its keys. What is
learned and who is trusted is as with ``fedunseen host`` and ``join``: the same coordinator and the
same party answer.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from fedunseen.core.command_line import typed
from fedunseen.deploy.existing_federation import check_options, coordinated, taking_part
from fedunseen.deploy.nvflare import job
from fedunseen.deploy.nvflare.job import Place, quiet


class Coordinator(job.Coordinator):
    """The job's controller: coordinates an experiment, or continues it if its run directory is
    there.
    """

    def __init__(
        self,
        experiment: str,
        parties: Sequence[str] = (),
        out: str = "fedunseen-run",
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.experiment = experiment
        self.names = parties
        self.out = out
        self.settings = _dotted(settings or {})

    def coordinate(self, place: Place, sites: list[str]) -> None:
        """Run the experiment with the sites."""
        from fedunseen.federation.engine import PartyStatus, Session

        check_options(place.settings)
        shipped = place.config / self.experiment
        source = str(shipped) if shipped.is_file() else self.experiment
        settings = {**self.settings, **place.settings.get("set", {}), "engine.name": "nvflare"}
        parties = [PartyStatus(name) for name in list(self.names) or sites]
        with typed(["nvflare", "job", "submit", "-j", "deploy/nvflare"]):
            coordinated(
                Session(self, parties, kit=place.path("credentials")),
                source,
                settings,
                place.folder / self.out,
            )


class Party(job.Party):
    """The job's executor: takes part with the data that the site's file names."""

    def party(self, place: Place, tree: Mapping[str, Any]) -> AbstractContextManager[Any]:
        """Return what answers."""
        out = place.path("out") or place.folder / "fedunseen-model"
        return taking_part(tree, dict(place.settings.get("set", {})), place.state, out, quiet)


def _dotted(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by dotted key; ``nvflare job submit`` reads ``a.b = c`` as
    ``a = {b = c}``.
    """
    dotted: dict[str, Any] = {}
    for key, value in settings.items():
        dotted |= (
            {key: value}
            if "." in key
            else {f"{key}.{name}": setting for name, setting in dict(value).items()}
        )
    return dotted
