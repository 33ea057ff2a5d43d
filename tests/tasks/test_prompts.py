"""Prompts: the texts of the papers, with and without a chat template; a template that fails or writes too much."""

from __future__ import annotations

from typing import Any

import pytest

from experiments.lab.model import make_tokenizer
from rlvr_cli.config.load import load_config
from rlvr_cli.core.errors import UserError
from rlvr_cli.tasks import kk_compact
from rlvr_cli.tasks.base import prompt_ids
from rlvr_cli.tasks.countdown import Countdown
from rlvr_cli.tasks.kk import KnightsAndKnaves, logic_rl_prompt
from rlvr_cli.tasks.math import MathTask
from rlvr_cli.tasks.prompts import TemplateFailure, apply_chat_template
from tests.tasks.tokenizers import Base, Chat

TURNS = [{"role": "user", "content": "a knight"}]
NAMES = pytest.mark.parametrize("name", ["kk", "countdown", "math", "gsm8k", "hitab"])


def templated(template: Any) -> Any:
    tokenizer = make_tokenizer(kk_compact.vocabulary())
    tokenizer.chat_template = template
    return tokenizer


def problem_of(task: Any) -> Any:
    row = {"question": "q?", "table": [["a", "b"], ["c", "1"]], "answer": [1] if task.name == "hitab" else "4"}
    return task.problem_from(row, "here") if task.name in ("hitab", "gsm8k") else task.generate("dev", 1, 0)[0]


def test_the_prompts_of_knights_and_knaves_are_logic_rls() -> None:
    task = KnightsAndKnaves(people={3: 1.0}).for_model("logic_rl")
    (problem,) = task.problems("test", 1, 0)
    prompt = task.prompt(problem, Chat())
    assert prompt.startswith("<|im_start|>system\nYou are a helpful assistant. The assistant first thinks about")
    assert "within <think> </think> and<answer> </answer> tags" in prompt
    assert "(1) Zoey is a knight\n(2) ... </answer>.\n<|im_end|>\n<|im_start|>user\nA very special island" in prompt
    assert prompt.endswith("who is a knave?\n<|im_end|>\n<|im_start|>assistant\n<think>")
    base = task.prompt(problem, Base())
    assert base.endswith(f"\n\nUser:{problem.question}\nAssistant: <think>")
    assert prompt_ids(task, problem, Base())[:2] == [1, ord("T")], "<s> once"


def test_the_prompts_of_countdown_are_tiny_zeros() -> None:
    task = Countdown(style="tiny_zero")
    problem = task.problem_from({"nums": [79, 17, 60], "target": 36}, "here")
    assert task.prompt(problem, Chat()).endswith("assistant\nLet me solve this step by step.\n<think>")
    base = task.prompt(problem, Base())
    assert base.startswith("<s>A conversation between User and Assistant.")
    assert "\nUser: Using the numbers [79, 17, 60], create an equation that equals 36. You can" in base
    assert base.endswith("</answer>.\nAssistant: Let me solve this step by step.\n<think>")
    assert task.replace(style="tiny_zero_base").prompt(problem, Chat()) == base.removeprefix("<s>")


def test_the_prompts_of_mathematics_ask_for_a_box_or_for_tags() -> None:
    problem = MathTask().problem_from({"question": "2 + 2?", "answer": "4"}, "here")
    boxed = r"2 + 2? Let's think step by step and output the final answer within \boxed{}."
    assert MathTask().prompt(problem, Base()) == f"<s>{boxed}"
    assert MathTask().prompt(problem, Chat()) == f"<|im_start|>user\n{boxed}<|im_end|>\n<|im_start|>assistant\n"
    assert MathTask(template="none").prompt(problem, Chat()) == boxed
    tags = MathTask(reward="gtpo").prompt(problem, Chat())
    assert tags.startswith("<|im_start|>system\nYou are a helpful assistant for solving math problems.")
    assert "`</answer>`.<|im_end|>\n<|im_start|>user\n2 + 2?<|im_end|>" in tags


@pytest.mark.parametrize(
    "task",
    [KnightsAndKnaves(style="logic_rl"), Countdown(style="tiny_zero"), MathTask(reward="gtpo")],
    ids=lambda task: task.name,
)
def test_a_template_without_a_system_turn_gets_the_instructions_in_the_users(task: Any) -> None:
    prompt = task.prompt(problem_of(task), Chat("system"))
    assert prompt.startswith("<|im_start|>user\nYou are a helpful assistant")


def test_a_template_is_rendered_as_transformers_does_and_its_failure_is_told() -> None:
    tokenizer = templated("{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}{% endfor %}{{ '**' }}")
    expected = tokenizer.apply_chat_template(TURNS, tokenize=False, add_generation_prompt=True)
    assert apply_chat_template(tokenizer, TURNS) == expected == "<user>a knight**"
    for template in ("{{ raise_exception('no system turn') }}", "{{ 1 / 0 }}", "{{ messages[7].x.y }}", "{% if %}"):
        with pytest.raises(TemplateFailure):
            apply_chat_template(templated(template), TURNS)
        with pytest.raises(UserError, match="its chat template cannot write a user turn"):
            logic_rl_prompt("Who?", templated(template))


SWITCH = "{% for m in messages %}{{ m.content }}{% endfor %}{% if enable_thinking is false %}NO THOUGHTS{% endif %}"


@NAMES
def test_variables_of_the_chat_template_reach_it(name: str) -> None:
    for switch, overrides in ((False, []), (True, ["task.chat_template_kwargs={enable_thinking: false}"])):
        style = ["task.style=logic_rl"] if name == "kk" else []
        task = load_config(task=name, overrides=[*style, *overrides]).task
        assert ("NO THOUGHTS" in task.prompt(problem_of(task), templated(SWITCH))) == switch
        assert ("chat_template_kwargs" in task.settings) == switch


def test_variables_that_have_no_effect_are_refused() -> None:
    options = "task.chat_template_kwargs={enable_thinking: false}"
    for task, key in (("math", "template=none"), ("kk", "style=compact"), ("countdown", "style=tiny_zero_base")):
        with pytest.raises(UserError, match=rf"task\.{key.partition('=')[0]}=.*leaves it out"):
            load_config(task=task, overrides=[options, f"task.{key}"])
    task = load_config(task="math", overrides=[options]).task
    for template, reason in (
        (None, "no chat template"),
        ("{{ messages }} enable_thinking", r"does not read enable_thinking\. It reads messages\.$"),
        ("{% generation %}{{ thinking }}{% endgeneration %}", r"Did you mean `thinking`\? It reads t"),
    ):
        with pytest.raises(UserError, match=reason):
            prompt_ids(task, problem_of(task), templated(template))
