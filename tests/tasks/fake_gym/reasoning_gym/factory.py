"""Data sets: each entry is drawn by the sum of the seed and its place, as in reasoning-gym."""

import os
import random
import subprocess
from dataclasses import dataclass

from reasoning_gym.algorithmic import binary_matrix
from reasoning_gym.games import countdown


@dataclass
class Config:
    most: int = 10**6
    max_target: int = 0
    seed: int = 0
    size: int = 1

    def validate(self):
        assert self.most > 0, "most must be positive"


class Dataset:
    def __init__(self, config):
        self.config = config

    def draw(self, place):
        return random.Random(self.config.seed + place).randrange(self.config.most)

    def entry(self, place):
        number = self.draw(place)
        return f"What is {number} + 1?", str(number + 1), {"pair": (number, 1), 1: "a key that JSON turns to text"}

    def __getitem__(self, place):
        question, answer, metadata = self.entry(place)
        return {"question": question, "answer": answer, "metadata": metadata}

    def score_answer(self, answer, entry):
        return 1.0 if answer == entry["answer"] else 0.5 if entry["answer"] in answer else 0.0


class Few(Dataset):
    def draw(self, place):
        return super().draw(place) % 6


class Hashed(Dataset):
    """Problems that depend on the hashes of strings, which differ between processes of Python."""

    def draw(self, place):
        return hash(f"entry {place}") % 10**9


class Matrix(Dataset):
    def entry(self, place):
        return f"Write {self.draw(place)} in brackets.", f"[{self.draw(place)}]", {}

    def score_answer(self, answer, entry):
        return binary_matrix.score(answer, entry)


class Countdown(Dataset):
    def entry(self, place):
        return f"Make {self.draw(place)}.", str(self.draw(place)), {"target": self.draw(place)}

    def score_answer(self, answer, entry):
        return countdown.score(answer, entry)


class Unanswered(Dataset):
    def entry(self, place):
        return f"Anything but {self.draw(place)}?", None, {}

    def score_answer(self, answer, entry):
        return 1.0


class Evil(Dataset):
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


DATASETS = {
    "chain_sum": (Dataset, Config),
    "few": (Few, Config),
    "word_ladder": (Hashed, Config),
    "binary_matrix": (Matrix, Config),
    "countdown": (Countdown, Config),
    "rubiks_cube": (Unanswered, Config),
    "evil": (Evil, Config),
}


def create_dataset(name, **options):
    kind, config = DATASETS[name]
    made = config(**options)
    made.validate()
    return kind(made)
