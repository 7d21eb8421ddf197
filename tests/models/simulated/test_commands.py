"""Which clients may command a simulated model: commands need no key, and pages send requests."""

import pytest

from penstock.models.simulated.model import simulated
from support.models.raw import OLLAMA, ask, chat

EVERYWHERE = "0.0.0.0"  # noqa: S104  # that is the point

HOSTS = [
    ("127.0.0.1", "127.0.0.1:80", 200),
    ("127.0.0.1", "localhost:11434", 200),
    ("127.0.0.1", "[::1]:11434", 200),
    ("127.0.0.1", "LOCALHOST", 200),
    ("127.0.0.1", "evil.example.org:11434", 403),
    ("127.0.0.1", "10.0.0.7", 403),
    ("127.0.0.1", "", 403),
    (EVERYWHERE, "10.0.0.7:11434", 200),
    (EVERYWHERE, "model:11434", 200),
    (EVERYWHERE, "evil.example.org:11434", 403),
    (EVERYWHERE, "", 403),
]


@pytest.mark.parametrize(("listens", "named", "status"), HOSTS)
async def test_commands_are_accepted_only_with_its_own_host_name(
    listens: str, named: str, status: int
) -> None:
    """The domain name of a page may resolve to this machine."""
    async with simulated(control=0, host=listens) as model:
        assert model.control_url
        for url in (model.url, model.control_url):
            here = url.replace(listens, "127.0.0.1")
            seen = await ask(here, "/_order", {"fault": "hang"}, headers={"Host": named})
            assert seen.status == status
        assert bool(model.report()["orders"]) == (status == 200)


@pytest.mark.parametrize("origin", ["https://evil.example.org", "null", "http://127.0.0.1:3000"])
async def test_commands_from_web_pages_are_refused(origin: str) -> None:
    headers = {"Origin": origin, "Content-Type": "text/plain"}
    async with simulated(control=0) as model:
        assert model.control_url
        for url in (model.url, model.control_url):
            for path in ("/_order", "/_stop", "/_heal"):
                seen = await ask(url, path, {"fault": "hang"}, headers=headers)
                assert seen.status == 403
        assert not model.report()["orders"]
        # Calls to the model are not restricted: browsers may chat.
        assert (await ask(model.url, OLLAMA, chat(), headers=headers)).status == 200


async def test_it_warns_if_other_machines_can_command_it(caplog: pytest.LogCaptureFixture) -> None:
    async with simulated():
        assert not caplog.records
    async with simulated(host=EVERYWHERE):
        assert "need no key" in caplog.text
