"""Tokens, cancels, and what ends watch() before the job does."""

import pytest
from playwright.async_api import Page

from browser.stand_in import StandIn
from browser.watching import LOOK, STREAM, change, fall_back, told, until_told, watch


async def test_a_token_goes_with_the_address_of_the_stream_and_in_the_header_of_the_rest(
    watching: Page, stand_in: StandIn
) -> None:
    stand_in.tokens = {"pt_good"}
    await watch(watching, token="pt_good")  # noqa: S106  # of this test
    await fall_back(watching, stand_in)
    stream, *_, look = stand_in.asked
    assert stream.query_params["token"] == "pt_good"  # noqa: S105
    assert look.headers["authorization"] == "Bearer pt_good"
    assert "pt_" not in str(look.url)


async def test_a_token_whose_time_is_over_is_renewed(
    watching: Page, stand_in: StandIn, allowed_errors: list[str]
) -> None:
    allowed_errors.append("401")
    stand_in.tokens = {"pt_1"}
    await watch(watching, token="pt_1", tokens=["throw", "pt_2", "pt_3"])  # noqa: S106
    await until_told(watching, "change", change())
    stand_in.tokens = {"pt_2"}
    stand_in.cut()
    await until_told(watching, "state", "reconnecting")
    # The first time who gives them is away: again, a little later.
    await stand_in.until_called(LOOK)
    await watching.clock.run_for(4_000)
    await until_told(watching, "state", "live")
    assert await told(watching, "renew") == 2
    # A token that has worked may be renewed again.
    stand_in.tokens = {"pt_3"}
    stand_in.cut()
    stand_in.put("a", stage="two")
    await until_told(watching, "change", change(stage="two"))
    assert await told(watching, "renew") == 3


@pytest.mark.parametrize("tokens", [None, ["pt_2"], [None]], ids=["no renew", "bad", "none"])
async def test_who_gets_no_good_token_is_told_and_asks_no_more(
    tokens: list[str] | None, watching: Page, stand_in: StandIn, allowed_errors: list[str]
) -> None:
    allowed_errors.append("401")
    stand_in.tokens = {"pt_good"}
    await watch(watching, token="pt_1", tokens=tokens)  # noqa: S106
    await until_told(watching, "error", ["unauthorized", 401, "it is a 401"])
    assert await told(watching, "renew") == (0 if tokens is None else 1)
    asked = len(stand_in.calls)
    await watching.clock.run_for(600_000)
    assert len(stand_in.calls) == asked
    assert await told(watching, "done") == []


ENDS = {
    404: ("gone", "this job is not there any more"),
    410: ("gone", "this job is not there any more"),
    403: ("not_allowed", "it is a 403"),
    422: ("told_so", "it is a 422"),
}


@pytest.mark.parametrize("status", ENDS)
async def test_what_cannot_be_watched_ends_it(
    status: int, watching: Page, stand_in: StandIn, allowed_errors: list[str]
) -> None:
    allowed_errors.append(str(status))
    stand_in.fail(status, STREAM, LOOK)
    await watch(watching)
    code, words = ENDS[status]
    await until_told(watching, "error", [code, status, words])
    assert (await told(watching, "state"))[-1] == "over"
    await watching.clock.run_for(600_000)
    assert stand_in.called("GET /v1") == [STREAM, LOOK]


async def test_an_empty_answer_of_the_stream_means_that_it_has_ended(
    watching: Page, stand_in: StandIn
) -> None:
    stand_in.put("a", status="succeeded")
    stand_in.fail(204, STREAM)
    await watch(watching)
    await until_told(watching, "done", "succeeded")


async def test_cancel_gives_the_job_back(watching: Page, stand_in: StandIn) -> None:
    stand_in.put("a", status="queued")
    await watch(watching)
    await until_told(watching, "change", change("queued"))
    assert await watching.evaluate("watched.cancel().then((job) => job.status)") == "cancelled"
    await until_told(watching, "done", "cancelled")
    assert await told(watching, "done") == ["cancelled"]


async def test_a_refused_cancel_says_why(
    watching: Page, stand_in: StandIn, allowed_errors: list[str]
) -> None:
    allowed_errors.append("403|503")
    await watch(watching)
    said = "watched.cancel().catch((error) => [error.name, error.code, error.status])"
    stand_in.fail(403, "POST /v1/jobs/a/cancel")
    assert await watching.evaluate(said) == ["WatchError", "not_allowed", 403]
    stand_in.fail(503, "POST /v1/jobs/a/cancel")
    assert await watching.evaluate(said) == ["WatchError", "unreachable", 503]
    await until_told(watching, "state", "live")
