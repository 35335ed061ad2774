"""`lisse atlas`: a page and a table of what is in some folders."""

from __future__ import annotations

import json

from lisse.profile import Headline, Part, Profile, Quantity, Row


def test_a_page_and_a_table_are_written(lisse, folder):
    quantity = Quantity("calm", "calm", "How calm it is.", headline=Headline("calmness"))
    for index in range(3):
        part = Part("silence", (Row("calm", float(index), "exact", 5),), (quantity,))
        Profile((part,), {"model": {"name": f"net{index}", "fingerprint": str(index)}}).save(
            folder / "p" / f"{index}.profile"
        )
    done = lisse("atlas", "p", "--out", "a.html", "--table", "a.json", "--no-reports", "--title", "Ours")
    assert done.exit_code == 0, done.output
    assert "Saved a.json" in done.stderr
    assert "<h1>Ours</h1>" in (folder / "a.html").read_text()
    assert [row["name"] for row in json.loads((folder / "a.json").read_text())["rows"]] == ["net0", "net1", "net2"]
    again = lisse("atlas", "a.json", "p", "--out", "b.html")
    assert again.exit_code == 0, again.output
    assert (folder / "b.html").read_text().count("<tr data-index=") == 3
    assert len(list((folder / "b-reports").glob("*.html"))) == 3


def test_a_slip_is_a_line(lisse, folder):
    (folder / "empty").mkdir()
    for words, says, code in ((["none"], "No such file or directory: none", 3), (["empty"], "must hold profiles", 2)):
        done = lisse("atlas", *words)
        assert (done.exit_code, done.stderr.count("\n")) == (code, 1)
        assert says in done.stderr
