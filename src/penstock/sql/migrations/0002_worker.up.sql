-- What workers add: what a start says while it runs, what it keeps for the next one, and how a
-- worker's death is seen at once.

-- Times the job was lost in company: which of the jobs of a dead worker killed it is not known.
-- After two the job is a suspect: it runs as the only one of its kind of its worker (alone), and
-- is charged when that worker dies again.
alter table penstock.job add column losses integer not null default 0;
alter table penstock.job add column alone boolean not null default false;
alter table penstock.job add column stage_label text;

alter table penstock.finished add column losses integer not null default 0;
-- What the last start used (tokens, seconds, …) and how many units it delivered, as it told.
alter table penstock.finished add column usage jsonb;
alter table penstock.finished add column units bigint;
alter table penstock.attempt add column usage jsonb;
alter table penstock.orphan add column usage jsonb;

-- It holds advisory locks on its sessions: none left means that it is dead, lease or not.
alter table penstock.worker add column locks boolean not null default false;

-- An app wants to be told of every end of such a job, with a transaction of ours to write in.
alter table penstock.kind add column hooked boolean not null default false;

-- One key for all its jobs: one of them may live at a time.
alter table penstock.kind add column dedupe_fixed text;

-- Ends that the app has not been told of.
create table penstock.hook (
  job_id uuid primary key,
  kind_id integer not null,
  tries integer not null default 0,
  next_at timestamptz not null
);
create index hook_next_idx on penstock.hook (kind_id, next_at);

-- What a start has done that the next one shall not do again.
create table penstock.step (
  job_id uuid not null,
  name text not null,
  attempt integer not null,
  kept_at timestamptz not null,
  result jsonb not null,
  primary key (job_id, name),
  constraint name_is_short check (length(name) between 1 and 200)
) partition by range (job_id);
create table penstock.step_rest partition of penstock.step default;

-- What a start emits as it goes: tokens, mostly. Read again from the beginning, or from a number.
create table penstock.chunk (
  job_id uuid not null,
  attempt integer not null,
  seq integer not null,
  data jsonb not null,
  primary key (job_id, attempt, seq)
) partition by range (job_id);
create table penstock.chunk_rest partition of penstock.chunk default;
