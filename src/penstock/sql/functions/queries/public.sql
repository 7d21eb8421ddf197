-- Which parts of a job are shown to whom. Operators, the app's own keys and the app's code see all
-- of it. Customers (keys of accounts, tokens for browsers, the role penstock_tenant, webhooks to
-- addresses that a submit named) see the reason of a failure in general words, and not where the
-- job ran: an exception may quote a prompt, a path or another system, and names of workers are
-- internal.
--
--                                       operators, app     customers
--   error.class, reason, retryable      as they are        as they are
--   error.message                       without keys       a sentence for the class, or the app's
--                                                          own message for people (`public`)
--   attempts[].error_class, outcome     as they are        as they are
--   attempts[].worker, message          as they are        null
--   attempts[].frames                   as they are        none
--   all else                            as it is           as it is

-- The sentences for class and reason; pages have the same in two languages, in
-- `penstock/element/texts.js`.
create or replace function penstock._general_words(p_class text, p_reason text) returns text
language sql immutable parallel safe
as $$
  select case p_reason
    when 'stuck_exhausted' then 'It was interrupted too often, and was given up.'
    else case p_class
      when 'timeout' then 'It exceeded its time limit and was stopped.'
      when 'stalled' then 'The AI service stopped in the middle of its answer.'
      when 'rate_limited' then 'The AI service received too many requests.'
      when 'overloaded' then 'The AI service was overloaded.'
      when 'unavailable' then 'The AI service could not be reached.'
      when 'quota' then 'The budget for the AI service is used up. The operators of this site '
        'have to raise it.'
      when 'auth' then 'The AI service refused our access. The operators of this site have to '
        'correct it.'
      when 'config' then 'A setting is wrong. The operators of this site have to correct it.'
      when 'input_too_long' then 'Your input is too long. Please shorten it.'
      when 'input_truncated' then 'Your input is too long to be read in full. Please shorten it.'
      when 'refused' then 'The AI service declined this input. Please change it.'
      when 'invalid_request' then 'This input could not be processed.'
      when 'bad_output' then 'The answer of the AI service was not usable.'
      when 'interrupted' then 'The work was interrupted and could not continue.'
      when 'provider_error' then 'The AI service reported an error.'
      when 'no_callback' then 'The service that processed this did not answer.'
      when 'worker_lost' then 'The machine that processed this failed.'
      when 'bug' then 'Something went wrong on our side.'
      when 'cancelled' then 'It was cancelled.'
      when 'expired' then 'It was not started before its deadline.'
      else 'Something went wrong.' end
      || case p_reason when 'attempts_exhausted' then ' It was tried as often as it may be.'
         else '' end end
$$;

-- An error as customers see it. `public`: the app wrote the message for people, with Fail or
-- Cancel.
create or replace function penstock._public_error(p_error jsonb) returns jsonb
language sql immutable parallel safe
as $$
  select case
    when jsonb_typeof(p_error) = 'object' then
      jsonb_build_object('class', p_error -> 'class', 'reason', p_error -> 'reason',
        'message', penstock._general_words(p_error ->> 'class', p_error ->> 'reason'),
        'retryable', coalesce(p_error -> 'retryable', 'false'))
      || case when p_error -> 'public' = 'true' then
        jsonb_build_object('message', p_error -> 'message', 'public', true) else '{}' end
    end
$$;

-- A job as customers see it, made from its JSON for operators.
create or replace function penstock._public_job(p_job jsonb) returns jsonb
language plpgsql immutable parallel safe set search_path = pg_catalog, pg_temp
as $$
begin
  if p_job -> 'error' <> 'null' then
    p_job := p_job || jsonb_build_object('error',
      penstock._public_error(p_job -> 'error')); -- guard: words
  end if;
  if p_job -> 'attempts' <> '[]' then
    p_job := p_job || jsonb_build_object('attempts', ( -- guard: starts
      select jsonb_agg(a || '{"worker": null, "message": null, "frames": []}' order by n)
      from jsonb_array_elements(p_job -> 'attempts') with ordinality t (a, n)));
  end if;
  return p_job;
end
$$;

-- Why a job of this connection's tenant did not succeed; null for jobs of others. This is the only
-- function that tenants may call: no argument names the caller.
create or replace function penstock.read_my_error(p_id uuid) returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set jit = off
as $$
  select penstock._public_error(e.error)
  from penstock.account a
  cross join lateral (
    select j.error from penstock.job j
    where j.id = p_id and j.account_id = a.id -- guard: theirs
    union all
    select f.error from penstock.finished f
    where f.id = p_id and f.account_id = a.id -- guard: theirs, ended
  ) e
  where a.name = current_setting('penstock.account', true)
$$;
