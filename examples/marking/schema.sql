-- The app's own table. Safe to run again; run under a lock, since processes start together.

create schema if not exists marking;

create table if not exists marking.submission (
  id uuid primary key,
  assignment_id text not null,
  pupil text not null,
  answer text not null,
  -- Every job that was asked to mark it, the newest last: earlier ones failed.
  job_ids uuid[] not null default '{}',
  -- Written by on_finish. What lies between, the job alone knows.
  score integer,
  out_of integer,
  feedback text,
  marked_at timestamptz,
  times_marked integer not null default 0,
  constraint marked_whole check (
    num_nulls(score, out_of, feedback, marked_at) in (0, 4)
  ),
  constraint score_in_bounds check (score between 0 and out_of),
  constraint one_per_pupil unique (assignment_id, pupil)
);

-- By the teacher's hand: what the function says later changes nothing.
alter table marking.submission add column if not exists corrected_at timestamptz;

create index if not exists submission_jobs_idx on marking.submission using gin (job_ids);

-- A job as it is now; null once it is pruned, or where there is none.
create or replace function marking.read_job(p_job uuid) returns jsonb
language plpgsql stable
as $$
begin
  return penstock.read_job(p_job);
exception
  when sqlstate 'PS404' then
    return null;
end
$$;
