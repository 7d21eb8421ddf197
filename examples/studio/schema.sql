-- The app's own tables. Safe to run again; run under a lock, since processes start together.
-- Credits are not here: Penstock's ledger has them.

create schema if not exists studio;

-- What was ordered, as one: large orders run as more than one job.
create table if not exists studio.generation (
  id uuid primary key, -- of its first job, and so in the order of time
  batch uuid not null,
  account text not null,
  job_type text not null,
  prompt text not null,
  images integer not null,
  quality text not null,
  job_ids uuid[] not null,
  created_at timestamptz not null default now(),
  constraint images_in_bounds check (images between 1 and 8),
  constraint has_jobs check (cardinality(job_ids) between 1 and images)
);

create index if not exists generation_account_idx on studio.generation (account, id desc);

-- What the model drew, kept by the step that asked for it: once for each number, whatever number of
-- attempts.
create table if not exists studio.image (
  job_id uuid not null,
  number integer not null,
  account text not null,
  png bytea not null,
  created_at timestamptz not null default now(),
  primary key (job_id, number)
);

-- The history: a row for each job that has ended, written in the transaction that ends it. Penstock
-- keeps jobs for a week; pictures that were paid for stay.
create table if not exists studio.generation_jobs (
  job_id uuid primary key,
  account text not null,
  job_type text not null,
  prompt text not null,
  quality text not null,
  images integer not null,
  status text not null,
  pictures jsonb not null,
  credits_reserved bigint not null,
  credits_charged bigint not null,
  error_class text,
  created_at timestamptz not null,
  completed_at timestamptz not null,
  constraint status_is_known check (status in ('completed', 'failed', 'cancelled')),
  constraint charged_within_reserved check (credits_charged between 0 and credits_reserved),
  constraint failed_is_free check (status <> 'failed' or credits_charged = 0)
);

-- A job as it is now; null once it is pruned.
create or replace function studio.read_job(p_job uuid) returns jsonb
language plpgsql stable
as $$
begin
  return penstock.read_job(p_job);
exception
  when sqlstate 'PS404' then
    return null;
end
$$;
