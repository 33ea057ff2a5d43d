"""The table of `paper` against `strict`: strict pays for no response that is not right, whatever its way of writing."""

from pathlib import Path

import pytest

from benchmarks import rules
from benchmarks.rules_texts import styles

PUBLIC = Path(__file__).resolve().parents[2].parent / "shared" / "data"


# Generated tables have no answers of the kinds that some styles are about.
@pytest.mark.parametrize(
    ("name", "problems"),
    [*((name, "public") for name in rules.SETS), *((name, "generated") for name in rules.SETS if name != "hitab")],
)
def test_strict_pays_for_no_response_that_is_not_right(name, problems):
    if problems == "public" and not PUBLIC.is_dir():
        pytest.skip("public problems not found next to the checkout (../shared/data)")
    ways = styles(name)
    counts = rules.compare(name, PUBLIC if problems == "public" else None, 8 * len(ways), seed=1)
    assert {style.name for style in counts} <= {style.name for style in ways}
    assert sum(count.responses for count in counts.values()) == 8 * len(ways)
    by_name = {style.name: count for style, count in counts.items()}
    assert {style.name for style, count in counts.items() if not style.worth and count.erred(False, 1)} == set()
    right, wrong = ways[0].name, ways[1].name
    assert right.endswith("right") and wrong.startswith("as the prompt asks, wrong")
    assert by_name[right].erred(True, 0) == by_name[right].erred(True, 1) == 0
    assert by_name[wrong].erred(False, 0) == 0
    assert sum(count.differ for count in counts.values()) > 0


def test_styles_have_names_of_their_own_and_both_worths():
    for name in rules.SETS:
        ways = styles(name)
        assert len({way.name for way in ways}) == len(ways)
        assert {way.worth for way in ways} == {True, False}


def test_who_is_right_is_counted_from_what_the_rules_paid():
    way = next(style for style in styles("math") if not style.worth)
    count = rules.Count(3)
    count.paid.update([(True, False), (True, False), (False, False)])
    assert (count.erred(False, 0), count.erred(False, 1), count.differ) == (2, 0, 2)
    assert rules.details({way: count})[0].endswith("| 3 | no | 2 | 0 | strict |")
