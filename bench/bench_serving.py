"""How near both tiers come to the raw limit of this machine: `make bench`. See docs/benchmarks.md.

    python bench/bench_serving.py [--only PART ...] [--rounds N] [--seconds N] [--quick] [--wheel FILE]

Ratios of medians over interleaved rounds, each to the raw limit measured in the same run. Prints the table, draws
bench/results/serving/*.png, and writes every figure with its raw numbers to bench/results/bench.json. Minutes.
"""

from __future__ import annotations

import sys

from serving.run import main

if __name__ == "__main__":
    sys.exit(main())
