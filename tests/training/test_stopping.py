"""The first signal asks, the second Ctrl-C stops."""

from __future__ import annotations

import os
import signal

import pytest

from rlvr_cli.launch.stopping import StopRequest


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_first_signal_is_remembered_and_told_once(
    capfd: pytest.CaptureFixture[str], number: signal.Signals, code: int
) -> None:
    before = signal.getsignal(number)
    with StopRequest() as stop:
        assert (stop.signal, stop.exit_code) == (None, 0)
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), signal.SIGTERM)
        assert (stop.signal, stop.exit_code) == (number, code)
    assert capfd.readouterr().err.count(f"{number.name}: saving after this step") == 1
    assert signal.getsignal(number) is before


def test_a_second_ctrl_c_stops_at_once() -> None:
    with StopRequest():
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_nobody_reads_what_is_said_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """`rlvr train 2>&1 | tee log`: the same Ctrl-C ends tee, and the run must be saved all the same."""

    def broken(descriptor: int, text: bytes) -> int:
        raise BrokenPipeError

    with StopRequest() as stop, monkeypatch.context() as patched:
        patched.setattr(os, "write", broken)
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.signal == signal.SIGINT
