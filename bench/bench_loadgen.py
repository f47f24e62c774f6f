"""MLPerf's LoadGen against both tiers: `make loadgen`. See docs/benchmarks.md.

    python bench/bench_loadgen.py [--only s|m] [--seconds N] [--quick]

Prints LoadGen's verdicts, rates and latencies, and writes bench/results/loadgen.json.
"""

from __future__ import annotations

import sys

from serving.loadgen import main

if __name__ == "__main__":
    sys.exit(main())
