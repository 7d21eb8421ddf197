-- A worker starts only kinds it has a handler for: the claim looks for jobs by queue and kind.

-- The kinds whose jobs may lie in a queue: all that were ever declared in it.
create table penstock.queue_kind (
  queue_id integer not null references penstock.queue on delete cascade,
  kind_id integer not null references penstock.kind on delete cascade,
  primary key (queue_id, kind_id)
);
insert into penstock.queue_kind (queue_id, kind_id)
select k.queue_id, k.id from penstock.kind k
union
select j.queue_id, j.kind_id from penstock.job j;

-- What a worker serves, by name. Null: every queue, every kind (a worker of an earlier version).
alter table penstock.worker
  add column queues text[],
  add column kinds text[];

-- Claims need the new order of these two indexes at once, and all runs in one transaction.
-- squawk-ignore require-concurrent-index-deletion
drop index penstock.job_ready_idx;
-- The claim reads this from the left end of each kind: jobs in no lane, then each lane's own.
-- squawk-ignore require-concurrent-index-creation
create index job_ready_idx on penstock.job (queue_id, kind_id, lane, rank)
  where status = 'queued';

-- A lane holds the queued jobs of one kind: those of a kind that no worker has stand in front of
-- nobody. Under `fair` all lanes of an account in a queue share one virtual time.
alter table penstock.lane
  -- squawk-ignore ban-drop-constraint
  drop constraint lane_pkey,
  add column kind_id integer;
insert into penstock.lane (queue_id, account_id, kind_id, head, waiting, open)
select g.queue_id, g.account_id, g.kind_id,
  case when q.ordering = 'fair' then l.head else g.head end, g.waiting, l.open
from (
  select j.queue_id, j.lane as account_id, j.kind_id, min(j.rank) as head, count(*) as waiting
  from penstock.job j where j.status = 'queued' and j.lane >= 0
  group by j.queue_id, j.lane, j.kind_id
) g
join penstock.queue q on q.id = g.queue_id
join penstock.lane l on l.queue_id = g.queue_id and l.account_id = g.account_id;
delete from penstock.lane where kind_id is null;
-- There is one lane per limited account and queue that waits: few rows.
-- squawk-ignore constraint-missing-not-valid, adding-serial-primary-key-field
alter table penstock.lane add primary key (account_id, queue_id, kind_id);
-- squawk-ignore require-concurrent-index-deletion
drop index penstock.lane_open_idx;
-- squawk-ignore require-concurrent-index-creation
create index lane_open_idx on penstock.lane (queue_id, kind_id, head) where open and waiting > 0;
