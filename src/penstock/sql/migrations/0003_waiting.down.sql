drop table penstock.measured, penstock.snapshot, penstock.flow, penstock.pace;
