"""The page of metrics, from what the server writes for Prometheus."""

import re

from _generate.page import code, codes, described, page, read_words, sentence, table
from penstock.http.middleware.limits import Pool
from penstock.http.middleware.requests import Counts
from penstock.http.routes.prometheus import render as written

WORDS = read_words("metrics")
LABELS: dict[str, str] = WORDS["labels"]

# What is asked for is wide enough to make every family and every label appear.
_SCENE = {
    "queues": [
        {
            **dict.fromkeys(("scheduled", "queued", "running", "awaiting", "oldest_seconds"), 0),
            "queue": "ollama",
            "paused": False,
            "circuit": "closed",
        }
    ],
    "ended": [
        {
            "queue": "ollama",
            "kind": "mark",
            "outcome": outcome,
            "class": "timeout",
            "count": 1,
            "total_ms": 1,
            "histogram": [1, 1],
        }
        for outcome in ("failed", "retried")
    ],
    "bounds": [100],
    "workers": 1,
    "stuck": 0,
    "blocked": {"now": 0, "kinds": [{"kind": "k", "times": 1, "seconds": 2.5}]},
    "unhandled": [{"queue": "q", "kind": "k", "jobs": 1}],
}


def render() -> str:
    counts = Counts()
    counts.count(("GET", "/v1/jobs"), 200, 0.1)
    text = written(_SCENE, counts, 1, [Pool("streams", "streams", code="too_many_streams")])
    labels: dict[str, list[str]] = {}
    for name, inside in re.findall(r"^(\w+)\{(.*)\} ", text, re.MULTILINE):
        family = re.sub(r"_(bucket|sum|count)$", "", name)
        found = re.findall(r'(\w+)="', inside)
        labels[family] = list(dict.fromkeys([*labels.get(family, ()), *found]))
    described("label of metrics", {one for found in labels.values() for one in found}, LABELS)
    kinds = dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE))
    helps = dict(re.findall(r"^# HELP (\w+) (.+)$", text, re.MULTILINE))
    described("metric", kinds, helps)
    rows = [
        [code(name), kinds[name], codes(labels.get(name, ())), sentence(helps[name])]
        for name in sorted(kinds)
    ]
    return page(
        "Metrics",
        WORDS["about"],
        table(["name", "type", "labels", ""], rows),
        WORDS["more"],
        "## Labels",
        table(["label", ""], ([code(name), told] for name, told in LABELS.items())),
    )
