"""The page of one job: its text in each status, payload and result on request, its buttons."""

import json
from uuid import uuid4

import httpx
import pytest

from browser.scene import Scene
from support.dashboard.visitor import Visitor, text
from support.http.site import Site

ODD = '<script>alert("1")</script>'


async def test_a_queued_job_shows_its_position_and_the_reason(
    operator: Visitor, scene: Scene
) -> None:
    await scene.queue("line", concurrency=1)
    await scene.running()
    await scene.queued()
    job = await scene.queued()
    page_text = await operator.read(f"/jobs/{job}")
    assert "Queued: #2 in queue" in page_text
    assert "Jobs ahead of it take all slots of its queue." in page_text
    assert "Attempts 0 attempts" in page_text


async def test_a_failed_attempt_shows_its_traceback(operator: Visitor, scene: Scene) -> None:
    await scene.queue("line")
    frames = ["/srv/app/<b>.py:7 in mark", "/usr/lib/json/decoder.py:9 in decode"]
    error = {"class": "bug", "message": "KeyError: 'text'", "retryable": False, "frames": frames}
    job = await scene.end(await scene.started(), "failed", error=error)
    page_text = text(await operator.get(f"/jobs/{job}"))
    assert f"Traceback {' '.join(frames)}" in page_text
    other = text(await operator.get(f"/jobs/{await scene.failed()}"))
    assert "Traceback" not in other


async def test_a_running_job_shows_its_duration_worker_and_progress(
    operator: Visitor, scene: Scene
) -> None:
    job = await scene.running(
        stage="TIER1",
        label="Tier 1 scanning",
        progress={"done": 1, "total": 4, "partial": {"criterion": "style"}},
        chunks=("Dear ", "pupil"),
    )
    answer = await operator.get(f"/jobs/{job}")
    page_text = text(answer)
    assert "Running for 0 s: Tier 1 scanning" in page_text
    assert "Attempt 1 is running for 0 s Tier 1 scanning, for 0 s" in page_text
    assert "on worker w" in page_text
    assert '<progress max="4" value="1"' in answer.text
    assert "1 of 4" in page_text
    assert "criterion style" in page_text
    assert "Dear pupil" in page_text


async def test_a_stale_job_has_a_banner(operator: Visitor, scene: Scene) -> None:
    job = await scene.stale()
    answer = await operator.get(f"/jobs/{job}")
    assert 'class="alert" role="status" id="stale"' in answer.text
    assert "This takes longer than usual: there has been no news for 4 minutes." in text(answer)


async def test_a_dispatched_job_waits_for_its_callback(operator: Visitor, scene: Scene) -> None:
    job = await scene.awaiting()
    page_text = await operator.read(f"/jobs/{job}")
    assert "Dispatched 0 s ago, waiting for the callback" in page_text
    assert "Attempt 1 was dispatched" in page_text


async def test_a_failed_job_shows_its_attempts_and_the_reason(
    operator: Visitor, scene: Scene
) -> None:
    await scene.queue("line", attempts=2, delay_seconds=0)
    error = {"class": "timeout", "message": "over its 2 minutes", "retryable": True}
    row = await scene.started()
    await scene.end(row, "retry", error=error, delay="0")
    await scene.clock.advance("1s")
    await scene.conn.fetch("select penstock.stage_due_jobs(id, 10) from penstock.queue")
    await scene.end(await scene.start(row["id"]), "retry", error=error)
    page_text = await operator.read(f"/jobs/{row['id']}")
    assert (
        "Failed after 2 attempts (all attempts are used): exceeded its timeout: "
        "over its 2 minutes" in page_text
    )
    assert "Attempt 1 failed; tried again later" in page_text
    assert "Attempt 2 failed; not tried again" in page_text
    assert "Failed 2 of 2 times, in 2 attempts" in page_text


async def test_a_job_that_backs_off_shows_the_time_of_its_next_attempt(
    operator: Visitor, scene: Scene
) -> None:
    job = await scene.retrying(cls="unavailable", message="connection refused")
    page_text = await operator.read(f"/jobs/{job}")
    assert "Next attempt in 5 min: the provider cannot be reached: connection refused" in page_text
    assert "Run now" in page_text


async def test_a_succeeded_job_shows_its_duration(operator: Visitor, scene: Scene) -> None:
    row = await scene.started()
    await scene.clock.advance("12s")
    job = await scene.end(row, "succeeded", result={"score": 7})
    answer = await operator.get(f"/jobs/{job}")
    assert "Succeeded after 12 s" in text(answer)
    assert "Attempt 1 succeeded after 12 s" in text(answer)
    assert 'hx-trigger="refresh"' not in answer.text  # it does not change any more


async def test_a_job_that_was_cancelled_while_waiting(operator: Visitor, scene: Scene) -> None:
    job = await scene.cancelled()
    page_text = await operator.read(f"/jobs/{job}")
    assert "Cancelled just now" in page_text
    assert "Cancelled while waiting" in page_text


async def test_a_job_that_was_cancelled_between_attempts_shows_both(
    operator: Visitor, scene: Scene
) -> None:
    job = await scene.retrying()
    await scene.conn.fetchval("select penstock.cancel_job($1)", job)
    page_text = await operator.read(f"/jobs/{job}")
    assert "Attempt 1 failed; tried again later" in page_text
    assert "Cancelled while waiting" in page_text


async def test_the_details_match_the_api(operator: Visitor, scene: Scene, site: Site) -> None:
    await scene.plan("pro", priority=10)
    await scene.account("u1", credits=10)
    await scene.queue()
    made = await site.admin.post(
        "/v1/jobs",
        json={
            "kind": "line",
            "payload": {},
            "account": "u1",
            "topic": "a1",
            "price": 4,
            "metadata": {"class": "7b", "n": 3},
        },
    )
    job = made.json()
    answer = await operator.get(f"/jobs/{job['id']}")
    page_text = text(answer)
    for fact in (
        job["id"],
        "Queue line",
        "Account u1 (plan pro)",
        "Topic a1",
        f"Priority {job['priority']}",
        "Credits 4 reserved",
        "class 7b",
        "n 3",
    ):
        assert fact in page_text, fact
    assert 'href="../accounts/u1"' in answer.text


async def test_a_finished_job_shows_its_settled_credits(operator: Visitor, scene: Scene) -> None:
    await scene.account("u1", credits=10)
    job = await scene.succeeded(account="u1", price=4)
    assert "4 reserved, 4 charged, 0 refunded" in await operator.read(f"/jobs/{job}")


async def test_an_unknown_job_answers_404(operator: Visitor) -> None:
    answer = await operator.get(f"/jobs/{uuid4()}")
    assert answer.status_code == 404
    assert "Job not found" in text(answer)
    assert "kept for the retention of their queue" in text(answer)


async def test_payload_and_result_are_loaded_on_request_only(
    operator: Visitor, scene: Scene
) -> None:
    job = await scene.succeeded(payload={"answer": ODD}, result={"score": 7})
    page = (await operator.get(f"/jobs/{job}")).text
    assert "alert(" not in page
    assert "score" not in page
    assert f'hx-get="../jobs/{job}/payload"' in page
    shown = await operator.get(f"/jobs/{job}/payload")
    assert "<script>alert" not in shown.text
    assert ODD.replace('"', '\\"') in text_of_pre(shown)
    result = await operator.get(f"/jobs/{job}/result")
    assert '"score": 7' in text(result)


async def test_a_long_payload_is_cut_and_can_be_downloaded_whole(
    operator: Visitor, scene: Scene
) -> None:
    payload = {"answer": "x" * 100_000}
    job = await scene.queued(payload=payload)
    shown = await operator.get(f"/jobs/{job}/payload")
    assert len(shown.text) < 60_000
    assert "The first 50,000 of 100,020 characters." in text(shown)
    whole = await operator.get(f"/jobs/{job}/payload.json")
    assert json.loads(whole.text) == payload
    assert "attachment" in whole.headers["content-disposition"]


async def test_a_payload_of_one_long_text_is_wrapped(operator: Visitor, scene: Scene) -> None:
    """A value of 84 KB was one line, on the page and in the download."""
    job = await scene.queued(payload={"answer": "a word " * 12_000, "n": 1})
    shown = (await operator.get(f"/jobs/{job}/payload")).text
    assert '<pre class="words"' in shown
    whole = (await operator.get(f"/jobs/{job}/payload.json")).text
    assert len(whole.splitlines()) == 4


async def test_an_encrypted_payload_is_not_shown(operator: Visitor, scene: Scene) -> None:
    job = await scene.queued(payload={"$enc": "AAAA"})
    page_text = await operator.read(f"/jobs/{job}/payload")
    assert "The app that submitted the job encrypted it" in page_text
    assert "AAAA" not in page_text


async def test_a_job_without_a_result_has_no_link_to_it(operator: Visitor, scene: Scene) -> None:
    job = await scene.queued()
    assert "Show the result" not in await operator.read(f"/jobs/{job}")
    assert "No result yet." in await operator.read(f"/jobs/{job}/result")
    assert (await operator.get(f"/jobs/{job}/nonsense")).status_code == 404
    assert (await operator.get(f"/jobs/{uuid4()}/payload")).status_code == 404


async def test_files_of_a_payload_can_be_downloaded(
    operator: Visitor, scene: Scene, site: Site
) -> None:
    made = await site.admin.post("/v1/uploads", files={"file": ("a.txt", b"hello", "text/plain")})
    upload = made.json()["id"]
    job = await scene.queued(payload={"pages": [{"upload": upload}], "upload": "no id"})
    page = (await operator.get(f"/jobs/{job}/payload")).text
    assert f'href="../../uploads/{upload}"' in page
    file = await operator.get(f"/uploads/{upload}")
    assert file.content == b"hello"
    assert "attachment" in file.headers["content-disposition"]
    assert "sandbox" in file.headers["content-security-policy"]


async def test_html_in_job_data_is_escaped(operator: Visitor, scene: Scene) -> None:
    row = await scene.started(account=ODD, topic=ODD, metadata={ODD: ODD}, dedupe_key=ODD)
    await scene.report(row, stage=ODD, label=ODD, progress={"done": 1, "partial": ODD})
    await scene.emit(row, ODD)
    running = await operator.get(f"/jobs/{row['id']}")
    assert "<script>alert" not in running.text
    assert text(running).count(ODD) >= 6
    await scene.end(row, "failed", error={"class": "bug", "message": ODD})
    ended = await operator.get(f"/jobs/{row['id']}")
    assert "<script>alert" not in ended.text
    assert ODD in text(ended)


async def test_kept_steps_are_in_the_history(operator: Visitor, scene: Scene) -> None:
    row = await scene.started()
    await scene.conn.execute(
        "select penstock.keep_step($1, $2, $3, 'rubric', '{}')",
        await scene.worker(),
        row["id"],
        row["attempt"],
    )
    running = await operator.read(f"/jobs/{row['id']}")
    assert running.index("Attempt 1 is running") < running.index("Step rubric finished")
    await scene.end(row, "succeeded")
    ended = await operator.read(f"/jobs/{row['id']}")
    positions = [
        ended.index(words) for words in ("Attempt 1 started", "Step rubric", "Attempt 1 succeeded")
    ]
    assert positions == sorted(positions), "in chronological order"


async def test_the_history_shows_when_an_attempt_finished(operator: Visitor, scene: Scene) -> None:
    row = await scene.started()
    await scene.clock.advance("2m")
    await scene.end(row, "succeeded")
    ended_at = (await scene.read(row["id"]))["finished_at"]
    page = (await operator.get(f"/jobs/{row['id']}")).text
    line = page.partition("<b>Attempt 1 succeeded</b>")[2].partition("</li>")[0]
    assert "after 2 min" in line
    assert f'datetime="{ended_at}"' in line


async def test_a_retry_leads_to_the_new_job_and_both_link_to_each_other(
    operator: Visitor, scene: Scene
) -> None:
    old = await scene.failed()
    answer = await operator.post(f"/jobs/{old}/retry")
    new = answer.url.path.rpartition("/")[2]
    assert new != str(old)
    assert "Submitted again. This is the new job." in text(answer)
    assert f'href="../jobs/{old}"' in answer.text
    assert "Submitted as a retry of an earlier job" in text(answer)
    assert f'href="../jobs/{new}"' in (await operator.get(f"/jobs/{old}")).text
    again = await operator.post(f"/jobs/{old}/retry")
    assert again.url.path == f"/jobs/{new}"
    assert "This job already does the same work" in text(again)


async def test_run_now_makes_a_scheduled_job_due(operator: Visitor, scene: Scene) -> None:
    job = await scene.scheduled()
    answer = await operator.post(f"/jobs/{job}/retry")
    assert "The job is due now." in text(answer)
    assert (await scene.read(job))["status"] == "queued"


async def test_a_retry_without_enough_credits_is_refused(operator: Visitor, scene: Scene) -> None:
    await scene.account("u1", credits=4)
    job = await scene.succeeded(account="u1", price=4)
    answer = await operator.post(f"/jobs/{job}/retry")
    assert answer.status_code == 402
    assert "Nothing was changed" in text(answer)
    assert "credit" in text(answer)


async def test_a_retry_of_a_running_job_is_refused(operator: Visitor, scene: Scene) -> None:
    job = await scene.running()
    answer = await operator.post(f"/jobs/{job}/retry")
    assert answer.status_code == 409
    assert "The job has not finished" in text(answer)
    assert "Retry" not in await operator.read(f"/jobs/{job}")


async def test_a_waiting_job_is_cancelled_at_once(operator: Visitor, scene: Scene) -> None:
    job = await scene.queued()
    assert "The job was cancelled." in text(await operator.post(f"/jobs/{job}/cancel"))
    assert (await scene.read(job))["status"] == "cancelled"
    again = await operator.post(f"/jobs/{job}/cancel")
    assert "cancelled" in text(again)


async def test_stopping_a_running_job_needs_confirmation(operator: Visitor, scene: Scene) -> None:
    job = await scene.running()
    asked = await operator.post(f"/jobs/{job}/cancel")
    assert "Stop this job?" in text(asked)
    assert not (await scene.read(job))["cancel_requested"]
    done = await operator.post(f"/jobs/{job}/cancel", {"confirm": "yes"})
    assert "The job was asked to stop." in text(done)
    assert "Stop requested. Running for" in text(done)
    assert (await scene.read(job))["cancel_requested"]


@pytest.mark.parametrize("what", ["retry", "cancel"])
async def test_a_form_without_its_token_changes_nothing(
    operator: Visitor, scene: Scene, what: str
) -> None:
    job = await scene.scheduled()
    answer = await operator.send(f"/jobs/{job}/{what}", {"confirm": "yes"})
    assert answer.status_code == 403
    assert (await scene.read(job))["status"] == "scheduled"


async def test_webhooks_are_listed_with_their_status(operator: Visitor, scene: Scene) -> None:
    job = await scene.succeeded(webhook_url="https://app.example/done")
    answer = await operator.get(f"/jobs/{job}")
    assert "https://app.example/done Pending" in text(answer)
    assert 'hx-trigger="refresh"' in answer.text  # a webhook is still to be sent
    [row] = await scene.conn.fetch(
        "select id, try from penstock.claim_deliveries(1, interval '1 minute')"
    )
    await scene.conn.execute(
        "select penstock.report_delivery($1, $2, false, 500, 'it answered 500', true)",
        row["id"],
        row["try"],
    )
    page_text = await operator.read(f"/jobs/{job}")
    assert "Given up it answered 500 1" in page_text


async def test_the_token_of_the_page_opens_this_job_only(
    operator: Visitor, scene: Scene, site: Site
) -> None:
    job, other = await scene.running(), await scene.running()
    page = (await operator.get(f"/jobs/{job}")).text
    token = page.partition('data-token="')[2].partition('"')[0]
    client = site.client(token)
    assert (await client.get(f"/v1/jobs/{job}")).status_code == 200
    assert (await client.get(f"/v1/jobs/{other}")).status_code == 404
    assert (await client.post(f"/v1/jobs/{job}/cancel")).status_code == 403


async def test_only_the_end_of_a_long_output_is_read(
    operator: Visitor, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.dashboard.pages.job.MOST_CHUNKS", 3)
    job = await scene.running(chunks=("one ", "two ", "three ", "four "))
    page_text = await operator.read(f"/jobs/{job}")
    assert "Only the end is shown. two three four" in page_text


async def test_only_the_end_of_a_large_output_is_shown(
    operator: Visitor, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it came in few chunks: the page is reloaded at every change."""
    monkeypatch.setattr("penstock.dashboard.pages.job.SHOWN_OUTPUT", 9)
    job = await scene.running(chunks=("one two ", "three four"))
    page_text = await operator.read(f"/jobs/{job}")
    assert "Only the end is shown. hree four" in page_text


def text_of_pre(answer: httpx.Response) -> str:
    return text(httpx.Response(200, text=answer.text.partition("<pre")[2].partition("</pre>")[0]))
