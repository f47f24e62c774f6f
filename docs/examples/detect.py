"""Lists the objects in a picture, and draws them: python detect.py URL FILE OUT MODEL."""

import os
import sys

from firstline import Client, Detections

if len(sys.argv) != 5:
    sys.exit(
        "usage: python detect.py URL FILE OUT MODEL, such as: python detect.py http://127.0.0.1:8070 a.jpg b.jpg pets"
    )
url, file, out, model = sys.argv[1:]
with Client(url, token=os.environ.get("FIRSTLINE_TOKEN")) as client:
    found = client.infer_file(model, file, min_score=0.3)
if not isinstance(found, Detections):
    sys.exit(f"{model} is not a detector; it answers {found}.")
for each in found:
    x1, y1, x2, y2 = (round(side) for side in each.box)
    print(f"{each.label} ({each.score:.2f}) at {x1},{y1} to {x2},{y2}")
found.draw(file).save(out)
print(f"{len(found)} in {found.width}x{found.height} pixels, {found.answer.tier}: {found.answer.status}")
