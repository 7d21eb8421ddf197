"""The runner of pages fails where a reader would, and where nobody has run a block."""

from pathlib import Path

import pytest

from docs.pages import Wrong, read_page
from docs.running import Reader

FENCE = "```"


def run(tmp_path: Path, document: str) -> Reader:
    path = tmp_path / "page.md"
    path.write_text(document.replace("'''", FENCE))
    reader = Reader(read_page(path), tmp_path)
    reader.run()
    return reader


def test_a_page_goes_on_where_its_last_block_was(tmp_path: Path) -> None:
    """A folder, an exported name, a namespace and a file are there for the blocks behind."""
    reader = run(
        tmp_path,
        """
'''python
# greeting.py
def greet(name):
    return f"Good day, {name}"
'''
'''python
# at the end of greeting.py
LOUD = greet("all").upper()
'''
'''sh
export NAME=Ada
mkdir inner && cd inner
'''
'''sh
cp ../greeting.py . && python -c "import os, greeting; print(greeting.greet(os.environ['NAME']))"
'''
<!-- output -->
'''text
Good … Ada
'''
'''python
import asyncio, greeting
said = await asyncio.sleep(0, greeting.LOUD)
'''
<!-- check: python
assert said == "GOOD DAY, ALL"
print(said)
-->
""",
    )
    assert reader.printed == "GOOD DAY, ALL\n"


def test_programs_in_the_background_are_ended(tmp_path: Path) -> None:
    reader = run(
        tmp_path,
        """
<!-- run: background first; until ready -->
'''sh
trap 'echo bye; exit' TERM; echo ready; while :; do sleep 0.05; done
'''
<!-- run: background second -->
'''sh
echo here; sleep 600
'''
<!-- run: with 4711=$second -->
'''sh
kill -0 4711
'''
<!-- kill: second -->
<!-- stop: first -->
<!-- output of first -->
'''text
ready … bye
'''
""",
    )
    assert [one.popen.returncode for one in reader.background.values()] == [0, -9]


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ("'''sh\nfalse\n'''", r"page\.md:1: it ended with 1"),
        ("'''sh\necho no; exit 3\n'''", "it ended with 3:\nno"),
        ("<!-- run: exit 1 -->\n'''sh\ntrue\n'''", "it ended with 0"),
        ("'''python\nprint(nothing)\n'''", "NameError"),
        ("'''sh\necho a\n'''\n<!-- output -->\n'''text\nb\n'''", r"page\.md:5: this was not"),
        ("'''php\n<?php\n'''", "php cannot be run"),
        ("'''\nx = 1\n'''", "a block without a language cannot be run"),
        ("<!-- not run: PHP -->\n'''php\n'''", "why can it not run"),
        ("<!-- run by: tests/docs/shims.py -->\n'''js\n'''", "does not run it"),
        ("'''python\n# alone.py\nx = 1\n'''", r"no block of the page uses alone\.py"),
        ("'''toml\n[queues.q]\nconcurency = 1\n'''", "concurency"),
        ("'''sql\nselect 1\n'''", "no address for SQL"),
        ("'''sh\npip install '../penstock[nothing]'\n'''", "has no extra nothing"),
        ("'''sh\npip install penstock\n'''", "is another project"),
        ("'''sh\nfalse | cat\n'''", "it ended with 1"),
        ("<!-- run: background x -->\n'''sh\nfalse\n'''", "not ready"),
        (
            "<!-- run: background x -->\n'''sh\necho a\n'''\n'''sh\nwait; sleep 0.5\n'''",
            "by itself",
        ),
        ("<!-- stop: x -->", "nothing called x"),
        ("<!-- nor run: for a reason -->", "not understood"),
        ("<!-- run: backround x -->\n'''sh\n'''", "not understood"),
        ("<!-- output -->\n\nSome words.\n", "no block follows"),
    ],
)
def test_what_fails_a_page(tmp_path: Path, document: str, why: str) -> None:
    with pytest.raises(Wrong, match=why):
        run(tmp_path, document)


def test_ports_are_free_ones(tmp_path: Path) -> None:
    reader = run(tmp_path, "'''sh\necho http://127.0.0.1:8484/v1 18484 8484.5\n'''\n")
    said = reader.printed.split()
    assert said[0] == f"http://127.0.0.1:{reader.ports['8484']}/v1"
    assert said[1] == "18484"
