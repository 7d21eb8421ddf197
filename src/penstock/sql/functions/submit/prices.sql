-- What a job costs, and how a large request is split into jobs. The server reads both from the
-- payload, as the kind declares; it never uses a figure that the caller computed.

-- The value if it is a whole number of that range, else null.
create or replace function penstock._whole(p_value jsonb, p_min bigint, p_max bigint)
returns bigint
language sql immutable parallel safe
as $$
  select case when jsonb_typeof(p_value) = 'number' then
    case when (p_value #>> '{}')::numeric % 1 = 0
        and (p_value #>> '{}')::numeric between p_min and p_max
      then (p_value #>> '{}')::numeric::bigint end end
$$;

-- The number that a field asks for: a number of 1 or more, or the length of a list; else null.
create or replace function penstock._count_of(p_payload jsonb, p_field text) returns bigint
language sql immutable parallel safe
as $$
  select case jsonb_typeof(p_payload -> p_field)
    when 'array' then nullif(jsonb_array_length(p_payload -> p_field), 0)::bigint
    else penstock._whole(p_payload -> p_field, 1, 1000000) end
$$;

-- The price of a payload by a field or a table; null if it has none: _price_fault says why.
create or replace function penstock._price(p_price jsonb, p_payload jsonb) returns bigint
language plpgsql immutable parallel safe strict set search_path = pg_catalog, pg_temp
as $$
declare
  v_each bigint;
  v_count bigint := 1;
begin
  if p_price ? 'field' then
    return penstock._whole(p_payload -> (p_price ->> 'field'), 0, 1000000000000);
  end if;
  v_each := coalesce(p_price -> 'each',
    p_price -> 'table' -> (p_payload ->> (p_price ->> 'by')))::bigint;
  if p_price ? 'per' then
    v_count := penstock._count_of(p_payload, p_price ->> 'per');
  end if;
  return case when v_each * v_count <= 1000000000000 then v_each * v_count end;
end
$$;

-- The price of a payload. Inlined for a fixed price: a function call took most of the extra time of
-- a bulk submit.
create or replace function penstock._price_of(p_price jsonb, p_payload jsonb) returns bigint
language sql immutable parallel safe
as $$
  select case when p_price is null then null
    when p_price ? 'fixed' then (p_price -> 'fixed')::bigint
    else penstock._price(p_price, p_payload) end
$$;

-- Which field of the payload has no price, and which values it may have.
create or replace function penstock._price_fault(
  p_price jsonb, p_payload jsonb, out field text, out message text
)
language plpgsql immutable set search_path = pg_catalog, pg_temp
as $$
begin
  if p_price ? 'field' then
    field := p_price ->> 'field';
    message := format('%s is the price: it must be a whole number from 0 to 1000000000000', field);
  elsif p_price ? 'per' and penstock._count_of(p_payload, p_price ->> 'per') is null then
    field := p_price ->> 'per';
    message := format('%s must be a whole number from 1 to 1000000, or a list of one or more: '
                      'the price depends on it', field);
  elsif p_price ? 'by' and not p_price -> 'table' ? coalesce(p_payload ->> (p_price ->> 'by'), '')
  then
    field := p_price ->> 'by';
    message := format('%s must be one of %s: the price depends on it', field, (
      select string_agg(k, ', ' order by k) from jsonb_object_keys(p_price -> 'table') k));
  else
    field := p_price ->> 'per';
    message := format('%s must be less: the price would be more than 1000000000000 credits', field);
  end if;
end
$$;

-- Brings a declared price into the form of penstock.kind: a number, a field, or a table. A field of
-- the payload is accepted only if the declaration calls it trusted, since the caller who submits a
-- job writes its payload. Account keys may not submit such a kind.
create or replace function penstock._read_price(p_options jsonb) returns jsonb
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
  v_price jsonb := nullif(p_options -> 'price', 'null');
  v_field text;
  v_table jsonb;
  v_key text;
begin
  if jsonb_typeof(v_price) = 'string' then
    v_price := jsonb_build_object('field', v_price);
  end if;
  if v_price is null then
    return null;
  elsif jsonb_typeof(v_price) = 'object' and v_price ? 'field' and not v_price ?| '{per,by}' then
    v_field := v_price ->> 'field';
    if jsonb_typeof(v_price -> 'field') <> 'string' or length(v_field) not between 1 and 200 then
      perform penstock._refuse(422, 'invalid_option',
        format('the field of a price must be a text of 1 to 200 characters, not %s',
               v_price -> 'field'), 'price');
    end if;
    if v_price - 'field' <> '{"trusted": true}' -- guard: trusted
    then
      perform penstock._refuse(422, 'invalid_option',
        format('price is taken from the field %s, so whoever submits the job could set it to 0',
               v_field), 'price',
        p_hint => 'Give a number or a table. If only your own backend submits this kind, write '
          '{"field": "…", "trusted": true}; keys of accounts are then refused.');
    end if;
    return jsonb_build_object('field', v_field);
  elsif jsonb_typeof(v_price) <> 'object' then
    if penstock._whole(v_price, 0, 1000000000000) is null then
      perform penstock._refuse(422, 'invalid_option', format(
        'price must be a whole number from 0 to 1000000000000, or a table, not %s', v_price),
        'price');
    end if;
    return case when v_price <> '0' then jsonb_build_object('fixed', v_price) end;
  end if;
  v_table := v_price - 'per' - 'by' - 'each';
  if not (v_price ? 'per' or v_price ? 'by')
    or (v_price ? 'by') = (v_price ? 'each') or (v_price ? 'by') = (v_table = '{}')
    or v_price -> 'per' = v_price -> 'by'
    or v_price -> 'per' = 'null' or v_price -> 'by' = 'null'
  then
    perform penstock._refuse(422, 'invalid_option',
      'price must look like {"per": "images", "each": 2}, '
      '{"by": "quality", "standard": 1, "high": 3}, or have both `per` and `by`', 'price');
  end if;
  perform penstock._read_options('price', jsonb_strip_nulls(
    jsonb_build_object('per', v_price -> 'per', 'by', v_price -> 'by')));
  for v_key in select k from jsonb_object_keys(v_price - 'per' - 'by') k loop
    if penstock._whole(v_price -> v_key, 0, 1000000000000) is null then
      perform penstock._refuse(422, 'invalid_option',
        format('price.%s must be a whole number from 0 to 1000000000000, not %s', v_key,
               v_price -> v_key), 'price');
    end if;
  end loop;
  return jsonb_strip_nulls(jsonb_build_object('per', v_price -> 'per', 'by', v_price -> 'by',
    'each', v_price -> 'each', 'table', case when v_price ? 'by' then v_table end));
end
$$;

-- The payloads into which a request for more than p_most is split; null if the field has no number.
create or replace function penstock._pieces(p_payload jsonb, p_field text, p_most integer)
returns jsonb[]
language sql immutable set search_path = pg_catalog, pg_temp
as $$
  select array_agg(p_payload || jsonb_build_object(p_field, c.piece) order by c.n)
  from (
    select (e.n - 1) / p_most as n, jsonb_agg(e.value order by e.n) as piece
    from jsonb_array_elements(case jsonb_typeof(p_payload -> p_field)
      when 'array' then p_payload -> p_field end) with ordinality e (value, n)
    group by 1
    union all
    select b.begun, to_jsonb(least(p_most, w.n - b.begun))
    from penstock._whole(p_payload -> p_field, 1, 1000000) w (n)
    cross join lateral generate_series(0, w.n - 1, p_most::bigint) b (begun)
  ) c
$$;
