"""The commands of `edge-agent`.

Each command is a module with the command's name and a function `command(arguments)`; `parser.py` declares its options
with argparse, so that a device needs no package to parse them.
"""
