"""``fedunseen export``: what it writes and says, and what it refuses."""

import json


def test_it_writes_a_file_for_each_table(command, digits, tmp_path):
    done = command("export", digits, "--csv", tmp_path / "tables")
    names = ["rounds", "classes", "confusion_zsl", "confusion_gzsl", "clients"]
    assert (done.code, done.out) == (0, "")
    assert done.err.splitlines() == [f"wrote {tmp_path / 'tables' / name}.csv" for name in names]
    lines = (tmp_path / "tables" / "rounds.csv").read_text().splitlines()
    assert len(lines) == 1 + len((digits / "metrics.jsonl").read_text().splitlines())


def test_json_names_the_files(command, digits, tmp_path):
    told = json.loads(command("export", digits, "--csv", tmp_path, "--json").out)
    assert sorted(told["files"]) == sorted(map(str, tmp_path.glob("*.csv")))


def test_a_file_in_the_place_of_the_folder_is_refused(refused, digits, tmp_path):
    (tmp_path / "there").write_text("")
    assert refused("export", digits, "--csv", tmp_path / "there") == (
        f"{tmp_path / 'there'} is a file: name a folder for the tables"
    )


def test_what_is_no_run_is_refused(refused, tmp_path):
    assert str(tmp_path) in refused("export", tmp_path, "--csv", tmp_path / "tables")
    assert not (tmp_path / "tables").exists()
