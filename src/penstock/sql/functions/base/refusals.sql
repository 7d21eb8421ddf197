-- How SQL says no: SQLSTATE 'PS' + the HTTP status, a sentence for people, and in `detail` a JSON
-- object for programs. One handler in the API, one in the CLI, one exception tree in Python.

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

-- Options arrive as JSON from code, TOML or HTTP; these read one and refuse a wrong one by name.

create or replace function penstock._option_integer(
  p_options jsonb, p_key text, p_min bigint, p_max bigint
) returns integer
language plpgsql immutable set search_path = pg_catalog, pg_temp
as $$
declare
  v_value jsonb := p_options -> p_key;
begin
  if v_value is null or v_value = 'null' then
    return null;
  end if;
  if jsonb_typeof(v_value) <> 'number' or (v_value #>> '{}')::numeric % 1 <> 0
    or (v_value #>> '{}')::numeric not between p_min and p_max
  then
    perform penstock._refuse(422, 'invalid_option',
      format('%s must be a whole number from %s to %s, not %s', p_key, p_min, p_max, v_value),
      p_key);
  end if;
  return (v_value #>> '{}')::numeric;
end
$$;

create or replace function penstock._option_seconds(
  p_options jsonb, p_key text, p_allow_zero boolean default false
) returns interval
language plpgsql immutable set search_path = pg_catalog, pg_temp
as $$
declare
  v_value jsonb := p_options -> p_key;
  v_seconds numeric;
begin
  if v_value is null or v_value = 'null' then
    return null;
  end if;
  if jsonb_typeof(v_value) = 'number' then
    v_seconds := (v_value #>> '{}')::numeric;
  end if;
  if v_seconds is null or v_seconds < 0 or (v_seconds = 0 and not p_allow_zero)
    or v_seconds > 3650 * 86400
  then
    perform penstock._refuse(422, 'invalid_option',
      format('%s must be a number of seconds, %s and at most ten years, not %s', p_key,
             case when p_allow_zero then '0 or more' else 'more than 0' end, v_value),
      p_key);
  end if;
  return make_interval(secs => v_seconds);
end
$$;

create or replace function penstock._option_word(
  p_options jsonb, p_key text, p_allowed text[]
) returns text
language plpgsql immutable set search_path = pg_catalog, pg_temp
as $$
declare
  v_value jsonb := p_options -> p_key;
begin
  if v_value is null or v_value = 'null' then
    return null;
  end if;
  if jsonb_typeof(v_value) <> 'string' or not (v_value #>> '{}') = any (p_allowed) then
    perform penstock._refuse(422, 'invalid_option',
      format('%s must be one of %s, not %s', p_key, array_to_string(p_allowed, ', '), v_value),
      p_key);
  end if;
  return v_value #>> '{}';
end
$$;

create or replace function penstock._option_text(p_options jsonb, p_key text) returns text
language plpgsql immutable set search_path = pg_catalog, pg_temp
as $$
declare
  v_value jsonb := p_options -> p_key;
begin
  if v_value is null or v_value = 'null' then
    return null;
  end if;
  if jsonb_typeof(v_value) <> 'string' or length(v_value #>> '{}') not between 1 and 200 then
    perform penstock._refuse(422, 'invalid_option',
      format('%s must be a text of 1 to 200 characters, not %s', p_key, v_value), p_key);
  end if;
  return v_value #>> '{}';
end
$$;

create or replace function penstock._option_texts(p_options jsonb, p_key text) returns text[]
language plpgsql immutable set search_path = pg_catalog, pg_temp
as $$
declare
  v_value jsonb := p_options -> p_key;
begin
  if v_value is null or v_value = 'null' then
    return '{}';
  end if;
  if jsonb_typeof(v_value) <> 'array'
    or jsonb_path_exists(v_value, 'strict $[*] ? (@.type() != "string")')
  then
    perform penstock._refuse(422, 'invalid_option',
      format('%s must be an array of texts, not %s', p_key, v_value), p_key);
  end if;
  return array(select jsonb_array_elements_text(v_value));
end
$$;

create or replace function penstock._option_boolean(p_options jsonb, p_key text) returns boolean
language plpgsql immutable set search_path = pg_catalog, pg_temp
as $$
declare
  v_value jsonb := p_options -> p_key;
begin
  if v_value is null or v_value = 'null' then
    return null;
  end if;
  if jsonb_typeof(v_value) <> 'boolean' then
    perform penstock._refuse(422, 'invalid_option',
      format('%s must be true or false, not %s', p_key, v_value), p_key);
  end if;
  return v_value::boolean;
end
$$;

create or replace function penstock._refuse_unknown_options(p_options jsonb, p_known text[])
returns void
language plpgsql immutable set search_path = pg_catalog, pg_temp
as $$
declare
  v_key text;
begin
  if jsonb_typeof(p_options) is distinct from 'object' then
    perform penstock._refuse(422, 'invalid_option', 'options must be a JSON object', 'options');
  end if;
  select k into v_key from jsonb_object_keys(p_options) k where k <> all (p_known) limit 1;
  if found then
    perform penstock._refuse(422, 'unknown_option',
      format('%s is not an option; known are %s', v_key, array_to_string(p_known, ', ')), v_key);
  end if;
end
$$;

-- Names of queues, kinds and plans end up in URLs, metrics and log lines.
create or replace function penstock._refuse_odd_name(p_name text, p_field text) returns void
language plpgsql immutable set search_path = pg_catalog, pg_temp
as $$
begin
  if p_name is null or p_name !~ '^[A-Za-z0-9][A-Za-z0-9_.:-]{0,99}$' then
    perform penstock._refuse(422, 'invalid_name',
      format('the %s name %s must be 1 to 100 letters, digits or any of _.:- and begin with a '
             'letter or digit', p_field, coalesce(quote_literal(p_name), 'null')), p_field);
  end if;
end
$$;
