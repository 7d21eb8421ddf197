-- The app's own table. Safe to run again; run under a lock, since processes start together.

create schema if not exists scanner;

create table if not exists scanner.submission (
  -- By chance: who knows it may look at the submission.
  id uuid primary key default gen_random_uuid(),
  click text not null,
  name text not null,
  text text not null,
  behaviour text not null,
  -- The one that ended by our fault and is tried once more by this one.
  again_of uuid references scanner.submission (id),
  job_id uuid,
  -- What it is doing meanwhile is never written here: a worker that died would leave it behind.
  -- While a row is RECEIVED, Penstock knows its stage.
  state text not null default 'RECEIVED',
  reason text,
  findings jsonb not null default '[]',
  scanned_in_start integer,
  created_at timestamptz not null default now(),
  ended_at timestamptz,
  constraint state_is_known check (state in ('RECEIVED', 'PUBLISHED', 'REJECTED')),
  constraint ended_has_time check ((state = 'RECEIVED') = (ended_at is null)),
  constraint rejected_has_reason check ((state = 'REJECTED') = (reason is not null)),
  constraint findings_reject check ((reason is not distinct from 'findings') = (findings <> '[]')),
  constraint one_row_per_click unique (click),
  constraint one_more_try unique (again_of)
);

create index if not exists submission_created_idx on scanner.submission (created_at desc);

-- A job as it is now; null once it is pruned, or where there is none.
create or replace function scanner.read_job(p_job uuid) returns jsonb
language plpgsql stable
as $$
begin
  return penstock.read_job(p_job);
exception
  when sqlstate 'PS404' then
    return null;
end
$$;
