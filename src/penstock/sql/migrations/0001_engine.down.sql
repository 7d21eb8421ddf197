drop table penstock.idempotency, penstock.orphan, penstock.attempt, penstock.finished,
  penstock.job, penstock.batch, penstock.worker, penstock.lane, penstock.account, penstock.plan,
  penstock.kind, penstock.gate, penstock.queue, penstock.retention_class, penstock.setting;
drop type penstock.job_status;
