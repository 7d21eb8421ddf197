#!/bin/sh
# Run once by the image of Postgres, on an empty volume: a database, and its owner, who is no
# superuser. The tenants' role is made here, since such an owner may not make roles.
#
# No `set` of options: the image runs this file inside of its own script where it is not executable.
: "${PENSTOCK_DB_PASSWORD:?see README.md}"
# The password goes by the environment: arguments are for everyone on the host to see.
psql --no-psqlrc --quiet --set ON_ERROR_STOP=1 --username "$POSTGRES_USER" \
  --dbname "${POSTGRES_DB:-postgres}" <<'SQL'
\getenv password PENSTOCK_DB_PASSWORD
create role penstock login password :'password';
create role penstock_tenant nologin;
grant penstock_tenant to penstock;
create database penstock owner penstock;
SQL
