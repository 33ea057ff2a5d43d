"""Grade-school word problems."""

from rlvr_cli.tasks.gsm8k.task import GSM8K

__all__ = ["GSM8K"]
