"""Run the parts that measure planning, adaptation and profiles; see docs/benchmarks.md."""

from __future__ import annotations

import sys

from bench.hardware.run import main

if __name__ == "__main__":
    sys.exit(main())
