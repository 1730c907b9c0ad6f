"""First looks in tests."""

from processes import command


def looked_by_file(folder, names):
    """Write a plan, ask parties by file, and return the bytes of ``look.json``."""
    plan = folder / "look.plan"
    classes = folder / "data" / names[0] / "classes.csv"
    kit = ("--credentials", folder / "kits" / "coordinator", "--parties", ",".join(names))
    command("look", "plan", *kit, "--classes", classes, "--out", plan)
    answers = [folder / f"{name}.look" for name in names]
    for name, answer in zip(names, answers, strict=True):
        own = ("--data", folder / "data" / name, "--credentials", folder / "kits" / name)
        agreed = ("--consent", "look", "--consent", "names")
        state = ("--state", folder / f"by-file-{name}")
        command("look", "answer", plan, *own, "--out", answer, *state, *agreed)
    command("look", "read", plan, *answers, "--out", folder / "by-file")
    return (folder / "by-file" / "look.json").read_bytes()
