"""rlvr's command line with a vLLM that takes weights only once."""

from __future__ import annotations

from typing import Any

from rlvr_cli.cli.app import main


def keep_first_weights() -> None:
    import vllm

    call, loads = vllm.LLM.collective_rpc, iter([True])

    def first_only(self: Any, method: str, *arguments: Any, **named: Any) -> Any:
        if method == "reload_weights" and not next(loads, False):
            return []
        return call(self, method, *arguments, **named)

    vllm.LLM.collective_rpc = first_only


if __name__ == "__main__":
    keep_first_weights()
    main()
