"""Measure both tiers next to raw ASGI, and write the figures to `bench/results/bench.json`."""

from __future__ import annotations

import sys

from bench.serving.run import main

if __name__ == "__main__":
    sys.exit(main())
