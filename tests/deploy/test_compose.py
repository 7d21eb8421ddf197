"""deploy/compose.yaml: valid by the specification, and with the intended settings."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from deploy.files import DEPLOY, TOML, check, compose, instruction, known_variables
from penstock.base.settings import Settings, duration
from penstock.cli.serving.processes import _LEAVE_SECONDS
from penstock.cli.serving.serving import GRACEFUL_SECONDS
from penstock.worker.worker import LAST_WRITES_SECONDS, STOP_SECONDS, Options
from support.signing import SECRET

OURS = ("migrate", "api", "worker")
SERVICES = compose()["services"]
every_service = pytest.mark.parametrize("name", SERVICES)


def test_it_fits_the_specification() -> None:
    """E10"""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "check_jsonschema", "--builtin-schema"),
            *("vendor.compose-spec", DEPLOY / "compose.yaml"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_has_all_services_of_a_small_system() -> None:
    """F11: and no broker."""
    assert list(SERVICES) == ["postgres", "ollama", "model", "migrate", "api", "worker"]


def test_workers_can_be_scaled() -> None:
    """E10: no setting prevents a second worker."""
    worker = SERVICES["worker"]
    assert worker["deploy"]["replicas"] == 2
    assert not {"container_name", "ports", "hostname", "volumes"} & worker.keys()
    assert "PENSTOCK_WORKER_ID" not in worker["environment"]


@every_service
def test_logs_are_bounded(name: str) -> None:
    """F8"""
    options = SERVICES[name]["logging"]["options"]
    assert SERVICES[name]["logging"]["driver"] == "json-file"
    assert re.fullmatch(r"\d+m", options["max-size"])
    assert int(options["max-file"]) <= 5


@every_service
def test_versions_are_named(name: str) -> None:
    image, _, tag = SERVICES[name]["image"].partition(":")
    assert re.match(r"\d+\.\d+", tag), f"{image} has no version"


@every_service
def test_all_services_are_in_one_network(name: str) -> None:
    assert SERVICES[name]["networks"] == list(compose()["networks"]) == ["queue"]


def test_only_this_machine_reaches_the_api_and_none_the_other_services() -> None:
    ports = {name: one["ports"] for name, one in SERVICES.items() if "ports" in one}
    assert ports == {"api": ["127.0.0.1:8484:8484"]}
    assert instruction("EXPOSE") == "8484"


def test_it_contains_no_secrets() -> None:
    written = (DEPLOY / "compose.yaml").read_text()
    for name, value in _variables():
        if re.search("SECRET|PASSWORD|KEY", name):
            assert re.fullmatch(r"\$\{[A-Z_]+:\?[^}]+\}", value), name
    assert re.findall(r"://[^:/]+:([^@]*)@", written) == ["${PENSTOCK_DB_PASSWORD:?see README.md}"]


def _variables() -> list[tuple[str, str]]:
    return [pair for one in SERVICES.values() for pair in one.get("environment", {}).items()]


@pytest.mark.parametrize("name", OURS)
def test_its_settings_are_known_and_valid(name: str, tmp_path: Path) -> None:
    given = SERVICES[name]["environment"]
    ours = {key for key in given if key.startswith("PENSTOCK_")}
    assert ours <= known_variables()
    assert given.keys() - ours == set(re.findall(r"\$(\w+)", TOML.read_text()))
    filled = {key: re.sub(r"\$\{\w+:[?-]([^}]*)\}", _fill, value) for key, value in given.items()}
    found = Settings.from_environment(filled, tmp_path)
    assert found.dsn
    assert found.public_url == "http://api:8484"


def _fill(found: re.Match[str]) -> str:
    return SECRET if ":?" in found[0] else found[1]


@pytest.mark.parametrize("name", OURS)
def test_its_command_is_one_of_the_program(name: str) -> None:
    check(SERVICES[name]["command"])


@pytest.mark.parametrize("name", OURS)
def test_it_has_few_rights(name: str) -> None:
    one = SERVICES[name]
    assert one["read_only"]
    assert one["cap_drop"] == ["ALL"]
    assert one["security_opt"] == ["no-new-privileges:true"]
    assert one["init"], "the first process of a container hears no signal that it does not handle"


def test_stopping_gets_the_time_that_it_needs() -> None:
    drain = Options(name="w").drain.total_seconds() + STOP_SECONDS + LAST_WRITES_SECONDS
    assert _seconds(SERVICES["worker"]["stop_grace_period"]) >= drain + 5
    needs = max(GRACEFUL_SECONDS, _LEAVE_SECONDS)
    assert _seconds(SERVICES["api"]["stop_grace_period"]) >= needs + 5


def _seconds(written: str) -> float:
    return duration(written, field="stop_grace_period").total_seconds()


def test_the_schema_is_migrated_before_other_services_start() -> None:
    done = {"condition": "service_completed_successfully"}
    assert SERVICES["api"]["depends_on"]["migrate"] == done
    assert SERVICES["worker"]["depends_on"]["migrate"] == done
    assert SERVICES["migrate"]["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    assert SERVICES["migrate"]["restart"] == "no"


def test_the_pulled_model_is_the_one_that_is_called() -> None:
    asked = tomllib.loads(TOML.read_text())["jobs"]["feedback"]["model"]
    [script] = SERVICES["model"]["command"]
    assert re.findall(r"\b(?:show|pull) ([\w.:-]+)", script) == [asked, asked]
    assert SERVICES["model"]["image"] == SERVICES["ollama"]["image"]


def test_services_without_an_address_have_no_health_check() -> None:
    assert SERVICES["worker"]["healthcheck"] == SERVICES["migrate"]["healthcheck"]
    assert SERVICES["worker"]["healthcheck"] == {"disable": True}
    assert "healthcheck" not in SERVICES["api"], "that of the image"


def test_its_files_exist() -> None:
    for one in compose()["configs"].values():
        assert (DEPLOY / one["file"]).is_file()
    build = SERVICES["api"]["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).samefile(DEPLOY / "Dockerfile")
