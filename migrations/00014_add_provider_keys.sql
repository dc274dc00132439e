-- +goose Up

-- Which of the provider's keys was used, by its name, and of an attempt after the first the reservation of the first. Both are empty for requests
-- of before.
ALTER TABLE reservations
    ADD COLUMN provider_key  text NOT NULL DEFAULT '',
    ADD COLUMN first_attempt text NOT NULL DEFAULT '';

CREATE OR REPLACE VIEW finance.requests AS
SELECT
    r.reservation_id AS request_id,
    r.day AS day,
    r.reserved_at AS occurred_at,
    r.ended_at AS settled_at,
    r.state AS state,
    r.app AS app,
    r.api_key AS api_key,
    r.end_user AS end_user,
    r.plan AS plan,
    r.provider AS provider,
    r.model_requested AS model_requested,
    r.model AS model,
    r.model_served AS model_served,
    r.endpoint AS endpoint,
    r.attempt AS attempt,
    r.streamed AS streamed,
    r.input_tokens AS input_tokens,
    r.cached_input_tokens AS cached_input_tokens,
    r.cache_write_5m_tokens + r.cache_write_1h_tokens AS cache_write_tokens,
    r.input_audio_tokens AS input_audio_tokens,
    r.input_image_tokens AS input_image_tokens,
    r.output_tokens AS output_tokens,
    r.reasoning_tokens AS reasoning_tokens,
    r.output_audio_tokens AS output_audio_tokens,
    r.output_image_tokens AS output_image_tokens,
    r.charged_tokens AS charged_tokens,
    (r.held_nanousd::numeric / 1000000000)::numeric(30,9) AS reserved_usd,
    (r.charged_nanousd::numeric / 1000000000)::numeric(30,9) AS cost_usd,
    r.usage_state AS usage_state,
    r.finish AS finish,
    r.status AS status,
    r.upstream_id AS upstream_id,
    r.flags AS flags,
    r.price_row AS price_row,
    r.policy_revision AS policy_revision,
    r.producer AS gateway,
    r.trace_id AS trace_id,
    r.first_byte_ms AS first_byte_ms,
    r.duration_ms AS duration_ms,
    r.deadline AS deadline,
    r.input_video_tokens AS input_video_tokens,
    r.cached_input_audio_tokens AS cached_input_audio_tokens,
    r.cached_input_image_tokens AS cached_input_image_tokens,
    r.output_video_tokens AS output_video_tokens,
    r.web_search_calls AS web_search_calls,
    r.file_search_calls AS file_search_calls,
    r.code_interpreter_calls AS code_interpreter_calls,
    r.service_tier AS service_tier,
    r.provider_key AS provider_key,
    r.first_attempt AS first_attempt
FROM reservations r;

COMMENT ON COLUMN finance.requests.attempt IS 'Attempt number of the same call, from 1; each attempt has its own row';
COMMENT ON COLUMN finance.requests.provider_key IS 'Name that the policy gives the key that the provider was asked with; never the key';
COMMENT ON COLUMN finance.requests.first_attempt IS 'request_id of the first attempt of the same call; empty for that one itself';

-- +goose Down
DROP VIEW finance.requests;
CREATE VIEW finance.requests AS
SELECT
    r.reservation_id AS request_id,
    r.day AS day,
    r.reserved_at AS occurred_at,
    r.ended_at AS settled_at,
    r.state AS state,
    r.app AS app,
    r.api_key AS api_key,
    r.end_user AS end_user,
    r.plan AS plan,
    r.provider AS provider,
    r.model_requested AS model_requested,
    r.model AS model,
    r.model_served AS model_served,
    r.endpoint AS endpoint,
    r.attempt AS attempt,
    r.streamed AS streamed,
    r.input_tokens AS input_tokens,
    r.cached_input_tokens AS cached_input_tokens,
    r.cache_write_5m_tokens + r.cache_write_1h_tokens AS cache_write_tokens,
    r.input_audio_tokens AS input_audio_tokens,
    r.input_image_tokens AS input_image_tokens,
    r.output_tokens AS output_tokens,
    r.reasoning_tokens AS reasoning_tokens,
    r.output_audio_tokens AS output_audio_tokens,
    r.output_image_tokens AS output_image_tokens,
    r.charged_tokens AS charged_tokens,
    (r.held_nanousd::numeric / 1000000000)::numeric(30,9) AS reserved_usd,
    (r.charged_nanousd::numeric / 1000000000)::numeric(30,9) AS cost_usd,
    r.usage_state AS usage_state,
    r.finish AS finish,
    r.status AS status,
    r.upstream_id AS upstream_id,
    r.flags AS flags,
    r.price_row AS price_row,
    r.policy_revision AS policy_revision,
    r.producer AS gateway,
    r.trace_id AS trace_id,
    r.first_byte_ms AS first_byte_ms,
    r.duration_ms AS duration_ms,
    r.deadline AS deadline,
    r.input_video_tokens AS input_video_tokens,
    r.cached_input_audio_tokens AS cached_input_audio_tokens,
    r.cached_input_image_tokens AS cached_input_image_tokens,
    r.output_video_tokens AS output_video_tokens,
    r.web_search_calls AS web_search_calls,
    r.file_search_calls AS file_search_calls,
    r.code_interpreter_calls AS code_interpreter_calls,
    r.service_tier AS service_tier
FROM reservations r;

COMMENT ON VIEW finance.requests IS 'One row per request that was admitted, whatever became of it.';
COMMENT ON COLUMN finance.requests.request_id IS 'Reservation id, the X-Tollgate-Request-Id of the response';
COMMENT ON COLUMN finance.requests.day IS 'UTC day inside the id; a condition on it prunes partitions';
COMMENT ON COLUMN finance.requests.occurred_at IS 'When the request was admitted';
COMMENT ON COLUMN finance.requests.settled_at IS 'When the outcome happened, by the clock of its gateway; NULL while pending';
COMMENT ON COLUMN finance.requests.state IS 'pending, settled, released (nothing spent) or expired (outcome never arrived)';
COMMENT ON COLUMN finance.requests.app IS 'App that the key belongs to';
COMMENT ON COLUMN finance.requests.api_key IS 'Key id; never the secret';
COMMENT ON COLUMN finance.requests.end_user IS 'End user named by the caller, or empty';
COMMENT ON COLUMN finance.requests.plan IS 'Plan in force for the request';
COMMENT ON COLUMN finance.requests.provider IS 'Provider of the policy file';
COMMENT ON COLUMN finance.requests.model_requested IS 'Model that the caller asked for';
COMMENT ON COLUMN finance.requests.model IS 'Model asked of the provider; it decides the price';
COMMENT ON COLUMN finance.requests.model_served IS 'Model that the provider says it served, or empty';
COMMENT ON COLUMN finance.requests.endpoint IS 'Route';
COMMENT ON COLUMN finance.requests.attempt IS 'Attempt number of the same call, from 1';
COMMENT ON COLUMN finance.requests.streamed IS 'Whether the answer was streamed';
COMMENT ON COLUMN finance.requests.input_tokens IS 'Text input tokens, neither cached nor written to a cache';
COMMENT ON COLUMN finance.requests.cached_input_tokens IS 'Input tokens read from the cache of the provider';
COMMENT ON COLUMN finance.requests.cache_write_tokens IS 'Input tokens written to a cache, of any lifetime';
COMMENT ON COLUMN finance.requests.input_audio_tokens IS 'Audio input tokens';
COMMENT ON COLUMN finance.requests.input_image_tokens IS 'Image input tokens';
COMMENT ON COLUMN finance.requests.output_tokens IS 'Visible text output tokens, reasoning not included';
COMMENT ON COLUMN finance.requests.reasoning_tokens IS 'Reasoning tokens, which are billed as output';
COMMENT ON COLUMN finance.requests.output_audio_tokens IS 'Audio output tokens';
COMMENT ON COLUMN finance.requests.output_image_tokens IS 'Image output tokens';
COMMENT ON COLUMN finance.requests.charged_tokens IS 'Tokens that the budgets carry for the request, all classes';
COMMENT ON COLUMN finance.requests.reserved_usd IS 'Dollars set aside at admission: the upper estimate';
COMMENT ON COLUMN finance.requests.cost_usd IS 'Dollars that the budgets carry for the request: actual, or the estimate when usage_state is unconfirmed';
COMMENT ON COLUMN finance.requests.usage_state IS 'reported, zero, estimated, inconsistent, unconfirmed; empty while pending and after a release';
COMMENT ON COLUMN finance.requests.finish IS 'Reason code of the end: OK, CLIENT_GONE, UPSTREAM_CUT, ...';
COMMENT ON COLUMN finance.requests.status IS 'HTTP status of the provider, 0 when it never answered';
COMMENT ON COLUMN finance.requests.upstream_id IS 'Id that the provider gave the call';
COMMENT ON COLUMN finance.requests.flags IS 'Marks: degraded, shadow, unpriced, used_after_release, ...';
COMMENT ON COLUMN finance.requests.price_row IS 'Price row that the cost was computed from';
COMMENT ON COLUMN finance.requests.policy_revision IS 'Policy that admitted the request';
COMMENT ON COLUMN finance.requests.gateway IS 'Who reported the end: a gateway, or the settler for an expiry; while pending, the gateway that admitted it';
COMMENT ON COLUMN finance.requests.trace_id IS 'Trace id, or empty';
COMMENT ON COLUMN finance.requests.first_byte_ms IS 'Milliseconds to the first byte of the provider';
COMMENT ON COLUMN finance.requests.duration_ms IS 'Milliseconds of the whole call';
COMMENT ON COLUMN finance.requests.deadline IS 'After it a pending request may be expired';
COMMENT ON COLUMN finance.requests.input_video_tokens IS 'Video input tokens';
COMMENT ON COLUMN finance.requests.cached_input_audio_tokens IS 'Audio input tokens read from the cache of the provider';
COMMENT ON COLUMN finance.requests.cached_input_image_tokens IS 'Image input tokens read from the cache of the provider';
COMMENT ON COLUMN finance.requests.output_video_tokens IS 'Video output tokens';
COMMENT ON COLUMN finance.requests.web_search_calls IS 'Web searches of the provider, billed by the call';
COMMENT ON COLUMN finance.requests.file_search_calls IS 'File searches of the provider, billed by the call';
COMMENT ON COLUMN finance.requests.code_interpreter_calls IS 'Containers that ran code for the request, billed by the call';
COMMENT ON COLUMN finance.requests.service_tier IS 'Service tier that the provider served it at: batch, flex, priority; empty for the usual one';
GRANT SELECT ON finance.requests TO finance, grafana, tollgate_app;

ALTER TABLE reservations
    DROP COLUMN provider_key,
    DROP COLUMN first_attempt;
