"""Problems: repeatable, distinct, held out by structure; prompts as the paper writes them."""

from collections import Counter
from typing import Any

import pytest

from rlvr_cli.core.errors import UserError
from rlvr_cli.tasks import Task, prompt_ids
from rlvr_cli.tasks import kk as kk_problems
from rlvr_cli.tasks import kk_puzzles as puzzles
from rlvr_cli.tasks.kk import KnightsAndKnaves
from rlvr_cli.tasks.kk_puzzles import solve, split_of


def task(style: str = "compact", **config: Any) -> Task:
    return KnightsAndKnaves.model_validate(config).for_model(style)  # type: ignore[arg-type]


class ChatTokenizer:
    """The face of a tokenizer with Qwen's chat form."""

    chat_template = "qwen"
    ending = "<|im_start|>assistant\n"

    def apply_chat_template(
        self, messages: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool
    ) -> str:
        assert not tokenize
        assert add_generation_prompt
        turns = "".join(f"<|im_start|>{turn['role']}\n{turn['content']}<|im_end|>\n" for turn in messages)
        return turns + self.ending


class NoSystemTokenizer(ChatTokenizer):
    def apply_chat_template(self, messages: list[dict[str, str]], **options: bool) -> str:  # type: ignore[override]
        from jinja2 import TemplateError

        if messages[0]["role"] == "system":
            raise TemplateError("System role not supported")
        return super().apply_chat_template(messages, **options)


class BaseTokenizer:
    """The face of a base model's tokenizer, which puts <s> before every text."""

    chat_template = None
    bos_token, bos_token_id = "<s>", 1

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        ids = [ord(letter) for letter in text.removeprefix("<s>")]
        has_bos = text.startswith("<s>") or add_special_tokens
        return {"input_ids": [1, *ids] if has_bos else ids}


def test_problems_repeat_for_the_same_seed_and_differ_for_another() -> None:
    first, again = (task().problems("train", 60, 7) for _ in range(2))
    assert first == again
    assert {problem.id for problem in first}.isdisjoint(problem.id for problem in task().problems("train", 60, 8))


@pytest.mark.counts
def test_the_structure_of_a_puzzle_with_one_solution_is_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    solved, found = [], []

    def solutions(statements: Any, real: Any = puzzles.solve) -> Any:
        solved.append(real(statements))
        return solved[-1]

    def key(statements: Any, real: Any = puzzles.structure_key) -> Any:
        found.append(statements)
        return real(statements)

    monkeypatch.setattr(puzzles, "solve", solutions)
    for module in (puzzles, kk_problems):
        monkeypatch.setattr(module, "structure_key", key)
    task().problems("train", 60, 0)
    assert len(found) == sum(len(one) == 1 for one in solved) >= 60


def test_held_out_problems_are_distinct_prompts_and_share_no_structure_with_training_or_dev() -> None:
    kk = task()
    train, dev, test = (kk.problems(split, 300, 0) for split in ("train", "dev", "test"))
    for held_out, name in ((dev, "dev"), (test, "test")):
        assert len({problem.id for problem in held_out}) == 300
        assert len({kk.prompt(problem, None) for problem in held_out}) == 300
        assert {split_of(str(problem.structure)) for problem in held_out} == {name}
    structures = [{problem.structure for problem in part} for part in (train, dev, test)]
    assert not structures[0] & structures[1]
    assert not structures[0] & structures[2]
    assert not structures[1] & structures[2]


def test_every_problem_has_its_stated_solution_as_the_only_one() -> None:
    kk = task(people={2: 0.4, 5: 0.6}, depth=2, style="logic_rl")
    for problem in kk.problems("test", 40, 3):
        statements = tuple(_as_tuple(statement) for statement in problem.data["statements"])
        assert solve(statements) == [tuple(problem.data["solution"])]


def test_shares_of_people_are_kept_in_training_sets() -> None:
    counts = Counter(problem.subgroup for problem in task().problems("train", 1000, 0))
    assert counts == {"2 people": 300, "3 people": 400, "4 people": 300}


def test_where_two_people_have_too_few_held_out_problems_the_others_fill_the_set() -> None:
    problems = task().problems("test", 420, 0)
    counts = Counter(problem.subgroup for problem in problems)
    assert len(problems) == 420
    assert 40 <= counts["2 people"] < 126
    assert counts["3 people"] / counts["4 people"] == pytest.approx(0.4 / 0.3, abs=0.02)


def test_held_out_structures_recur_only_when_no_other_turns_up() -> None:
    problems = task("logic_rl", people={4: 1.0}).problems("test", 100, 0)
    assert len({problem.structure for problem in problems}) == 100


def test_a_smaller_set_draws_from_the_larger_one_so_that_samples_can_be_reused() -> None:
    small = {problem.id for problem in task().problems("test", 60, 0)}
    large = {problem.id for problem in task().problems("test", 300, 0)}
    assert small <= large


def test_the_compact_style_refuses_more_people_than_it_can_write() -> None:
    with pytest.raises(UserError, match=r"at most 5 people, 7 were requested"):
        task("compact", people={7: 1.0})


def test_the_chat_prompt_is_logic_rls() -> None:
    kk = task("logic_rl", people={3: 1.0})
    problem = kk.problems("test", 1, 0)[0]
    prompt = kk.prompt(problem, ChatTokenizer())
    assert prompt.startswith("<|im_start|>system\nYou are a helpful assistant. The assistant first thinks about")
    assert "within <think> </think> and<answer> </answer> tags" in prompt
    assert "(1) Zoey is a knight\n(2) ... </answer>.\n<|im_end|>\n<|im_start|>user\nA very special island" in prompt
    assert prompt.endswith("who is a knave?\n<|im_end|>\n<|im_start|>assistant\n<think>")


def test_a_template_that_opens_the_thinking_itself_gets_no_second_tag() -> None:
    tokenizer = ChatTokenizer()
    tokenizer.ending = "<|im_start|>assistant\n<think>\n"
    kk = task("logic_rl", people={3: 1.0})
    assert kk.prompt(kk.problems("test", 1, 0)[0], tokenizer).count("<|im_start|>assistant\n<think>") == 1


def test_a_template_without_a_system_turn_gets_the_instructions_in_the_users() -> None:
    kk = task("logic_rl", people={3: 1.0})
    prompt = kk.prompt(kk.problems("test", 1, 0)[0], NoSystemTokenizer())
    assert prompt.startswith("<|im_start|>user\nYou are a helpful assistant.")


def test_the_base_prompt_has_no_chat_turns_and_keeps_the_models_first_token() -> None:
    kk = task("logic_rl", people={3: 1.0})
    problem = kk.problems("test", 1, 0)[0]
    prompt = kk.prompt(problem, BaseTokenizer())
    assert prompt.endswith(f"\n\nUser:{problem.question}\nAssistant: <think>")
    assert prompt_ids(kk, problem, BaseTokenizer())[:2] == [1, ord("T")]


def _as_tuple(value: Any) -> Any:
    return tuple(_as_tuple(part) for part in value) if isinstance(value, list) else value
