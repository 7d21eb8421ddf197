alter table penstock.worker drop column accepting;
