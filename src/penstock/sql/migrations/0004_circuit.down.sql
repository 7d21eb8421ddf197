alter table penstock.queue drop column local_only;
drop index penstock.job_parked_idx;
drop index penstock.job_provisional_idx;
alter table penstock.job drop column parked, drop column refunds, drop column provisional_at;
drop table penstock.alert;
drop table penstock.circuit;
