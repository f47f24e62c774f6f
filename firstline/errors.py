"""The exceptions of the clients; `firstline_core.errors` describes the tree."""

from firstline_core.errors import *  # noqa: F403 (all of it, as the public name of the tree)
from firstline_core.errors import __all__  # noqa: F401 (says which names are public)
