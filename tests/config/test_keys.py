"""The list of keys is complete and says what each takes."""

from __future__ import annotations

from rlvr_cli.config.keys import KEYS
from rlvr_cli.config.load import as_plain, load_config
from rlvr_cli.core.nested import flatten
from rlvr_cli.methods.names import METHODS


def test_every_key_of_every_configuration_is_listed() -> None:
    """Each preset's resolved keys, with the kind that it chooses."""
    listed = {(key.name, kind) for key in KEYS.keys for kind in key.kinds or (None,)}
    for preset in METHODS.values():
        config = load_config(method=preset.name)
        for dotted in flatten(as_plain(config)):
            if not dotted.startswith("task.people"):
                *section, name = dotted.split(".")
                chooser = KEYS.chooser(tuple(section))
                kinds = KEYS.choices(tuple(section)) if len(KEYS.variants(tuple(section))) > 1 else {}
                value = config
                for part in section:
                    value = getattr(value, part)
                kind = getattr(value, chooser) if chooser and name != chooser and kinds else None
                assert (dotted, kind) in listed or (dotted, None) in listed, dotted


def test_a_key_of_several_kinds_stands_once_for_each_meaning() -> None:
    rows = [key for key in KEYS.keys if key.name == "method.policy_loss.eps_low"]
    by_default = {key.kinds: key.default for key in rows}
    assert by_default.pop(("ppo_clip", "dgpo", "gppo")) == 0.2
    assert by_default == {("cispo",): 0.2, ("clip_cov",): 1.0, ("gmpo",): 0.4, ("gspo",): 3e-4}
