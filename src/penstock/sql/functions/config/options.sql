-- The options of queues, plans, kinds and tables of prices, and the fields of a job in an array of
-- jobs: the values each may have, and its default. They arrive as JSON, from code, TOML, SQL or
-- HTTP.

--   field   the column that it sets
--   type    whole: from minimum to maximum; seconds: up to ten years, with minimum 0 also 0; kept:
--           seconds or "forever"; text: of at most `maximum` characters; choice: one of `choices`;
--           string, texts, flag, moment; other: read by a function of its own
--   preset  the value if the option is absent or null
create or replace function penstock._options(p_of text)
returns table (
  name text, field text, type text, minimum bigint, maximum bigint, preset jsonb, choices text
)
language sql immutable set search_path = pg_catalog, pg_temp
as $$
  select o.name, o.field, o.type, o.minimum, o.maximum, o.preset::jsonb, o.choices from (values
    ('queue', 'concurrency', 'concurrency', 'whole', 1, 1000000, null, null),
    ('queue', 'rate', 'rate', 'other', null, null, null, null),
    ('queue', 'burst', 'rate_burst', 'whole', 1, 1000000000, null, null),
    ('queue', 'order', 'ordering', 'choice', null, null, '"aging"', 'strict, aging, fair'),
    ('queue', 'aging_step_seconds', 'aging_step', 'seconds', 0, null, '"10 seconds"', null),
    ('queue', 'timeout_seconds', 'timeout', 'seconds', 1, null, '"2 minutes"', null),
    ('queue', 'stale_after_seconds', 'stale_after', 'seconds', 1, null, '"3 minutes"', null),
    ('queue', 'stuck_after_seconds', 'stuck_after', 'seconds', 1, null, null, null),
    ('queue', 'attempts', 'max_attempts', 'whole', 1, 1000, '3', null),
    ('queue', 'backoff', 'backoff', 'choice', null, null, '"linear"',
     'constant, linear, exponential'),
    ('queue', 'delay_seconds', 'backoff_delay', 'seconds', 0, null, '"5 minutes"', null),
    ('queue', 'backoff_max_seconds', 'backoff_max', 'seconds', 0, null, '"1 day"', null),
    ('queue', 'recovery', 'recovery', 'whole', 0, 1000, '3', null),
    ('queue', 'retention_seconds', 'retention', 'kept', 1, null, '"7 days"', null),
    ('queue', 'retention_failed_seconds', 'retention_failed', 'kept', 1, null, '"90 days"', null),
    ('queue', 'local_only', 'local_only', 'flag', null, null, 'false', null),
    ('queue', 'drive', 'drive', 'choice', null, null, '"worker"', 'worker, http'),
    ('plan', 'priority', 'priority', 'whole', -1000, 1000, '0', null),
    ('plan', 'concurrency', 'concurrency', 'whole', 1, 1000000, null, null),
    ('plan', 'per_hour', 'per_hour', 'whole', 1, 1000000000, null, null),
    ('plan', 'weight', 'weight', 'whole', 1, 1000, '1', null),
    ('plan', 'first_job', 'first_job', 'whole', -1000, 1000, '0', null),
    ('plan', 'default', 'default', 'flag', null, null, 'false', null),
    ('kind', 'attempts', 'max_attempts', 'whole', 1, 1000, null, null),
    ('kind', 'timeout_seconds', 'timeout', 'seconds', 1, null, null, null),
    ('kind', 'priority_offset', 'priority_offset', 'whole', -1000, 1000, '0', null),
    ('kind', 'dedupe_field', 'dedupe_field', 'text', 1, 200, null, null),
    ('kind', 'dedupe', 'dedupe_fixed', 'text', 1, 200, null, null),
    ('kind', 'topic_field', 'topic_field', 'text', 1, 200, null, null),
    ('kind', 'topic', 'topic_fixed', 'text', 1, 200, null, null),
    ('kind', 'account_field', 'account_field', 'text', 1, 200, null, null),
    ('kind', 'account', 'account_fixed', 'text', 1, 200, null, null),
    ('kind', 'computed', 'computed', 'texts', null, null, '[]', null),
    ('kind', 'has_on_finish', 'has_on_finish', 'flag', null, null, 'false', null),
    ('kind', 'price', 'price', 'other', null, null, null, null),
    ('kind', 'split_field', 'split_field', 'text', 1, 200, null, null),
    ('kind', 'split_most', 'split_most', 'whole', 1, 1000000, null, null),
    ('kind', 'webhook', 'webhook', 'other', null, null, null, null),
    ('price', 'per', 'per', 'text', 1, 200, null, null),
    ('price', 'by', 'by', 'text', 1, 200, null, null),
    ('job', 'kind', 'kind', 'string', null, null, null, null),
    ('job', 'payload', 'payload', 'other', null, null, null, null),
    ('job', 'account', 'account', 'string', null, null, null, null),
    ('job', 'priority', 'priority', 'whole', -1000, 1000, null, null),
    ('job', 'delay_seconds', 'delay', 'seconds', 0, null, null, null),
    ('job', 'run_at', 'run_at', 'moment', null, null, null, null),
    ('job', 'dedupe_key', 'dedupe_key', 'string', null, null, null, null),
    ('job', 'topic', 'topic', 'string', null, null, null, null),
    ('job', 'max_attempts', 'max_attempts', 'whole', 1, 1000, null, null),
    ('job', 'timeout_seconds', 'timeout', 'seconds', 1, null, null, null),
    ('job', 'expires_seconds', 'expires', 'seconds', 1, null, null, null),
    ('job', 'metadata', 'metadata', 'other', null, null, null, null),
    ('job', 'price', 'price', 'whole', 0, 1000000000000, null, null),
    ('job', 'webhook_url', 'webhook_url', 'string', null, null, null, null)
  ) o (of, name, field, type, minimum, maximum, preset, choices)
  where o.of = p_of
$$;

create or replace function penstock._is_moment(p_text text) returns boolean
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
begin
  return p_text::timestamptz is not null;
exception when data_exception then
  return false;
end
$$;

-- The values of options, for jsonb_populate_record: by the column that each sets, in a form that
-- the column's type reads. Refuses the first wrong value, and names its option. p_index: which of
-- several jobs.
create or replace function penstock._read_options(
  p_of text, p_options jsonb, p_index bigint default null
) returns jsonb
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
  v_code constant text := case p_of when 'job' then 'invalid_job' else 'invalid_option' end;
  v_members constant jsonb := jsonb_strip_nulls(jsonb_build_object('index', p_index));
  v_wrong record;
begin
  if jsonb_typeof(p_options) is distinct from 'object' then
    perform penstock._refuse(422, v_code,
      case p_of when 'job' then 'a job' else 'options' end || ' must be a JSON object',
      case p_of when 'job' then 'jobs' else 'options' end, v_members);
  end if;
  select k.name, (select string_agg(o.name, ', ') from penstock._options(p_of) o) as known
  into v_wrong
  from jsonb_object_keys(p_options) k (name)
  where not exists (select from penstock._options(p_of) o where o.name = k.name) limit 1;
  if found then
    perform penstock._refuse(422, 'unknown_option',
      format('%s is not an option; known are %s', v_wrong.name, v_wrong.known), v_wrong.name,
      v_members);
  end if;
  select o.name, case o.type
      when 'string' then 'a text'
      when 'moment' then 'a time such as 2030-01-31T12:00:00Z'
      when 'whole' then format('a whole number from %s to %s', o.minimum, o.maximum)
      when 'choice' then 'one of ' || o.choices
      when 'text' then format('a text of 1 to %s characters', o.maximum)
      when 'texts' then 'an array of texts'
      when 'flag' then 'true or false'
      else format('a number of seconds, %s and at most ten years',
                  case o.minimum when 0 then '0 or more' else 'more than 0' end) end
    || case when o.type in ('string', 'moment') then '' else ', not ' || v.value::text end
      as requirement
  into v_wrong
  from penstock._options(p_of) o
  cross join lateral (select nullif(p_options -> o.name, 'null')) v (value)
  cross join lateral (select jsonb_typeof(v.value), v.value #>> '{}') t (type, word)
  where v.value is not null and not case o.type
    when 'whole' then penstock._whole(v.value, o.minimum, o.maximum) is not null
    when 'choice' then t.type = 'string' and t.word = any (string_to_array(o.choices, ', '))
    when 'text' then t.type = 'string' and length(t.word) between 1 and o.maximum
    when 'string' then t.type = 'string'
    when 'moment' then t.type = 'string' and penstock._is_moment(t.word)
    when 'texts' then t.type = 'array'
      and not jsonb_path_exists(v.value, 'strict $[*] ? (@.type() != "string")')
    when 'flag' then t.type = 'boolean'
    when 'other' then true
    else o.type = 'kept' and t.word = 'forever' or case when t.type = 'number'
      then t.word::numeric between 0 and 3650 * 86400 and (o.minimum = 0 or t.word::numeric > 0)
      else false end
    end
  limit 1;
  if found then
    perform penstock._refuse(422, v_code, format('%s must be %s', v_wrong.name,
      v_wrong.requirement), v_wrong.name, v_members);
  end if;
  return (
    select jsonb_object_agg(o.field, case
      when v.value is null then o.preset
      when o.type = 'whole' then to_jsonb(penstock._whole(v.value, o.minimum, o.maximum))
      when v.value = '"forever"' and o.type = 'kept' then null
      when o.type in ('seconds', 'kept') then to_jsonb((v.value #>> '{}') || ' seconds')
      else v.value end)
    from penstock._options(p_of) o
    cross join lateral (select nullif(p_options -> o.name, 'null')) v (value));
end
$$;
