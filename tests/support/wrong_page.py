"""Writes the page of wrong inputs and their messages: `make -C tests wrong-inputs`."""

from pathlib import Path
from tempfile import TemporaryDirectory

from support.wrong_cases import AREAS
from support.wrong_inputs import Case, wrong_site

FILE = Path(__file__).parents[2] / "docs" / "reference" / "errors-by-example.md"
_HEAD = """\
# Errors by example

These are wrong inputs as users make them, and the message that each gets. A command's message is on stderr, and its
exit code is 1 or 2. A request's message is `error` of the JSON answer, or `detail` below `/fleet/`, and each answer has
a `request_id`. [Errors](errors.md) lists the codes.
"""


def entry(case: Case, message: str) -> str:
    """Returns the part of the page about one wrong input."""
    return f"{case.wrong[:1].upper()}{case.wrong[1:]}:\n\n```text\n{case.shown}\n{message}\n```\n"


def main() -> None:
    """Runs all wrong inputs, and writes the page."""
    with TemporaryDirectory() as folder, wrong_site(Path(folder)) as site:
        areas = {area: [entry(case, site.message(case)) for case in cases] for area, cases in AREAS.items()}
    parts = [f"## {area}\n\n" + "\n".join(entries) for area, entries in areas.items()]
    FILE.write_text("\n".join([_HEAD, *parts]))


if __name__ == "__main__":
    main()
