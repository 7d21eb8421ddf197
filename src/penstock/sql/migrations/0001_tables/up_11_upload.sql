-- Files that payloads and results refer to as {"upload": id}.
create table penstock.upload (
  id uuid primary key,
  account_id bigint not null default 0,
  size bigint not null,
  created_at timestamptz not null,
  -- When a job last referred to it; null: no job has yet.
  used_at timestamptz,
  content_type text not null,
  sha256 bytea not null,
  constraint size_is_not_negative check (size >= 0)
);
create index upload_account_idx on penstock.upload (account_id, created_at);
create index upload_created_idx on penstock.upload (created_at);

create table penstock.upload_part (
  upload_id uuid not null,
  n integer not null,
  data bytea not null,
  primary key (upload_id, n)
);
-- Not compressed: images are compressed already.
alter table penstock.upload_part alter column data set storage external;
