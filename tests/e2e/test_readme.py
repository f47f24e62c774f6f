"""The README, the tutorials and the pages about bundles, followed word by word."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from support.readme import MismatchError, Reader, matches, shell_lines

CHECKOUT = Path(__file__).parents[2]
README = (CHECKOUT / "README.md").read_text()
INSTALL = (CHECKOUT / "docs" / "get-started" / "install.md").read_text()
TUTORIALS = ("get-started/first-answer.md", "get-started/connect-a-gateway.md", "get-started/call-it.md")
REFERENCES = (
    *(f"reference/{page}.md" for page in ("protocol", "file-route", "errors", "mqtt", "client", "answers")),
    *(f"how-to/{page}.md" for page in ("run-both-tiers", "run-models-elsewhere", "networks")),
)
BUNDLES = tuple(f"reference/{page}.md" for page in ("bundles", "steps", "certificates", "manifest"))


def test_the_readme_is_true(reader: Reader) -> None:
    reader.follow(README)
    assert "python ask.py" in reader.executed


def test_the_tutorials_are_true(reader: Reader) -> None:
    """With the pages that ask the agent and the gateway that the tutorials started."""
    reader.follow(*((CHECKOUT / "docs" / page).read_text() for page in (*TUTORIALS, *REFERENCES)))
    typed = "\n".join(reader.executed)
    for command in ("edge-agent doctor", "edge-agent explain", "bundle create", "evaluate", "key create", "ask.py"):
        assert command in typed
    for command in ("stream.py", "Prefer: respond-async", "jobs.py", "/load"):
        assert command in typed
    ours = {".gitignore", "docs/", "models/", "edge-agent.log", "firstline-gateway.log"}
    assert left_for_git(reader.folder) == ours


def test_the_pages_about_bundles_are_true(reader: Reader) -> None:
    reader.follow(*((CHECKOUT / "docs" / page).read_text() for page in BUNDLES))
    assert reader.executed


ROLLOUT, ROLLOUT_WITH_TLS = (
    (CHECKOUT / "docs" / "get-started" / "first-rollout.md").read_text().split("\n## The same with TLS\n")
)


def test_rollout_guide_takes_ten_commands(reader: Reader) -> None:
    ended = re.search(r"firstline rollout rollback (\S+)", ROLLOUT)
    back = f'$ firstline rollout watch {ended[1]} || echo "exit code $?"\ndigits 3: rolled_back\n...\nexit code 1'
    on_version_1 = "$ firstline device list -o json | grep -c '\"version\": *1,'\n1"
    reader.follow(ROLLOUT, f"```console\n{back}\n{on_version_1}\n```\n")
    typed = [command for command in reader.executed[:-2] if command.startswith("firstline ")]
    assert len(typed) == 10
    assert left_for_git(reader.folder) == {".gitignore", "docs/", "models/", "edge-agent.log", "firstline-gateway.log"}


def test_rollout_guide_with_tls_is_true(reader: Reader) -> None:
    """With the steps of the guide that follow, up to the end of the rollout."""
    steps = ROLLOUT[ROLLOUT.index("\n## The model\n") : ROLLOUT.index("\n**8.** ")]
    on_version_3 = "$ firstline device list -o json | grep -c '\"version\": *3,'\n2"
    reader.follow(ROLLOUT_WITH_TLS, steps, f"```console\n{on_version_3}\n```\n")
    assert "device enroll porch" in "\n".join(reader.executed)
    assert left_for_git(reader.folder) == {".gitignore", "docs/", "models/", "edge-agent.log", "firstline-gateway.log"}


def left_for_git(folder: Path) -> set[str]:
    """What `git add .` would take of a folder with this checkout's .gitignore."""
    shutil.copy(CHECKOUT / ".gitignore", folder)
    subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)
    status = ["git", "status", "--porcelain", "--untracked-files=normal"]
    listed = subprocess.run(status, cwd=folder, check=True, capture_output=True, text=True).stdout
    return {line.removeprefix("?? ") for line in listed.splitlines()}


def test_shell_blocks_name_existing_targets() -> None:
    """Installing needs an index, and these tests are a part of `make test`: what is named must at least exist."""
    targets = set(re.findall(r"^([a-z]+):", (CHECKOUT / "Makefile").read_text(), re.MULTILINE))
    extras = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for line in (*shell_lines(README), *shell_lines(INSTALL)):
        if match := re.fullmatch(r"make ([a-z]+)", line):
            assert match[1] in targets
        elif line == ". .venv/bin/activate":
            assert "BIN := .venv/bin\n" in (CHECKOUT / "environments.mk").read_text()
        elif not line.startswith(("firstline ", "edge-agent ", "firstline-gateway ")):  # see test_command_lines.py
            installed = re.fullmatch(r"(?:pip install|uvx --from) .*\[([a-z-]+)\]['\"](?: firstline demo)?", line)
            assert installed is not None, f"`{line}` is neither tried nor known; put it into a console block"
            assert installed[1] in extras
    for extra in extras:
        assert f"| `{extra}` |" in INSTALL


@pytest.mark.parametrize(
    ("page", "fault"),
    [
        ("```console\n$ edge-agent doktor\n```\n", "ended with 2"),
        ("```console\n$ edge-agent --version\nedge-agent one\n```\n", "the page shows"),
        ("```console\n$ echo a; false | cat\n```\n", "ended with 1"),
        ("```console\n$ echo a\n```\n", "the page shows"),
        ("```console\n$ export A=b\n$ echo $A\nc\n```\n", "said\n  b"),
        ("```python\nprint(1)\n```\n", "first line"),
        ("```bash\nls\n```\n", "nothing would try it"),
        ("```console\n$ edge-agent run --config none.toml\nlistening on http://127.0.0.1:8070\n```\n", "did not start"),
    ],
)
def test_a_wrong_page_is_found_out(reader: Reader, page: str, fault: str) -> None:
    with pytest.raises(MismatchError, match=fault):
        reader.follow(page)


def test_varying_output_matches() -> None:
    output = ("up 4 s at http://127.0.0.1:8070", "a  b", "done")
    assert matches(("up 117.5 s at http://127.0.0.1:4711", "...", "done"), output)
    assert matches(("...",), output)
    assert not matches(("up 117.5 s at http://127.0.0.1:4711", "done"), output)
    assert not matches(("up 4 s at", "kept from 0.9720"), ("up 4 s at", "kept from 0.9718"))
    assert not matches(("95.83 % of 7",), ("95.84 % of 7",))
    assert not matches(("bright 1.0000",), ("bright 0.7647",), exact=True)
    assert matches(("bright 0.7647 in 12.5 ms",), ("bright 0.7647 in 3 ms",), exact=True)
    assert not matches(("down 4 s at http://127.0.0.1:8070", "..."), output)
