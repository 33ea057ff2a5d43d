"""Prompts through chat templates: what a template that fails, or writes too much, is answered with."""

from __future__ import annotations

from typing import Any

import pytest

from experiments.lab.model import make_tokenizer
from rlvr_cli.config.load import load_config
from rlvr_cli.core.errors import UserError
from rlvr_cli.tasks import kk_compact as compact
from rlvr_cli.tasks.base import prompt_ids
from rlvr_cli.tasks.kk import logic_rl_prompt
from rlvr_cli.tasks.prompts import TemplateFailure, by_chat_template

TURNS = [{"role": "user", "content": "a knight"}]


def templated(template: Any) -> Any:
    tokenizer = make_tokenizer(compact.vocabulary())
    tokenizer.chat_template = template
    return tokenizer


def test_an_ordinary_template_is_what_it_was() -> None:
    tokenizer = templated("{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}{% endfor %}{{ '**' }}")
    expected = tokenizer.apply_chat_template(TURNS, tokenize=False, add_generation_prompt=True)
    assert by_chat_template(tokenizer, TURNS) == expected == "<user>a knight**"


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{% for i in range(1000000000) %}x{% endfor %}", "too large to run"),
        ("{{ 'x' * 2000000 }}", "2,000,000 characters"),
    ],
)
def test_what_is_too_large_is_refused(template: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        by_chat_template(templated(template), TURNS)


@pytest.mark.parametrize(
    "template", ["{{ raise_exception('no system turn') }}", "{{ 1 / 0 }}", "{{ messages[7].x.y }}", "{% if %}"]
)
def test_a_template_that_fails_is_told_from_one_that_is_too_large(template: str) -> None:
    with pytest.raises(TemplateFailure):
        by_chat_template(templated(template), TURNS)
    with pytest.raises(UserError, match="its chat template cannot write a user turn"):
        logic_rl_prompt("Who?", templated(template))


SWITCH = "{% for m in messages %}{{ m.content }}{% endfor %}{% if enable_thinking is false %}NO THOUGHTS{% endif %}"


@pytest.mark.parametrize("name", ["kk", "countdown", "math", "gsm8k", "hitab"])
def test_variables_of_the_chat_template_reach_it(name: str) -> None:
    tokenizer = templated(SWITCH)
    for switch, overrides in ((False, []), (True, ["task.chat_template_kwargs={enable_thinking: false}"])):
        style = ["task.style=logic_rl"] if name == "kk" else []
        task = load_config(task=name, overrides=[*style, *overrides]).task
        row: dict[str, Any] = {
            "question": "q?",
            "table": [["a", "b"], ["c", "1"]],
            "answer": [1] if name == "hitab" else "4",
        }
        loaded = name in ("hitab", "gsm8k")
        problem = task.problem_from(row, "here") if loaded else task.generate("dev", 1, 0)[0]
        assert ("NO THOUGHTS" in task.prompt(problem, tokenizer)) == switch
        assert ("chat_template_kwargs" in task.settings) == switch


def test_variables_that_have_no_effect_are_refused() -> None:
    options = "task.chat_template_kwargs={enable_thinking: false}"
    for task, key in (("math", "template=none"), ("kk", "style=compact"), ("countdown", "style=tiny_zero_base")):
        with pytest.raises(UserError, match=rf"task\.{key.partition('=')[0]}=.*leaves it out"):
            load_config(task=task, overrides=[options, f"task.{key}"])
    task = load_config(task="math", overrides=[options]).task
    problem = task.generate("dev", 1, 0)[0]
    for template, said in (
        (None, "no chat template"),
        ("{{ messages }} enable_thinking", r"does not read enable_thinking\.$"),
        (
            "{% generation %}{{ thinking }}{% endgeneration %}",
            r"Did you mean `thinking`\? It reads t",
        ),
    ):
        with pytest.raises(UserError, match=said):
            prompt_ids(task, problem, templated(template))
