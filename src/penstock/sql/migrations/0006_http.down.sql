drop index penstock.job_recovered_idx;
drop table penstock.erasure;
drop index penstock.attempt_ended_idx;
drop index penstock.finished_ended_idx;
drop table penstock.rollup;
drop table penstock.hourly_bucket;
-- What is declared and not in force would never be: to declare the same again changes nothing.
update penstock.queue set declared = declared - 'drive', overrides = overrides - 'drive'
where declared ? 'drive' or overrides ? 'drive';
alter table penstock.queue drop column drive;
alter table penstock.setting drop column partitions_ahead;
alter table penstock.setting drop column upload_kept;
alter table penstock.setting drop column upload_quota_bytes;
alter table penstock.setting drop column upload_max_bytes;
drop table penstock.upload_part;
drop table penstock.upload;
drop table penstock.seen_callback;
drop table penstock.delivery;
update penstock.kind set declared = declared - 'webhook' where declared ? 'webhook';
alter table penstock.kind drop column webhook;
drop table penstock.job_webhook;
drop table penstock.api_key;
