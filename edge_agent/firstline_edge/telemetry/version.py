"""The version of the agent."""

from __future__ import annotations

from importlib.metadata import version

VERSION = version("firstline")
