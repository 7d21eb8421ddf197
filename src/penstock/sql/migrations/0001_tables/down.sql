-- In one statement, so that the order of foreign keys does not matter.
drop table
  penstock.setting, penstock.retention_class, penstock.queue, penstock.plan, penstock.kind,
  penstock.queue_kind,
  penstock.account, penstock.recent_submit, penstock.ledger, penstock.resolution,
  penstock.erasure,
  penstock.gate, penstock.lane,
  penstock.worker, penstock.blocked_loop, penstock.blocked_loop_total,
  penstock.batch, penstock.job, penstock.idempotency,
  penstock.attempt, penstock.step, penstock.chunk, penstock.late_result,
  penstock.finished, penstock.hourly_bucket, penstock.rollup,
  penstock.circuit, penstock.alert,
  penstock.pace, penstock.flow, penstock.snapshot, penstock.measured,
  penstock.pending_on_finish, penstock.job_webhook, penstock.delivery, penstock.seen_callback,
  penstock.upload, penstock.upload_part,
  penstock.api_key, penstock.closed_session;
drop type penstock.job_status, penstock.new_job;
