-- Stale attempts: running attempts without progress for the queue's `stale_after`. The client is
-- notified long before recovery begins (`stuck_after`), and again when the attempt makes progress.

-- A length of time in words.
create or replace function penstock._time_words(p_length interval) returns text
language sql immutable
as $$
  select case when s.seconds < 120 then format('%s seconds', floor(s.seconds))
    when s.seconds < 7200 then format('%s minutes', floor(s.seconds / 60))
    else format('%s hours', floor(s.seconds / 3600)) end
  from (select date_part('epoch', p_length) as seconds) s
$$;

-- Why a job is stale, for its JSON; null: not stale. `since`: its last progress.
create or replace function penstock._staleness(p_job penstock.job) returns jsonb
language sql stable set search_path = pg_catalog, pg_temp
as $$
  select jsonb_build_object('stale', true, 'since', penstock._rfc3339(s.since),
    'stage', p_job.stage, 'message', format(
      case when p_job.status = 'awaiting'
        then 'The service that works on this has not answered for %s.%s '
        else 'This takes longer than usual: there has been no news for %s.%s ' end
      || 'Nothing is lost: your request is stored. If the work does not continue, this is detected '
      'and handled automatically.',
      penstock._time_words(s.now - s.since),
      ' It was last at: ' || nullif(p_job.stage_label, '') || '.'))
  from (
    select coalesce(p_job.progressed_at, p_job.started_at) as since, penstock.clock() as now
  ) s
  join penstock.queue q on q.id = p_job.queue_id
  where p_job.status in ('running', 'awaiting') -- guard: started
    and s.now - s.since >= q.stale_after -- guard: for long
$$;
