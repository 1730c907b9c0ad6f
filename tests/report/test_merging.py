"""What the report says of merging, from lines made by hand."""

from fedunseen.report.unusual import merging_section

FAR = "it is too far from the others"
CLIENTS = ["client 0", "client 1", "client 2"]


def line(round, kept, norms, dropped, clients=(0, 1, 2)):
    said = {"name": "krum", "clients": list(clients), "kept": kept, "norms": norms, "dropped": dropped}
    return {"round": round, "participants": list(clients), "defence": {**said, "merged": any(kept)}}


def test_an_ordinary_run_has_no_such_section():
    assert merging_section([{"round": 1, "participants": [0]}], CLIENTS) is None


def test_replies_are_counted_by_client():
    lines = [
        line(1, [1.0, 0.5, 0.0], [1.0, 2.0, 9.0], {"2": FAR}),
        line(2, [1.0, 0.0], [1.0, None], {"2": "it is not finite"}, clients=(0, 2)),
        line(3, [0.0, 0.0, 0.0], [3.0, 3.0, 7.0], {"0": FAR, "1": FAR, "2": FAR}),
    ]
    found = merging_section(lines, CLIENTS)["defence"]
    assert found.items() >= {"name": "krum", "replies": 8, "out": 5, "shortened": 1, "nothing": [3]}.items()
    zero, one, two = found["rows"]
    counts = {"replies": 3, "out": 1, "shortened": 0}
    assert zero == {"client": "client 0", **counts, "length": 5 / 3, "why": f"{FAR} (3)"}
    assert (one["replies"], one["out"], one["shortened"]) == (2, 1, 1)
    assert (two["length"], two["why"]) == (8.0, f"{FAR} (1, 3); it is not finite (2)")
    assert "<svg" in found["chart"]


def test_what_it_cost_and_who_got_lost():
    privacy = {"delta": 1e-5, "noise": 1.0, "deviation": 0.1, "clipped": 1}
    usual = {"participants": [0, 1], "dropped": {"2": "the update is not finite"}}
    lines = [{"round": r, **usual, "privacy": {**privacy, "epsilon": float(r)}} for r in (1, 2)]
    found = merging_section(lines, CLIENTS)
    assert found["defence"] is None
    assert (found["privacy"]["epsilon"], found["privacy"]["rounds"], found["privacy"]["clipped"]) == (2.0, 2, 50.0)
    assert found["lost"] == "client 2 in round 1, client 2 in round 2"
    many = [{"round": r, "participants": [], "dropped": {"0": "x"}} for r in range(1, 31)]
    assert merging_section(many, CLIENTS)["lost"].endswith("client 0 in round 20 and 10 more")
