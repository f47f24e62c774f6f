import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress

import pytest

from firstline.cli.interrupt import pause, start_command, start_command_line


@pytest.fixture(autouse=True)
def _handler_as_it_was() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_lost_exception_is_raised_by_the_next_pause() -> None:
    start_command_line()
    start_command()
    pause(0.0)
    with suppress(KeyboardInterrupt):  # as the interpreter does in the callback of a weak reference
        signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        pause(60.0)


def test_an_ignored_signal_stays_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as nohup has it
    start_command_line()
    start_command()
    signal.raise_signal(signal.SIGINT)
    pause(0.0)


def test_a_signal_during_an_import_ends_the_process_at_once() -> None:
    script = (
        "import signal; from firstline.cli.interrupt import start_command_line; start_command_line()\n"
        "try: signal.raise_signal(signal.SIGINT)\n"
        "except BaseException: pass"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (130, b"")
