"""The papers' suites, and what a call makes of them: defaults, precedence, one evaluation for each setting."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlvr_cli.config.load import load_config
from rlvr_cli.core.errors import UserError
from rlvr_cli.evaluation.benchmarks import (
    SelectedBenchmark,
    select_benchmarks,
    setting_overrides,
)
from rlvr_cli.evaluation.jobs import EvalJob, EvalRequest, make_jobs
from rlvr_cli.tasks.sets import benchmarks, data_sets
from rlvr_cli.tasks.suites import SUITES, Suite, default_setting

EVERY_SETTING = [(suite.name, setting) for suite in SUITES.values() for setting in suite.settings]


@pytest.fixture(autouse=True)
def _no_data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RLVR_DATA_DIR", raising=False)


def plan(names: str, *arguments: str, **options: Any) -> list[EvalJob]:
    return make_jobs((names,), EvalRequest(arguments=("lab", *arguments), **options))[0]


def tables(names: str) -> list[str | None]:
    return [table.suite.name if table.suite else None for table in make_jobs((names,), EvalRequest(("lab",)))[1]]


def one(names: str, *arguments: str, **options: Any) -> EvalJob:
    (request,) = plan(names, *arguments, **options)
    return request


def test_every_setting_is_a_valid_configuration_with_its_sources() -> None:
    for suite, setting in EVERY_SETTING:
        config = load_config(overrides=setting_overrides(SelectedBenchmark(setting.benchmark, setting, suite)))
        assert (config.task.name, config.task.data) == (data_sets()[setting.benchmark].task, setting.benchmark)
        assert (config.eval.samples, config.eval.greedy) == (setting.samples, setting.greedy), (suite, setting)
        assert config.eval.max_new_tokens == setting.max_new_tokens, (suite, setting)
        assert set(setting.source) == {"samples", "temperature", "length", "prompt"}, (suite, setting)
        assert setting.figures, (suite, setting)
        for figure in setting.figures:
            kind, _, k = figure.partition("@")
            if kind == "greedy":
                assert setting.greedy, (suite, setting)
            else:
                assert setting.samples > 1, (suite, setting)
                assert not k or int(k) in setting.pass_at, (suite, setting)


def test_other_problems_do_not_go_by_a_benchmarks_name() -> None:
    asked = one("math500", "task.data=aime24")
    assert (asked.config.task.data, asked.benchmark, asked.setting) == ("aime24", None, None)


def test_averages_are_over_figures_of_the_suite() -> None:
    for suite in SUITES.values():
        figures = {(setting.benchmark, figure) for setting in suite.settings for figure in setting.figures}
        for average in suite.averages:
            assert set(average.figures) <= figures, (suite.name, average.name)


def test_the_papers_numbers() -> None:
    """AR-Lopti section 5.2 and table 2, ACPO tables 1 and 2, DGPO tables 3, 12 and 14, GTPO table 1 and box 8.2."""
    settings = {(suite, setting.benchmark): setting for suite, setting in EVERY_SETTING}
    assert {s.samples for (suite, _), s in settings.items() if suite == "dgpo"} == {32}
    assert {s.max_new_tokens for (suite, _), s in settings.items() if suite == "dgpo"} == {8192}
    assert settings["dgpo", "aime25"].pass_at == (1, 2, 4, 8, 16, 32)
    assert [settings["acpo", name].samples for name in ("amc23", "math500", "countdown", "hitab")] == [8, 8, 4, 4]
    assert [settings["ar_lopti", name].samples for name in ("math500", "amc23", "aime24")] == [0, 16, 16]
    assert settings["ar_lopti", "math500"].task["template"] == "none"
    assert list(settings["ar_lopti", "kk"].task["people"]) == [3, 4, 5, 6, 7]
    assert settings["gtpo", "aime24"].pass_at == (1, 8, 16, 32, 64)
    assert settings["gtpo", "gsm8k"].task["style"] == "reasoning_answer"
    assert all(setting.samples == 0 for (suite, _), setting in settings.items() if suite == "landscape")


def test_alone_the_number_of_problems_decides_the_samples() -> None:
    """32 up to 40 problems, 8 up to 1,000, 4 above; but as the authors do where they say so."""
    found = {name: default_setting(name).samples for name in benchmarks() if not data_sets()[name].sampling}
    assert {name for name, samples in found.items() if samples == 32} == {"aime24", "aime25", "amc23"}
    assert {name for name, samples in found.items() if samples == 4} == {
        *("countdown", "hitab", "gsm8k", "college_math", "math")
    }
    assert {found[name] for name in ("kk", "math500", "minerva", "olympiadbench", "gaokao2023en")} == {8}


def test_names_are_evaluated_once_and_suites_with_other_settings_apart() -> None:
    choices, tables = select_benchmarks(["dgpo", "aime24", "acpo", "dgpo", "aime24"])
    assert [table.suite.name if table.suite else None for table in tables] == ["dgpo", "acpo", None]
    assert len(choices) == len(SUITES["dgpo"].settings) + len(SUITES["acpo"].settings) + 1
    math500 = [choice.setting.samples for choice in choices if choice.benchmark == "math500" and choice.setting]
    assert math500 == [32, 8]
    assert len({choice.folder for choice in choices}) == len(choices)


def test_equal_settings_of_two_suites_are_one_evaluation_shown_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sources and the figures that a paper prints do not matter to what is sampled."""
    first = SUITES["landscape"]
    settings = tuple(replace(setting, figures=(), source={}) for setting in first.settings[:2])
    monkeypatch.setitem(SUITES, "other", Suite("other", "Another paper", settings))
    choices, tables = select_benchmarks(["landscape", "other"])
    assert len(choices) == len(first.settings)
    assert [table.rows for table in tables] == [tuple(range(6)), (0, 1)]


def test_a_setting_lies_above_the_runs_configuration_and_below_the_command_line(tmp_path: Path) -> None:
    plain = one("aime24")
    assert (plain.settings.samples, plain.settings.pass_at) == (32, (1, 2, 4, 8, 16, 32))
    assert (plain.settings.max_new_tokens, plain.settings.split) == (8192, "test")
    given = one("aime24", "eval.max_new_tokens=16", "eval.greedy=false", "eval.samples=4", "eval.temperature=0.5")
    assert (given.settings.samples, given.settings.pass_at) == (4, (1, 2, 4))
    assert (given.settings.temperature, given.settings.max_new_tokens, given.settings.greedy) == (0.5, 16, False)
    assert one("aime24", "eval.samples=2").settings.pass_at == (1, 2)
    assert one("aime24", "eval.pass_at=[1, 64]", "eval.samples=64").settings.pass_at == (1, 64)
    assert one("aime24", "eval.pass_at=[64]").settings.samples == 64, "as many as pass@k takes"


def test_no_samples_of_a_benchmark_without_greedy_completions_is_one_message() -> None:
    with pytest.raises(UserError, match=r"samples=0 leaves only .* add eval\.greedy=true") as caught:
        plan("dgpo", "eval.samples=0", split="some")
    assert "--split some: must be one of dev, test, all." in caught.value.problems, "others are reported too"
    assert one("aime24", "eval.samples=0", "eval.greedy=true").settings.pass_at == ()


def test_all_problems_unless_limited() -> None:
    assert one("math500").all_problems
    assert not one("math500", "eval.problems=8").all_problems


def test_a_greedy_benchmark_can_be_sampled_too() -> None:
    ar_lopti = {request.benchmark: request for request in plan("ar_lopti")}
    assert (ar_lopti["math500"].settings.samples, ar_lopti["math500"].settings.pass_at) == (0, ())
    sampled = {request.benchmark: request for request in plan("ar_lopti", "eval.samples=8")}
    assert (sampled["math500"].settings.samples, sampled["math500"].settings.pass_at) == (8, (1, 8))
    raised = {request.benchmark: request for request in plan("ar_lopti", "eval.pass_at=[8]")}
    assert (raised["math500"].settings.samples, raised["math500"].settings.pass_at) == (8, (8,))


def test_the_lab_model_is_given_puzzles_that_its_words_can_write() -> None:
    requests = {request.benchmark: request for request in plan("ar_lopti")}
    assert sorted(requests["kk"].config.task.people) == [3, 4, 5]  # type: ignore[union-attr]


def test_data_is_the_name_and_its_folder(tmp_path: Path) -> None:
    request = one("math500", f"task.data_dir={tmp_path}")
    assert (request.config.task.data, request.config.task.data_dir) == ("math500", str(tmp_path))
    assert one("gsm8k").config.task.data == one("gsm8k", f"task.data_dir={tmp_path}").config.task.data == "gsm8k"
    generated = one("kk-gen", f"task.data_dir={tmp_path}")
    assert (generated.config.task.data, generated.benchmark, generated.setting) == ("kk-gen", "kk-gen", None)


def test_the_environment_names_a_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLVR_DATA_DIR", str(tmp_path))
    request = one("gsm8k")
    assert (request.config.task.data, request.config.task.data_dir) == ("gsm8k", str(tmp_path))


def test_a_key_of_one_task_is_set_for_its_benchmarks_and_a_key_of_none_is_refused() -> None:
    """K&K has no template; mathematics has no people."""
    requests = {r.benchmark: r for r in plan("ar_lopti", "task.template=auto", "task.people={3: 1.0}")}
    assert requests["math500"].config.task.template == "auto"  # type: ignore[union-attr]
    assert requests["kk"].config.task.people == {3: 1.0}  # type: ignore[union-attr]
    with pytest.raises(UserError, match=r"task\.templates"):
        plan("ar_lopti", "task.templates=auto")


def test_each_evaluation_has_its_folder_in_out(tmp_path: Path) -> None:
    requests = plan("dgpo,math500,gsm8k", out=tmp_path)
    assert requests[0].out == tmp_path / "dgpo" / "aime24"
    assert [request.out for request in requests[-2:]] == [tmp_path / "math500", tmp_path / "gsm8k"]
    assert one("math500", out=tmp_path).out == tmp_path


def test_own_data_is_for_one_benchmark(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"task\.data: is for one benchmark"):
        plan("dgpo", f"task.data={tmp_path / 'mine.jsonl'}")
    (request,) = plan("math500", f"task.data={tmp_path / 'mine.jsonl'}")
    assert (request.benchmark, request.config.task.name, request.setting) == (None, "math", None)
    assert "without the benchmark's settings" in request.notes[0]
    (request,) = plan("math", f"task.data={tmp_path / 'mine.jsonl'}")
    assert request.benchmark is None and "other problems" in request.notes[0]
    (request,) = plan("math-story-gen", f"task.data={tmp_path / 'mine.jsonl'}")
    assert request.notes == ()
