"""What a machine may lack: the test is left out on a developer's, and fails where CI runs it."""

import os
import shutil
from typing import NoReturn

import pytest


def missing(message: str) -> NoReturn:
    """Ends the running test, or all that share the fixture which asks."""
    if os.environ.get("CI") == "true":
        pytest.fail(message, pytrace=False)  # a green CI must mean that it was tried
    pytest.skip(message)


def program(name: str, how: str) -> str:
    """Where a program of the system lies.

    Args:
        name: of its executable.
        how: what installs it.
    """
    found = shutil.which(name)
    if found is None:
        missing(f"{name} is not installed: {how}")
    return found
