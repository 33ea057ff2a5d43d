"""What models, data sets and people write is shown as text, whatever it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.compare.made_runs import make_run
from tests.report_page.conftest import BASE, add_completions, add_measures
from tests.report_page.page_reader import Page

SCRIPT = "<script>alert(1)</script>"
TEXTS = (
    f"</pre></style></title>{SCRIPT}<img src=x onerror=alert(1)>",
    "\x1b[31mred \x00 \u202eback \ud800 half {{ 7 * 7 }} " + "long" * 5000,
)


def test_text_stays_text(tmp_path: Path, report: Callable[..., Page]) -> None:
    made = make_run(tmp_path / "runs", "grpo-s0", right=BASE)
    add_measures(made, **{f"reason/{SCRIPT}": 0.25})
    add_completions(made, TEXTS)
    made.update_manifest(
        model=SCRIPT,
        command=SCRIPT,
        sampler=f'"{SCRIPT}',
        versions={SCRIPT: SCRIPT},
        hardware={"processor": "</table>"},
    )
    page = report(made.path)
    assert "".join(page.scripts).count("alert(1)") == 0
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert page.text.count(SCRIPT) > 5
    assert "<img src=x onerror=alert(1)>" in page.sections["completions"]
    for shown in (r"\x1b[31mred \x00", r"\u202eback", r"\ud800 half", "{{ 7 * 7 }}"):
        assert shown in page.sections["completions"]
    assert not {"\x00", "\x1b", "\u202e"} & set(page.source)
    assert "</table>" in page.sections["environment"]
