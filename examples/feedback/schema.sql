-- The app's own table. Safe to run again; run under a lock, since processes start together.

create schema if not exists feedback;

create table if not exists feedback.submission (
  id bigint generated always as identity primary key,
  pupil text not null,
  task text not null,
  submission_key text not null,
  answer text not null,
  job_id uuid,
  -- Stored are beginning and end. What lies between ('processing', 'retry') the job alone knows: a
  -- worker that died would leave it behind here. So with the place in the line, which is computed.
  feedback_status text not null default 'pending',
  retry_count integer not null default 0,
  last_retry_at timestamptz,
  processing_started_at timestamptz,
  feedback text,
  error_class text,
  created_at timestamptz not null default now(),
  finished_at timestamptz,
  constraint feedback_status_is_known
    check (feedback_status in ('pending', 'processing', 'completed', 'failed', 'retry')),
  constraint completed_has_feedback check ((feedback_status = 'completed') = (feedback is not null)),
  constraint failed_has_class check ((feedback_status = 'failed') = (error_class is not null)),
  constraint ended_has_time
    check ((feedback_status in ('completed', 'failed')) = (finished_at is not null)),
  constraint one_row_per_click unique (pupil, submission_key)
);

-- Of the class of fifty that hands in at a button: no pupil, whatever name they choose, sees it.
alter table feedback.submission add column if not exists simulated boolean not null default false;

create index if not exists submission_feedback_queue_idx
  on feedback.submission (created_at) where finished_at is null;
create index if not exists submission_pupil_idx on feedback.submission (pupil, task, id);

-- The job of a submission, while it runs with what the model has said so far. Null where there is
-- none: the queue's schema may be taken away (`penstock migrate down`) while this table stays.
-- In PL/pgSQL, whose body holds on to nothing that such a migration drops.
create or replace function feedback.read_job(p_job uuid, p_words boolean) returns jsonb
language plpgsql stable
as $$
declare
  v_job jsonb;
begin
  v_job := penstock.read_job(p_job);
  if p_words and v_job ->> 'status' = 'running' then
    v_job := v_job || jsonb_build_object('so_far', (
      select string_agg(c.data #>> '{}', '' order by c.seq)
      from penstock.read_chunks(p_job, (v_job ->> 'attempt')::integer - 1, 2147483647, 10000) c));
  end if;
  return v_job;
exception
  when sqlstate 'PS404' or undefined_function or invalid_schema_name then
    return null;
end
$$;
