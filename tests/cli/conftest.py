"""Running the command line inside the test's process, the way the shell would."""

from pathlib import Path

import pytest

from penstock.cli import main
from shapes import Done, Penstock


@pytest.fixture
def penstock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Penstock:
    """`penstock("migrate", "up")`, in an empty working folder and without PENSTOCK_ variables."""
    for name in ("PENSTOCK_DSN", "PENSTOCK_HOME", "PENSTOCK_LOG_LEVEL"):
        monkeypatch.delenv(name, raising=False)
    # No colours and no wrapping at the width of whoever runs the tests.
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> Done:
        monkeypatch.setattr("sys.argv", ["penstock", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        code = ended.value.code
        assert isinstance(code, int)
        out, err = capfd.readouterr()
        return Done(code, out, err)

    return run
