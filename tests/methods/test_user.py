"""A method in a file of the user's, by its path: what is refused, what is known, and what it trains."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from rlvr_cli.cli.templates import files_of
from rlvr_cli.config.checks import check_training
from rlvr_cli.config.keys import KEYS
from rlvr_cli.config.load import dump_yaml, leaves
from rlvr_cli.config.load import load_config as load_any
from rlvr_cli.config.user_files import user_files
from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.core.user_code import save_copies
from rlvr_cli.describe.sheet import method_sheet
from rlvr_cli.methods import checks
from rlvr_cli.methods.base import PolicyLoss, Shaping
from rlvr_cli.methods.method import Method
from rlvr_cli.methods.names import BASES, MODIFIERS
from tests.methods.samples import random_tokens
from tests.training.harness import load_base, method_of, train

FILE = files_of("method", "power")["power.py"]
METHODS = Path(checks.__file__).parent
PAGE = (METHODS.parents[1] / "docs" / "methods" / "own.md").read_text(encoding="utf-8")
HEAD = """
from typing import Annotated, ClassVar, Literal
import torch
from pydantic import Field
from rlvr_cli.core.lazy import Tensor
from rlvr_cli.methods.base import Advantage, PolicyLoss, RolloutShaping, Tokens, TokenShaping
from rlvr_cli.methods.lopti import Passes
from rlvr_cli.methods.preset import MethodPreset, Modifier, Paper
"""
SURPRISE = HEAD + PAGE.split("```python\n")[2].split("```")[0]


def load_config(*arguments: Any, **named: Any) -> Any:
    """Load a configuration as a training does."""
    return load_any(*arguments, **named, import_files=True)


def written(folder: Path, text: str = FILE, name: str = "power.py") -> str:
    (folder / name).write_text(text, encoding="utf-8")
    return str(folder / name)


def test_a_file_is_a_method_and_joins_others(tmp_path: Path) -> None:
    power, surprise = written(tmp_path), written(tmp_path, SURPRISE, "surprise.py")
    config = load_config(method=f"{power}+{surprise}+lopti", overrides=["method.policy_loss.power=0.3"])
    assert config.method.name == "power+lopti+surprise"
    check_training(config)
    assert [type(one).__name__ for one in config.method.token_shapings] == ["Surprise"]
    file = tmp_path / "config.yaml"
    file.write_text(dump_yaml(config), encoding="utf-8")
    save_copies(user_files(config), tmp_path)
    Path(power).unlink()
    again, read = load_config([file]), load_any([file])
    assert dict(leaves(again)) == dict(leaves(read)) == dict(leaves(config))
    assert dump_yaml(read) == file.read_text(encoding="utf-8")
    assert again.method.fingerprint() == config.method.fingerprint()
    with pytest.raises(UserError, match="commands that read a run do not import"):
        read.method.policy_loss.weight(None)
    # Another method over it, in a command that reads, is that method.
    assert dict(leaves(load_any([file], method="dgpo"))) == dict(leaves(load_any(method="dgpo")))
    sheet = method_sheet(f"grpo+{surprise}")
    assert sheet.example.endswith("surprise.py")


def test_a_method_is_a_value_of_one_load(tmp_path: Path) -> None:
    before = dict(PolicyLoss.kinds), dict(Shaping.registered), set(BASES), set(MODIFIERS), KEYS.key_names
    load_config(method=f"{written(tmp_path)}+{written(tmp_path, SURPRISE, 'surprise.py')}")
    for method in ("power", "grpo+surprise"):
        with pytest.raises(UserError, match="unknown"):
            load_config(method=method)
    with pytest.raises(UserError, match="unknown policy_loss kind"):
        load_config(overrides=["method.policy_loss=power"])
    assert "surprise" not in dump_yaml(load_config(method="dgpo"))
    assert before == (dict(PolicyLoss.kinds), dict(Shaping.registered), set(BASES), set(MODIFIERS), KEYS.key_names)


def test_a_path_is_relative_to_the_file_that_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "a+b"
    folder.mkdir()
    written(folder)
    (folder / "base.yaml").write_text("method: {name: power.py+lopti, policy_loss: {power: 0.25}}\n")
    monkeypatch.chdir(tmp_path)
    method = load_config([Path("a+b/base.yaml")]).method
    assert (method.name, method.policy_loss.power) == ("power+lopti", 0.25)
    assert load_config(method="a+b/power.py + reweight").method.name == "power+reweight"
    written_only = load_any([Path("a+b/base.yaml")])
    assert dict(leaves(written_only))[("method", "policy_loss")] == {"power": 0.25}
    monkeypatch.chdir(folder)
    with pytest.raises(UserError, match=r"no such file\. Did you mean .*power\.py"):
        load_config(method="powr.py")


def test_what_breaks_in_a_training_alone_is_a_line_of_the_file(tmp_path: Path) -> None:
    """A part's result is looked at wherever it is called, not only in the trial."""
    given = random_tokens()
    for body, line in (
        ("return None", r"power.py:29: weight of Power must return a tensor of shape .*; got None \(NoneType\)"),
        ("import numpy; return numpy.ones((2, 3))", r"power.py:29: .*\(ndarray\)"),
        ("return tokens.ratio.detach()[:1]", r"power.py:29: weight of Power must return shape"),
        ("import torch; torch.set_grad_enabled(False); return tokens.ratio.detach()", r"power.py:29: .*gradients"),
        ("raise SystemExit(0)", r"power.py:31: weight of Power raised SystemExit: 0"),
        ("return tokens.nothing", r"power.py:31: weight of Power raised AttributeError"),
    ):
        file = written(tmp_path, FILE.replace("return tokens.ratio.detach() ** self.power", body))
        loss = load_config(method=file).method.policy_loss
        with pytest.raises(RunError, match=line):
            loss.weight(given)


BASELINE = (
    "class Critic(Advantage):\n"
    '    kind: Literal["critic"] = Field("critic", description="x")\n'
    "    needs_values: ClassVar[bool] = True\n"
    "    per_token: ClassVar[bool] = True\n"
    "    def advantages(self, rollout):\n"
    "        return (rollout.rewards.unsqueeze(1) - rollout.values).nan_to_num(0.0)\n"
)


def test_an_advantage_with_a_value_head_trains(tmp_path: Path) -> None:
    """The reward minus the value: what PPO's is with gamma = lambda = 1, whose returns are the rewards too."""
    own = load_config(method=written(tmp_path, f"{HEAD}\n{BASELINE}")).method
    assert isinstance(own, Method)
    gae = method_of("ppo", "advantage.whiten=false")
    others = ("policy_loss", "aggregation", "passes", "kl", "critic", "reward")
    own = own.replace(**{key: getattr(gae, key) for key in others})
    trained = [train(tmp_path, method, load_base(tmp_path), micro_batch=4) for method in (own, gae)]
    mine, other = (one.value_head.layer.weight for one in trained)
    assert torch.allclose(mine, other) and mine.abs().max() > 1e-3
    for mine, other in zip(trained[0].gradients, trained[1].gradients, strict=True):
        torch.testing.assert_close(mine, other)


# What is changed in the file, the line that is named, and what is said.
NO_FILE = [
    ("def weight(self", "def weight(self:", 29, "invalid syntax"),
    ("class Power", "1 / 0\nclass Power", 18, "ZeroDivisionError"),
    ("from pydantic import Field", "import no_such_module", 12, "no_such_module"),
    ("class Power(PolicyLoss)", "class Power", 1, "has no method"),
    ('    kind: Literal["power"] = Field("power"', '    kinds: Literal["power"] = Field("power"', 18, "has no kind"),
    ('Literal["power"] = Field("power"', 'Literal["dgpo"] = Field("dgpo"', 18, '"dgpo" is taken'),
    ('Literal["power"] = Field("power"', 'Literal["Po wer"] = Field("Po wer"', 18, "lower-case"),
    ("    def weight", "    def wieght", 18, "lacks the method weight"),
    ('Field(0.5, description="The power of the ratio.")', 'Field(description="x")', 18, "power has no default"),
    ("Field(0.5, ", "Field(description=1, ", None, "."),
]
# The body of `weight`, and what is said of it.
BROKEN = [
    ("return tokens.ratio ** self.power", "has a gradient"),
    ("return (tokens.log_probs * 0 - 1).sqrt().detach()", "nan at ratio"),
    ("return torch.exp(tokens.ratio.detach())", "got inf at ratio"),
    ("return tokens.ratio.detach().mean(dim=1, keepdim=True)", r"got \(6, 1\)"),
    ("return 1.0", r"got 1.0 \(float\)"),
    ("return tokens.ratio.detach().float()", "must return the dtype"),
    ("return tokens.ratio.detach() / tokens.ratio.detach().max()", "depends on the other rows of the batch"),
    ("r = tokens.ratio.detach(); return r / r.sum(dim=1, keepdim=True)", "depends on the other tokens of its row"),
    ("return tokens.advantages.mul_(2.0)", "modifies its input advantages"),
    ("return torch.rand_like(tokens.old_log_probs)", "draws random numbers"),
    ("return tokens.ratio.detach() * tokens.entropies", r"raised TypeError.*needs_entropies` \("),
    ("return tokens.ratoi.detach()", "power.py:.*raised AttributeError"),
]


def test_a_file_that_is_no_method_is_refused_with_its_line(tmp_path: Path) -> None:
    for old, new, line, said in NO_FILE:
        assert old in FILE, old
        file = written(tmp_path, FILE.replace(old, new, 1))
        with pytest.raises(UserError) as caught:
            load_config(method=file)
        assert re.search(said, caught.value.problems[0]), caught.value.problems
        assert line is None or caught.value.problems[0].startswith(f"{file}:{line}: "), caught.value.problems


def test_a_weight_that_would_spoil_a_training_is_refused(tmp_path: Path) -> None:
    body = "return tokens.ratio.detach() ** self.power"
    for new, said in BROKEN:
        file = written(tmp_path, FILE.replace("from pydantic", "import torch\nfrom pydantic").replace(body, new))
        with pytest.raises(UserError) as caught:
            check_training(load_config(method=file))
        assert re.search(said, " ".join(caught.value.problems)), caught.value.problems
        assert f"{file}:" in caught.value.problems[0]


def test_what_presets_say_must_be_a_method_of_the_file(tmp_path: Path) -> None:
    other = FILE[FILE.index("class Power") :].replace("power", "other").replace("Power", "Other")
    for text, reason in (
        (FILE + other, "several classes"),
        (SURPRISE.replace("PRESETS", "PRESETTS"), "modifies a method"),
        (
            SURPRISE.replace("surprise.strength", "surprise.strenght"),
            r":21: PRESETS: .*Did you mean `shaping",
        ),
        (SURPRISE.replace('(0.5, "a guess")', '(50.0, "a guess")'), "PRESETS: .*at most 10"),
        (SURPRISE.replace('(0.5, "a guess")', '(0.0, "a guess")'), "is off in surprise"),
        (SURPRISE.replace('Modifier(\n        "surprise"', 'Modifier(\n        "lopti"'), "of a built-in method"),
        (SURPRISE + "PRESETS = (*PRESETS, *PRESETS)\n", "one MethodPreset or Modifier"),
        (SURPRISE.replace("1 + self", "-1 - self"), "must not be negative"),
        (SURPRISE.replace('main_key: ClassVar[str] = "strength"', 'main_key: ClassVar[str] = "x"'), "main_key"),
        (f"{FILE}\n    def statistics(self, tokens):\n        return tokens.ratio.detach().mean()\n", "never called"),
        (
            f"{HEAD}\n{BASELINE}    def returns(self, rollout):\n        return rollout.rewards.unsqueeze(1)\n",
            "returns",
        ),
    ):
        file = written(tmp_path, text, "broken.py")
        alone = "class Power" in text or "class Critic" in text
        with pytest.raises(UserError, match=reason):
            check_training(load_config(method=file if alone else f"grpo+{file}"))


def test_advantages_that_would_spoil_a_training_are_refused(tmp_path: Path) -> None:
    cases = [
        ("return rollout.rewards.unsqueeze(1)", "got nan for a completion of reward nan"),
        ("return rollout.rewards.nan_to_num(1.0).unsqueeze(1)", "must be 0 for a completion whose reward is NaN"),
        ("return rollout.rewards.nan_to_num(0.0)", "must return shape"),
        ("return rollout.rewards.nan_to_num(0.0).unsqueeze(1) * rollout.mask", "per_token"),
        ("return (rollout.values * 0)", "AttributeError|TypeError"),
    ]
    for body, said in cases:
        text = (
            f'{HEAD}\nclass Mean(Advantage):\n    kind: Literal["mean"] = Field("mean", description="x")\n'
            f"    def advantages(self, rollout):\n        {body}\n"
        )
        with pytest.raises(UserError, match=said):
            check_training(load_config(method=written(tmp_path, text, "mean.py")))


def test_aggregations_that_would_spoil_a_training_are_refused(tmp_path: Path) -> None:
    cases = [
        ("return mask.double() / mask.double().sum()", "depends on the other rows"),
        ("return mask.double() / (count - count)", "inf|nan"),
        ("return torch.ones_like(mask).double() / count", "must be 0 on padding"),
        ("return 1 / count", "must return shape"),
        (
            "return mask.double() / count\n    def count(self, mask, advantages): return mask.double().mean()",
            "must be additive",
        ),
    ]
    for body, said in cases:
        text = (
            f"{HEAD}\nfrom rlvr_cli.methods.aggregation import Aggregation\nclass Root(Aggregation):\n"
            f'    kind: Literal["root"] = Field("root", description="x")\n'
            f"    def coefficients(self, mask, count):\n        {body}\n"
        )
        with pytest.raises(UserError, match=said):
            check_training(load_config(method=written(tmp_path, text, "root.py")))
