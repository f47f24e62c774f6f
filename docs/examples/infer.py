"""Asks a Firstline tier what is in a file: python infer.py URL FILE [MODEL]."""

import os
import sys

from firstline import Client

if not 3 <= len(sys.argv) <= 4:
    sys.exit("usage: python infer.py URL FILE [MODEL], such as: python infer.py http://127.0.0.1:8070 digit.png")
url, file, model = [*sys.argv[1:], "digits"][:3]
with Client(url, token=os.environ.get("FIRSTLINE_TOKEN")) as client:
    found = client.infer_file(model, file)
print(f"{found}, {found.answer.tier}: {found.answer.reason}, {found.answer.status}")
