alter table penstock.job drop column blocks;
drop table penstock.blocked_loop_total;
drop table penstock.blocked_loop;
