"""What devices cost, and what had best be done on them: see docs/planning.md, adaptation.md and profiles.md.

    PYTHONPATH=tests:bench python bench/bench_hardware.py [--only PART ...] [--models NAME ...]

Writes every figure to bench/results/bench-hardware.json, with what each part measured beside; what was not run stays as
it was. Some minutes.
"""

from __future__ import annotations

import sys

from hardware.run import main

if __name__ == "__main__":
    sys.exit(main())
