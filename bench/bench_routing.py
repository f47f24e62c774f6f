"""Is the promise kept, noticed when it breaks, worth its escalations, on time and on budget? See docs/benchmarks.md.

    python bench/bench_routing.py [--data DIR] [--cache DIR] [--only PART ...]

Measures the routing on the digits and on two real pairs of models. Prints tables, draws bench/results/routing/*.png and
writes every figure to bench/results/bench-routing.json. Some minutes on two cores.
"""

from __future__ import annotations

import sys

from routing.run import main

if __name__ == "__main__":
    sys.exit(main())
