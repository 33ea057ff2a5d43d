"""The processes of the task `rg`, with a data set more: one whose verifier does what its answers say."""

from dataclasses import dataclass

from rlvr_cli.tasks import reasoning_gym


@dataclass
class Config:
    seed: int = 0
    size: int = 1

    def validate(self):
        pass


class Evil:
    def __init__(self, config):
        self.config = config

    def __getitem__(self, place):
        return {"question": f"What is wrong with {self.config.seed + place}?", "answer": "nothing", "metadata": {}}

    def score_answer(self, answer, entry):
        what, _, path = answer.partition(" ")
        if what == "hang":
            9**9**9**9
        if what == "raise":
            raise KeyError(path)
        if what == "nan":
            return float("nan")
        if what == "huge":
            return 1e9
        if what == "write":
            with open(path, "a") as file:  # noqa: PTH123
                file.write("written")
        return 0.0


def ready(settings):
    from reasoning_gym.factory import DATASETS

    DATASETS["evil"] = (Evil, Config)
    return reasoning_gym.make_handler(settings)
