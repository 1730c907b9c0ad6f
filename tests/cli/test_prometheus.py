"""``--metrics`` of ``host`` and ``join``: the numbers of real processes, and rules that read
them.
"""

import re
import shutil
import socket
import subprocess
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

pytest.importorskip("prometheus_client", reason="pip install 'fedunseen[serve]'")

from prometheus_client.parser import text_string_to_metric_families

from fedunseen.core.errors import ArgumentError
from fedunseen.deploy import metrics_server
from fedunseen.deploy.cli.metrics import Metrics
from fedunseen.deploy.metrics import RunNumbers
from fedunseen.federation.engine import PartyStatus
from processes import Deployment, free_port, sets

GUARD = 30.0
RULES = Path(__file__).parents[2] / "deploy" / "alerts.yml"


def read(port):
    """Return the samples of a page: name -> labels -> value."""
    text = urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = sample.name.removeprefix("fedunseen_")
            found.setdefault(name, {})[tuple(sample.labels.values())] = sample.value
    return found


@pytest.mark.slow
def test_both_ends_offer_their_numbers_without_a_page(machine, tmp_path):
    from fedunseen import Experiment
    from fedunseen.experiment.deal import deal

    settings = {"data.train_per_class": 40, "data.test_per_class": 10, "strategy.rounds": 2}
    settings |= {"method.hidden": [8], "evaluation.selection": "last"}
    names = ("north", "south")
    whole = Experiment.load("digit-pairs", {**settings, "partition.clients": 2})
    deal(whole, tmp_path / "data", list(names))
    host, own = free_port(), free_port()
    deployment = Deployment(machine, names, tmp_path / "data", "digit-pairs", *sets(settings))
    coordinator = deployment.host(f"--metrics={host}")
    machine.until(lambda: "metrics: http" in machine.said("host.log"), coordinator)
    machine.until(lambda: read(host)["parties"][()] == 2, coordinator)
    before = read(host)
    assert (before["parties"][()], before["parties_connected"][()]) == (2, 0)
    assert "party_silent_seconds" not in before
    deployment.more = [f"--metrics={own}"]
    north = deployment.join("north")
    machine.until(lambda: read(host)["party_connected"][("north",)] == 1, coordinator, north)
    there = read(host)
    assert there["party_connected"][("south",)] == 0
    assert there["party_asked_total"][("north",)] >= 1
    assert there["party_bytes_total"][("north", "up")] > 0
    assert 0 <= there["party_silent_seconds"][("north",)] < 300
    assert {("coordinator",), ("authority",), ("north",), ("south",)} == set(
        there["certificate_ends_seconds"]
    )
    mine = read(own)
    assert mine["connected"][()] == 1
    assert mine["bytes_total"][("down",)] > 0
    assert "epsilon" not in mine  # nothing bounds what a plain run spends
    assert set(mine["certificate_ends_seconds"]) >= {("north",), ("coordinator",)}
    deployment.more = []
    deployment.end(coordinator, {"north": north, "south": deployment.join("south")})


def test_numbers_of_a_round_have_names_and_those_that_are_not_finite_are_left_out():
    numbers = RunNumbers(Path("nowhere"))
    numbers.meet([PartyStatus("north", connected=True, rounds=3)])
    line = {"round": 3, "losses": {"loss": 1.5, "kl": float("nan")}, "zsl": 40.0, "bytes_up": 7}
    numbers.on_round("training", 3, 9, line)
    numbers.on_round("training", 4, 9, {**line, "round": 4, "dropped": {"0": "why"}})
    found = {
        (sample.name.removeprefix("fedunseen_"), *sample.labels.values()): sample.value
        for family in numbers.collect()
        for sample in family.samples
    }
    assert found["round",] == 4
    assert found["phase", "training"] == 1
    assert found["bytes_total", "up"] == 14
    assert found["loss", "loss"] == 1.5
    assert ("loss", "kl") not in found
    assert found["measure", "zsl"] == 40.0
    assert found["replies_left_out",] == 1
    assert found["party_connected", "north"] == 1


def test_a_port_that_is_taken_is_one_sentence():
    numbers = RunNumbers(Path("nowhere"))
    with (
        Metrics(0)._offered(numbers) as port,
        pytest.raises(ArgumentError, match="choose another --metrics"),
        Metrics(port)._offered(numbers),
    ):
        pass


def test_rules_read_numbers_that_exist():
    source = "".join(
        path.read_text()
        for path in (RULES.parents[1] / "src" / "fedunseen").rglob("*.py")
        if path.name in ("metrics.py", "dashboard.py", "measured.py", "guard.py")
    )
    read_names = re.findall(r"fedunseen_([a-z_]+)", RULES.read_text())
    assert len(read_names) > 8
    assert [name for name in read_names if f'"{name.removesuffix("_total")}' not in source
            and f"fedunseen_{name.removesuffix('_total')}" not in source] == []  # fmt: skip


TESTS = """
rule_files: [{rules}]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - series: fedunseen_parties_connected
        values: 2x60
      - series: fedunseen_parties
        values: 3x60
      - series: fedunseen_certificate_ends_seconds{{holder="north"}}
        values: {soon}x60
      - series: fedunseen_party_silent_seconds{{party="south"}}
        values: 30x60
    alert_rule_test:
      - {{eval_time: 10m, alertname: PartiesMissing, exp_alerts: []}}
      - eval_time: 20m
        alertname: PartiesMissing
        exp_alerts: [{{exp_annotations: {{summary: "2 parties are connected"}}}}]
      - {{eval_time: 59m, alertname: PartySilent, exp_alerts: []}}
      - eval_time: 1m
        alertname: CertificateEnds
        exp_alerts:
          - exp_labels: {{holder: north}}
            exp_annotations:
              summary: "The certificate of north ends within 30 days: fedunseen certs renew"
"""


def test_rules_raise_what_they_should(tmp_path):
    if (promtool := shutil.which("promtool")) is None:
        pytest.skip("promtool is missing: apt-get install prometheus")
    test = tmp_path / "alerts_test.yml"
    test.write_text(TESTS.format(rules=RULES, soon=29 * 86400))
    for words in (["check", "rules", RULES], ["test", "rules", test]):
        done = subprocess.run([promtool, *words], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


class _Few(RunNumbers):
    """One number."""

    def __init__(self):
        pass

    def samples(self):
        yield "parties", "How many.", {}, 3.0


def test_other_names_and_pages_read_no_numbers_and_half_a_request_ends(monkeypatch):
    monkeypatch.setattr(metrics_server, "_SECONDS", 0.5)
    server = metrics_server.MetricsServer(0, _Few())
    place = "127.0.0.1", server.server_port
    try:
        with socket.create_connection(place, GUARD) as half:
            half.sendall(b"GET / HT")
            assert read(place[1])["parties"][()] == 3  # waits until the half one has ended
            assert half.recv(1) == b""
        for headers in ({"Host": "attacker.example"}, {"Origin": "http://attacker.example"}):
            with pytest.raises(HTTPError) as refused:
                urlopen(Request(f"http://127.0.0.1:{place[1]}/metrics", headers=headers))
            assert refused.value.code == 403
    finally:
        server.close()
