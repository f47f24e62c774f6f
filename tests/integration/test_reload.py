"""SIGHUP reloads the configuration of a running process, and never ends it."""

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import httpx
from support.agent import DIGITS
from support.digits import scan
from support.processes import TierProcess
from support.waiting import wait_until

_TOKEN = "0123456789abcdef"


def _reload(tier: TierProcess, event: str) -> dict[str, Any]:
    """Sends SIGHUP, and returns the line of the log with this event that follows."""
    before = len(tier.log.read_text().splitlines())
    tier.process.send_signal(signal.SIGHUP)

    def found() -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in tier.log.read_text().splitlines()[before:]]
        return [line for line in lines if line["event"] == event]

    wait_until(lambda: bool(found()))
    return found()[0]


def test_agent_takes_policy_and_tokens_over(tmp_path: Path) -> None:
    config, tokens = tmp_path / "edge.toml", tmp_path / "tokens"
    text = (
        f'[models]\ndirectories = ["{DIGITS}"]\n[agent]\nstate_dir = "state"\n[log]\nformat = "json"\n'
        '[api]\ntoken_file = "tokens"\n'
    )
    config.write_text(text)
    tokens.write_text(f"camera:{_TOKEN}\n")
    with TierProcess("firstline_edge", "--config", config, log=tmp_path / "log") as agent:

        def answer(token: str) -> tuple[int, Any]:
            reply = httpx.post(
                f"{agent.url}/firstline/v1/models/digits/infer",
                content=scan(),
                headers={"Authorization": f"Bearer {token}"},
                trust_env=False,
            )
            return reply.status_code, reply.json().get("certified")

        assert answer(_TOKEN) == (200, True)
        config.write_text(text + "[policy]\nmin_threshold = 2.0\nlimit_bytes = 1000000\n")
        tokens.write_text(f"camera:{_TOKEN[::-1]}\n")
        line = _reload(agent, "configuration reloaded")
        assert (line["applied"], line["files_read"]) == ("policy.min_threshold", str(tokens))
        assert "policy.limit_bytes" in agent.log.read_text()
        assert answer(_TOKEN)[0] == 401
        assert answer(_TOKEN[::-1]) == (200, False)
        config.write_text(text + "[policy]\nmin_threshold = 2.0\n[budget]\nbytes_per_day = 5000000\n")  # its first one
        assert _reload(agent, "configuration reloaded")["applied"] == "budget.bytes_per_day"
        status = httpx.get(
            f"{agent.url}/firstline/v1/status", headers={"Authorization": f"Bearer {_TOKEN[::-1]}"}, trust_env=False
        )
        assert [budget["amount"] for budget in status.json()["budgets"]] == [5_000_000]
        config.write_text(text.replace("[models]", "[modells]"))
        assert "did you mean 'models'?" in _reload(agent, "configuration not reloaded")["why"]
        config.write_text(text)
        tokens.write_text("")
        assert "holds no token" in _reload(agent, "configuration not reloaded")["why"]
        assert answer(_TOKEN[::-1]) == (200, False)
        assert agent.stop() == 0


def test_gateway_takes_its_limits_over(tmp_path: Path) -> None:
    config = tmp_path / "gateway.toml"
    text = '[log]\nformat = "json"\n'
    config.write_text(text)
    shutil.copytree(DIGITS, tmp_path / "models" / "digits", ignore=shutil.ignore_patterns("edge*"))
    with TierProcess("firstline_gateway", "--config", config, log=tmp_path / "log") as gateway:
        config.write_text(
            f"{text}[execution]\nqueue_requests = 5\n[api]\nrows_limit = 7\n[contracts]\naudit_spacing_s = 1\n"
        )
        assert _reload(gateway, "settings changed that need a restart")["keys"] == "api.rows_limit"
        assert "execution.queue_requests, contracts.audit_spacing_s" in gateway.log.read_text()
        config.write_text("[api\n")
        assert "is not valid TOML" in _reload(gateway, "configuration not reloaded")["why"]
        assert httpx.get(f"{gateway.url}/v2/health/ready", trust_env=False).status_code == 200
        assert gateway.stop() == 0
