"""What a party checks before samples are removed from the sums of a finished run, by file or over a network.

An observer of the sums from before and after learns the total of what is removed, and that of what stays. So at least
c + 2 parties remove samples, and of at least c + 2 no sample is ever removed. A sample is removed once.
"""

from __future__ import annotations

from collections.abc import Collection

from fedunseen.core.errors import RefusedError
from fedunseen.secagg.enrolment import Enrolment
from fedunseen.secagg.ledger import Ledger


def check_parties(
    removing: Collection[str], asked: Collection[str], enrolment: Enrolment, ledger: Ledger, consent: Collection[str]
) -> None:
    """Refuse a removal whose parties, or those that stay, are too few to hide each other's sums.

    A party that removes some samples does not count among those that stay, since all others may remove everything.

    Args:
        removing: whose samples are removed.
        asked: who takes part; parties that stay send the sums of no sample.
        enrolment: the federation.
        ledger: says who took part in earlier sums and removals.
        consent: what this party's owner has consented to; ``removal`` allows few parties.

    Raises:
        RefusedError: a party of ``removing`` is not asked, or too few remove or stay.
    """
    if not set(removing) <= set(asked):
        raise RefusedError("the plan removes samples of parties that it does not ask: ask for a new plan")
    if "removal" in consent:
        return
    gone, batch = set(removing).union(*ledger.removed_before), enrolment.colluding + 2
    staying = min(len(set(names) - gone) for names in (enrolment.names, asked, *ledger.took_part))
    for count, what in ((len(set(removing)), "removes samples of"), (staying, "keeps all samples of")):
        if count < batch:
            raise RefusedError(
                f"the plan {what} {count} parties, and an observer of the sums from before learns their total: give "
                f"--consent removal if the owner agrees, or ask for a plan with {batch}"
            )


def check_samples(plan: str, samples: frozenset[bytes], ledger: Ledger, consent: Collection[str]) -> None:
    """Refuse to remove samples (digests of the ledger) twice, or without ``removal`` those of no released sum."""
    others = ledger.released_elsewhere(plan, samples)
    if any(ledger.plans.get(other, {}).get("content", {}).get("removing") for other in others):
        raise RefusedError("some of these samples were removed by another plan: leave them out")
    if "removal" not in consent and not samples <= frozenset().union(*others.values()):
        raise RefusedError(
            "some of these samples are in no sum that this party's ledger knows, and removing them would reveal them: "
            "leave them out, or give --consent removal if the owner agrees"
        )
