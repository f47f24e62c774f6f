"""The commands of `edge-agent`, one file each. argparse, for a device should not carry more."""
