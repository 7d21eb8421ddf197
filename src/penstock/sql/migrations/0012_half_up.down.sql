create index circuit_troubled_idx on penstock.circuit (queue_id)
  where state <> 'closed' or in_row > 0;
alter table penstock.circuit drop constraint shares_are_shares;
alter table penstock.circuit drop column suspect;
alter table penstock.circuit drop column eased_at;
alter table penstock.circuit drop column answered_start;
alter table penstock.circuit drop column answered_at;
alter table penstock.circuit drop column row_shared;
alter table penstock.circuit drop column row_account;
alter table penstock.circuit drop column row_refused;
alter table penstock.circuit drop column refused;
