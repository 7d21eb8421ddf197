-- The form in which errors are stored.

-- The error as it is stored and shown: without keys and passwords in its message, from any writer.
create or replace function penstock._plain_error(p_error jsonb) returns jsonb
language sql immutable parallel safe
as $$
  select case when jsonb_typeof(p_error -> 'message') = 'string'
    then p_error || jsonb_build_object('message',
      penstock._redacted(left(p_error ->> 'message', 20000))) -- guard: words
    else p_error end
$$;

-- The error that is stored for a finished job and returned to its app. `reason` names the budget
-- that is used up.
create or replace function penstock._final_error(
  p_final penstock.job_status, p_outcome text, p_error jsonb
) returns jsonb
language sql immutable parallel safe
as $$
  select case p_final
    when 'succeeded' then null
    when 'failed' then coalesce(penstock._plain_error(p_error),
        '{"class": "bug", "message": "failed"}')
      || case p_outcome
           when 'failed' then '{}'::jsonb
           when 'stuck' then '{"reason": "stuck_exhausted"}'
           when 'lost' then '{"reason": "stuck_exhausted"}'
           else '{"reason": "attempts_exhausted"}' end
    else coalesce(penstock._plain_error(p_error),
      '{"class": "cancelled", "message": "cancelled"}')
  end
$$;
