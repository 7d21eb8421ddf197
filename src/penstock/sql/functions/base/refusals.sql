-- How SQL refuses a call: SQLSTATE 'PS' + the HTTP status, a message for people, and in `detail` a
-- JSON object for programs. The API has one handler for it, the CLI one, Python one exception tree.

create or replace function penstock._refuse(
  p_status integer, p_code text, p_message text, p_field text default null,
  p_members jsonb default '{}', p_hint text default null
) returns void
language plpgsql set search_path = pg_catalog, pg_temp
as $$
begin
  raise exception using
    errcode = 'PS' || p_status,
    message = p_message,
    detail = (jsonb_strip_nulls(jsonb_build_object('code', p_code, 'field', p_field))
              || p_members)::text,
    hint = coalesce(p_hint, '');
end
$$;

-- Names of queues, kinds and plans appear in URLs, metrics and log lines.
create or replace function penstock._refuse_odd_name(p_name text, p_field text) returns void
language sql stable set search_path = pg_catalog, pg_temp
as $$
  select penstock._refuse(422, 'invalid_name',
    format('the %s name %s must be 1 to 100 letters, digits or any of _.:- and begin with a '
           'letter or digit', p_field, coalesce(quote_literal(p_name), 'null')), p_field)
  where p_name is null or p_name !~ '^[A-Za-z0-9][A-Za-z0-9_.:-]{0,99}$'
$$;

-- Refuses a page size out of range.
create or replace function penstock._refuse_odd_limit(p_limit integer) returns void
language sql stable set search_path = pg_catalog, pg_temp
as $$
  select penstock._refuse(422, 'invalid_filter', 'limit must be 1 to 1000', 'limit')
  where coalesce(p_limit, 0) not between 1 and 1000
$$;
