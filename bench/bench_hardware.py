"""What devices cost, and what had best be done on them: see docs/planning.md, adaptation.md and profiles.md.

    PYTHONPATH=tests:bench python bench/bench_hardware.py [--only PART ...] [--models NAME ...] [--quick]
        [--checkpoints DIR] [--arithmetic]

Writes every figure to bench/results/bench-hardware.json, with what each part measured beside, and fills the tables of
docs/ with them; what was not run stays as it was. Ends with 1 where an aim is missed, with 2 where something that was
asked for was not run. Some minutes for each part; the two trainings of `compress` take up to an hour each, once:
they are kept in --checkpoints. `--quick` sees that it all runs, and writes nothing; `--arithmetic` runs nothing.
"""

from __future__ import annotations

import sys

from hardware.run import main

if __name__ == "__main__":
    sys.exit(main())
