-- The app's own tables. Safe to run again; run under a lock, since processes start together.

create schema if not exists essays;

create table if not exists essays.writing_submissions (
  id bigint generated always as identity primary key,
  user_name text not null,
  task text not null,
  submission_key text not null,
  essay text not null,
  word_count integer not null,
  image bytea,
  image_type text,
  job_id uuid,
  -- "processing" is never written here: a worker that died would leave it behind. While a row is
  -- pending, Penstock knows whether somebody works on it.
  status text not null default 'pending',
  analysis_result jsonb,
  error_message text,
  submitted_at timestamptz not null default now(),
  processed_at timestamptz,
  constraint status_is_known check (status in ('pending', 'done', 'failed')),
  constraint done_has_result check ((status = 'done') = (analysis_result is not null)),
  constraint failed_has_message check ((status = 'failed') = (error_message is not null)),
  constraint ended_has_time check ((status = 'pending') = (processed_at is null)),
  constraint image_has_type check ((image is null) = (image_type is null)),
  constraint one_row_per_click unique (user_name, submission_key)
);

create index if not exists writing_submissions_status_idx
  on essays.writing_submissions (status, submitted_at);

create table if not exists essays.user_task_completions (
  user_name text not null,
  task text not null,
  submission_id bigint not null references essays.writing_submissions (id),
  completed_at timestamptz not null default now(),
  primary key (user_name, task)
);
