"""What commands print for people, from the same values as with ``--json``."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

from fedunseen.core.errors import counted


def adapted(
    note: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], result: Mapping[str, Any]
) -> list[str]:
    """Return what each unseen class got of unlabelled samples, as lines."""

    def percent(value: float | None) -> str:
        return "     -" if value is None else f"{value:5.1f} %"

    samples = counted(note["samples"], "unlabelled sample")
    unseen = [row for row in rows if not row["seen"]]
    moved = [row for row in unseen if row["samples"] and row["class"] not in note["refused"]]
    refused = bool(unseen) and not moved
    lines = [
        f"{samples} moved no unseen class" if refused else f"adapted to {samples}",
        f"{'class':24} {'samples':>8}  before   after",
    ]
    for row in unseen:
        before = percent(row["before"])
        after = percent(row["after"])
        lines.append(f"{row['class']:24} {_about(row['samples']):>8}  {before}  {after}")
    if note["measured"]:
        before = note["before"]["gzsl_harmonic"]
        lines.append(f"harmonic mean before {before:.1f} %, after {result['gzsl_harmonic']:.1f} %")
    return lines


def _about(samples: float) -> str:
    """Write how many samples a class got: a sum of shares, so that it need not be whole."""
    return "-" if samples < 0.5 else f"about {samples:.0f}"


def learned(
    added: Sequence[str],
    before: Mapping[str, Any],
    after: Mapping[str, Any],
) -> list[str]:
    """Return what a run has learned: new classes, examples, and what these changed.

    Args:
        added: names of new classes.
        before: the result of the run.
        after: that of the run that has learned.
    """
    known = before.get("shown", {})
    shown = {name: n - known.get(name, 0) for name, n in after.get("shown", {}).items()}
    shown = {name: n for name, n in shown.items() if n > 0}
    lines = [f"new classes: {', '.join(added)}"] if added else []
    if shown:
        counts = ", ".join(f"{name} ({count})" for name, count in shown.items())
        lines.append(f"examples added: {counts}")
    elif not added:
        lines.append("no new class: known ones are described anew")
    if effect := after.get("learn_effect"):
        lines.append(effect["text"])
    return lines


def compared(results: Sequence[Any], short: Mapping[str, str]) -> str:
    """Return by how much runs differ."""
    lines = []
    for result in results:
        over = f"over {result.count} {result.over}"
        lines.append(f"{result.run.path} against {result.other.path}, 95 % intervals {over}:")
        for name, (mean, half) in result.differences.items():
            lines.append(f"  {short[name]:9}{mean:+.1f} ± {half:.1f}")
        if result.left_out:
            single = result.left_out == 1
            lines.append(
                f"  {counted(result.left_out, 'test sample')} that one of the runs was shown as "
                f"{'an example is' if single else 'examples are'} left out."
            )
    return "\n".join(lines)


def data_listed(benchmarks: Sequence[Mapping[str, Any]], root: Path) -> str:
    """Return the benchmarks, and where their files are."""
    lines = []
    for benchmark in benchmarks:
        lines += [
            f"{benchmark['name']}: {benchmark['title']}",
            f"  published  {benchmark['page']}",
            f"  layout     {benchmark['layout']}",
        ]
        if benchmark["files"]:
            lines += [f"  found      {place}" for place in benchmark["found"]]
            lines += [f"  incomplete {place}" for place in benchmark["incomplete"]]
            if not benchmark["found"] and not benchmark["incomplete"]:
                lines.append(f"  not found  in {root}")
    return "\n".join(lines)


def data_checked(
    info: Mapping[str, Any], layout: str, nameable: bool, lacking: Sequence[str]
) -> str:
    """Return what a folder holds or lacks, and an experiment to begin with."""
    missing = info["missing"]
    lines = [f"{info['root']}: the layout of {info['benchmark']}"]
    lines += [f"  missing: {need}" for need in missing]
    if missing:
        lines.append(f"  {layout}")
        if info["benchmark"] == "images" and missing == ["classes.csv"]:
            lines.append(
                f"  fedunseen init {quote(str(info['root']))} writes it, with every fifth class as "
                "an unseen one"
            )
    lines += [f"  {doubt}" for doubt in info["doubts"]]
    lines += [f"  problem: {problem}" for problem in info["problems"]]
    if "classes" in info:
        lines += _classes_and_samples(info, nameable)
    if "bytes" in info:
        size = info["bytes"] / 1e9
        lines.append(f"  decoded once, they take {size:.2f} GB in {info['cache']}")
    if (unreadable := info.get("unreadable")) and not info["problems"]:
        named = ", ".join(unreadable[:5]) + (", ..." if len(unreadable) > 5 else "")
        lines.append(f"  of these, {len(unreadable)} cannot be read and are left out: {named}")
    if not (missing or info["problems"]):
        lines += _first_experiment(info, lacking)
    return "\n".join(lines)


def _classes_and_samples(info: Mapping[str, Any], nameable: bool) -> list[str]:
    if info["attributes"]:
        grouped = info["grouped"]
        groups = f", {grouped} of them in {counted(info['groups'], 'group')}" if grouped else ""
        described = f"{info['attributes']}{groups}"
    else:
        hint = "; data.text_encoder = 'minilm' describes them by name" if nameable else ""
        described = f"none, the classes are learned from examples (few-shot){hint}"
    return [
        f"  classes: {info['classes']} ({info['seen']} seen, of them {info['validation']} for "
        f"validation; {info['unseen']} unseen)",
        f"  attributes: {described}",
        f"  samples: {info['samples']:,} ({info['train']:,} to train on, {info['test_seen']:,} "
        f"tests of seen and {info['test_unseen']:,} of unseen classes)",
    ]


def _first_experiment(info: Mapping[str, Any], lacking: Sequence[str]) -> list[str]:
    lines = []
    if "bytes" in info and "unreadable" not in info:
        lines.append("  images not decoded: add --images to find those that cannot be read")
    if info["part"]:
        lines += [
            f"a part, too little for a run of its own: {'; '.join(lacking)}",
            "ready for one party of a federation (fedunseen join --data) or its coordinator "
            "(fedunseen host):",
        ]
    elif "experiment" in info:
        return [*lines, f"ready: fedunseen run {quote(info['experiment'])}"]
    else:
        lines.append("ready; an experiment to begin with, as a file for `fedunseen run`:")
    return [*lines, info["snippet"].rstrip("\n")]


def data_dealt(info: Mapping[str, Any]) -> str:
    """Return what each party and the coordinator got."""
    parties = info["parties"]
    coordinator = info["coordinator"]
    width = max(len(place["name"]) for place in (*parties, coordinator))
    lines = [
        f"{info['out']}: {len(parties)} parties and a coordinator, dealt with run.seed = "
        f"{info['seed']}"
    ]
    for role, place in [*(("training", party) for party in parties), ("test", coordinator)]:
        many = "s" if place["samples"] != 1 else ""
        lines.append(
            f"  {place['name']:{width}}  {place['samples']:,} {role} sample{many} of "
            f"{counted(place['classes'], 'class')}"
        )
    lines += [
        f"a party gives its folder to `fedunseen join --data {quote(parties[0]['folder'])}`; the "
        "coordinator's experiment has",
        "[data]",
        *(f"{key} = {json.dumps(value)}" for key, value in info["data"].items()),
        f"root = {json.dumps(coordinator['folder'], ensure_ascii=False)}",
    ]
    return "\n".join(lines)


def data_encoded(info: Mapping[str, Any]) -> str:
    """Return what an encoder made of images, and the settings that read it."""
    settings = "".join(f'  {key} = "{value}"' for key, value in info["data"].items())
    return (
        f"{info['samples']} samples of {info['numbers']} numbers, {info['classes']} classes with "
        f"{info['attributes']} attributes: {info['out']}\n[data]{settings}"
    )


def examined(findings: Mapping[str, Any]) -> str:
    """Return what is installed, and what is missing."""
    lines = ["versions"]
    for name, version in findings["versions"].items():
        lines.append(f"  {name:14} {version or 'missing'}")
    for part in ("devices", "extras", "data"):
        lines += [part, *(f"  {line}" for line in findings[part])]
    lines += ["cache", f"  {findings['cache']}"]
    if findings["missing"]:
        lines += ["missing", *(f"  {line}" for line in findings["missing"])]
    else:
        lines.append("nothing that is needed is missing")
    return "\n".join(lines)


def estimated(summary: Mapping[str, Any], time: Callable[[float], str]) -> str:
    """Return the time, memory and traffic of a run."""
    many = "s" if summary["stages"] > 1 else ""
    device_bytes = summary["device_bytes"]
    memory = f"{summary['peak_bytes'] / 2**30:.1f} GiB"
    if device_bytes is not None:
        memory += f", GPU memory {device_bytes / 2**30:.1f} GiB"
    lines = (
        f"a round     {time(summary['seconds_round'])}, and "
        f"{time(summary['seconds_evaluation'])} to evaluate it",
        f"the run     {time(summary['seconds_run'])}: {summary['stages']} training{many} of "
        f"{summary['rounds']} rounds, choices and seeds counted",
        f"memory      {memory} ({summary['device']})",
        f"travels     {summary['bytes_round'] / 2**20:.1f} MiB a client and round, of "
        f"{summary['parameters']:,} parameters",
        "From a few batches; loading, encoding and the report come on top.",
    )
    return "\n".join(lines)
