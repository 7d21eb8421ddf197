alter table penstock.queue drop column local_only;
drop index penstock.job_benched_idx;
drop index penstock.job_parked_idx;
drop index penstock.job_provisional_idx;
alter table penstock.job drop column benched, drop column isolated, drop column spared,
  drop column parked, drop column refunds, drop column provisional,
  drop column provisional_at;
drop table penstock.alert;
drop table penstock.circuit;
