"""``fedunseen health`` and ``ledger``: is a process at work, and what has a party sent? Nothing
heavy is imported.
"""

import json
import math
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from fedunseen.cli import options as opt
from fedunseen.cli.console import check_consent, print_json, say
from fedunseen.core import validity
from fedunseen.core.errors import DataError, counted
from fedunseen.core.files import holding, parse_json
from fedunseen.core.text import shown
from fedunseen.deploy.cli import texts

_STATUS = "status.json"  # of a party: deploy/site.py writes it


def health(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER", help="A coordinator's run directory, or a party's --state folder."
        ),
    ],
    as_json: opt.Json = False,
) -> None:
    """Say whether a coordinator or a party is at work in a folder; exit code 1 if it is not, or if
    it is cut off.
    """
    status = examined(folder)
    print(json.dumps(status) if as_json else f"{folder}: {status['what']}", flush=True)
    if not status["healthy"]:
        raise typer.Exit(1)


def examined(folder: Path) -> dict[str, Any]:
    """Return whether all is well in a folder, what is going on there, and which certificates end
    soon.
    """
    status = _process(folder)
    now = datetime.now(UTC)
    spans = validity.read(folder / "engine")
    said = validity.warnings(spans, now)
    words = [f"the certificate of {who} {why}" for who, why in said.items()]
    # of a coordinator, one of a party alone keeps no one else out
    deciding = set(spans) if (folder / _STATUS).exists() else {"coordinator", "authority"}
    valid = not any(spans[who].fault(now) for who in deciding & set(said))
    return {
        **status,
        "healthy": status["healthy"] and (valid or status["over"]),
        "what": "; ".join([status["what"], *words]),
        "certificates": {who: span.last.isoformat() for who, span in spans.items()},
    }


def _process(folder: Path) -> dict[str, Any]:
    """Return whether a process is at work in a folder, and what it did last."""
    status = folder / _STATUS
    manifest = folder / "manifest.json"
    if status.exists():
        content = _read(status)
        message = str(content.get("message", ""))
        last = status.stat().st_mtime
        if not _held(folder):
            over = content.get("over") is True
            words = message if over else f"no process is at work; last: {message}"
            return _found(over, words, last, over)
        if not content.get("connected"):
            return _found(False, f"no coordinator is reached; last: {message}", last)
        return _found(True, f"connected; last: {message}", last)
    if manifest.exists():
        goes_on = (folder / "further").exists() and _held(folder)  # and waits for parties
        if (folder / "result.json").exists() and not goes_on:
            last = (folder / "result.json").stat().st_mtime
            return _found(True, "the run is complete", last, over=True)
        rounds = _read(manifest).get("experiment", {}).get("strategy", {}).get("rounds", "?")
        metrics = folder / "metrics.jsonl"
        done = metrics.read_bytes().count(b"\n") if metrics.exists() else 0
        last = (metrics if metrics.exists() else manifest).stat().st_mtime
        message = f"round {done} of {rounds} is done"
        return (
            _found(True, message, last)
            if _held(folder)
            else _found(False, f"no process is at work; {message}", last)
        )
    raise DataError(
        f"{folder} is neither a run directory nor a party's --state folder: name one of those"
    )


def _found(healthy: bool, message: str, last: float, over: bool = False) -> dict[str, Any]:
    ago = max(0, round(time.time() - last))
    what = f"{message} ({ago} s ago)"
    return {"healthy": healthy, "what": what, "seconds": ago, "over": over}


def _read(path: Path) -> dict[str, Any]:
    try:
        status = parse_json(path.read_bytes())
    except ValueError:
        status = None
    if not isinstance(status, dict):
        raise DataError(f"{path} is damaged: restore it, or start again in another folder")
    return status


def _held(folder: Path) -> bool:
    """Say whether a process holds a folder."""
    if not (folder / ".lock").exists():
        return False
    try:
        with holding(folder) as free:
            return not free
    except OSError as error:
        raise DataError(
            f"{folder} cannot be locked ({error.strerror or error}): ask as the user who started "
            "the process"
        ) from None


def ledger(
    state: Annotated[
        Path,
        typer.Argument(
            metavar="STATE", help="A party's --state folder, for example fedunseen-north."
        ),
    ],
    consent: Annotated[
        list[str] | None,
        typer.Option(
            help="refusals: count them from zero again, once the party has left after too many."
        ),
    ] = None,
    as_json: opt.Json = False,
) -> None:
    """List what a party has sent: when, for which run, what kind, how many bytes; and the privacy
    that it spent.
    """
    from fedunseen.deploy.releases import Releases

    if not state.is_dir():
        raise DataError(f"the folder {state} is missing: name a party's --state folder")
    check_consent(consent, {"refusals"})
    if consent:
        from fedunseen.deploy.remote.refusals import count_again

        count_again(state)
        say(f"{state}: refusals are counted from zero again")
    lines = Releases(state).lines
    totals = summary(lines)
    if as_json:
        return print_json(True, {**totals, "releases": lines})
    if lines:
        print(shown(texts.ledger(lines)))
    messages = counted(totals["messages"], "message")
    say(f"sent:   {messages}, {totals['bytes']:,} bytes, in {counted(totals['runs'], 'run')}")
    if totals["spent"] is not None:
        epsilon, delta = totals["spent"]
        bound = (
            "nothing bounds what it reveals"
            if epsilon is None
            else f"epsilon {epsilon:.3g}, delta {delta:.1e}"
        )
        say(f"spent:  {bound}, by all runs together")


def summary(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the totals of a history: ``messages``, ``bytes``, ``runs``, and ``spent``: (epsilon,
    delta) or None.
    """
    sent = [line for line in lines if "bytes" in line]
    budgets = [line for line in lines if line["kind"] == "budget"]
    epsilons = [line["epsilon"] for line in budgets]
    epsilon = None if None in epsilons else math.fsum(epsilons)
    spent = (epsilon, math.fsum(line["delta"] for line in budgets)) if budgets else None
    total = math.fsum(line["bytes"] for line in sent)
    runs = {line["run"] for line in sent if line["kind"] != "refusal"}
    return {"messages": len(sent), "bytes": int(total), "runs": len(runs), "spent": spent}
