"""All that a party sends: each field of each kind of message, and how it depends on the party's
samples.

:meth:`~fedunseen.deploy.remote.party.Party.answer` sends no field that is not listed here. A test
of non-interference runs each message with different samples: only the listed fields that depend on
them may differ. ``docs/privacy.md`` shows this list.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Depends = Literal["no", "yes", "masked"]


@dataclass(frozen=True)
class Sent:
    """A field that a party sends.

    Attributes:
        kind: the message that it answers; of a file, the file's own kind.
        mode: ``clear`` or ``masked``; "" in both.
        name: the key in the header, with dots at any depth, or the name of a tensor; ``*`` stands
            for any name.
        depends: whether it depends on samples; ``masked``: under masks that hide it.
    """

    kind: str
    mode: str
    name: str
    depends: Depends
    description: str


def _all(kind: str, mode: str, names: str, description: str) -> tuple[Sent, ...]:
    return tuple(Sent(kind, mode, name, "no", description) for name in names.split())


SENT: tuple[Sent, ...] = (
    Sent("hello", "clear", "classes", "yes", "number of its classes"),
    Sent("hello", "clear", "samples", "yes", "number of its training samples"),
    Sent("hello", "clear", "held", "yes", "names of its classes, if the class space grows"),
    Sent("hello", "clear", "brings", "yes", "names of its new classes, if the class space grows"),
    Sent("hello", "clear", "brought", "yes", "attributes of its new classes"),
    *_all("hello", "masked", "masked", "that it masks what it sends"),
    Sent(
        "hello",
        "masked",
        "weight",
        "yes",
        "1; or its number of classes or samples, as strategy.weights says",
    ),
    *_all("round", "clear", "client round", "which message it answers"),
    Sent("round", "clear", "update/*", "yes", "its update, statistics or counts of answers"),
    Sent("round", "clear", "classes", "yes", "number of its classes"),
    Sent("round", "clear", "samples", "yes", "number of its training samples"),
    Sent("round", "clear", "terms.*", "yes", "its mean losses"),
    Sent("round", "clear", "step_lengths.*", "yes", "local steps, as the strategy counts them"),
    Sent("round", "clear", "notes.*", "yes", "what a strategy or a defence asks clients for"),
    Sent("round", "clear", "seconds", "yes", "seconds of the local update"),
    *_all("round", "clear", "forgot", "that it has lost its state"),
    *_all("plan", "masked", "signature", "signature of the plan"),
    *_all("signed", "masked", "accepted", "that enough parties have signed"),
    *_all(
        "round",
        "masked",
        "keys.party keys.plan keys.k keys.attempt keys.instruction",
        "which sum it takes part in",
    ),
    *_all("round", "masked", "keys.extra", "names of its losses"),
    *_all(
        "round", "masked", "keys.seal keys.pair keys.seed keys.signature", "one-time keys, signed"
    ),
    *_all("shares", "masked", "content.party content.rho", "which sum it takes part in"),
    *_all(
        "shares",
        "masked",
        "content.encrypted_shares.* content.share_commitments.*",
        "shares of the seed of its mask",
    ),
    Sent(
        "masked",
        "masked",
        "elements",
        "masked",
        "its update, its statistics or its counts of answers, under masks",
    ),
    *_all(
        "masked",
        "masked",
        "content.party content.complaint content.seal_secret",
        "that another party's share is bad",
    ),
    *_all("open", "masked", "content.party content.rho", "which sum it opens"),
    *_all("open", "masked", "content.shares.*", "shares of the parties' seeds"),
    *_all("stop", "", "kept", "that it has stored the model"),
)
"""What a party answers over a connection, in any engine."""

FILES: tuple[Sent, ...] = (
    *_all("answer", "", "kind version federation", "what signs the file"),
    Sent("answer", "masked", "signature", "masked", "signature of the masked file"),
    Sent("answer", "clear", "signature", "yes", "signature of the file"),
    *_all("answer", "", "party plan file k masked", "which plan and round it answers"),
    Sent("answer", "masked", "elements", "masked", "its statistics or counts, under masks"),
    Sent(
        "answer", "clear", "reply", "yes", "what it would answer to a round in clear, but seconds"
    ),
    *_all("withdrawal", "", "kind version federation signature", "what signs the file"),
    *_all("withdrawal", "", "party plans", "which plans it never answers"),
)
"""What a party writes into a file for the coordinator."""

LOOK: tuple[Sent, ...] = (
    *_all("look", "", "kind", "that a file follows, over a connection"),
    Sent("look", "", "file", "yes", "the file of kind look-answer, over a connection"),
    *_all("look-answer", "", "kind version federation", "what signs the file"),
    Sent("look-answer", "", "signature", "yes", "signature of the file"),
    *_all(
        "look-answer", "", "party plan masked minimum", "which look it answers, and how coarsely"
    ),
    Sent("look-answer", "", "classes", "yes", "names of its further classes, with consent"),
    Sent("look-answer", "", "columns", "yes", "names of its further columns, with consent"),
    Sent("look-answer", "masked", "elements", "masked", "coarse counts, under masks"),
    Sent("look-answer", "clear", "counts/*", "yes", "coarse counts of the plan's names"),
    Sent("look-answer", "clear", "own/*", "yes", "coarse counts of its further names"),
)
"""What a party writes into the file of a first look."""

REFUSAL: tuple[Sent, ...] = (
    Sent("refusal", "", "error", "yes", "one code of a fixed list"),
    *_all("refusal", "clear", "text", "its reason, unless that may depend on samples"),
)
"""What a party answers to a message that it refuses."""

KINDS = tuple(dict.fromkeys(sent.kind for sent in SENT))
"""The kinds of messages that a party answers."""


def paths(value: Any, parts: tuple[str, ...] = ()) -> set[str]:
    """Return the paths of a header's values, with dots; an empty table has none.

    Example:
        >>> sorted(paths({"keys": {"k": 0, "extra": []}, "terms": {}}))
        ['keys.extra', 'keys.k']
    """
    if not isinstance(value, dict):
        return {".".join(parts)}
    return set().union(*(paths(item, (*parts, str(key))) for key, item in value.items()))


def declaration(fields: tuple[Sent, ...], kind: str, masked: bool, path: str) -> Sent | None:
    """Return what declares a field of a message; None: nothing does."""
    mode = "masked" if masked else "clear"
    for sent in fields:
        fits = path == sent.name or (
            sent.name.endswith("*") and path.startswith(sent.name.removesuffix("*"))
        )
        if sent.kind == kind and sent.mode in ("", mode) and fits:
            return sent
    return None


def undeclared(
    kind: object, masked: bool, header: dict[str, Any], tensors: tuple[str, ...]
) -> list[str]:
    """Return the fields of an answer that must not be sent, since nothing declares them."""
    fields, kind = (REFUSAL, "refusal") if "error" in header else (SENT, str(kind))
    fields = tuple(field for field in fields if field.kind == kind)  # once for hundreds of shares
    sent = paths(header) | set(tensors)
    return sorted(path for path in sent if declaration(fields, kind, masked, path) is None)


def table() -> str:
    """Return the list of what a party sends as a table in Markdown."""
    marks = {"no": "no", "yes": "**yes**", "masked": "hidden by masks"}
    lines = [
        "| answer to | in clear or masked | field | depends on samples | what |",
        "|---|---|---|---|---|",
    ]
    for sent in (*SENT, *FILES, *LOOK, *REFUSAL):
        mode = sent.mode or "both"
        lines.append(
            f"| {sent.kind} | {mode} | `{sent.name}` | {marks[sent.depends]} | {sent.description} |"
        )
    return "\n".join(lines)
