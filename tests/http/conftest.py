"""`site`: the API of an app on the test's database."""

from support.http.fixtures import no_environment, site

__all__ = ["no_environment", "site"]
