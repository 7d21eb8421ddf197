-- What is kept of an error.

-- The error as it is kept and shown: without keys and passwords in its message, whoever wrote it.
create or replace function penstock._plain_error(p_error jsonb) returns jsonb
language sql immutable parallel safe
as $$
  select case when jsonb_typeof(p_error -> 'message') = 'string'
    then p_error || jsonb_build_object('message',
      penstock._redacted(left(p_error ->> 'message', 20000))) -- guard: words
    else p_error end
$$;

-- What is kept of why a job has ended, and told to its app; of a budget that is spent, which one.
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
