"""Asks a Firstline tier what is in a file: python infer.py URL FILE [MODEL]."""

import os
import sys

from firstline import Client

url, file, model = [*sys.argv[1:], "digits"][:3]
with Client(url, token=os.environ.get("FIRSTLINE_TOKEN")) as client:
    found = client.infer_file(model, file)
print(f"{found.label} ({found.probability:.3f}), {found.answer.tier}: {found.answer.reason}, {found.answer.status}")
