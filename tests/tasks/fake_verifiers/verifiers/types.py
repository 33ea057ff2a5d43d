"""A model's answer."""

from types import SimpleNamespace

Response = ResponseMessage = SimpleNamespace
