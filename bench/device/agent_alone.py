"""`edge-agent` as on a device, where only `firstline[edge]` is installed.

    python agent_alone.py run ...

The environment of a benchmark has rich besides, which structlog imports wherever it finds it, and which takes 4 MB.
"""

import sys

sys.modules["rich"] = None  # type: ignore[assignment]  # as where it is not installed: importing it fails

from firstline_edge.__main__ import main  # noqa: E402 (after that)

if __name__ == "__main__":
    sys.exit(main())
