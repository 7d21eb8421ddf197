-- Time that tests control. Loaded over functions/base/clock.sql into databases that tests make.

create table penstock.test_clock (
  only_row boolean primary key default true check (only_row),
  moved interval not null default '0',
  frozen_at timestamptz
);
insert into penstock.test_clock default values;
grant select on penstock.test_clock to public;

create or replace function penstock.clock() returns timestamptz
language sql stable parallel safe set search_path = pg_catalog, pg_temp
as $$ select coalesce(c.frozen_at, clock_timestamp()) + c.moved from penstock.test_clock c $$;
