"""Every measured figure in README and the documents is one of bench/results, as it stands there."""

import json
from typing import Any

import pytest

from docs.pages import ROOT

RESULTS = ROOT / "bench" / "results"


def _figures(file: str, part: str, what: str) -> Any:
    """One figure of a benchmark: the one line whose text begins so."""
    [figure, *_] = [
        one
        for one in json.loads((RESULTS / f"{file}.json").read_text())[part]["figures"]
        if one["what"].strip().startswith(what)
    ]
    return figure


def _whole(number: float) -> str:
    return f"{number:,.0f}"


def _named() -> dict[str, str]:
    engine = json.loads((RESULTS / "engine.json").read_text())["ratios"]
    one = _figures("worker", "throughput", "60,000 no-op jobs, one process")
    backlog = json.loads((RESULTS / "worker.json").read_text())["backlog"]["figures"]
    waiting = _figures("worker", "waiting", "5,000 jobs that wait 30 s, one process: peak")
    http = _figures("http", "submit", "single submits over HTTP")
    place = _figures("position", "position", "place and wait at 1,000,000 queued, p50")
    many = "5,000 streams, one process"
    streams = _figures("sse", "streams_5000", f"{many}: memory")
    return {
        "one": _whole(one["ours"]),
        "bare": _whole(one["beside"]["bare SQL"]),
        "of_bare": f"{one['ratio']:.2f}",
        "accounts": _whole(_figures("worker", "accounts", "1,000 accounts")["ours"]),
        "submits": _whole(http["ours"]),
        "route": _whole(http["beside"]["bare route that inserts a row"]),
        "of_route": f"{http['ratio']:.2f}",
        "kill": f"{_figures('worker', 'kill', 'kill -9')['ours']:.2f}",
        "place": f"{place['ours']:.1f}",
        "count": f"{place['beside']['exact count, p50']:.1f}",
        "streams": _whole(streams["ours"]),
        "no_streams": _whole(streams["beside"]["idle server"]),
        "change": _whole(_figures("sse", "streams_5000", f"{many}: a change")["ours"]),
        "back": f"{_figures('sse', 'streams_5000', f'{many}: after')['ours']:.1f}",
        "waiting": _whole(waiting["ours"]),
        "idle": _whole(waiting["beside"]["idle worker"]),
        # A half is rounded up, as in the tables.
        "behind": f"{backlog[1]['ours'] + 1e-9:.2f}",
        "without": f"{backlog[1]['beside']['without the backlog']:.2f}",
        "deep": f"{engine['at a backlog of 1,000,000 / of 20,000']:.2f}",
    }


NAMED = _named()
SAID = {
    "README.md": (
        "one worker process | {one}/s | bare SQL on a minimal table {bare}/s: {of_bare} |",
        "that may run one job each | {accounts}/s |",
        "submits over HTTP | {submits}/s | a bare route that inserts a row {route}/s: {of_route} |",
        "all run elsewhere after | {kill} s |",
        "in the queue: p50 | {place} ms | an exact count {count} ms |",
        "reaches all (p99) | {streams} MB; {change} ms | idle {no_streams} MB |",
        "that wait for a model | {waiting} MB, 0.01 core | idle {idle} MB |",
    ),
    "bench/RESULTS.md": (
        "one process | {one}/s | {bare}/s bare SQL: {of_bare} ",
        "may run one job each | {accounts}/s |",
        "behind 200,000 of one | {behind} s | {without} s without",
        "16 connections | {submits}/s | {route}/s a bare route that inserts a row: {of_route} |",
        "to the last restart | {kill} s, worst of 5 |",
        "p50, p99 (`bench/position.py`) | {place} ms, ",
        "| {streams} MB, {change} ms, {back} s | idle server {no_streams} MB |",
        "in one process | {waiting} MB, 0.01 core | idle {idle} MB |",
        "÷ at 20,000 | {deep} |",
    ),
    "docs/howto/more-than-one-postgres.md": (
        "ran {one} empty jobs a second through one worker process",
        "and took {submits} single submits a second over HTTP",
    ),
    "docs/howto/deploy.md": ("5,000 that waited took {waiting} MB",),
    "docs/explanation/why-postgres.md": (
        "one worker process ran {one} no-op jobs a second, {of_bare} of what bare SQL did",
    ),
    "docs/explanation/why-sse.md": (
        "5,000 streams on one process took {streams} MB. ",
        "A change reached all of them in {change} ms",
        "all had the state again in {back} s",
    ),
    "docs/explanation/lifecycle.md": ("ran at {deep} of their pace at 20,000",),
    "docs/explanation/limits-and-fairness.md": (
        "done in {behind} s behind 200,000 jobs of one account, and in {without} s without those",
    ),
    "docs/explanation/leases-and-fencing.md": ("took {kill} s, the worst of five",),
}


@pytest.mark.parametrize("page", SAID)
def test_a_pages_figures_are_those_that_were_measured(page: str) -> None:
    text = " ".join((ROOT / page).read_text().split())
    for phrase in SAID[page]:
        assert phrase.format(**NAMED) in text
