"""What commands between machines print for people."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def ledger(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return what a party has sent, a line each."""
    return "\n".join(
        f"{line['time']}  {line['run'][:16]}  {line['kind']:8}  {_release(line)}" for line in lines
    )


def _release(line: Mapping[str, Any]) -> str:
    if line["kind"] != "budget":
        in_round = f"round {line['round'] + 1}" if "round" in line else ""
        return f"{line.get('bytes', 0):>12,} bytes  {in_round}"
    if line["epsilon"] is None:
        return f"{'':29}no differential privacy: nothing bounds what the run reveals"
    return f"{'':29}epsilon {line['epsilon']:.3g}"


def signed_file(file: Path, signed: Any, clear: str) -> str:
    """Return what a file of a federation by file holds, and what it would reveal.

    Args:
        file: its path.
        signed: its content, as :func:`fedunseen.deploy.offline.files.read` returns it.
        clear: what parties send in the clear.
    """
    enrolment = signed.enrolment
    lines = [
        f"{file}: {signed.kind}, {len(signed.content):,} bytes, fedunseen {signed['version']}",
        f"signed by {signed.signer}, of the federation of {', '.join(enrolment.names)} (authority "
        f"{enrolment.authority.hex()[:16]})",
    ]
    if signed.kind == "withdrawal":
        plans = ", ".join(signed["plans"])
        lines.append(f"{signed['party']} has answered none of these plans, and never will: {plans}")
    elif signed.kind == "answer":
        lines += _answer(signed)
    else:
        lines += _plan(signed, clear)
    return "\n".join(lines)


def _answer(signed: Any) -> list[str]:
    if signed["masked"]:
        reveals = (
            "alone nothing; with the answers of all other parties, the sum of all; with the "
            f"private key of {signed['party']}, or those of all others, this party's sums"
        )
    else:
        reveals = (
            "this party's sums: samples (or soft counts) of each class, and their sums and sums "
            "of products"
        )
    return [f"answers the plan {signed['plan']}", f"reveals: {reveals}"]


def _plan(signed: Any, clear: str) -> list[str]:
    hello = signed["hello"]
    request = (
        "sums under masks: only the total of all can be read"
        if signed["masked"]
        else f"sums {clear}"
    )
    lines = [f"plan {signed.plan.digest}", f"asks {', '.join(signed['parties'])} for {request}"]
    lines += [f"withdrawn: {each['party']}" for each in signed["withdrawals"]]
    if hello.get("removing"):
        lines.append(
            f"removes samples of {', '.join(hello['removing'])} from a run; the others answer "
            "with the sums of no sample"
        )
    content = "samples of each class, sums and sums of products of their features"
    if signed.adapts:
        lines.append(
            f"round {signed['k'] + 1} of {signed.plan.sums}, with the scores of the model so far"
        )
        content = "soft counts and soft sums of unlabelled samples of each unseen class"
    if signed.counts:
        lines.append("carries the sums of all parties, which each of them can read")
        content = (
            "counts of how sure models without some classes are of their samples, of how right, "
            "and of how long features are"
        )
    elif signed.plan.confidence in ("auto", "histograms") and not hello.get("removing"):
        lines.append("a later plan may ask how sure models are of the same samples, once")
    lines += [
        f"method {hello['experiment']['method']['name']}, quantization "
        f"{signed.plan.quantization}; {signed['elements']:,} numbers: {content}",
        "reveals: nothing of any party's samples",
    ]
    return lines
