"""Do readers of bytes from outside ever crash? See docs/concepts/fuzzing.md.

    python -m bench.fuzzing [--inputs N] [--flips N] [--seed S]
    python -m bench.fuzzing --again "binary decoder" 1234 [--seed S]

The first damages valid inputs for the decoders, flips bits in the stores of both tiers, and writes
bench/results/fuzz.json. The second makes one input again and gives it to its reader.
"""

from __future__ import annotations

import argparse
import sys

from bench.figures import Figure
from bench.fuzzing import campaign, stores
from bench.fuzzing.targets import TARGETS
from bench.page import report


def main() -> int:
    """0 where nothing crashed, 1 where something did."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=1_000_000, help="for the decoders (default: %(default)s)")
    parser.add_argument("--flips", type=int, default=2, help="bits in each KiB of each store (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="(default: %(default)s)")
    parser.add_argument("--again", nargs=2, metavar=("TARGET", "NUMBER"), help="make one input again")
    options = parser.parse_args()
    if options.again is not None:
        (target,) = (one for one in TARGETS if one.name == options.again[0])
        value = campaign.made(target, options.seed, int(options.again[1]))
        print(repr(value))
        print(target.read(value))
        return 0
    figures = []
    for name, outcome in campaign.run(options.inputs, options.seed).items():
        for number, what in outcome.crashes[:20]:
            print(f'python -m bench.fuzzing --seed {options.seed} --again "{name}" {number}: {what}', file=sys.stderr)
        slowest_ms, number = outcome.slowest_ms
        figures += [
            Figure(f"{name}: inputs, seed {options.seed}", outcome.inputs, "inputs"),
            Figure(f"{name}: refused in a sentence", outcome.refused, "inputs"),
            Figure(f"{name}: crashes", len(outcome.crashes), "inputs", "0", not outcome.crashes),
            Figure(f"{name}: slowest, number {number}", round(slowest_ms, 1), "ms"),
        ]
    for name, flips in stores.run(options.flips, options.seed).items():
        for fault in flips.faults[:20]:
            print(f"{name}: {fault}", file=sys.stderr)
        figures += [
            Figure(f"{name}: bits flipped in {flips.pages} KiB, seed {options.seed}", flips.flips, "flips"),
            Figure(f"{name}: refused in a sentence", flips.refused, "flips"),
            Figure(f"{name}: tracebacks and wrong answers", len(flips.faults), "flips", "0", not flips.faults),
        ]
    return report("fuzz", figures)


if __name__ == "__main__":
    sys.exit(main())
