"""A first look as a job of an NVFlare federation: ``deploy/nvflare-look`` is the folder that
``nvflare job submit`` takes.

The job's configuration names the plan. A site's own file is as for a run, with ``"consent":
"look"``.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from fedunseen.core.command_line import typed
from fedunseen.deploy.look.over_links import FEW, LookingParty, ask, looking_on
from fedunseen.deploy.look.question import FORM, LIMIT, PLAN
from fedunseen.deploy.nvflare import job
from fedunseen.deploy.nvflare.job import Place, quiet
from fedunseen.deploy.offline.files import read
from fedunseen.federation.engine import PartyStatus, Session


class Coordinator(job.Coordinator):
    """The job's controller.

    Args:
        plan: of the look: a file in the job's configuration, or at the server.
        out: the folder to write, in the server's workspace.
        few: a class that one party alone holds with fewer samples is worth a warning.
        patience: seconds to wait for all parties.
    """

    def __init__(
        self,
        plan: str,
        out: str = "fedunseen-look",
        few: int = FEW,
        patience: float = 600.0,
    ) -> None:
        super().__init__()
        self.plan = plan
        self.out = out
        self.few = few
        self.patience = patience

    def coordinate(self, place: Place, sites: list[str]) -> None:
        """Ask the sites that the plan names."""
        with typed(["nvflare", "job", "submit", "-j", "deploy/nvflare-look"]):
            shipped = place.config / self.plan
            path = shipped if shipped.is_file() else Path(self.plan)
            plan = read(path, PLAN, LIMIT, FORM)
            session = Session(self, [PartyStatus(str(name)) for name in plan["parties"]])
            ask(session, plan, place.folder / self.out, self.few, self.patience)


class Party(job.Party):
    """The job's executor: looks at the data that the site's file names."""

    def party(self, place: Place, tree: Mapping[str, Any]) -> AbstractContextManager[LookingParty]:
        """Return what answers."""
        return looking_on(tree, place.state, quiet)
