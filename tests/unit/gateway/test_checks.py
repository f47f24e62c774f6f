"""The checks of settings, which need no part of a gateway."""

import subprocess
import sys


def test_checking_settings_loads_no_route() -> None:
    code = (
        "import firstline_gateway.checks, firstline_gateway.commands.run, sys; "
        "print([name for name in sys.modules if name == 'fastapi' or name.startswith('firstline_gateway.api')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
