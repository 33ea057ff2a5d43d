"""Tables as Markdown: merged headers made plain, on hand-made tables and on the public ones."""

import gzip
import json
import os
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.hostile_texts import written_answer
from rlvr_cli.tasks.hitab import HiTab
from rlvr_cli.tasks.hitab_tables import Layout, body_rows, column_paths, infer_layout, render_table, table_markdown

BESIDE = Path(__file__).resolve().parents[2].parent / "shared" / "data"
PUBLIC = Path(os.environ.get("RLVR_DATA_DIR", BESIDE)) / "hitab"

MERGED = [
    ["region", "", "women", "", "men", "", "total"],
    ["", "", "2015", "2016", "2015", "2016", ""],
    ["", "", "percent", "", "", "", "number"],
    ["north", "alden", "1", "2", "3", "4", "10"],
    ["", "birch bay", "5", "6", "7", "8", "26"],
    ["south", "corran", "9", "10", "11", "12", "42"],
    ["all regions", "", "15", "18", "21", "24", "78"],
]
SECTIONS = [
    *(["characteristics", "2007", "2016"], ["", "percent", ""], ["age", "", ""], ["65 to 69", "40.8", "81.3"]),
    *(["80 and older", "19.3", "49.2"], ["income", "", ""], ["before tax", "", ""], ["low", "1", "2"]),
    *(["after tax", "", ""], ["low", "3", "4"], ["note: rounded", "", ""]),
]


def public(name):
    if not PUBLIC.is_dir():
        pytest.skip("public HiTab rows not found (RLVR_DATA_DIR/hitab, or ../shared/data/hitab next to the checkout)")
    with gzip.open(PUBLIC / name, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def test_merged_headers_become_paths():
    assert table_markdown(MERGED).splitlines() == [
        "| region | women / 2015 / percent | women / 2016 / percent | men / 2015 / percent | men / 2016 / percent "
        "| total / number |",
        "| --- | --- | --- | --- | --- | --- |",
        "| north / alden | 1 | 2 | 3 | 4 | 10 |",
        "| north / birch bay | 5 | 6 | 7 | 8 | 26 |",
        "| south / corran | 9 | 10 | 11 | 12 | 42 |",
        "| all regions | 15 | 18 | 21 | 24 | 78 |",
    ]


def test_rows_without_data_head_the_rows_below_them():
    assert [row[0] for row in body_rows(SECTIONS, infer_layout(SECTIONS))] == [
        "age / 65 to 69",
        "age / 80 and older",
        "income / before tax / low",
        "income / after tax / low",
        "note: rounded",
    ]
    assert column_paths(SECTIONS, infer_layout(SECTIONS)) == ["characteristics", "2007 / percent", "2016 / percent"]


def test_a_stated_layout_wins_and_a_hint_raises_the_inferred_one():
    plain = [["year", "team"], ["1999", "2000"], ["1", "2"]]
    assert infer_layout(plain) == Layout(1, 1)
    assert render_table({"texts": plain, "header_rows": 2}, "x").startswith("| year / 1999 | team / 2000 |")
    assert render_table({"texts": plain, "header_hint": {"top_header_rows_at_least": 2}}, "x").startswith(
        "| year / 1999 |"
    )
    assert render_table({"title": "a\nb", "texts": plain}, "x").startswith("Title: a b\n\n| year | team |")
    assert render_table([["a", None], [1, 2.5]], "x") == "| a |  |\n| --- | --- |\n| 1 | 2.5 |"
    assert render_table("| as it is |", "x") == "| as it is |"


def test_cells_cannot_break_out_of_their_column():
    assert table_markdown([["a|b", "c"], ["d\ne", "f"]]) == "| a\\|b | c |\n| --- | --- |\n| d e | f |"


def test_every_public_table_keeps_its_cells():
    for table in public("tables.jsonl.gz"):
        texts = table["texts"]
        text = render_table(table, table["id"])
        layout = infer_layout(texts)
        rows = body_rows(texts, layout)
        paths = column_paths(texts, layout)
        assert len({len(line.replace("\\|", "").split("|")) for line in text.splitlines() if line[:1] == "|"}) == 1
        kept = Counter(cell for row in rows for cell in row[1:] if cell.strip())
        given = Counter(
            cell for row in texts[layout.header_rows :] for cell in row[layout.header_columns :] if cell.strip()
        )
        headers = " ".join([*paths, *(row[0] for row in rows)])
        assert not kept - given and all(cell.strip() in headers for cell in given - kept), table["id"]
        assert all(cell.strip() in headers for row in texts[: layout.header_rows] for cell in row), table["id"]


@pytest.mark.parametrize(("rule", "corrected"), [("paper", False), ("strict", False), ("strict", True)])
def test_every_public_gold_answer_verifies(rule, corrected):
    public("test.jsonl.gz")
    task = HiTab(data=str(PUBLIC), rule=rule, corrected=corrected, style="answer_tag")
    problems = task.problems("test", 10_000, 0)
    assert len(problems) == 1584
    for write in (written_answer, json.dumps, repr):
        wrong = [p for p in problems if not task.judge(p, f"<answer>{write(p.data['answer'])}</answer>").correct]
        assert wrong == []
