"""The gateway beside MLServer, pytriton, LitServe, BentoML and Ray Serve: `make bench-peers`. See docs/benchmarks.md.

    python bench/bench_peers.py [--only NAME ...] [--rounds N] [--seconds N] [--quick]

Prints what was measured, draws bench/results/serving/bench-peers.png, and writes bench/results/bench-peers.json.
"""

from __future__ import annotations

import sys

from serving.beside import main

if __name__ == "__main__":
    sys.exit(main())
