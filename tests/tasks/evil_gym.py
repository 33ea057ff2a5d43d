"""The processes of the task `rg`, with a data set more: one whose verifier does what its answers say."""

import os
import subprocess
from dataclasses import dataclass

from rlvr_cli.tasks.rg import worker


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
        if what == "leave":
            os._exit(3)
        if what == "raise":
            raise KeyError(path)
        if what == "nan":
            return float("nan")
        if what == "huge":
            return 1e9
        if what == "fill":
            bytearray(2**34)
        if what == "write":
            os.close(os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CREAT))
        if what == "append":
            open(path, "a+")  # noqa: PTH123, SIM115
        if what == "fork":
            os.fork()
        if what == "start":
            subprocess.run(["touch", path])
        return 1.0 if what == "secret" and os.environ.get("OPENAI_API_KEY") else 0.0


def ready(settings):
    from reasoning_gym.factory import DATASETS

    DATASETS["evil"] = (Evil, Config)
    return worker.ready(settings)
