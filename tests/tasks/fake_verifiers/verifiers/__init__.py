"""A package of verifiers' form, as far as `--task vf:` calls it: tests put it into a Python of their own.

Nothing but the standard library, so that it runs wherever the tests do. The library itself is tried where it is given.
"""

import importlib
import inspect
import logging
from abc import ABC, abstractmethod


class Client(ABC):
    def __init__(self, client):
        self.client = client

    @abstractmethod
    async def get_response(self, prompt, model, sampling_args, tools=None): ...

    @abstractmethod
    async def close(self): ...


class Parser:
    def parse_answer(self, completion):
        return completion[-1]["content"]


class XMLParser(Parser):
    def parse_answer(self, completion):
        return completion[-1]["content"].rpartition("<answer>")[2].partition("</answer>")[0].strip() or None


class Rubric:
    def __init__(self, funcs=(), weights=None, parser=None):
        self.funcs, self.weights = list(funcs), list(weights or [1.0] * len(funcs))
        self.parser = parser or Parser()

    @property
    def has_group_rewards(self):
        return any("completions" in inspect.signature(function).parameters for function in self.funcs)

    def _get_reward_func_names(self):
        return [function.__name__ for function in self.funcs]

    def _get_reward_weights(self):
        return self.weights

    async def score_rollout(self, state):
        found = {}
        for function in self.funcs:
            known = {"completion": state["completion"], "parser": self.parser, **state["input"]}
            given = {name: known[name] for name in inspect.signature(function).parameters if name in known}
            try:
                found[function.__name__] = float(function(**given))
            except Exception as error:
                logger = logging.getLogger("verifiers.rubric")
                logger.error(f"Error calling reward function {function.__name__}: {error}")
                found[function.__name__] = 0.0
        state["metrics"] = {**found, "num_turns": 1.0}
        state["reward"] = sum(weight * value for weight, value in zip(self.weights, found.values()))  # noqa: B905

    async def cleanup(self, state): ...


class JudgeRubric(Rubric): ...


class Environment:
    tool_defs = None

    def __init__(self, dataset=None, eval_dataset=None, rubric=None, system_prompt=None, parser=None):
        self.dataset, self.eval_dataset, self.rubric, self.system = dataset, eval_dataset, rubric, system_prompt
        self.parser = parser or Parser()

    def build_dataset(self):
        return self.formatted(self.dataset)

    def build_eval_dataset(self):
        return self.formatted(self.eval_dataset)

    def formatted(self, rows):
        if rows is None:
            return None
        system = [{"role": "system", "content": self.system}] if self.system else []
        asked = lambda row: [*system, {"role": "user", "content": row["question"]}]  # noqa: E731
        return [{"prompt": asked(row), "example_id": place, **row} for place, row in enumerate(rows)]

    async def rollout(self, row, client, model, sampling_args):
        state = {"input": row, "prompt": row["prompt"], "error": None}
        response = await client.get_response(state["prompt"], model, sampling_args)
        state["completion"] = [{"role": "assistant", "content": response.message.content}]
        return state


class MultiTurnEnv(Environment): ...


class SingleTurnEnv(MultiTurnEnv): ...


class ToolEnv(MultiTurnEnv): ...


def load_environment(env_id, **env_args):
    module = importlib.import_module(env_id.replace("-", "_"))
    try:
        return module.load_environment(**env_args)
    except Exception as error:
        raise RuntimeError(f"Failed to load environment {env_id!r}") from error
