"""Runs an agent in this program and answers for files: python agent.py CONFIG MODEL FILE..."""

import asyncio
import sys
from pathlib import Path

from firstline_core.errors import FirstlineError
from firstline_edge.app import EdgeAgent
from firstline_edge.settings.load import load


async def main(config: Path, model: str, files: list[Path]) -> None:
    async with EdgeAgent(load(config)) as agent:
        for file in files:
            try:
                response = await agent.data_plane.infer_file(model, file.read_bytes())
            except FirstlineError as error:
                sys.exit(f"{file}: {error.message} ({error.code})")
            except OSError as error:
                sys.exit(f"{file} cannot be read: {error.strerror}")
            outputs = {name: values.astype(float).round(3).tolist() for name, values in response.arrays.items()}
            answer = response.answer
            print(f"{file.name}: {outputs}, {answer.tier}: {answer.reason}, {answer.status}")


if len(sys.argv) < 4:
    sys.exit("usage: python agent.py CONFIG MODEL FILE..., such as: python agent.py edge-agent.toml digits digit.png")
asyncio.run(main(Path(sys.argv[1]), sys.argv[2], [Path(file) for file in sys.argv[3:]]))
