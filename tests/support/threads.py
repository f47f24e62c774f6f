"""An executor of an event loop on a system that starts no more threads."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn


class NoThreads(ThreadPoolExecutor):
    """Refuses each call, as an executor does without a free thread."""

    def submit(self, *_: Any, **__: Any) -> NoReturn:
        raise RuntimeError("can't start new thread")
