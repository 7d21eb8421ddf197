drop index penstock.erasure_at_idx;
drop table penstock.ended_session;
