"""All pages of an example tell the time in one form: that of <penstock-job>, in their language."""

import re

import pytest

from journeys.processes import EXAMPLES

# None of these takes noon for midnight: 21:02 on every page, and no 9:02 PM beside it.
LANGUAGES = {
    "essays": "en-GB",
    "feedback": "de",
    "marking": "en-GB",
    "scanner": "en-GB",
    "studio": "en-GB",
}


@pytest.mark.parametrize(("name", "language"), LANGUAGES.items())
def test_pages_of_an_example_have_one_language_and_one_clock(name: str, language: str) -> None:
    folder = EXAMPLES / name
    pages = [path.read_text() for path in (folder / "pages").glob("*.html")]
    said = {found for page in pages for found in re.findall(r'<html lang="([^"]+)"', page)}
    assert said == {language}
    for script in (folder / "static").glob("*.js"):
        text = script.read_text()
        # The language of the browser, or of the server, would be another clock.
        for form in re.findall(r"(?:DateTimeFormat|toLocale\w+)\(([^,)]*)", text):
            assert form == "document.documentElement.lang", script.name
