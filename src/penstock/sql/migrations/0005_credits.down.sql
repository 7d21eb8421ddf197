drop policy if exists tenant_reads_own on penstock.job;
drop policy if exists tenant_reads_own on penstock.finished;
drop policy if exists tenant_reads_own on penstock.batch;
drop policy if exists tenant_reads_own on penstock.account;
alter table penstock.job disable row level security;
alter table penstock.finished disable row level security;
alter table penstock.batch disable row level security;
alter table penstock.account disable row level security;
-- Without books nothing can be charged: what live jobs have reserved goes back.
update penstock.account a set balance = a.balance + r.reserved
from (
  select j.account_id, sum(j.reserved) as reserved from penstock.job j
  where j.reserved > 0 group by j.account_id
) r
where a.id = r.account_id;
drop table penstock.recent_submit;
drop table penstock.resolution;
drop table penstock.ledger;
-- What is declared and not in force would never be: to declare the same again changes nothing.
update penstock.kind
set declared = declared - '{price, price_field, split_field, split_most}'::text[];
alter table penstock.kind drop column split_most, drop column split_field, drop column price;
alter table penstock.account drop constraint balance_is_bounded, drop column first_job_at;
alter table penstock.finished drop column priority_said, drop column first_job,
  drop column reserved;
alter table penstock.job drop constraint priced_has_account, drop column priority_said,
  drop column first_job, drop column units, drop column units_total, drop column reserved;
