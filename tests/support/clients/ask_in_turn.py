"""Runs scripts of this folder in one process, because it takes seconds to import the libraries of clients.

Standard input: [{"command": the script and its arguments, "job"}]. Prints the list of what each printed for its job.
"""

import io
import json
import runpy
import sys
from contextlib import redirect_stdout

found = []
for each in json.load(sys.stdin):
    sys.argv = each["command"]
    sys.stdin = io.StringIO(json.dumps(each["job"]))
    with redirect_stdout(io.StringIO()) as printed:
        runpy.run_path(sys.argv[0])
    found.append(json.loads(printed.getvalue()))
json.dump(found, sys.stdout)
