-- Where in an app's code a queue, plan or kind is declared ({"file", "line", "host", "app"}): two
-- apps that declare it differently are named with file and line, and a declaration that has moved
-- is told from one that another app makes.
alter table penstock.queue add column declared_in jsonb;
alter table penstock.kind add column declared_in jsonb;
alter table penstock.plan add column declared_in jsonb;
