"""The commands of `edge-agent`.

Each command is a module with its words as the name, such as `update_list`, and a function `command(arguments)`.
`parser.py` declares its options with argparse, so that a device needs no package to parse them.
"""
