-- A start that has given no sign of life for the queue's stale_after: said to whoever waits for it,
-- long before upkeep steps in (stuck_after), and no longer said when it moves on.

-- A length of time as people say it.
create or replace function penstock._time_words(p_length interval) returns text
language sql immutable
as $$
  select case when s.seconds < 120 then format('%s seconds', floor(s.seconds))
    when s.seconds < 7200 then format('%s minutes', floor(s.seconds / 60))
    else format('%s hours', floor(s.seconds / 3600)) end
  from (select date_part('epoch', p_length) as seconds) s
$$;

-- Null: not stale. `since` is its last sign of life.
create or replace function penstock._staleness(p_job penstock.job) returns jsonb
language sql stable set search_path = pg_catalog, pg_temp
as $$
  select jsonb_build_object('stale', true, 'since', penstock._rfc3339(s.since),
    'stage', p_job.stage, 'message', format(
      case when p_job.status = 'awaiting'
        then 'The service that works on this has not answered for %s.%s '
        else 'This takes longer than usual: there has been no news for %s.%s ' end
      || 'Nothing is lost: what was handed in is kept, and if it does not go on, that is noticed '
      'and dealt with without your doing.',
      penstock._time_words(s.now - s.since),
      ' It was last at: ' || nullif(p_job.stage_label, '') || '.'))
  from (
    select coalesce(p_job.progressed_at, p_job.started_at) as since, penstock.clock() as now
  ) s
  join penstock.queue q on q.id = p_job.queue_id
  where p_job.status in ('running', 'awaiting') -- guard: started
    and s.now - s.since >= q.stale_after -- guard: for long
$$;
