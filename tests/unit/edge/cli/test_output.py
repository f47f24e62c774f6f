import errno
import os
from pathlib import Path

import pytest

from firstline_core.errors import CapacityError
from firstline_edge.cli.output import explained_refusal


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (errno.EACCES, "/state cannot be written: Permission denied; run this as the user that the agent runs as."),
        (errno.ENOSPC, "/state cannot be written: No space left on device."),
        (errno.EROFS, "/state cannot be written: Read-only file system."),
    ],
)
def test_only_missing_permission_needs_the_agents_user(code: int, sentence: str) -> None:
    with pytest.raises(CapacityError) as raised, explained_refusal(Path("/state"), "written"):
        raise OSError(code, os.strerror(code))
    assert raised.value.message == sentence
