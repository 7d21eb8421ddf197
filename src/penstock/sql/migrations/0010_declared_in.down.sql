alter table penstock.queue drop column declared_in;
alter table penstock.kind drop column declared_in;
alter table penstock.plan drop column declared_in;
