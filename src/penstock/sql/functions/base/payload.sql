-- Which payloads are allowed. jsonb accepts nesting that kills a JSON parser, and numbers that
-- print as a hundred thousand digits; both are refused before they are stored. (NUL and broken
-- characters cannot be in a jsonb; the engine refuses them with the field's name before the server
-- would.)

-- Whether a value would print as far more than its stored size: ten bytes can be a number of
-- 131,000 digits, and a thousand such numbers are more than a text may hold. A small value cannot.
create or replace function penstock._prints_too_long(p_value jsonb) returns boolean
language sql stable parallel safe
as $$
  select pg_column_size(p_value) > 2000
    and jsonb_path_exists(p_value, 'strict $.** ? (@.type() == "number"
      && (@ > 1e300 || @ < -1e300 || (@ < 1e-300 && @ > -1e-300 && @ != 0)))')
$$;

create or replace function penstock._refuse_long_numbers(p_payload jsonb) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
begin
  if penstock._prints_too_long(p_payload) then
    perform penstock._refuse(422, 'invalid_payload',
      'a number in payload has far too many digits', 'payload');
  end if;
end
$$;

-- Also checks rows that are inserted without a submit: a claim that cannot print one of its jobs
-- returns none.
create or replace function penstock._check_printed() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp
as $$
begin
  perform penstock._refuse_long_numbers(new.payload);
  return new;
end
$$;

create or replace trigger payload_can_be_printed
  before insert on penstock.job for each row
  when (pg_column_size(new.payload) > 2000)
  execute function penstock._check_printed();

create or replace function penstock._payload_fault(p_payload jsonb, p_setting penstock.setting)
returns text
language plpgsql immutable set search_path = pg_catalog, pg_temp
as $$
declare
  v_text text;
  v_brackets text;
begin
  if penstock._prints_too_long(p_payload) then
    return 'payload_number_too_long';
  end if;
  v_text := p_payload::text;
  if octet_length(v_text) > p_setting.payload_max_bytes then
    return 'payload_too_large';
  end if;
  -- A text this short can break none of the limits below; most payloads return here or after the
  -- counts.
  if length(v_text) <= 2 * p_setting.payload_max_depth then
    return null;
  end if;
  v_brackets := translate(v_text, '[{', '');
  if length(v_text) - length(v_brackets) <= p_setting.payload_max_depth
    and length(v_text) - length(translate(v_text, ':', '')) <= p_setting.payload_max_keys
    and not v_text ~ format('[0-9.]{%s}', least(p_setting.number_max_digits, 254) + 1)
  then
    return null;
  end if;

  -- Now exactly, without the contents of strings.
  v_text := regexp_replace(v_text, e'"([^"\\\\]|\\\\.)*"', '', 'g');
  if length(v_text) - length(translate(v_text, ':', '')) > p_setting.payload_max_keys then
    return 'payload_too_many_keys';
  end if;
  if exists (
    select from regexp_matches(v_text, '[0-9.]+', 'g') m (number)
    where length(replace(m.number[1], '.', '')) > p_setting.number_max_digits)
  then
    return 'payload_number_too_long';
  end if;
  v_brackets := regexp_replace(v_text, '[^][{}]', '', 'g');
  for v_level in 1 .. p_setting.payload_max_depth loop
    v_brackets := regexp_replace(v_brackets, '[[][]]|[{][}]', '', 'g');
    if v_brackets = '' then
      return null;
    end if;
  end loop;
  return 'payload_too_deep';
end
$$;
