drop index penstock.lane_open_idx;
alter table penstock.lane drop constraint lane_pkey;
alter table penstock.lane alter column kind_id drop not null;
insert into penstock.lane (queue_id, account_id, head, waiting, open)
select l.queue_id, l.account_id, min(l.head), sum(l.waiting), bool_or(l.open)
from penstock.lane l where l.waiting > 0
group by l.queue_id, l.account_id;
delete from penstock.lane where kind_id is not null;
alter table penstock.lane drop column kind_id;
alter table penstock.lane add primary key (account_id, queue_id);
create index lane_open_idx on penstock.lane (queue_id, head) where open and waiting > 0;
drop index penstock.job_ready_idx;
create index job_ready_idx on penstock.job (queue_id, lane, rank) where status = 'queued';
alter table penstock.worker drop column queues, drop column kinds;
drop table penstock.queue_kind;
