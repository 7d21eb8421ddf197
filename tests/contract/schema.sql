CREATE SCHEMA penstock;

CREATE TYPE penstock.job_status AS ENUM (
    'scheduled',
    'queued',
    'running',
    'awaiting',
    'succeeded',
    'failed',
    'cancelled'
);

CREATE TYPE penstock.new_job AS (
	ordinal bigint,
	kind text,
	payload jsonb,
	account text,
	dedupe_key text,
	topic text,
	priority integer,
	run_at timestamp with time zone,
	delay interval,
	max_attempts integer,
	timeout interval,
	expires interval,
	metadata jsonb,
	price bigint,
	webhook_url text
);

CREATE FUNCTION penstock._accepted_kinds(p_before timestamp with time zone, p_now timestamp with time zone) RETURNS TABLE(queue_id integer, kind_id integer, since timestamp with time zone)
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE TABLE penstock.account (
    id bigint NOT NULL,
    balance bigint DEFAULT 0 NOT NULL,
    running integer DEFAULT 0 NOT NULL,
    concurrency integer,
    weight integer DEFAULT 1 NOT NULL,
    limited_at timestamp with time zone NOT NULL,
    created_at timestamp with time zone NOT NULL,
    first_job_at timestamp with time zone,
    name text,
    plan text,
    CONSTRAINT balance_is_bounded CHECK ((balance <= '1000000000000000000'::bigint)),
    CONSTRAINT balance_not_negative CHECK ((balance >= 0)),
    CONSTRAINT name_is_short CHECK (((length(name) >= 1) AND (length(name) <= 200))),
    CONSTRAINT running_is_not_negative CHECK ((running >= 0))
)
WITH (fillfactor='50');

CREATE FUNCTION penstock._account_json(p_account penstock.account) RETURNS jsonb
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._account_locked(p_account bigint) RETURNS boolean
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._add_arrays(p_one bigint[], p_other bigint[], p_sign integer) RETURNS bigint[]
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._add_outcomes(p_from timestamp with time zone, p_until timestamp with time zone, p_again boolean) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE TABLE penstock.circuit (
    queue_id integer NOT NULL,
    state text DEFAULT 'closed'::text NOT NULL,
    class text,
    reason text,
    changed_at timestamp with time zone DEFAULT '-infinity'::timestamp with time zone NOT NULL,
    next_at timestamp with time zone,
    tries integer DEFAULT 0 NOT NULL,
    probe_job uuid,
    probe_attempt integer,
    suspect bigint,
    allowed integer,
    resume integer DEFAULT 1 NOT NULL,
    eased_at timestamp with time zone DEFAULT '-infinity'::timestamp with time zone NOT NULL,
    in_row integer DEFAULT 0 NOT NULL,
    row_trouble text,
    row_job uuid,
    row_mixed boolean DEFAULT false NOT NULL,
    row_account bigint,
    row_shared boolean DEFAULT false NOT NULL,
    refused double precision DEFAULT 0 NOT NULL,
    row_refused double precision DEFAULT 0 NOT NULL,
    answered_at timestamp with time zone DEFAULT '-infinity'::timestamp with time zone NOT NULL,
    answered_start timestamp with time zone DEFAULT '-infinity'::timestamp with time zone NOT NULL,
    address text,
    reachable boolean DEFAULT false NOT NULL,
    checked_at timestamp with time zone DEFAULT '-infinity'::timestamp with time zone NOT NULL,
    CONSTRAINT counts_are_not_negative CHECK (((tries >= 0) AND (in_row >= 0) AND (resume >= 1))),
    CONSTRAINT open_has_a_next CHECK (((state <> 'open'::text) OR ((next_at IS NULL) = (class IS NULL)))),
    CONSTRAINT probe_is_whole CHECK (((probe_job IS NULL) = (probe_attempt IS NULL))),
    CONSTRAINT ramp_is_positive CHECK ((((state = 'ramping'::text) = (allowed IS NOT NULL)) AND (allowed >= 1))),
    CONSTRAINT shares_are_shares CHECK ((((refused >= (0)::double precision) AND (refused <= (1)::double precision)) AND ((row_refused >= (0)::double precision) AND (row_refused <= (1)::double precision)))),
    CONSTRAINT state_is_known CHECK ((state = ANY (ARRAY['closed'::text, 'open'::text, 'ramping'::text])))
)
WITH (fillfactor='50');

CREATE FUNCTION penstock._after_answer(p_circuit penstock.circuit, p_started_at timestamp with time zone, p_full integer, p_now timestamp with time zone) RETURNS penstock.circuit
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._answered_lately(p_circuit penstock.circuit, p_now timestamp with time zone) RETURNS boolean
    LANGUAGE sql IMMUTABLE;

CREATE FUNCTION penstock._apply_outcomes_to_circuits(p_jobs uuid[], p_attempts integer[], p_queues integer[], p_started_ats timestamp with time zone[], p_outcomes text[], p_errors jsonb[], p_effects text[], p_retry_afters interval[], p_addresses text[], p_now timestamp with time zone) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._attempt_json(p_attempt integer, p_worker text, p_started_at timestamp with time zone, p_settled_at timestamp with time zone, p_outcome text, p_error jsonb) RETURNS jsonb
    LANGUAGE sql STABLE;

CREATE FUNCTION penstock._attempts_json(p_job uuid) RETURNS jsonb
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan';

CREATE FUNCTION penstock._await_disk() RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._await_lane(p_queue integer, p_kinds integer[]) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '100ms';

CREATE FUNCTION penstock._await_queue_lock(p_lock integer, p_queue integer) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '3s';

CREATE FUNCTION penstock._await_standbys() RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._backoff(p_policy text, p_delay interval, p_max interval, p_failures integer) RETURNS interval
    LANGUAGE sql IMMUTABLE PARALLEL SAFE;

CREATE TABLE penstock.job (
    id uuid NOT NULL,
    rank bigint NOT NULL,
    lane bigint NOT NULL,
    account_id bigint NOT NULL,
    reserved bigint DEFAULT 0 NOT NULL,
    created_at timestamp with time zone NOT NULL,
    updated_at timestamp with time zone NOT NULL,
    run_at timestamp with time zone NOT NULL,
    queue_id integer NOT NULL,
    kind_id integer NOT NULL,
    status penstock.job_status NOT NULL,
    priority integer NOT NULL,
    version integer DEFAULT 1 NOT NULL,
    attempt integer DEFAULT 0 NOT NULL,
    max_attempts integer NOT NULL,
    failures integer DEFAULT 0 NOT NULL,
    deferrals integer DEFAULT 0 NOT NULL,
    crashes integer DEFAULT 0 NOT NULL,
    losses integer DEFAULT 0 NOT NULL,
    slots_held smallint DEFAULT 0 NOT NULL,
    provisional smallint DEFAULT 0 NOT NULL,
    withdrawn_failures smallint DEFAULT 0 NOT NULL,
    uncounted_failures smallint DEFAULT 0 NOT NULL,
    isolated smallint DEFAULT 0 NOT NULL,
    only_suspect boolean DEFAULT false NOT NULL,
    blocks boolean DEFAULT false NOT NULL,
    deferred_probe boolean DEFAULT false NOT NULL,
    failure_pending boolean DEFAULT false NOT NULL,
    first_job boolean DEFAULT false NOT NULL,
    priority_given boolean DEFAULT false NOT NULL,
    worker_id bigint,
    started_at timestamp with time zone,
    timeout_at timestamp with time zone,
    deadline_at timestamp with time zone,
    progressed_at timestamp with time zone,
    stage_at timestamp with time zone,
    expires_at timestamp with time zone,
    recovered_at timestamp with time zone,
    cancel_requested_at timestamp with time zone,
    provisional_at timestamp with time zone,
    units bigint,
    units_total bigint,
    timeout interval,
    batch_id uuid,
    retry_of uuid,
    callback_hash bytea,
    dedupe_key text,
    topic text,
    stage text,
    stage_label text,
    progress jsonb,
    error jsonb,
    metadata jsonb,
    payload jsonb NOT NULL,
    CONSTRAINT attempts_are_left CHECK ((failures < max_attempts)),
    CONSTRAINT awaiting_has_callback CHECK (((status = 'awaiting'::penstock.job_status) = (callback_hash IS NOT NULL))),
    CONSTRAINT counters_are_not_negative CHECK (((attempt >= 0) AND (failures >= 0) AND (deferrals >= 0) AND (crashes >= 0))),
    CONSTRAINT failure_pending_is_scheduled CHECK (((NOT failure_pending) OR (status = 'scheduled'::penstock.job_status))),
    CONSTRAINT lane_is_the_accounts CHECK (((lane = '-1'::integer) OR (lane = account_id))),
    CONSTRAINT live_only CHECK ((status = ANY (ARRAY['scheduled'::penstock.job_status, 'queued'::penstock.job_status, 'running'::penstock.job_status, 'awaiting'::penstock.job_status]))),
    CONSTRAINT priced_has_account CHECK (((reserved = 0) OR ((reserved > 0) AND (account_id <> 0)))),
    CONSTRAINT priority_in_range CHECK (((priority >= '-1000'::integer) AND (priority <= 1000))),
    CONSTRAINT running_has_worker CHECK (((status = 'running'::penstock.job_status) = (worker_id IS NOT NULL))),
    CONSTRAINT started_has_deadline CHECK (((status = ANY (ARRAY['running'::penstock.job_status, 'awaiting'::penstock.job_status])) = (deadline_at IS NOT NULL))),
    CONSTRAINT waiting_has_no_slots CHECK (((slots_held = 0) OR (status = ANY (ARRAY['running'::penstock.job_status, 'awaiting'::penstock.job_status]))))
)
WITH (fillfactor='80', toast_tuple_target='512', autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='2000', autovacuum_analyze_scale_factor='0.1', autovacuum_vacuum_cost_delay='0');

CREATE FUNCTION penstock._backs_off(p_job penstock.job) RETURNS boolean
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._batch_items(p_batch uuid) RETURNS TABLE(id uuid, status penstock.job_status, started boolean, done numeric, reserved bigint, finished_at timestamp with time zone)
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._begin_probe(p_queue integer, p_job uuid) RETURNS void
    LANGUAGE sql
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._blocked_loop_gauges() RETURNS jsonb
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._blocked_loops(p_now timestamp with time zone) RETURNS TABLE(worker_id bigint, began_at timestamp with time zone, job_id uuid, attempt integer)
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._book(p_kind text, p_accounts bigint[], p_amounts bigint[], p_jobs uuid[], p_ref text DEFAULT NULL::text, p_reason text DEFAULT NULL::text) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan';

CREATE FUNCTION penstock._book_once(p_account penstock.account, p_kind text, p_amount bigint, p_reason text, p_ref text) RETURNS jsonb
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._by_snapshot(p_job penstock.job, p_kinds integer[], p_lanes bigint[], p_snapshot bigint, p_edge bigint, p_most integer, p_typical double precision, p_mixed boolean, OUT jobs bigint, OUT work double precision) RETURNS record
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._charged(p_status penstock.job_status, p_reserved bigint, p_total bigint, p_units bigint) RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE;

CREATE FUNCTION penstock._check_limit(p_limit integer) RETURNS void
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._check_printed() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE TABLE penstock.queue (
    id integer NOT NULL,
    name text NOT NULL,
    declared jsonb DEFAULT '{}'::jsonb NOT NULL,
    declared_by text,
    declared_in jsonb,
    overrides jsonb DEFAULT '{}'::jsonb NOT NULL,
    drive text DEFAULT 'worker'::text NOT NULL,
    local_only boolean DEFAULT false NOT NULL,
    concurrency integer,
    rate_count integer,
    rate_period interval,
    rate_burst integer,
    ordering text DEFAULT 'aging'::text NOT NULL,
    aging_step interval DEFAULT '00:00:10'::interval NOT NULL,
    timeout interval DEFAULT '00:02:00'::interval NOT NULL,
    stale_after interval DEFAULT '00:03:00'::interval NOT NULL,
    stuck_after interval DEFAULT '00:05:00'::interval NOT NULL,
    max_attempts integer DEFAULT 3 NOT NULL,
    backoff text DEFAULT 'linear'::text NOT NULL,
    backoff_delay interval DEFAULT '00:05:00'::interval NOT NULL,
    backoff_max interval DEFAULT '1 day'::interval NOT NULL,
    recovery integer DEFAULT 3 NOT NULL,
    succeeded_class smallint NOT NULL,
    failed_class smallint NOT NULL,
    paused_at timestamp with time zone,
    paused_reason text,
    created_at timestamp with time zone NOT NULL,
    changed_at timestamp with time zone NOT NULL,
    CONSTRAINT backoff_is_known CHECK ((backoff = ANY (ARRAY['constant'::text, 'linear'::text, 'exponential'::text]))),
    CONSTRAINT concurrency_is_positive CHECK ((concurrency >= 1)),
    CONSTRAINT drive_is_known CHECK ((drive = ANY (ARRAY['worker'::text, 'http'::text]))),
    CONSTRAINT max_attempts_is_positive CHECK (((max_attempts >= 1) AND (max_attempts <= 1000))),
    CONSTRAINT name_is_plain CHECK ((name ~ '^[A-Za-z0-9][A-Za-z0-9_.:-]{0,99}$'::text)),
    CONSTRAINT ordering_is_known CHECK ((ordering = ANY (ARRAY['strict'::text, 'aging'::text, 'fair'::text]))),
    CONSTRAINT rate_is_whole CHECK ((((rate_count IS NULL) = (rate_period IS NULL)) AND ((rate_count IS NULL) = (rate_burst IS NULL)) AND (rate_count >= 1) AND (rate_burst >= 1) AND (rate_period > '00:00:00'::interval))),
    CONSTRAINT recovery_is_not_negative CHECK (((recovery >= 0) AND (recovery <= 1000))),
    CONSTRAINT times_are_positive CHECK (((aging_step >= '00:00:00'::interval) AND (timeout > '00:00:00'::interval) AND (stale_after > '00:00:00'::interval) AND (stuck_after > '00:00:00'::interval) AND (backoff_delay >= '00:00:00'::interval) AND (backoff_max >= '00:00:00'::interval)))
);

CREATE FUNCTION penstock._choose(p_queue penstock.queue, p_kinds integer[], p_limit integer, p_accounts bigint[], p_running integer[], p_limits integer[], p_weights integer[], p_plain uuid[], p_plain_ranks bigint[]) RETURNS uuid[]
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._choose_one(p_queue integer, p_kinds integer[], p_job uuid) RETURNS uuid[]
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._circuit_after(p_circuit penstock.circuit, p_job uuid, p_attempt integer, p_started_at timestamp with time zone, p_outcome text, p_class text, p_effect text, p_retry_after interval, p_address text, p_full integer, p_running integer, p_now timestamp with time zone, p_account bigint) RETURNS penstock.circuit
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._circuit_sentence(p_queue text, p_circuit penstock.circuit, p_limit integer DEFAULT NULL::integer) RETURNS text
    LANGUAGE sql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._close_ramps(p_now timestamp with time zone) RETURNS void
    LANGUAGE sql
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._closed(p_circuit penstock.circuit, p_now timestamp with time zone) RETURNS penstock.circuit
    LANGUAGE sql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._count_ahead(p_job penstock.job, p_kinds integer[], p_lanes bigint[], p_snapshot bigint, p_most integer, p_typical double precision, p_mixed boolean, OUT jobs bigint, OUT work double precision) RETURNS record
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._count_attempts(p_now timestamp with time zone) RETURNS TABLE(queue_id integer, status text, worker_id bigint, jobs bigint, stale bigint)
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET jit TO 'off';

CREATE FUNCTION penstock._count_isolated(p_jobs uuid[], p_now timestamp with time zone, p_free integer DEFAULT 10) RETURNS void
    LANGUAGE sql
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._count_of(p_payload jsonb, p_field text) RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE;

CREATE TABLE penstock.hourly_bucket (
    hour timestamp with time zone NOT NULL,
    queue_id integer NOT NULL,
    kind_id integer NOT NULL,
    outcome text NOT NULL,
    class text NOT NULL,
    count bigint NOT NULL,
    total_ms bigint NOT NULL,
    histogram bigint[] NOT NULL
);

CREATE FUNCTION penstock._count_outcomes(p_from timestamp with time zone, p_until timestamp with time zone) RETURNS SETOF penstock.hourly_bucket
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_custom_plan';

CREATE FUNCTION penstock._count_queued(p_queue integer, p_kinds integer[], p_lanes bigint[], p_from bigint, p_rank bigint, p_id uuid, p_limit integer, p_typical double precision, p_mixed boolean, OUT jobs bigint, OUT work double precision) RETURNS record
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._count_requests(p_accounts bigint[], p_now timestamp with time zone) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan';

CREATE FUNCTION penstock._count_running(p_accounts bigint[]) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._count_waiting(p_most integer, p_now timestamp with time zone) RETURNS TABLE(queue_id integer, queued bigint, scheduled bigint, due bigint, oldest_at timestamp with time zone, free boolean, handled boolean)
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off';

CREATE FUNCTION penstock._counted_at_submit() RETURNS integer
    LANGUAGE sql IMMUTABLE PARALLEL SAFE;

CREATE FUNCTION penstock._counted_attempts() RETURNS integer
    LANGUAGE sql IMMUTABLE PARALLEL SAFE;

CREATE FUNCTION penstock._counted_positions() RETURNS integer
    LANGUAGE sql IMMUTABLE PARALLEL SAFE;

CREATE FUNCTION penstock._deadline(p_status penstock.job_status, p_timeout_at timestamp with time zone, p_stuck_after interval, p_now timestamp with time zone) RETURNS timestamp with time zone
    LANGUAGE sql STABLE PARALLEL SAFE;

CREATE FUNCTION penstock._declarer(p_by text, p_in jsonb) RETURNS text
    LANGUAGE sql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE TABLE penstock.delivery (
    id uuid NOT NULL,
    job_id uuid NOT NULL,
    account_id bigint NOT NULL,
    created_at timestamp with time zone NOT NULL,
    next_at timestamp with time zone,
    sending_until timestamp with time zone,
    last_at timestamp with time zone,
    delivered_at timestamp with time zone,
    tries integer DEFAULT 0 NOT NULL,
    last_status integer,
    trusted boolean NOT NULL,
    event text NOT NULL,
    url text NOT NULL,
    host text NOT NULL,
    last_error text,
    CONSTRAINT taken_is_over CHECK (((delivered_at IS NULL) OR (next_at IS NULL)))
)
WITH (fillfactor='80');

CREATE FUNCTION penstock._delivery_json(p_delivery penstock.delivery, p_own boolean) RETURNS jsonb
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._delivery_status(p_delivery penstock.delivery) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE;

CREATE FUNCTION penstock._drive_stops(p_queue penstock.queue, OUT paused boolean, OUT held boolean) RETURNS record
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._droppable(p_now timestamp with time zone) RETURNS SETOF text
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._due_hosts(p_now timestamp with time zone, p_after text) RETURNS SETOF text
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._elapsed(p_length interval) RETURNS interval
    LANGUAGE sql IMMUTABLE PARALLEL SAFE;

CREATE FUNCTION penstock._enforce_limits(p_accounts bigint[]) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._enforce_plan(p_name text) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._enforce_priority(p_accounts bigint[]) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._enforce_queue(p_queue integer) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._enlane_accounts(p_accounts bigint[]) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._enlane_jobs(p_jobs uuid[]) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._enlane_strays(p_jobs uuid[], p_owners bigint[]) RETURNS bigint[]
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._ensure_accounts(p_names text[], p_strict boolean) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._ensure_class(p_kept interval) RETURNS smallint
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._ensure_ranges(p_parent text, p_key text, p_days integer) RETURNS integer
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._erase_rows(p_account bigint, p_rows integer, OUT jobs integer, OUT webhooks integer, OUT uploads integer) RETURNS record
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._error_json(p_error jsonb) RETURNS jsonb
    LANGUAGE sql IMMUTABLE PARALLEL SAFE;

CREATE TABLE penstock.gate (
    queue_id integer NOT NULL,
    running integer DEFAULT 0 NOT NULL,
    rate_next_at timestamp with time zone DEFAULT '-infinity'::timestamp with time zone NOT NULL,
    CONSTRAINT running_is_not_negative CHECK ((running >= 0))
)
WITH (fillfactor='20');

CREATE FUNCTION penstock._eta_seconds(p_job penstock.job, p_queue penstock.queue, p_gate penstock.gate, p_account_limit integer, p_ahead bigint, p_work double precision, p_own_ahead bigint, p_own_work double precision, p_typical double precision, p_now timestamp with time zone) RETURNS double precision
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._expire_leases(p_now timestamp with time zone) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._extend_snapshots(p_queue integer, p_kinds integer[]) RETURNS void
    LANGUAGE sql
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._fail_pending(p_now timestamp with time zone, p_limit integer) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._fair_ahead(p_queue integer, p_kinds integer[], p_account bigint, p_own bigint) RETURNS bigint
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._fair_floor(p_queue integer) RETURNS bigint
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._fair_step(p_weight integer) RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE;

CREATE FUNCTION penstock._final_error(p_final penstock.job_status, p_outcome text, p_error jsonb) RETURNS jsonb
    LANGUAGE sql IMMUTABLE PARALLEL SAFE;

CREATE FUNCTION penstock._final_status(p_outcome text, p_failures integer, p_max_attempts integer, p_crashes integer, p_recovery integer, p_cancel_requested boolean) RETURNS penstock.job_status
    LANGUAGE sql IMMUTABLE PARALLEL SAFE;

CREATE FUNCTION penstock._find_account(p_name text) RETURNS bigint
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE TABLE penstock.kind (
    id integer NOT NULL,
    name text NOT NULL,
    queue_id integer NOT NULL,
    declared jsonb DEFAULT '{}'::jsonb NOT NULL,
    declared_by text,
    declared_in jsonb,
    max_attempts integer,
    timeout interval,
    priority_offset integer DEFAULT 0 NOT NULL,
    account_field text,
    account_fixed text,
    topic_field text,
    topic_fixed text,
    dedupe_field text,
    dedupe_fixed text,
    price jsonb,
    split_field text,
    split_most integer,
    has_on_finish boolean DEFAULT false NOT NULL,
    webhook text,
    computed text[] DEFAULT '{}'::text[] NOT NULL,
    created_at timestamp with time zone NOT NULL,
    CONSTRAINT max_attempts_is_positive CHECK (((max_attempts >= 1) AND (max_attempts <= 1000))),
    CONSTRAINT name_is_plain CHECK ((name ~ '^[A-Za-z0-9][A-Za-z0-9_.:-]{0,99}$'::text)),
    CONSTRAINT priority_offset_in_range CHECK (((priority_offset >= '-1000'::integer) AND (priority_offset <= 1000))),
    CONSTRAINT timeout_is_positive CHECK ((timeout > '00:00:00'::interval))
);

CREATE FUNCTION penstock._find_kind(p_name text) RETURNS penstock.kind
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._find_queue(p_name text) RETURNS penstock.queue
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._find_status(p_name text) RETURNS penstock.job_status
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._finish_waiting(p_jobs uuid[], p_outcome text, p_error jsonb, p_accounts bigint[]) RETURNS SETOF uuid
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET plan_cache_mode TO 'force_custom_plan'
    SET jit TO 'off';

CREATE FUNCTION penstock._first_job_offsets(p_names text[], p_fresh bigint[], p_one_request boolean) RETURNS integer[]
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_nestloop TO 'off'
    SET jit TO 'off';

CREATE FUNCTION penstock._first_range(p_days integer, p_now timestamp with time zone) RETURNS timestamp with time zone
    LANGUAGE sql STABLE PARALLEL SAFE;

CREATE FUNCTION penstock._free_slots(p_gates integer[], p_accounts bigint[]) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._general_words(p_class text, p_reason text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE;

CREATE FUNCTION penstock._has_few_by_statistics(p_table regclass) RETURNS boolean
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._hold_accounts(p_queue integer, p_kinds integer[], p_limit integer, OUT accounts bigint[], OUT heads bigint[], OUT running integer[], OUT limits integer[], OUT weights integer[]) RETURNS record
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._hold_plain(p_queue integer, p_kinds integer[], p_limit integer, p_strays bigint[], p_now timestamp with time zone, OUT jobs uuid[], OUT ranks bigint[], OUT owners bigint[]) RETURNS record
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._hour_bounds() RETURNS bigint[]
    LANGUAGE sql IMMUTABLE PARALLEL SAFE;

CREATE FUNCTION penstock._hour_class(p_error jsonb) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE;

CREATE FUNCTION penstock._hour_over_at(p_account bigint, p_number bigint, p_now timestamp with time zone) RETURNS timestamp with time zone
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._insert_jobs(p_seed uuid, p_now timestamp with time zone, p_jobs penstock.new_job[], p_kinds text[], p_queue integer, p_todo boolean[] DEFAULT NULL::boolean[], p_owners bigint[] DEFAULT NULL::bigint[], p_limited boolean[] DEFAULT NULL::boolean[], p_plan_priorities integer[] DEFAULT NULL::integer[], p_first_job_offsets integer[] DEFAULT NULL::integer[], p_batch uuid DEFAULT NULL::uuid, p_retry_of uuid DEFAULT NULL::uuid) RETURNS TABLE(id uuid, status penstock.job_status, queue_id integer, lane bigint, kind_id integer, rank bigint, account_id bigint, reserved bigint)
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan';

CREATE FUNCTION penstock._is_empty(p_account text) RETURNS boolean
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._is_half_up(p_refused double precision) RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL SAFE;

CREATE FUNCTION penstock._is_locked(p_xmax xid) RETURNS boolean
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._is_moment(p_text text) RETURNS boolean
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._is_outage(p_class text) RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL SAFE;

CREATE FUNCTION penstock._is_plain(p_kind penstock.kind, p_queue penstock.queue) RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL SAFE;

CREATE FUNCTION penstock._is_plain_kind(p_kind penstock.kind) RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL SAFE;

CREATE FUNCTION penstock._is_steady(p_circuit penstock.circuit, p_now timestamp with time zone) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._is_troubled(p_circuit penstock.circuit) RETURNS boolean
    LANGUAGE sql IMMUTABLE;

CREATE FUNCTION penstock._is_webhook_url(p_url text) RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL SAFE;

CREATE TABLE penstock.setting (
    only_row boolean DEFAULT true NOT NULL,
    accounts_strict boolean DEFAULT false NOT NULL,
    payload_max_bytes integer DEFAULT 1048576 NOT NULL,
    payload_max_depth integer DEFAULT 64 NOT NULL,
    payload_max_keys integer DEFAULT 20000 NOT NULL,
    number_max_digits integer DEFAULT 300 NOT NULL,
    batch_max_jobs integer DEFAULT 1000000 NOT NULL,
    idempotency_kept interval DEFAULT '7 days'::interval NOT NULL,
    upload_max_bytes bigint DEFAULT 26214400 NOT NULL,
    upload_quota_bytes bigint DEFAULT 1073741824 NOT NULL,
    upload_kept interval DEFAULT '90 days'::interval NOT NULL,
    partitions_ahead interval DEFAULT '14 days'::interval NOT NULL,
    CONSTRAINT there_is_one_row CHECK (only_row)
);

CREATE FUNCTION penstock._job_fault(p_job penstock.new_job, p_kind penstock.kind, p_now timestamp with time zone, p_setting penstock.setting, p_own boolean) RETURNS text
    LANGUAGE sql STABLE PARALLEL SAFE;

CREATE FUNCTION penstock._job_faults(p_jobs penstock.new_job[], p_now timestamp with time zone, p_own boolean) RETURNS TABLE(ordinal bigint, fault text)
    LANGUAGE sql STABLE;

CREATE TABLE penstock.finished (
    id uuid NOT NULL,
    account_id bigint NOT NULL,
    reserved bigint DEFAULT 0 NOT NULL,
    created_at timestamp with time zone NOT NULL,
    run_at timestamp with time zone NOT NULL,
    finished_at timestamp with time zone NOT NULL,
    queue_id integer NOT NULL,
    kind_id integer NOT NULL,
    status penstock.job_status NOT NULL,
    priority integer NOT NULL,
    version integer NOT NULL,
    attempt integer NOT NULL,
    max_attempts integer NOT NULL,
    failures integer NOT NULL,
    deferrals integer NOT NULL,
    crashes integer NOT NULL,
    losses integer DEFAULT 0 NOT NULL,
    class smallint NOT NULL,
    finished_by_attempt boolean NOT NULL,
    first_job boolean DEFAULT false NOT NULL,
    priority_given boolean DEFAULT false NOT NULL,
    worker_id bigint,
    started_at timestamp with time zone,
    timeout_at timestamp with time zone,
    recovered_at timestamp with time zone,
    units bigint,
    timeout interval,
    batch_id uuid,
    retry_of uuid,
    retried_by uuid,
    dedupe_key text,
    topic text,
    stage text,
    progress jsonb,
    error jsonb,
    metadata jsonb,
    usage jsonb,
    payload jsonb NOT NULL,
    result jsonb,
    CONSTRAINT failed_says_why CHECK (((status <> 'failed'::penstock.job_status) OR (error IS NOT NULL))),
    CONSTRAINT finished_only CHECK ((status = ANY (ARRAY['succeeded'::penstock.job_status, 'failed'::penstock.job_status, 'cancelled'::penstock.job_status]))),
    CONSTRAINT success_had_an_attempt CHECK (((status <> 'succeeded'::penstock.job_status) OR finished_by_attempt))
)
PARTITION BY LIST (class);

CREATE FUNCTION penstock._job_json(j penstock.job, f penstock.finished, p_kind text, p_queue text, p_recovery integer, p_account text, p_plan text, p_charged bigint, p_refunded bigint, p_worker text, p_position bigint, p_eta_seconds double precision, p_waiting_for text, p_attempts boolean) RETURNS jsonb
    LANGUAGE sql STABLE;

CREATE FUNCTION penstock._job_rows(p_ids uuid[]) RETURNS SETOF jsonb
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off';

CREATE FUNCTION penstock._jobs_ahead(p_job penstock.job, p_kinds integer[], p_ordering text, p_laned boolean, p_most integer, p_typical double precision, p_mixed boolean, OUT jobs bigint, OUT work double precision, OUT own_jobs bigint, OUT own_work double precision) RETURNS record
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._jobs_without_lane() RETURNS SETOF penstock.job
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._join_lanes(p_queues integer[], p_accounts bigint[], p_kinds integer[], p_ranks bigint[]) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._kept_json(p_class smallint) RETURNS jsonb
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE TABLE penstock.api_key (
    id text NOT NULL,
    kind text NOT NULL,
    account_id bigint,
    name text,
    holder text NOT NULL,
    secret_hash bytea NOT NULL,
    created_at timestamp with time zone NOT NULL,
    expires_at timestamp with time zone,
    used_at timestamp with time zone,
    revoked_at timestamp with time zone,
    CONSTRAINT account_key_has_account CHECK (((kind = 'account'::text) = (account_id IS NOT NULL))),
    CONSTRAINT kind_is_known CHECK ((kind = ANY (ARRAY['admin'::text, 'process'::text, 'app'::text, 'account'::text]))),
    CONSTRAINT name_is_short CHECK (((length(name) >= 1) AND (length(name) <= 200)))
);

CREATE FUNCTION penstock._key_json(p_key penstock.api_key) RETURNS jsonb
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._kinds_named(p_queue integer, p_kinds text[]) RETURNS integer[]
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._kinds_of_queue(p_queue integer, p_now timestamp with time zone) RETURNS TABLE(kind_id integer, name text, served boolean)
    LANGUAGE sql STABLE PARALLEL SAFE;

CREATE FUNCTION penstock._last_balance(p_account bigint) RETURNS bigint
    LANGUAGE sql STABLE PARALLEL SAFE;

CREATE FUNCTION penstock._leave_lanes(p_queues integer[], p_accounts bigint[], p_kinds integer[]) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._list_stuck(p_limit integer) RETURNS SETOF jsonb
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._live_workers(p_now timestamp with time zone) RETURNS TABLE(queues text[], kinds text[], accepting jsonb, lease interval, beat_at timestamp with time zone, started_at timestamp with time zone, locks boolean)
    LANGUAGE sql STABLE PARALLEL SAFE;

CREATE FUNCTION penstock._lock_account(p_account text) RETURNS penstock.account
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE TABLE penstock.plan (
    name text NOT NULL,
    declared jsonb DEFAULT '{}'::jsonb NOT NULL,
    declared_by text,
    declared_in jsonb,
    overrides jsonb DEFAULT '{}'::jsonb NOT NULL,
    priority integer DEFAULT 0 NOT NULL,
    concurrency integer,
    per_hour integer,
    weight integer DEFAULT 1 NOT NULL,
    first_job integer DEFAULT 0 NOT NULL,
    is_default boolean DEFAULT false NOT NULL,
    created_at timestamp with time zone NOT NULL,
    CONSTRAINT concurrency_is_positive CHECK ((concurrency >= 1)),
    CONSTRAINT first_job_in_range CHECK (((first_job >= '-1000'::integer) AND (first_job <= 1000))),
    CONSTRAINT name_is_plain CHECK ((name ~ '^[A-Za-z0-9][A-Za-z0-9_.:-]{0,99}$'::text)),
    CONSTRAINT per_hour_is_positive CHECK ((per_hour >= 1)),
    CONSTRAINT priority_in_range CHECK (((priority >= '-1000'::integer) AND (priority <= 1000))),
    CONSTRAINT weight_in_range CHECK (((weight >= 1) AND (weight <= 1000)))
);

CREATE FUNCTION penstock._lock_plan(p_name text) RETURNS penstock.plan
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._lock_queue_limits(p_queue integer) RETURNS void
    LANGUAGE sql
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._lock_slots(p_jobs uuid[], p_accounts bigint[], p_wait interval DEFAULT NULL::interval) RETURNS bigint[]
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._mark_blocker(p_job uuid, p_attempt integer, p_seconds double precision) RETURNS void
    LANGUAGE sql
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._may_see(p_id uuid, p_account text, p_topic text, p_only uuid) RETURNS boolean
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET jit TO 'off';

CREATE FUNCTION penstock._move_to_finished(p_worker bigint, p_callback bytea, p_jobs uuid[], p_attempts integer[], p_outcomes text[], p_results jsonb[], p_errors jsonb[], p_usages jsonb[], p_units bigint[], p_accounts bigint[], p_now timestamp with time zone, p_locked uuid[], p_from penstock.job_status[] DEFAULT '{running,awaiting}'::penstock.job_status[], OUT ids uuid[], OUT attempts integer[], OUT statuses penstock.job_status[], OUT queues integer[], OUT started timestamp with time zone[], OUT gates integer[], OUT accounts bigint[]) RETURNS record
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._moved_since(p_since timestamp with time zone) RETURNS TABLE(queue_id integer, account_id bigint)
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._n_of_id(p_seed uuid, p_id uuid) RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE;

CREATE FUNCTION penstock._new_jobs(p_kinds text[], p_payloads jsonb[], p_accounts text[], p_dedupe_keys text[], p_topics text[], p_priorities integer[], p_run_ats timestamp with time zone[], p_delays interval[], p_max_attempts integer[], p_timeouts interval[], p_expires interval[], p_metadata jsonb[], p_prices bigint[], p_webhook_urls text[]) RETURNS penstock.new_job[]
    LANGUAGE sql IMMUTABLE PARALLEL SAFE;

CREATE FUNCTION penstock._not_after(p_at timestamp with time zone, p_now timestamp with time zone) RETURNS timestamp with time zone
    LANGUAGE sql IMMUTABLE PARALLEL SAFE;

CREATE FUNCTION penstock._nth_id(p_seed uuid, p_n bigint) RETURNS uuid
    LANGUAGE sql IMMUTABLE PARALLEL SAFE;

CREATE FUNCTION penstock._of_probes(p_jobs uuid[], p_attempts integer[], p_outcomes text[], p_errors jsonb[], p_effects text[], OUT outcomes text[], OUT errors jsonb[], OUT effects text[]) RETURNS record
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._oldest_startable(p_queue integer, p_kind integer, p_before timestamp with time zone, p_now timestamp with time zone) RETURNS TABLE(id uuid, since timestamp with time zone)
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET jit TO 'off';

CREATE FUNCTION penstock._open_lanes(p_accounts bigint[]) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._opens(p_circuit penstock.circuit, p_effect text) RETURNS boolean
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._option_webhook(p_options jsonb) RETURNS text
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._options(p_of text) RETURNS TABLE(name text, field text, type text, minimum bigint, maximum bigint, preset jsonb, choices text)
    LANGUAGE sql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._other_probe(p_queue integer, p_kinds integer[]) RETURNS uuid
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET jit TO 'off';

CREATE FUNCTION penstock._outcomes_between(p_from timestamp with time zone, p_until timestamp with time zone) RETURNS TABLE(ended_at timestamp with time zone, queue_id integer, kind_id integer, outcome text, class text, ms bigint)
    LANGUAGE sql STABLE;

CREATE FUNCTION penstock._overview_live(p_counted integer, p_now timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan';

CREATE FUNCTION penstock._overview_outcomes(p_hours integer, p_now timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_custom_plan';

CREATE FUNCTION penstock._page_ids(p_status text, p_kind text, p_queue text, p_account text, p_topic text, p_batch uuid, p_limit integer, p_before uuid, OUT ids uuid[], OUT after uuid, OUT seen boolean) RETURNS record
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._page_of(p_table regclass, p_status penstock.job_status, p_kind integer, p_queue integer, p_account bigint, p_topic text, p_batch uuid, p_limit integer, p_before uuid, p_unsuccessful boolean, OUT ids uuid[], OUT floor uuid) RETURNS record
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_sort TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off';

CREATE FUNCTION penstock._page_scan_limit() RETURNS integer
    LANGUAGE sql IMMUTABLE PARALLEL SAFE;

CREATE FUNCTION penstock._parse_rate(p_rate jsonb, OUT rate_count integer, OUT rate_period interval) RETURNS record
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._partitioned() RETURNS TABLE(name text, key text, days integer, kept interval, is_finished boolean)
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._pass_circuit(p_queue integer, p_limit integer, p_now timestamp with time zone, OUT free integer, OUT probe boolean) RETURNS record
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._pass_gate(p_queue penstock.queue, p_limit integer, p_now timestamp with time zone, OUT free integer, OUT probe boolean) RETURNS record
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._patience(p_tries integer) RETURNS interval
    LANGUAGE sql IMMUTABLE PARALLEL SAFE;

CREATE FUNCTION penstock._payload_fault(p_payload jsonb, p_setting penstock.setting) RETURNS text
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._pieces(p_payload jsonb, p_field text, p_most integer) RETURNS jsonb[]
    LANGUAGE sql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._plain_error(p_error jsonb) RETURNS jsonb
    LANGUAGE sql IMMUTABLE PARALLEL SAFE;

CREATE FUNCTION penstock._price(p_price jsonb, p_payload jsonb) RETURNS bigint
    LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._price_fault(p_price jsonb, p_payload jsonb, OUT field text, OUT message text) RETURNS record
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._price_of(p_price jsonb, p_payload jsonb) RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE;

CREATE FUNCTION penstock._prints_too_long(p_value jsonb) RETURNS boolean
    LANGUAGE sql STABLE PARALLEL SAFE;

CREATE FUNCTION penstock._probe_wait(p_effect text, p_tries integer, p_retry_after interval, p_shared boolean DEFAULT true) RETURNS interval
    LANGUAGE sql IMMUTABLE PARALLEL SAFE;

CREATE FUNCTION penstock._prune_rows(p_now timestamp with time zone, p_rows integer) RETURNS TABLE(what text, rows bigint)
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._public_error(p_error jsonb) RETURNS jsonb
    LANGUAGE sql IMMUTABLE PARALLEL SAFE;

CREATE FUNCTION penstock._public_job(p_job jsonb) RETURNS jsonb
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._publish_circuit(p_queue text, p_circuit penstock.circuit, p_now timestamp with time zone) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._quantile_seconds(p_upto bigint[], p_share double precision) RETURNS double precision
    LANGUAGE sql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._queue_rows(p_queue text, p_now timestamp with time zone) RETURNS SETOF jsonb
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._queued_by_snapshot(p_now timestamp with time zone) RETURNS TABLE(queue_id integer, jobs bigint)
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._ranges(p_parent text) RETURNS TABLE(name text, low uuid, high uuid)
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._rank(p_ordering text, p_priority integer, p_step interval, p_due_at timestamp with time zone, p_ordinal bigint) RETURNS bigint
    LANGUAGE sql STABLE PARALLEL SAFE;

CREATE FUNCTION penstock._rate_seconds(p_queue penstock.queue, p_next_at timestamp with time zone, p_nth bigint, p_now timestamp with time zone) RETURNS double precision
    LANGUAGE sql STABLE PARALLEL SAFE;

CREATE FUNCTION penstock._read_job(p_id uuid, p_most integer, p_attempts boolean DEFAULT true, p_must_exist boolean DEFAULT true) RETURNS jsonb
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET jit TO 'off';

CREATE FUNCTION penstock._read_options(p_of text, p_options jsonb, p_index bigint DEFAULT NULL::bigint) RETURNS jsonb
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._read_price(p_options jsonb) RETURNS jsonb
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._record_deliveries(p_jobs uuid[]) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._recoverable(p_now timestamp with time zone, p_limit integer) RETURNS TABLE(id uuid, attempt integer, outcome text, error jsonb)
    LANGUAGE sql
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._recovery_at(p_job penstock.job) RETURNS timestamp with time zone
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._recovery_wait(p_crashes integer) RETURNS interval
    LANGUAGE sql IMMUTABLE PARALLEL SAFE;

CREATE FUNCTION penstock._redacted(p_text text) RETURNS text
    LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._refresh_statistics() RETURNS boolean
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET default_statistics_target TO '10';

CREATE FUNCTION penstock._refuse(p_status integer, p_code text, p_message text, p_field text DEFAULT NULL::text, p_members jsonb DEFAULT '{}'::jsonb, p_hint text DEFAULT NULL::text) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._refuse_foreign_batch(p_id uuid, p_account text) RETURNS void
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._refuse_foreign_job(p_id uuid, p_account text, p_topic text, p_only uuid) RETURNS void
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._refuse_job_faults(p_jobs penstock.new_job[], p_now timestamp with time zone, p_own boolean) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._refuse_long_numbers(p_payload jsonb) RETURNS void
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._refuse_odd_entry(p_amount bigint, p_reason text, p_ref text) RETURNS void
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._refuse_odd_limit(p_limit integer) RETURNS void
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._refuse_odd_name(p_name text, p_field text) RETURNS void
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._refuse_old_snapshot(p_queue integer) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '3s';

CREATE FUNCTION penstock._refuse_other_declaration(p_what text, p_name text, p_old jsonb, p_old_by text, p_new jsonb, p_new_by text, p_old_in jsonb, p_new_in jsonb, p_instead_of text, p_reset text) RETURNS void
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._refuse_rewrite() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._refuse_unknown_job(p_id uuid) RETURNS void
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._refuse_unknown_key(p_id text) RETURNS void
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._release_deferred_probes(p_queue integer, p_now timestamp with time zone, p_most integer) RETURNS void
    LANGUAGE sql
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._request_cancel(p_jobs uuid[]) RETURNS SETOF uuid
    LANGUAGE sql
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._requeue_jobs(p_worker bigint, p_callback bytea, p_jobs uuid[], p_attempts integer[], p_outcomes text[], p_errors jsonb[], p_delays interval[], p_usages jsonb[], p_effects text[], p_retry_afters interval[], p_accounts bigint[], p_now timestamp with time zone, p_locked uuid[], OUT ids uuid[], OUT attempts integer[], OUT statuses penstock.job_status[], OUT queues integer[], OUT started timestamp with time zone[], OUT gates integer[], OUT accounts bigint[]) RETURNS record
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._resolve(p_jobs uuid[], p_accounts bigint[], p_reserved bigint[], p_charged bigint[]) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan';

CREATE FUNCTION penstock._rfc3339(p_at timestamp with time zone) RETURNS text
    LANGUAGE sql STABLE PARALLEL SAFE;

CREATE FUNCTION penstock._sample_live() RETURNS TABLE(queue_id integer, status text, jobs bigint)
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._scanned_jobs() RETURNS integer
    LANGUAGE sql IMMUTABLE PARALLEL SAFE;

CREATE FUNCTION penstock._seconds(p_seconds double precision) RETURNS interval
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE;

CREATE FUNCTION penstock._served_kinds(p_queue integer, p_now timestamp with time zone) RETURNS integer[]
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._service(p_queue text, p_kind text, p_now timestamp with time zone) RETURNS TABLE(alive boolean, handled boolean)
    LANGUAGE sql STABLE PARALLEL SAFE;

CREATE FUNCTION penstock._session_age() RETURNS interval
    LANGUAGE sql
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE TABLE penstock.rollup (
    only_row boolean DEFAULT true NOT NULL,
    counted_until timestamp with time zone NOT NULL,
    settled_until timestamp with time zone NOT NULL,
    CONSTRAINT there_is_one_row CHECK (only_row)
);

CREATE FUNCTION penstock._settle_hour(p_state penstock.rollup, p_now timestamp with time zone) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._settle_jobs(p_worker bigint, p_callback bytea, p_jobs uuid[], p_attempts integer[], p_outcomes text[], p_results jsonb[], p_errors jsonb[], p_delays interval[], p_accounts bigint[], p_usages jsonb[] DEFAULT NULL::jsonb[], p_units bigint[] DEFAULT NULL::bigint[], p_update_circuits boolean DEFAULT true, p_wait interval DEFAULT NULL::interval, p_effects text[] DEFAULT NULL::text[], p_retry_afters interval[] DEFAULT NULL::interval[], p_addresses text[] DEFAULT NULL::text[]) RETURNS TABLE(job_id uuid, verdict text, status penstock.job_status)
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_bitmapscan TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off';

CREATE FUNCTION penstock._share(p_ranks bigint[], p_slice integer, p_rank bigint) RETURNS double precision
    LANGUAGE sql IMMUTABLE PARALLEL SAFE;

CREATE FUNCTION penstock._share_of_pages(p_table regclass, p_pages integer) RETURNS double precision
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._share_queue_lock(p_lock integer, p_queue integer) RETURNS boolean
    LANGUAGE sql;

CREATE FUNCTION penstock._share_text(p_share double precision) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE;

CREATE FUNCTION penstock._short_json(j penstock.job, f penstock.finished, p_kind text, p_queue text, p_account text, p_charged bigint, p_refunded bigint, p_waiting_for text) RETURNS jsonb
    LANGUAGE sql STABLE;

CREATE FUNCTION penstock._slice_size() RETURNS integer
    LANGUAGE sql IMMUTABLE PARALLEL SAFE;

CREATE FUNCTION penstock._slices_of_lane(p_queue integer, p_kind integer, p_lane bigint, p_typical double precision, p_from bigint, p_done double precision, OUT ranks bigint[], OUT work double precision[]) RETURNS record
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off';

CREATE FUNCTION penstock._slices_of_lanes(p_queue integer, p_kinds integer[], p_account bigint, p_closed bigint[], p_typical double precision, OUT ranks bigint[], OUT work double precision[]) RETURNS record
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET work_mem TO '64MB';

CREATE FUNCTION penstock._slot_seconds(p_left double precision[], p_slots integer, p_ahead bigint, p_each double precision) RETURNS double precision
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._staleness(p_job penstock.job) RETURNS jsonb
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._status_of(p_id uuid) RETURNS penstock.job_status
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._stop(p_queue penstock.queue, p_kind text, p_now timestamp with time zone) RETURNS SETOF text
    LANGUAGE sql STABLE PARALLEL SAFE;

CREATE FUNCTION penstock._stop_claims(p_accounts bigint[]) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._stop_queue(p_queue integer, p_options jsonb) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._stop_word(p_paused boolean, p_alive boolean, p_handled boolean, p_state text, p_class text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE;

CREATE FUNCTION penstock._stopped_by(p_queue integer, p_now timestamp with time zone) RETURNS text
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._submit_jobs(p_jobs penstock.new_job[], p_batched boolean, p_one_request boolean DEFAULT false, p_own boolean DEFAULT false, p_retry_of uuid DEFAULT NULL::uuid, p_is_new boolean DEFAULT true) RETURNS TABLE(ordinal bigint, id uuid, status penstock.job_status, deduplicated boolean, balance bigint, batch uuid)
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET work_mem TO '64MB'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET jit TO 'off';

CREATE FUNCTION penstock._submit_plain(p_job penstock.new_job, p_position boolean, OUT id uuid, OUT status penstock.job_status, OUT queue_position bigint, OUT eta_seconds double precision, OUT waiting_for text, OUT is_known boolean) RETURNS record
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan';

CREATE FUNCTION penstock._submits_of(p_account penstock.account, p_now timestamp with time zone, OUT used bigint, OUT per_hour integer, OUT next_at timestamp with time zone) RETURNS record
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET jit TO 'off';

CREATE FUNCTION penstock._submitted_before(p_job uuid, OUT balance bigint, OUT batch uuid, OUT ids uuid[]) RETURNS record
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._take_snapshots(p_queue integer, p_ordering text, p_kinds integer[]) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._time_words(p_length interval) RETURNS text
    LANGUAGE sql IMMUTABLE;

CREATE FUNCTION penstock._tries_after(p_circuit penstock.circuit, p_now timestamp with time zone) RETURNS integer
    LANGUAGE sql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._trouble(p_class text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE;

CREATE FUNCTION penstock._try_lock_account(p_account bigint) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._typical_pace(p_queue integer) RETURNS TABLE(seconds double precision, mixed boolean)
    LANGUAGE sql STABLE;

CREATE FUNCTION penstock._uncount_failures(p_queue integer, p_opened_at timestamp with time zone, p_now timestamp with time zone, p_jobs uuid[]) RETURNS void
    LANGUAGE sql
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._unlocked_workers() RETURNS bigint[]
    LANGUAGE sql
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._unsound_lanes(p_accounts bigint[]) RETURNS TABLE(subject text, queue_id integer, account_id bigint, kind_id integer, was_waiting integer, was_head bigint, was_open boolean, waiting integer, head bigint, open boolean)
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._update_circuits(p_jobs uuid[], p_attempts integer[], p_outcomes text[], p_errors jsonb[], p_effects text[], p_retry_afters interval[], p_addresses text[], p_done uuid[], p_done_attempts integer[], p_queues integer[], p_started_ats timestamp with time zone[], p_now timestamp with time zone) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._usage_json(p_job uuid) RETURNS jsonb
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan';

CREATE FUNCTION penstock._waiting(p_job penstock.job, p_most integer, OUT queue_position bigint, OUT eta_seconds double precision, OUT waiting_for text) RETURNS record
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off';

CREATE FUNCTION penstock._waiting_at_submit(p_job uuid, OUT queue_position bigint, OUT eta_seconds double precision, OUT waiting_for text) RETURNS record
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET jit TO 'off';

CREATE FUNCTION penstock._waiting_for(p_stop text, p_queue penstock.queue, p_gate penstock.gate, p_running integer, p_limit integer, p_ahead bigint, p_now timestamp with time zone) RETURNS text
    LANGUAGE sql STABLE;

CREATE FUNCTION penstock._waiting_if_simple(p_job uuid, p_now timestamp with time zone, OUT simple boolean, OUT queue_position bigint, OUT eta_seconds double precision, OUT waiting_for text) RETURNS record
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET jit TO 'off';

CREATE FUNCTION penstock._whole(p_value jsonb, p_min bigint, p_max bigint) RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE;

CREATE FUNCTION penstock._why_stale(p_job uuid, p_attempt integer) RETURNS text
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._without_row(p_circuit penstock.circuit) RETURNS penstock.circuit
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._write_circuit(p_circuit penstock.circuit) RETURNS void
    LANGUAGE sql
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock._wrong_counters() RETURNS TABLE(what text, id bigint, subject text, was integer, now integer)
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.accept_job(p_kind text, p_payload jsonb, p_account text DEFAULT NULL::text, p_dedupe_key text DEFAULT NULL::text, p_topic text DEFAULT NULL::text, p_priority integer DEFAULT NULL::integer, p_run_at timestamp with time zone DEFAULT NULL::timestamp with time zone, p_delay interval DEFAULT NULL::interval, p_max_attempts integer DEFAULT NULL::integer, p_timeout interval DEFAULT NULL::interval, p_expires interval DEFAULT NULL::interval, p_metadata jsonb DEFAULT NULL::jsonb, p_key text DEFAULT NULL::text, p_scope text DEFAULT ''::text, p_wake text DEFAULT NULL::text, p_price bigint DEFAULT NULL::bigint, p_webhook_url text DEFAULT NULL::text, p_computed boolean DEFAULT false, p_own boolean DEFAULT false) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.accept_jobs(p_queue text, p_kinds text[], p_payloads jsonb[], p_topics text[] DEFAULT NULL::text[], p_priorities integer[] DEFAULT NULL::integer[], p_run_ats timestamp with time zone[] DEFAULT NULL::timestamp with time zone[], p_delays interval[] DEFAULT NULL::interval[], p_max_attempts integer[] DEFAULT NULL::integer[], p_timeouts interval[] DEFAULT NULL::interval[], p_expires interval[] DEFAULT NULL::interval[], p_metadata jsonb[] DEFAULT NULL::jsonb[], p_wake boolean DEFAULT false) RETURNS TABLE(ordinal bigint, job jsonb)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET jit TO 'off';

CREATE FUNCTION penstock.add_upload_part(p_upload uuid, p_n integer, p_data bytea) RETURNS void
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.any_delivery_due() RETURNS boolean
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.any_lease_expired() RETURNS boolean
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.append_chunks(p_worker bigint, p_jobs uuid[], p_attempts integer[], p_seqs integer[], p_data jsonb[]) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off';

CREATE FUNCTION penstock.beat_worker(p_worker bigint, p_accepting text[] DEFAULT NULL::text[]) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.begin_drive(p_queue text) RETURNS boolean
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.blocks_loops(p_job uuid) RETURNS boolean
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.cancel_batch(id uuid) RETURNS jsonb
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.cancel_batch_of(p_id uuid, p_account text, p_limit integer DEFAULT 100, p_after uuid DEFAULT NULL::uuid) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.cancel_job(id uuid) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET jit TO 'off';

CREATE FUNCTION penstock.cancel_job_of(p_id uuid, p_account text DEFAULT NULL::text, p_topic text DEFAULT NULL::text, p_only uuid DEFAULT NULL::uuid) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock."check"() RETURNS TABLE(invariant text, subject text, detail text)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off';

CREATE FUNCTION penstock.check_liveness(older_than interval DEFAULT '00:00:10'::interval) RETURNS TABLE(rule text, subject text, since timestamp with time zone, detail text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET jit TO 'off';

CREATE FUNCTION penstock.claim_deliveries(p_limit integer, p_lease interval, p_after text DEFAULT ''::text) RETURNS TABLE(id uuid, try integer, job_id uuid, event text, url text, host text, trusted boolean, account text, created_at timestamp with time zone, job text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET jit TO 'off';

CREATE FUNCTION penstock.claim_jobs(p_worker bigint, p_queue text, p_limit integer, p_wait boolean DEFAULT false, p_job uuid DEFAULT NULL::uuid) RETURNS TABLE(id uuid, attempt integer, kind text, account text, slot_account bigint, topic text, batch_id uuid, payload jsonb, metadata jsonb, priority integer, failures integer, deferrals integer, crashes integer, losses integer, max_attempts integer, created_at timestamp with time zone, started_at timestamp with time zone, timeout_at timestamp with time zone, deadline_at timestamp with time zone)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    SET plan_cache_mode TO 'force_generic_plan';

CREATE FUNCTION penstock.clock() RETURNS timestamp with time zone
    LANGUAGE plpgsql STABLE PARALLEL SAFE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.clock_went_back() RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.close_circuit(p_name text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '2s';

CREATE FUNCTION penstock.count_jobs(p_status text DEFAULT NULL::text, p_kind text DEFAULT NULL::text, p_queue text DEFAULT NULL::text, p_account text DEFAULT NULL::text, p_topic text DEFAULT NULL::text, p_batch uuid DEFAULT NULL::uuid, p_most integer DEFAULT 10000, OUT total bigint, OUT exact boolean) RETURNS record
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.create_account(p_name text, p_plan text DEFAULT NULL::text) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.create_key(p_id text, p_kind text, p_hash bytea, p_account text DEFAULT NULL::text, p_name text DEFAULT NULL::text, p_expires interval DEFAULT NULL::interval) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.create_upload(p_account text, p_content_type text, p_size bigint, p_sha256 bytea, p_quota boolean DEFAULT true) RETURNS uuid
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.declare_kind(p_name text, p_queue text, p_options jsonb DEFAULT '{}'::jsonb, p_by text DEFAULT NULL::text, p_in jsonb DEFAULT NULL::jsonb, p_instead_of text DEFAULT NULL::text) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.declare_plan(p_name text, p_options jsonb DEFAULT '{}'::jsonb, p_by text DEFAULT NULL::text, p_in jsonb DEFAULT NULL::jsonb, p_instead_of text DEFAULT NULL::text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '2s';

CREATE FUNCTION penstock.declare_queue(p_name text, p_options jsonb DEFAULT '{}'::jsonb, p_by text DEFAULT NULL::text, p_in jsonb DEFAULT NULL::jsonb, p_instead_of text DEFAULT NULL::text) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '2s';

CREATE FUNCTION penstock.deduct_credits(account text, amount bigint, reason text DEFAULT NULL::text, ref text DEFAULT NULL::text) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.delete_upload(p_upload uuid, p_account text DEFAULT NULL::text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.drive_state(p_queue text, p_kinds text[] DEFAULT NULL::text[], OUT due bigint, OUT paused boolean, OUT held boolean, OUT soon_seconds double precision) RETURNS record
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.driven_queues(p_kinds text[]) RETURNS SETOF text
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.due_checks(p_queues text[]) RETURNS TABLE(queue text, address text)
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.due_drives(p_kinds text[] DEFAULT NULL::text[]) RETURNS SETOF text
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.edit_plan(p_name text, p_options jsonb) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '2s';

CREATE FUNCTION penstock.edit_queue(p_name text, p_options jsonb) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '2s';

CREATE FUNCTION penstock.end_drive(p_queue text) RETURNS void
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.end_session(p_id text, p_expires timestamp with time zone) RETURNS void
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.erase_account(p_account text, p_rows integer DEFAULT 500) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '800ms';

CREATE FUNCTION penstock.estimate_jobs() RETURNS bigint
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.expected_seconds(p_queue text) RETURNS TABLE(kind text, seconds double precision, timeout_seconds double precision)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.expire_jobs(p_queue integer, p_limit integer DEFAULT 1000) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.export_jobs() RETURNS SETOF jsonb
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.find_accounts(p_prefix text, p_limit integer DEFAULT 100, p_after text DEFAULT NULL::text) RETURNS SETOF jsonb
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.find_by_id_end(p_end text, p_limit integer DEFAULT 10) RETURNS SETOF jsonb
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_custom_plan'
    SET enable_sort TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off';

CREATE FUNCTION penstock.find_callbacks(p_jobs uuid[]) RETURNS TABLE(job_id uuid, kind text, queue text)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET jit TO 'off';

CREATE FUNCTION penstock.find_dead_keys(p_ids text[]) RETURNS SETOF text
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.find_key(p_id text) RETURNS TABLE(id text, kind text, account text, secret_hash bytea, expires_at timestamp with time zone, revoked_at timestamp with time zone, is_over boolean, holder text)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.find_recently_finished(p_topics text[], p_accounts text[], p_since interval, p_most integer) RETURNS TABLE(n bigint, ids uuid[], more boolean)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off';

CREATE FUNCTION penstock.find_revoked_grants(p_sessions text[], p_accounts text[], p_issued timestamp with time zone[]) RETURNS SETOF bigint
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET jit TO 'off';

CREATE FUNCTION penstock.find_upload(p_upload uuid, p_account text DEFAULT NULL::text) RETURNS TABLE(id uuid, account text, content_type text, size bigint, sha256 bytea)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.finish_jobs(p_worker bigint, p_jobs uuid[], p_attempts integer[], p_outcomes text[], p_results jsonb[] DEFAULT NULL::jsonb[], p_errors jsonb[] DEFAULT NULL::jsonb[], p_delays interval[] DEFAULT NULL::interval[], p_accounts bigint[] DEFAULT NULL::bigint[], p_usages jsonb[] DEFAULT NULL::jsonb[], p_units bigint[] DEFAULT NULL::bigint[], p_wait interval DEFAULT NULL::interval, p_effects text[] DEFAULT NULL::text[], p_retry_afters interval[] DEFAULT NULL::interval[], p_addresses text[] DEFAULT NULL::text[]) RETURNS TABLE(job_id uuid, verdict text, status penstock.job_status)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.grant_credits(account text, amount bigint, reason text DEFAULT NULL::text, ref text DEFAULT NULL::text) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.grant_rights() RETURNS boolean
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.hand_over_jobs(p_worker bigint, p_jobs uuid[], p_attempts integer[], p_tokens text[]) RETURNS TABLE(job_id uuid, verdict text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET jit TO 'off';

CREATE FUNCTION penstock.id_floor(p_at timestamp with time zone) RETURNS uuid
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.import_job(p_line jsonb) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.inspect_job(p_id uuid) RETURNS jsonb
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET jit TO 'off';

CREATE FUNCTION penstock.keep_step(p_worker bigint, p_job uuid, p_attempt integer, p_name text, p_result jsonb) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.list_accounts(p_limit integer DEFAULT 100, p_after text DEFAULT NULL::text) RETURNS SETOF jsonb
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.list_alerts() RETURNS SETOF jsonb
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.list_blocked_loops(p_limit integer DEFAULT 50, p_within interval DEFAULT '1 day'::interval, p_job uuid DEFAULT NULL::uuid) RETURNS SETOF jsonb
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.list_deliveries(p_account text DEFAULT NULL::text, p_owner text DEFAULT NULL::text, p_job uuid DEFAULT NULL::uuid, p_status text DEFAULT NULL::text, p_limit integer DEFAULT 50, p_before uuid DEFAULT NULL::uuid) RETURNS SETOF jsonb
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_custom_plan';

CREATE FUNCTION penstock.list_jobs(p_status text DEFAULT NULL::text, p_kind text DEFAULT NULL::text, p_queue text DEFAULT NULL::text, p_account text DEFAULT NULL::text, p_topic text DEFAULT NULL::text, p_limit integer DEFAULT 50, p_before uuid DEFAULT NULL::uuid) RETURNS SETOF jsonb
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.list_keys(p_account text DEFAULT NULL::text, p_limit integer DEFAULT 1000, p_after text DEFAULT NULL::text) RETURNS SETOF jsonb
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.list_kinds() RETURNS TABLE(kind text, queue text)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.list_losses() RETURNS SETOF jsonb
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.list_plans() RETURNS SETOF jsonb
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.list_queue_names() RETURNS SETOF text
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.list_queues(p_queue text DEFAULT NULL::text) RETURNS SETOF jsonb
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.list_stuck(p_limit integer DEFAULT 100) RETURNS SETOF jsonb
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.list_unhandled() RETURNS SETOF jsonb
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET jit TO 'off';

CREATE FUNCTION penstock.list_workers() RETURNS SETOF jsonb
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.lock_worker(p_worker bigint) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.make_partitions() RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '1s';

CREATE FUNCTION penstock.mark_only_suspect(p_worker bigint, p_job uuid, p_attempt integer) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET jit TO 'off';

CREATE FUNCTION penstock.may_watch(p_kinds text[], p_names text[], p_accounts text[], p_topics text[]) RETURNS TABLE(n bigint, seen boolean)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off';

CREATE FUNCTION penstock.measure_waits(p_every interval DEFAULT '00:00:01'::interval) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.new_id(p_at timestamp with time zone) RETURNS uuid
    LANGUAGE sql PARALLEL SAFE;

CREATE FUNCTION penstock.next_kind(p_queue text, p_kinds text[] DEFAULT NULL::text[]) RETURNS text
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.notify_change() RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.open_circuit(p_name text, p_reason text DEFAULT NULL::text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '2s';

CREATE FUNCTION penstock.page_batch_rows(p_batch uuid, p_limit integer DEFAULT 50, p_after uuid DEFAULT NULL::uuid) RETURNS TABLE(job jsonb, after uuid, seen boolean)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_custom_plan';

CREATE FUNCTION penstock.page_jobs(p_status text DEFAULT NULL::text, p_kind text DEFAULT NULL::text, p_queue text DEFAULT NULL::text, p_account text DEFAULT NULL::text, p_topic text DEFAULT NULL::text, p_batch uuid DEFAULT NULL::uuid, p_limit integer DEFAULT 50, p_before uuid DEFAULT NULL::uuid, p_public boolean DEFAULT false) RETURNS TABLE(job text, after uuid)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.page_rows(p_status text DEFAULT NULL::text, p_kind text DEFAULT NULL::text, p_queue text DEFAULT NULL::text, p_account text DEFAULT NULL::text, p_topic text DEFAULT NULL::text, p_batch uuid DEFAULT NULL::uuid, p_limit integer DEFAULT 50, p_before uuid DEFAULT NULL::uuid) RETURNS TABLE(job jsonb, after uuid, seen boolean)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.partitions_ahead() RETURNS interval
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.pause_queue(p_name text, p_reason text DEFAULT NULL::text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '2s';

CREATE FUNCTION penstock.poll_batches(p_ids uuid[]) RETURNS TABLE(id uuid, print bigint)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off';

CREATE FUNCTION penstock.poll_jobs(p_ids uuid[], p_versions integer[]) RETURNS TABLE(id uuid, version integer)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off';

CREATE FUNCTION penstock.poll_scopes(p_topics text[], p_accounts text[], p_prints bigint[], p_margin interval, p_most integer) RETURNS TABLE(n bigint, print bigint, ids uuid[], versions integer[], finished uuid[])
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off';

CREATE FUNCTION penstock.poll_started(p_topics text[], p_accounts text[]) RETURNS TABLE(n bigint, id uuid, version integer)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET jit TO 'off';

CREATE FUNCTION penstock.postpone_deadlines(p_worker bigint, p_by interval, p_before timestamp with time zone) RETURNS integer
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.postpone_on_finish(p_job uuid) RETURNS void
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.preview_finish(p_worker bigint, p_job uuid, p_attempt integer, p_outcome text, p_result jsonb, p_error jsonb) RETURNS TABLE(id uuid, kind text, account text, topic text, status text, attempt integer, payload jsonb, metadata jsonb, result jsonb, error jsonb, created_at timestamp with time zone, finished_at timestamp with time zone)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET jit TO 'off';

CREATE FUNCTION penstock.prune_history(p_rows integer DEFAULT 5000) RETURNS TABLE(what text, rows bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '50ms';

CREATE FUNCTION penstock.queues_of(p_kinds text[]) RETURNS SETOF text
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.read_account(p_account text) RETURNS jsonb
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.read_admin_status() RETURNS jsonb
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.read_balances(p_names text[]) RETURNS TABLE(name text, account text)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off';

CREATE FUNCTION penstock.read_batch(id uuid) RETURNS jsonb
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.read_batch_of(p_id uuid, p_account text, p_limit integer DEFAULT 100, p_after uuid DEFAULT NULL::uuid, p_public boolean DEFAULT false) RETURNS jsonb
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_custom_plan';

CREATE FUNCTION penstock.read_body(p_id uuid, p_part text, p_most integer DEFAULT NULL::integer, OUT body text, OUT characters integer, OUT uploads uuid[]) RETURNS record
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.read_cancels(p_worker bigint) RETURNS TABLE(job_id uuid, attempt integer)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.read_chunks(p_job uuid, p_attempt integer DEFAULT 0, p_seq integer DEFAULT 0, p_limit integer DEFAULT 1000) RETURNS TABLE(attempt integer, seq integer, data jsonb)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.read_chunks_after(p_ids uuid[], p_attempts integer[], p_seqs integer[], p_most integer) RETURNS TABLE(n bigint, attempt integer, seq integer, data text)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off';

CREATE FUNCTION penstock.read_gauges() RETURNS jsonb
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.read_job(id uuid) RETURNS jsonb
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.read_job_of(p_id uuid, p_account text DEFAULT NULL::text, p_topic text DEFAULT NULL::text, p_only uuid DEFAULT NULL::uuid) RETURNS jsonb
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.read_jobs(p_ids uuid[], p_positions integer, p_public boolean DEFAULT false) RETURNS TABLE(id uuid, version integer, status text, attempt integer, mark text, eta_seconds double precision, job text)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.read_jobs_of(p_ids uuid[], p_accounts text[] DEFAULT NULL::text[], p_topics text[] DEFAULT NULL::text[], p_onlys uuid[] DEFAULT NULL::uuid[]) RETURNS TABLE(ordinal bigint, job jsonb)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan';

CREATE FUNCTION penstock.read_last_chunks(p_job uuid, p_most integer) RETURNS TABLE(attempt integer, seq integer, data jsonb)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.read_ledger(p_account text, p_limit integer DEFAULT 100, p_before bigint DEFAULT NULL::bigint) RETURNS SETOF jsonb
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.read_metrics(p_hours integer DEFAULT 24, p_queue text DEFAULT NULL::text) RETURNS jsonb
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_custom_plan';

CREATE FUNCTION penstock.read_my_error(p_id uuid) RETURNS jsonb
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET jit TO 'off';

CREATE FUNCTION penstock.read_overview(p_hours integer DEFAULT 24, p_counted integer DEFAULT 40000) RETURNS jsonb
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.read_queue(p_name text) RETURNS jsonb
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.read_queues() RETURNS jsonb
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.read_rows(p_ids uuid[]) RETURNS SETOF jsonb
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.read_running_attempts(p_worker bigint, p_older interval) RETURNS TABLE(job_id uuid, attempt integer, slot_account bigint)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.read_status() RETURNS jsonb
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.read_steps(p_job uuid) RETURNS TABLE(name text, result jsonb)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.read_submitted(p_job uuid, OUT queue_position bigint, OUT eta_seconds double precision) RETURNS record
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET jit TO 'off';

CREATE FUNCTION penstock.read_upload_part(p_upload uuid, p_n integer) RETURNS bytea
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.reconcile() RETURNS TABLE(what text, subject text, was text, now text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.recover_jobs(p_limit integer DEFAULT 500, p_grace interval DEFAULT '00:00:00'::interval, p_alone boolean DEFAULT false, p_judge boolean DEFAULT true) RETURNS TABLE(job_id uuid, outcome text, verdict text, status penstock.job_status)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.refund_credits(account text, ref text, reason text DEFAULT NULL::text) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.refuse_computed(p_kinds text[], p_priced boolean[]) RETURNS void
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.register_worker(p_name text, p_lease interval DEFAULT '00:00:15'::interval, p_queues text[] DEFAULT NULL::text[], p_kinds text[] DEFAULT NULL::text[]) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.release_job(p_job uuid, p_attempt integer, p_token text, p_outcome text, p_error jsonb, p_delay interval DEFAULT NULL::interval, p_wait interval DEFAULT NULL::interval, p_effect text DEFAULT NULL::text, p_retry_after interval DEFAULT NULL::interval, p_address text DEFAULT NULL::text) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.remember_callback(p_signature bytea) RETURNS boolean
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.replay_delivery(p_id uuid, p_account text DEFAULT NULL::text) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.report_blocked_loop(p_worker bigint, p_number integer, p_seconds double precision, p_over boolean, p_job uuid DEFAULT NULL::uuid, p_attempt integer DEFAULT NULL::integer, p_kind text DEFAULT NULL::text, p_location text DEFAULT NULL::text) RETURNS TABLE(job_id uuid, attempt integer)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET jit TO 'off';

CREATE FUNCTION penstock.report_check(p_queue text, p_reachable boolean) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.report_delivery(p_id uuid, p_try integer, p_taken boolean, p_status integer DEFAULT NULL::integer, p_error text DEFAULT NULL::text, p_over boolean DEFAULT false, p_after interval DEFAULT NULL::interval) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.report_progress(p_worker bigint, p_jobs uuid[], p_attempts integer[], p_stages text[], p_labels text[], p_progress jsonb[], p_units bigint[] DEFAULT NULL::bigint[], p_callbacks bytea[] DEFAULT NULL::bytea[]) RETURNS TABLE(job_id uuid, verdict text, cancel boolean)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off';

CREATE FUNCTION penstock.reset_plan(p_name text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '2s';

CREATE FUNCTION penstock.reset_queue(p_name text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '2s';

CREATE FUNCTION penstock.resolve_callbacks(p_jobs uuid[], p_attempts integer[], p_tokens text[], p_outcomes text[], p_results jsonb[] DEFAULT NULL::jsonb[], p_errors jsonb[] DEFAULT NULL::jsonb[], p_units bigint[] DEFAULT NULL::bigint[], p_usages jsonb[] DEFAULT NULL::jsonb[], p_delays interval[] DEFAULT NULL::interval[], p_stages text[] DEFAULT NULL::text[], p_progress jsonb[] DEFAULT NULL::jsonb[], p_wait interval DEFAULT NULL::interval, p_effects text[] DEFAULT NULL::text[], p_retry_afters interval[] DEFAULT NULL::interval[]) RETURNS TABLE(job_id uuid, outcome text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET jit TO 'off';

CREATE FUNCTION penstock.resume_queue(p_name text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.retry_job(id uuid) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.retry_job_of(p_id uuid, p_account text DEFAULT NULL::text) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.revoke_key(p_id text) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.roll_up(p_every interval DEFAULT '00:00:05'::interval) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_custom_plan';

CREATE FUNCTION penstock.rotate_key(p_id text, p_new text, p_hash bytea, p_overlap interval) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.server_time() RETURNS timestamp with time zone
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.set_account_plan(p_account text, p_plan text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '2s';

CREATE FUNCTION penstock.stage_due_jobs(p_queue integer, p_limit integer DEFAULT 1000, p_job uuid DEFAULT NULL::uuid) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.stop_worker(p_worker bigint) RETURNS void
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.submit_job(kind text, payload jsonb, account text DEFAULT NULL::text, priority integer DEFAULT NULL::integer, delay_seconds double precision DEFAULT NULL::double precision, run_at timestamp with time zone DEFAULT NULL::timestamp with time zone, dedupe_key text DEFAULT NULL::text, topic text DEFAULT NULL::text, max_attempts integer DEFAULT NULL::integer, timeout_seconds double precision DEFAULT NULL::double precision, expires_seconds double precision DEFAULT NULL::double precision, metadata jsonb DEFAULT NULL::jsonb, idempotency_key text DEFAULT NULL::text, price bigint DEFAULT NULL::bigint, webhook_url text DEFAULT NULL::text) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.submit_jobs(jobs jsonb) RETURNS SETOF jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.submit_many(p_kinds text[], p_payloads jsonb[], p_accounts text[] DEFAULT NULL::text[], p_dedupe_keys text[] DEFAULT NULL::text[], p_topics text[] DEFAULT NULL::text[], p_priorities integer[] DEFAULT NULL::integer[], p_run_ats timestamp with time zone[] DEFAULT NULL::timestamp with time zone[], p_delays interval[] DEFAULT NULL::interval[], p_max_attempts integer[] DEFAULT NULL::integer[], p_timeouts interval[] DEFAULT NULL::interval[], p_expires interval[] DEFAULT NULL::interval[], p_metadata jsonb[] DEFAULT NULL::jsonb[], p_prices bigint[] DEFAULT NULL::bigint[], p_batched boolean DEFAULT false, p_one_request boolean DEFAULT false, p_retry_of uuid DEFAULT NULL::uuid, p_is_new boolean DEFAULT true, p_webhook_urls text[] DEFAULT NULL::text[], p_own boolean DEFAULT false) RETURNS TABLE(ordinal bigint, id uuid, status penstock.job_status, deduplicated boolean, balance bigint, batch uuid)
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.submit_one(p_kind text, p_payload jsonb, p_account text DEFAULT NULL::text, p_dedupe_key text DEFAULT NULL::text, p_topic text DEFAULT NULL::text, p_priority integer DEFAULT NULL::integer, p_run_at timestamp with time zone DEFAULT NULL::timestamp with time zone, p_delay interval DEFAULT NULL::interval, p_max_attempts integer DEFAULT NULL::integer, p_timeout interval DEFAULT NULL::interval, p_expires interval DEFAULT NULL::interval, p_metadata jsonb DEFAULT NULL::jsonb, p_key text DEFAULT NULL::text, p_scope text DEFAULT ''::text, p_wake text DEFAULT NULL::text, p_price bigint DEFAULT NULL::bigint, p_webhook_url text DEFAULT NULL::text, p_own boolean DEFAULT false, p_position boolean DEFAULT true) RETURNS TABLE(id uuid, status penstock.job_status, deduplicated boolean, replayed boolean, queue_position bigint, eta_seconds double precision, waiting_for text, balance bigint, batch uuid, ids uuid[])
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET jit TO 'off';

CREATE PROCEDURE penstock.submit_waking(IN p_kind text, IN p_payload jsonb, IN p_account text, IN p_dedupe_key text, IN p_topic text, IN p_priority integer, IN p_run_at timestamp with time zone, IN p_delay interval, IN p_max_attempts integer, IN p_timeout interval, IN p_expires interval, IN p_metadata jsonb, IN p_key text, IN p_scope text, IN p_wake text, IN p_price bigint, IN p_webhook_url text, INOUT id uuid, INOUT status text, INOUT deduplicated boolean, INOUT replayed boolean, INOUT queue_position bigint, INOUT eta_seconds double precision, INOUT balance bigint, INOUT batch uuid, INOUT ids text[])
    LANGUAGE plpgsql;

CREATE FUNCTION penstock.sweep_uploads(p_most integer DEFAULT 500) RETURNS integer
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.take_on_finish(p_kinds text[], p_job uuid DEFAULT NULL::uuid) RETURNS TABLE(id uuid, kind text, account text, topic text, status text, attempt integer, payload jsonb, metadata jsonb, result jsonb, error jsonb, created_at timestamp with time zone, finished_at timestamp with time zone)
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.touch_keys(p_ids text[]) RETURNS void
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.upload_room(p_account text, OUT most_bytes bigint, OUT quota_bytes bigint, OUT used_bytes bigint) RETURNS record
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.use_uploads(p_kind text, p_account text, p_payload jsonb, p_uploads uuid[]) RETURNS SETOF uuid
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION penstock.wake_workers(p_queues text[]) RETURNS void
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp';

ALTER TABLE penstock.account ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME penstock.account_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE penstock.alert (
    id bigint NOT NULL,
    queue_id integer NOT NULL,
    class text NOT NULL,
    message text NOT NULL,
    raised_at timestamp with time zone NOT NULL,
    cleared_at timestamp with time zone
);

ALTER TABLE penstock.alert ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME penstock.alert_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE penstock.attempt (
    job_id uuid NOT NULL,
    started_at timestamp with time zone NOT NULL,
    ended_at timestamp with time zone NOT NULL,
    attempt integer NOT NULL,
    worker_id bigint,
    outcome text NOT NULL,
    error jsonb,
    usage jsonb,
    CONSTRAINT outcome_is_known CHECK ((outcome = ANY (ARRAY['retried'::text, 'deferred'::text, 'snoozed'::text, 'released'::text, 'timed_out'::text, 'lost'::text, 'stuck'::text])))
)
PARTITION BY RANGE (job_id);

CREATE TABLE penstock.attempt_rest (
    job_id uuid CONSTRAINT attempt_job_id_not_null NOT NULL,
    started_at timestamp with time zone CONSTRAINT attempt_started_at_not_null NOT NULL,
    ended_at timestamp with time zone CONSTRAINT attempt_ended_at_not_null NOT NULL,
    attempt integer CONSTRAINT attempt_attempt_not_null NOT NULL,
    worker_id bigint,
    outcome text CONSTRAINT attempt_outcome_not_null NOT NULL,
    error jsonb,
    usage jsonb,
    CONSTRAINT outcome_is_known CHECK ((outcome = ANY (ARRAY['retried'::text, 'deferred'::text, 'snoozed'::text, 'released'::text, 'timed_out'::text, 'lost'::text, 'stuck'::text])))
);

CREATE VIEW penstock.attempts AS
 SELECT t.job_id,
    t.attempt,
    t.worker_id,
    t.started_at,
    t.ended_at,
    t.outcome,
    t.error,
    t.usage
   FROM penstock.attempt t
UNION ALL
 SELECT f.id AS job_id,
    f.attempt,
    f.worker_id,
    f.started_at,
    f.finished_at AS ended_at,
    (f.status)::text AS outcome,
    f.error,
    f.usage
   FROM penstock.finished f
  WHERE f.finished_by_attempt;

CREATE TABLE penstock.batch (
    id uuid NOT NULL,
    account_id bigint DEFAULT 0 NOT NULL,
    total integer NOT NULL,
    created_at timestamp with time zone NOT NULL,
    CONSTRAINT total_is_positive CHECK ((total >= 1))
);

CREATE TABLE penstock.blocked_loop (
    worker_id bigint NOT NULL,
    number integer NOT NULL,
    began_at timestamp with time zone NOT NULL,
    reported_at timestamp with time zone NOT NULL,
    ended_at timestamp with time zone,
    seconds double precision NOT NULL,
    job_id uuid,
    attempt integer,
    kind text,
    location text,
    CONSTRAINT job_has_attempt CHECK (((job_id IS NULL) = (attempt IS NULL))),
    CONSTRAINT location_is_short CHECK ((length(location) <= 500))
);

CREATE TABLE penstock.blocked_loop_total (
    kind text NOT NULL,
    times bigint NOT NULL,
    seconds double precision NOT NULL
);

CREATE TABLE penstock.chunk (
    job_id uuid NOT NULL,
    attempt integer NOT NULL,
    seq integer NOT NULL,
    data jsonb NOT NULL
)
PARTITION BY RANGE (job_id);

CREATE TABLE penstock.chunk_rest (
    job_id uuid CONSTRAINT chunk_job_id_not_null NOT NULL,
    attempt integer CONSTRAINT chunk_attempt_not_null NOT NULL,
    seq integer CONSTRAINT chunk_seq_not_null NOT NULL,
    data jsonb CONSTRAINT chunk_data_not_null NOT NULL
);

CREATE TABLE penstock.closed_session (
    id text NOT NULL,
    expires_at timestamp with time zone NOT NULL
);

CREATE TABLE penstock.erasure (
    id bigint NOT NULL,
    account_id bigint NOT NULL,
    at timestamp with time zone NOT NULL,
    receipt jsonb NOT NULL
);

ALTER TABLE penstock.erasure ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME penstock.erasure_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE penstock.flow (
    queue_id integer NOT NULL,
    parallel double precision DEFAULT 0 NOT NULL,
    seen_at timestamp with time zone DEFAULT '-infinity'::timestamp with time zone NOT NULL,
    snapshot_due_at timestamp with time zone DEFAULT '-infinity'::timestamp with time zone NOT NULL,
    closed bigint[] DEFAULT '{}'::bigint[] NOT NULL,
    CONSTRAINT parallel_is_not_negative CHECK ((parallel >= (0)::double precision))
)
WITH (fillfactor='50');

CREATE VIEW penstock.hourly AS
 SELECT b.hour,
    q.name AS queue,
    k.name AS kind,
    b.outcome,
    NULLIF(b.class, ''::text) AS class,
    b.count,
    b.total_ms AS total_duration_ms,
    b.histogram
   FROM ((penstock.hourly_bucket b
     LEFT JOIN penstock.queue q ON ((q.id = b.queue_id)))
     LEFT JOIN penstock.kind k ON ((k.id = b.kind_id)))
  WHERE (b.hour > '-infinity'::timestamp with time zone);

CREATE TABLE penstock.idempotency (
    scope text NOT NULL,
    key text NOT NULL,
    fingerprint bytea NOT NULL,
    job_id uuid NOT NULL,
    created_at timestamp with time zone NOT NULL,
    deduplicated boolean NOT NULL
);

CREATE TABLE penstock.job_webhook (
    job_id uuid NOT NULL,
    url text NOT NULL,
    CONSTRAINT url_is_short CHECK (((length(url) >= 1) AND (length(url) <= 2000)))
);

ALTER TABLE penstock.kind ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME penstock.kind_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE penstock.lane (
    account_id bigint NOT NULL,
    queue_id integer NOT NULL,
    kind_id integer NOT NULL,
    head bigint NOT NULL,
    waiting integer DEFAULT 0 NOT NULL,
    open boolean DEFAULT true NOT NULL,
    CONSTRAINT waiting_is_not_negative CHECK ((waiting >= 0))
)
WITH (fillfactor='50');

CREATE TABLE penstock.late_result (
    id bigint NOT NULL,
    job_id uuid NOT NULL,
    worker_id bigint,
    arrived_at timestamp with time zone NOT NULL,
    attempt integer NOT NULL,
    outcome text NOT NULL,
    result jsonb,
    error jsonb,
    usage jsonb
);

ALTER TABLE penstock.late_result ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME penstock.late_result_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE penstock.ledger (
    account_id bigint NOT NULL,
    id bigint NOT NULL,
    at timestamp with time zone NOT NULL,
    amount bigint NOT NULL,
    balance_after bigint NOT NULL,
    job_id uuid,
    kind text NOT NULL,
    ref text,
    reason text,
    CONSTRAINT balance_not_negative CHECK ((balance_after >= 0)),
    CONSTRAINT kind_says_the_sign CHECK (
CASE kind
    WHEN 'grant'::text THEN (amount > 0)
    WHEN 'refund'::text THEN (amount > 0)
    WHEN 'reserve'::text THEN ((amount < 0) AND (job_id IS NOT NULL))
    WHEN 'deduct'::text THEN ((amount < 0) AND (ref IS NOT NULL))
    ELSE false
END),
    CONSTRAINT reason_is_short CHECK (((length(reason) >= 1) AND (length(reason) <= 500))),
    CONSTRAINT ref_is_short CHECK (((length(ref) >= 1) AND (length(ref) <= 200)))
);

ALTER TABLE penstock.ledger ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME penstock.ledger_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE penstock.measured (
    only_row boolean DEFAULT true NOT NULL,
    at timestamp with time zone DEFAULT '-infinity'::timestamp with time zone NOT NULL,
    CONSTRAINT there_is_one_row CHECK (only_row)
)
WITH (fillfactor='50');

CREATE TABLE penstock.migration (
    number integer NOT NULL,
    name text NOT NULL,
    applied_at timestamp with time zone DEFAULT now() NOT NULL,
    checksum text NOT NULL
);

CREATE VIEW penstock.my_account WITH (security_invoker='true') AS
 SELECT name AS id,
    plan,
    balance,
    running,
    created_at
   FROM penstock.account a;

CREATE TABLE penstock.resolution (
    job_id uuid NOT NULL,
    account_id bigint NOT NULL,
    at timestamp with time zone NOT NULL,
    reserved bigint NOT NULL,
    charged bigint NOT NULL,
    refunded bigint NOT NULL,
    CONSTRAINT all_is_accounted_for CHECK (((charged + refunded) = reserved)),
    CONSTRAINT nothing_is_negative CHECK (((LEAST(charged, refunded) >= 0) AND (reserved > 0)))
);

CREATE VIEW penstock.my_jobs WITH (security_invoker='true') AS
 SELECT j.id,
    k.name AS kind,
    q.name AS queue,
    j.topic,
    j.batch_id AS batch,
    j.status,
    j.priority,
    j.attempt,
    j.failures,
    j.created_at,
    j.run_at,
    j.started_at,
    NULL::timestamp with time zone AS finished_at,
    j.stage,
    j.progress,
    NULL::jsonb AS result,
        CASE
            WHEN (j.attempt > 0) THEN penstock.read_my_error(j.id)
            ELSE NULL::jsonb
        END AS error,
    j.payload,
    j.metadata,
    j.reserved,
    NULL::bigint AS charged,
    NULL::bigint AS refunded
   FROM ((penstock.job j
     JOIN penstock.kind k ON ((k.id = j.kind_id)))
     JOIN penstock.queue q ON ((q.id = j.queue_id)))
UNION ALL
 SELECT f.id,
    k.name AS kind,
    q.name AS queue,
    f.topic,
    f.batch_id AS batch,
    f.status,
    f.priority,
    f.attempt,
    f.failures,
    f.created_at,
    f.run_at,
    f.started_at,
    f.finished_at,
    f.stage,
    f.progress,
    f.result,
        CASE
            WHEN (f.status <> 'succeeded'::penstock.job_status) THEN penstock.read_my_error(f.id)
            ELSE NULL::jsonb
        END AS error,
    f.payload,
    f.metadata,
    f.reserved,
    r.charged,
    r.refunded
   FROM (((penstock.finished f
     JOIN penstock.kind k ON ((k.id = f.kind_id)))
     JOIN penstock.queue q ON ((q.id = f.queue_id)))
     LEFT JOIN penstock.resolution r ON ((r.job_id = f.id)));

CREATE VIEW penstock.my_ledger WITH (security_invoker='true') AS
 SELECT id,
    at,
    kind,
    amount,
    job_id AS job,
    ref,
    reason,
    balance_after
   FROM penstock.ledger l;

CREATE TABLE penstock.pace (
    kind_id integer NOT NULL,
    seconds double precision NOT NULL,
    samples integer NOT NULL,
    newest_at timestamp with time zone NOT NULL,
    CONSTRAINT samples_are_positive CHECK ((samples >= 1)),
    CONSTRAINT seconds_are_not_negative CHECK ((seconds >= (0)::double precision))
);

CREATE TABLE penstock.pending_on_finish (
    job_id uuid NOT NULL,
    kind_id integer NOT NULL,
    tries integer DEFAULT 0 NOT NULL,
    next_at timestamp with time zone NOT NULL
);

ALTER TABLE penstock.queue ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME penstock.queue_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE penstock.queue_kind (
    queue_id integer NOT NULL,
    kind_id integer NOT NULL
);

CREATE VIEW penstock.queue_stats AS
 SELECT q.name AS queue,
    q.concurrency,
    (q.paused_at IS NOT NULL) AS paused,
    COALESCE(s.scheduled, (0)::bigint) AS scheduled,
    COALESCE(s.queued, (0)::bigint) AS queued,
    COALESCE(s.running, (0)::bigint) AS running,
    COALESCE(s.awaiting, (0)::bigint) AS awaiting,
    s.oldest_queued_at,
    COALESCE(h.failed_today, (0)::bigint) AS failed_today,
    h.avg_seconds
   FROM ((penstock.queue q
     LEFT JOIN ( SELECT j.queue_id,
            count(*) FILTER (WHERE (j.status = 'scheduled'::penstock.job_status)) AS scheduled,
            count(*) FILTER (WHERE (j.status = 'queued'::penstock.job_status)) AS queued,
            count(*) FILTER (WHERE (j.status = 'running'::penstock.job_status)) AS running,
            count(*) FILTER (WHERE (j.status = 'awaiting'::penstock.job_status)) AS awaiting,
            min(j.created_at) FILTER (WHERE (j.status = 'queued'::penstock.job_status)) AS oldest_queued_at
           FROM penstock.job j
          GROUP BY j.queue_id) s ON ((s.queue_id = q.id)))
     LEFT JOIN ( SELECT b.queue_id,
            (sum(b.count) FILTER (WHERE ((b.outcome = 'failed'::text) AND (b.hour >= date_trunc('day'::text, penstock.clock(), 'UTC'::text)))))::bigint AS failed_today,
            round(((sum(b.total_ms) FILTER (WHERE (b.outcome = 'succeeded'::text)) / 1000.0) / NULLIF(sum(b.count) FILTER (WHERE (b.outcome = 'succeeded'::text)), (0)::numeric)), 3) AS avg_seconds
           FROM penstock.hourly_bucket b
          WHERE (b.hour > (penstock.clock() - '1 day'::interval))
          GROUP BY b.queue_id) h ON ((h.queue_id = q.id)));

CREATE TABLE penstock.recent_submit (
    account_id bigint NOT NULL,
    at timestamp with time zone NOT NULL,
    n integer NOT NULL,
    CONSTRAINT n_is_positive CHECK ((n >= 1))
);

CREATE TABLE penstock.retention_class (
    id smallint NOT NULL,
    kept interval,
    partition_days integer NOT NULL,
    CONSTRAINT kept_is_positive CHECK ((kept > '00:00:00'::interval))
);

ALTER TABLE penstock.retention_class ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME penstock.retention_class_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE penstock.schema_info (
    only_row boolean DEFAULT true NOT NULL,
    functions_checksum text,
    functions_loaded_at timestamp with time zone,
    previous_number integer,
    previous_checksum text,
    CONSTRAINT there_is_one_row CHECK (only_row)
);

CREATE TABLE penstock.seen_callback (
    signature bytea NOT NULL,
    seen_at timestamp with time zone NOT NULL
);

CREATE TABLE penstock.snapshot (
    queue_id integer NOT NULL,
    lane bigint NOT NULL,
    ranks bigint[] NOT NULL,
    work double precision[] NOT NULL,
    CONSTRAINT each_slice_has_its_work CHECK ((cardinality(ranks) = cardinality(work)))
);
ALTER TABLE ONLY penstock.snapshot ALTER COLUMN ranks SET STORAGE EXTERNAL;
ALTER TABLE ONLY penstock.snapshot ALTER COLUMN work SET STORAGE EXTERNAL;

CREATE TABLE penstock.step (
    job_id uuid NOT NULL,
    kept_at timestamp with time zone NOT NULL,
    attempt integer NOT NULL,
    name text NOT NULL,
    result jsonb NOT NULL,
    CONSTRAINT name_is_short CHECK (((length(name) >= 1) AND (length(name) <= 200)))
)
PARTITION BY RANGE (job_id);

CREATE TABLE penstock.step_rest (
    job_id uuid CONSTRAINT step_job_id_not_null NOT NULL,
    kept_at timestamp with time zone CONSTRAINT step_kept_at_not_null NOT NULL,
    attempt integer CONSTRAINT step_attempt_not_null NOT NULL,
    name text CONSTRAINT step_name_not_null NOT NULL,
    result jsonb CONSTRAINT step_result_not_null NOT NULL,
    CONSTRAINT name_is_short CHECK (((length(name) >= 1) AND (length(name) <= 200)))
);

CREATE TABLE penstock.upload (
    id uuid NOT NULL,
    account_id bigint DEFAULT 0 NOT NULL,
    size bigint NOT NULL,
    created_at timestamp with time zone NOT NULL,
    used_at timestamp with time zone,
    content_type text NOT NULL,
    sha256 bytea NOT NULL,
    CONSTRAINT size_is_not_negative CHECK ((size >= 0))
);

CREATE TABLE penstock.upload_part (
    upload_id uuid NOT NULL,
    n integer NOT NULL,
    data bytea NOT NULL
);
ALTER TABLE ONLY penstock.upload_part ALTER COLUMN data SET STORAGE EXTERNAL;

CREATE TABLE penstock.worker (
    id bigint NOT NULL,
    locks boolean DEFAULT false NOT NULL,
    started_at timestamp with time zone NOT NULL,
    beat_at timestamp with time zone NOT NULL,
    stopped_at timestamp with time zone,
    lost_at timestamp with time zone,
    lost_jobs integer,
    cleared_at timestamp with time zone,
    lease interval NOT NULL,
    name text NOT NULL,
    queues text[],
    kinds text[],
    accepting jsonb,
    CONSTRAINT lease_is_positive CHECK ((lease > '00:00:00'::interval)),
    CONSTRAINT name_is_short CHECK (((length(name) >= 1) AND (length(name) <= 200)))
)
WITH (fillfactor='50');

CREATE VIEW penstock.worker_health AS
 SELECT name AS worker_id,
    beat_at AS last_heartbeat,
    (( SELECT count(*) AS count
           FROM penstock.job j
          WHERE ((j.deadline_at IS NOT NULL) AND (j.worker_id = w.id))))::integer AS running,
    ((lost_at IS NULL) AND (stopped_at IS NULL) AND ((beat_at + lease) >= penstock.clock())) AS alive
   FROM penstock.worker w
  WHERE ((stopped_at IS NULL) AND ((lost_at IS NULL) OR (lost_at > (penstock.clock() - '1 day'::interval))));

ALTER TABLE ONLY penstock.attempt ATTACH PARTITION penstock.attempt_rest DEFAULT;

ALTER TABLE ONLY penstock.chunk ATTACH PARTITION penstock.chunk_rest DEFAULT;

ALTER TABLE ONLY penstock.step ATTACH PARTITION penstock.step_rest DEFAULT;

ALTER TABLE ONLY penstock.account
    ADD CONSTRAINT account_name_key UNIQUE (name);

ALTER TABLE ONLY penstock.account
    ADD CONSTRAINT account_pkey PRIMARY KEY (id);

ALTER TABLE ONLY penstock.alert
    ADD CONSTRAINT alert_pkey PRIMARY KEY (id);

ALTER TABLE ONLY penstock.api_key
    ADD CONSTRAINT api_key_pkey PRIMARY KEY (id);

ALTER TABLE ONLY penstock.attempt
    ADD CONSTRAINT attempt_pkey PRIMARY KEY (job_id, attempt);

ALTER TABLE ONLY penstock.attempt_rest
    ADD CONSTRAINT attempt_rest_pkey PRIMARY KEY (job_id, attempt);

ALTER TABLE ONLY penstock.batch
    ADD CONSTRAINT batch_pkey PRIMARY KEY (id);

ALTER TABLE ONLY penstock.blocked_loop
    ADD CONSTRAINT blocked_loop_pkey PRIMARY KEY (worker_id, number);

ALTER TABLE ONLY penstock.blocked_loop_total
    ADD CONSTRAINT blocked_loop_total_pkey PRIMARY KEY (kind);

ALTER TABLE ONLY penstock.chunk
    ADD CONSTRAINT chunk_pkey PRIMARY KEY (job_id, attempt, seq);

ALTER TABLE ONLY penstock.chunk_rest
    ADD CONSTRAINT chunk_rest_pkey PRIMARY KEY (job_id, attempt, seq);

ALTER TABLE ONLY penstock.circuit
    ADD CONSTRAINT circuit_pkey PRIMARY KEY (queue_id);

ALTER TABLE ONLY penstock.closed_session
    ADD CONSTRAINT closed_session_pkey PRIMARY KEY (id);

ALTER TABLE ONLY penstock.delivery
    ADD CONSTRAINT delivery_pkey PRIMARY KEY (id);

ALTER TABLE ONLY penstock.erasure
    ADD CONSTRAINT erasure_pkey PRIMARY KEY (id);

ALTER TABLE ONLY penstock.finished
    ADD CONSTRAINT finished_pkey PRIMARY KEY (id, class);

ALTER TABLE ONLY penstock.flow
    ADD CONSTRAINT flow_pkey PRIMARY KEY (queue_id);

ALTER TABLE ONLY penstock.gate
    ADD CONSTRAINT gate_pkey PRIMARY KEY (queue_id);

ALTER TABLE ONLY penstock.hourly_bucket
    ADD CONSTRAINT hourly_bucket_pkey PRIMARY KEY (hour, queue_id, kind_id, outcome, class);

ALTER TABLE ONLY penstock.idempotency
    ADD CONSTRAINT idempotency_pkey PRIMARY KEY (scope, key);

ALTER TABLE ONLY penstock.job
    ADD CONSTRAINT job_pkey PRIMARY KEY (id);

ALTER TABLE ONLY penstock.job_webhook
    ADD CONSTRAINT job_webhook_pkey PRIMARY KEY (job_id);

ALTER TABLE ONLY penstock.retention_class
    ADD CONSTRAINT kept_once UNIQUE NULLS NOT DISTINCT (kept);

ALTER TABLE ONLY penstock.kind
    ADD CONSTRAINT kind_name_key UNIQUE (name);

ALTER TABLE ONLY penstock.kind
    ADD CONSTRAINT kind_pkey PRIMARY KEY (id);

ALTER TABLE ONLY penstock.lane
    ADD CONSTRAINT lane_pkey PRIMARY KEY (account_id, queue_id, kind_id);

ALTER TABLE ONLY penstock.late_result
    ADD CONSTRAINT late_result_pkey PRIMARY KEY (id);

ALTER TABLE ONLY penstock.ledger
    ADD CONSTRAINT ledger_pkey PRIMARY KEY (account_id, id);

ALTER TABLE ONLY penstock.measured
    ADD CONSTRAINT measured_pkey PRIMARY KEY (only_row);

ALTER TABLE ONLY penstock.migration
    ADD CONSTRAINT migration_pkey PRIMARY KEY (number);

ALTER TABLE ONLY penstock.pace
    ADD CONSTRAINT pace_pkey PRIMARY KEY (kind_id);

ALTER TABLE ONLY penstock.pending_on_finish
    ADD CONSTRAINT pending_on_finish_pkey PRIMARY KEY (job_id);

ALTER TABLE ONLY penstock.plan
    ADD CONSTRAINT plan_pkey PRIMARY KEY (name);

ALTER TABLE ONLY penstock.queue_kind
    ADD CONSTRAINT queue_kind_pkey PRIMARY KEY (queue_id, kind_id);

ALTER TABLE ONLY penstock.queue
    ADD CONSTRAINT queue_name_key UNIQUE (name);

ALTER TABLE ONLY penstock.queue
    ADD CONSTRAINT queue_pkey PRIMARY KEY (id);

ALTER TABLE ONLY penstock.resolution
    ADD CONSTRAINT resolution_pkey PRIMARY KEY (job_id);

ALTER TABLE ONLY penstock.retention_class
    ADD CONSTRAINT retention_class_pkey PRIMARY KEY (id);

ALTER TABLE ONLY penstock.rollup
    ADD CONSTRAINT rollup_pkey PRIMARY KEY (only_row);

ALTER TABLE ONLY penstock.schema_info
    ADD CONSTRAINT schema_info_pkey PRIMARY KEY (only_row);

ALTER TABLE ONLY penstock.seen_callback
    ADD CONSTRAINT seen_callback_pkey PRIMARY KEY (signature);

ALTER TABLE ONLY penstock.setting
    ADD CONSTRAINT setting_pkey PRIMARY KEY (only_row);

ALTER TABLE ONLY penstock.snapshot
    ADD CONSTRAINT snapshot_pkey PRIMARY KEY (queue_id, lane);

ALTER TABLE ONLY penstock.step
    ADD CONSTRAINT step_pkey PRIMARY KEY (job_id, name);

ALTER TABLE ONLY penstock.step_rest
    ADD CONSTRAINT step_rest_pkey PRIMARY KEY (job_id, name);

ALTER TABLE ONLY penstock.upload_part
    ADD CONSTRAINT upload_part_pkey PRIMARY KEY (upload_id, n);

ALTER TABLE ONLY penstock.upload
    ADD CONSTRAINT upload_pkey PRIMARY KEY (id);

ALTER TABLE ONLY penstock.worker
    ADD CONSTRAINT worker_pkey PRIMARY KEY (id);

CREATE UNIQUE INDEX alert_raised_idx ON penstock.alert USING btree (queue_id) WHERE (cleared_at IS NULL);

CREATE INDEX api_key_account_idx ON penstock.api_key USING btree (account_id) WHERE (account_id IS NOT NULL);

CREATE INDEX attempt_settled_idx ON ONLY penstock.attempt USING brin (ended_at) WITH (pages_per_range='16', autosummarize='on');

CREATE INDEX attempt_rest_ended_at_idx ON penstock.attempt_rest USING brin (ended_at) WITH (pages_per_range='16', autosummarize='on');

CREATE INDEX blocked_loop_began_idx ON penstock.blocked_loop USING btree (began_at);

CREATE INDEX blocked_loop_open_idx ON penstock.blocked_loop USING btree (worker_id) WHERE (ended_at IS NULL);

CREATE INDEX closed_session_expires_idx ON penstock.closed_session USING btree (expires_at);

CREATE INDEX delivery_account_idx ON penstock.delivery USING btree (account_id, id);

CREATE INDEX delivery_created_idx ON penstock.delivery USING btree (created_at);

CREATE INDEX delivery_due_idx ON penstock.delivery USING btree (next_at) WHERE (next_at IS NOT NULL);

CREATE INDEX delivery_host_idx ON penstock.delivery USING btree (host, next_at) WHERE (next_at IS NOT NULL);

CREATE INDEX delivery_job_idx ON penstock.delivery USING btree (job_id);

CREATE INDEX delivery_open_idx ON penstock.delivery USING btree (id) WHERE (delivered_at IS NULL);

CREATE INDEX delivery_sending_idx ON penstock.delivery USING btree (host) WHERE (sending_until IS NOT NULL);

CREATE INDEX erasure_at_idx ON penstock.erasure USING btree (at);

CREATE INDEX finished_account_idx ON ONLY penstock.finished USING btree (account_id, id) WHERE (account_id <> 0);

CREATE INDEX finished_batch_idx ON ONLY penstock.finished USING btree (batch_id, id) WHERE (batch_id IS NOT NULL);

CREATE INDEX finished_failed_idx ON ONLY penstock.finished USING btree (finished_at) WHERE (status = 'failed'::penstock.job_status);

CREATE INDEX finished_time_idx ON ONLY penstock.finished USING brin (finished_at) WITH (pages_per_range='16', autosummarize='on');

CREATE INDEX finished_topic_idx ON ONLY penstock.finished USING btree (topic, id) WHERE (topic IS NOT NULL);

CREATE INDEX finished_unsuccessful_idx ON ONLY penstock.finished USING btree (id) WHERE (status <> 'succeeded'::penstock.job_status);

CREATE INDEX idempotency_created_idx ON penstock.idempotency USING btree (created_at);

CREATE INDEX job_account_idx ON penstock.job USING btree (account_id, id) WHERE (account_id <> 0);

CREATE INDEX job_batch_idx ON penstock.job USING btree (batch_id, id) WHERE (batch_id IS NOT NULL);

CREATE INDEX job_cancel_idx ON penstock.job USING btree (cancel_requested_at) WHERE (cancel_requested_at IS NOT NULL);

CREATE INDEX job_deadline_idx ON penstock.job USING btree (deadline_at) WHERE (deadline_at IS NOT NULL);

CREATE UNIQUE INDEX job_dedupe_idx ON penstock.job USING btree (kind_id, account_id, dedupe_key) WHERE (dedupe_key IS NOT NULL);

CREATE INDEX job_deferred_probe_idx ON penstock.job USING btree (queue_id, run_at) WHERE deferred_probe;

CREATE INDEX job_due_idx ON penstock.job USING btree (queue_id, run_at) WHERE (status = 'scheduled'::penstock.job_status);

CREATE INDEX job_expires_idx ON penstock.job USING btree (queue_id, expires_at) WHERE ((expires_at IS NOT NULL) AND (status = ANY (ARRAY['scheduled'::penstock.job_status, 'queued'::penstock.job_status])));

CREATE INDEX job_failure_pending_idx ON penstock.job USING btree (run_at) WHERE failure_pending;

CREATE INDEX job_provisional_idx ON penstock.job USING btree (queue_id, provisional_at) WHERE (provisional_at IS NOT NULL);

CREATE INDEX job_ready_idx ON penstock.job USING btree (queue_id, kind_id, lane, rank) WHERE (status = 'queued'::penstock.job_status);

CREATE INDEX job_recovered_idx ON penstock.job USING btree (recovered_at) WHERE ((recovered_at IS NOT NULL) AND (status = ANY (ARRAY['scheduled'::penstock.job_status, 'queued'::penstock.job_status])));

CREATE INDEX job_topic_idx ON penstock.job USING btree (topic, id) WHERE (topic IS NOT NULL);

CREATE INDEX lane_open_idx ON penstock.lane USING btree (queue_id, kind_id, head) WHERE (open AND (waiting > 0));

CREATE INDEX late_result_arrived_idx ON penstock.late_result USING btree (arrived_at);

CREATE INDEX late_result_job_idx ON penstock.late_result USING btree (job_id);

CREATE UNIQUE INDEX ledger_ref_idx ON penstock.ledger USING btree (account_id, ref, kind) WHERE (ref IS NOT NULL);

CREATE INDEX pending_on_finish_next_idx ON penstock.pending_on_finish USING btree (kind_id, next_at);

CREATE UNIQUE INDEX plan_default_idx ON penstock.plan USING btree (is_default) WHERE is_default;

CREATE INDEX recent_submit_idx ON penstock.recent_submit USING btree (account_id, at);

CREATE INDEX resolution_account_idx ON penstock.resolution USING btree (account_id, at);

CREATE INDEX seen_callback_idx ON penstock.seen_callback USING btree (seen_at);

CREATE INDEX upload_account_idx ON penstock.upload USING btree (account_id, created_at);

CREATE INDEX upload_created_idx ON penstock.upload USING btree (created_at);

CREATE INDEX worker_uncleared_idx ON penstock.worker USING btree (id) WHERE (cleared_at IS NULL);

ALTER INDEX penstock.attempt_settled_idx ATTACH PARTITION penstock.attempt_rest_ended_at_idx;

ALTER INDEX penstock.attempt_pkey ATTACH PARTITION penstock.attempt_rest_pkey;

ALTER INDEX penstock.chunk_pkey ATTACH PARTITION penstock.chunk_rest_pkey;

ALTER INDEX penstock.step_pkey ATTACH PARTITION penstock.step_rest_pkey;

CREATE TRIGGER ledger_is_append_only BEFORE DELETE OR UPDATE OR TRUNCATE ON penstock.ledger FOR EACH STATEMENT EXECUTE FUNCTION penstock._refuse_rewrite();

CREATE TRIGGER payload_can_be_printed BEFORE INSERT ON penstock.job FOR EACH ROW WHEN ((pg_column_size(new.payload) > 2000)) EXECUTE FUNCTION penstock._check_printed();

CREATE TRIGGER resolution_is_append_only BEFORE DELETE OR UPDATE OR TRUNCATE ON penstock.resolution FOR EACH STATEMENT EXECUTE FUNCTION penstock._refuse_rewrite();

ALTER TABLE ONLY penstock.account
    ADD CONSTRAINT account_plan_fkey FOREIGN KEY (plan) REFERENCES penstock.plan(name);

ALTER TABLE ONLY penstock.alert
    ADD CONSTRAINT alert_queue_id_fkey FOREIGN KEY (queue_id) REFERENCES penstock.queue(id) ON DELETE CASCADE;

ALTER TABLE ONLY penstock.api_key
    ADD CONSTRAINT api_key_account_id_fkey FOREIGN KEY (account_id) REFERENCES penstock.account(id);

ALTER TABLE ONLY penstock.batch
    ADD CONSTRAINT batch_account_id_fkey FOREIGN KEY (account_id) REFERENCES penstock.account(id);

ALTER TABLE ONLY penstock.circuit
    ADD CONSTRAINT circuit_queue_id_fkey FOREIGN KEY (queue_id) REFERENCES penstock.queue(id) ON DELETE CASCADE;

ALTER TABLE ONLY penstock.flow
    ADD CONSTRAINT flow_queue_id_fkey FOREIGN KEY (queue_id) REFERENCES penstock.queue(id) ON DELETE CASCADE;

ALTER TABLE ONLY penstock.gate
    ADD CONSTRAINT gate_queue_id_fkey FOREIGN KEY (queue_id) REFERENCES penstock.queue(id) ON DELETE CASCADE;

ALTER TABLE ONLY penstock.kind
    ADD CONSTRAINT kind_queue_id_fkey FOREIGN KEY (queue_id) REFERENCES penstock.queue(id);

ALTER TABLE ONLY penstock.pace
    ADD CONSTRAINT pace_kind_id_fkey FOREIGN KEY (kind_id) REFERENCES penstock.kind(id) ON DELETE CASCADE;

ALTER TABLE ONLY penstock.queue
    ADD CONSTRAINT queue_failed_class_fkey FOREIGN KEY (failed_class) REFERENCES penstock.retention_class(id);

ALTER TABLE ONLY penstock.queue_kind
    ADD CONSTRAINT queue_kind_kind_id_fkey FOREIGN KEY (kind_id) REFERENCES penstock.kind(id) ON DELETE CASCADE;

ALTER TABLE ONLY penstock.queue_kind
    ADD CONSTRAINT queue_kind_queue_id_fkey FOREIGN KEY (queue_id) REFERENCES penstock.queue(id) ON DELETE CASCADE;

ALTER TABLE ONLY penstock.queue
    ADD CONSTRAINT queue_succeeded_class_fkey FOREIGN KEY (succeeded_class) REFERENCES penstock.retention_class(id);

ALTER TABLE ONLY penstock.snapshot
    ADD CONSTRAINT snapshot_queue_id_fkey FOREIGN KEY (queue_id) REFERENCES penstock.queue(id) ON DELETE CASCADE;

ALTER TABLE penstock.account ENABLE ROW LEVEL SECURITY;

ALTER TABLE penstock.batch ENABLE ROW LEVEL SECURITY;

ALTER TABLE penstock.finished ENABLE ROW LEVEL SECURITY;

ALTER TABLE penstock.job ENABLE ROW LEVEL SECURITY;

ALTER TABLE penstock.ledger ENABLE ROW LEVEL SECURITY;

ALTER TABLE penstock.resolution ENABLE ROW LEVEL SECURITY;

CREATE POLICY tenant_reads_own ON penstock.account FOR SELECT TO penstock_tenant USING ((name = current_setting('penstock.account'::text, true)));

CREATE POLICY tenant_reads_own ON penstock.batch FOR SELECT TO penstock_tenant USING ((account_id = ( SELECT account.id
   FROM penstock.account
  WHERE (account.name = current_setting('penstock.account'::text, true)))));

CREATE POLICY tenant_reads_own ON penstock.finished FOR SELECT TO penstock_tenant USING ((account_id = ( SELECT account.id
   FROM penstock.account
  WHERE (account.name = current_setting('penstock.account'::text, true)))));

CREATE POLICY tenant_reads_own ON penstock.job FOR SELECT TO penstock_tenant USING ((account_id = ( SELECT account.id
   FROM penstock.account
  WHERE (account.name = current_setting('penstock.account'::text, true)))));

CREATE POLICY tenant_reads_own ON penstock.ledger FOR SELECT TO penstock_tenant USING ((account_id = ( SELECT account.id
   FROM penstock.account
  WHERE (account.name = current_setting('penstock.account'::text, true)))));

CREATE POLICY tenant_reads_own ON penstock.resolution FOR SELECT TO penstock_tenant USING ((account_id = ( SELECT account.id
   FROM penstock.account
  WHERE (account.name = current_setting('penstock.account'::text, true)))));

GRANT USAGE ON SCHEMA penstock TO penstock_tenant;

GRANT SELECT ON TABLE penstock.account TO penstock_tenant;

GRANT SELECT(id) ON TABLE penstock.job TO penstock_tenant;

GRANT SELECT(account_id) ON TABLE penstock.job TO penstock_tenant;

GRANT SELECT(reserved) ON TABLE penstock.job TO penstock_tenant;

GRANT SELECT(created_at) ON TABLE penstock.job TO penstock_tenant;

GRANT SELECT(run_at) ON TABLE penstock.job TO penstock_tenant;

GRANT SELECT(queue_id) ON TABLE penstock.job TO penstock_tenant;

GRANT SELECT(kind_id) ON TABLE penstock.job TO penstock_tenant;

GRANT SELECT(status) ON TABLE penstock.job TO penstock_tenant;

GRANT SELECT(priority) ON TABLE penstock.job TO penstock_tenant;

GRANT SELECT(attempt) ON TABLE penstock.job TO penstock_tenant;

GRANT SELECT(failures) ON TABLE penstock.job TO penstock_tenant;

GRANT SELECT(started_at) ON TABLE penstock.job TO penstock_tenant;

GRANT SELECT(batch_id) ON TABLE penstock.job TO penstock_tenant;

GRANT SELECT(topic) ON TABLE penstock.job TO penstock_tenant;

GRANT SELECT(stage) ON TABLE penstock.job TO penstock_tenant;

GRANT SELECT(progress) ON TABLE penstock.job TO penstock_tenant;

GRANT SELECT(metadata) ON TABLE penstock.job TO penstock_tenant;

GRANT SELECT(payload) ON TABLE penstock.job TO penstock_tenant;

GRANT SELECT(id) ON TABLE penstock.queue TO penstock_tenant;

GRANT SELECT(name) ON TABLE penstock.queue TO penstock_tenant;

GRANT SELECT(id) ON TABLE penstock.kind TO penstock_tenant;

GRANT SELECT(name) ON TABLE penstock.kind TO penstock_tenant;

GRANT SELECT(id) ON TABLE penstock.finished TO penstock_tenant;

GRANT SELECT(account_id) ON TABLE penstock.finished TO penstock_tenant;

GRANT SELECT(reserved) ON TABLE penstock.finished TO penstock_tenant;

GRANT SELECT(created_at) ON TABLE penstock.finished TO penstock_tenant;

GRANT SELECT(run_at) ON TABLE penstock.finished TO penstock_tenant;

GRANT SELECT(finished_at) ON TABLE penstock.finished TO penstock_tenant;

GRANT SELECT(queue_id) ON TABLE penstock.finished TO penstock_tenant;

GRANT SELECT(kind_id) ON TABLE penstock.finished TO penstock_tenant;

GRANT SELECT(status) ON TABLE penstock.finished TO penstock_tenant;

GRANT SELECT(priority) ON TABLE penstock.finished TO penstock_tenant;

GRANT SELECT(attempt) ON TABLE penstock.finished TO penstock_tenant;

GRANT SELECT(failures) ON TABLE penstock.finished TO penstock_tenant;

GRANT SELECT(started_at) ON TABLE penstock.finished TO penstock_tenant;

GRANT SELECT(batch_id) ON TABLE penstock.finished TO penstock_tenant;

GRANT SELECT(topic) ON TABLE penstock.finished TO penstock_tenant;

GRANT SELECT(stage) ON TABLE penstock.finished TO penstock_tenant;

GRANT SELECT(progress) ON TABLE penstock.finished TO penstock_tenant;

GRANT SELECT(metadata) ON TABLE penstock.finished TO penstock_tenant;

GRANT SELECT(payload) ON TABLE penstock.finished TO penstock_tenant;

GRANT SELECT(result) ON TABLE penstock.finished TO penstock_tenant;

GRANT ALL ON FUNCTION penstock.read_my_error(p_id uuid) TO penstock_tenant;

GRANT SELECT ON TABLE penstock.batch TO penstock_tenant;

GRANT SELECT ON TABLE penstock.ledger TO penstock_tenant;

GRANT SELECT ON TABLE penstock.my_account TO penstock_tenant;

GRANT SELECT ON TABLE penstock.resolution TO penstock_tenant;

GRANT SELECT ON TABLE penstock.my_jobs TO penstock_tenant;

GRANT SELECT ON TABLE penstock.my_ledger TO penstock_tenant;
