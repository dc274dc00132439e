package pg

// The columns of a reservation, in the order of reservationArrays: texts, then numbers, then the rest. Changes travel as one array
// per column, so that one prepared statement serves batches of any size.
const (
	reservationColumns = `
    reservation_id, state, app, api_key, end_user, plan, provider, model_requested, model_judged, model, model_served,
    endpoint, producer, trace_id, policy_revision, price_row, on_expiry, usage_state, service_tier, finish,
    provider_key, first_attempt, attempt, held_requests, held_tokens, held_nanousd, charged_requests, charged_tokens,
    charged_nanousd, input_tokens, cached_input_tokens, cache_write_5m_tokens, cache_write_1h_tokens, input_audio_tokens,
    input_image_tokens, input_video_tokens, cached_input_audio_tokens, cached_input_image_tokens, output_tokens, reasoning_tokens,
    output_audio_tokens, output_image_tokens, output_video_tokens, web_search_calls, file_search_calls,
    code_interpreter_calls, status, first_byte_ms, duration_ms, adjustments, day, reserved_at, deadline, ended_at,
    streamed, upstream_id, flags`
	reservationValues = `
    n.reservation_id, n.state, n.app, n.api_key, n.end_user, n.plan, n.provider, n.model_requested, n.model_judged,
    n.model, n.model_served, n.endpoint, n.producer, n.trace_id, n.policy_revision, n.price_row, n.on_expiry,
    n.usage_state, n.service_tier, n.finish, n.provider_key, n.first_attempt, n.attempt, n.held_requests, n.held_tokens,
    n.held_nanousd, n.charged_requests, n.charged_tokens, n.charged_nanousd, n.input_tokens, n.cached_input_tokens,
    n.cache_write_5m_tokens, n.cache_write_1h_tokens, n.input_audio_tokens, n.input_image_tokens, n.input_video_tokens,
    n.cached_input_audio_tokens, n.cached_input_image_tokens, n.output_tokens, n.reasoning_tokens, n.output_audio_tokens,
    n.output_image_tokens, n.output_video_tokens, n.web_search_calls, n.file_search_calls, n.code_interpreter_calls,
    n.status, n.first_byte_ms, n.duration_ms, n.adjustments, n.day, n.reserved_at, n.deadline, n.ended_at, n.streamed,
    n.upstream_id,
    coalesce(string_to_array(n.flags, E'\x1f'), '{}')`
	reservationUnnest = `unnest(
    $1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[],
    $10::text[], $11::text[], $12::text[], $13::text[], $14::text[], $15::text[], $16::text[], $17::text[], $18::text[],
    $19::text[], $20::text[], $21::text[], $22::text[], $23::bigint[], $24::bigint[], $25::bigint[], $26::bigint[],
    $27::bigint[], $28::bigint[], $29::bigint[], $30::bigint[], $31::bigint[], $32::bigint[], $33::bigint[],
    $34::bigint[], $35::bigint[], $36::bigint[], $37::bigint[], $38::bigint[], $39::bigint[], $40::bigint[],
    $41::bigint[], $42::bigint[], $43::bigint[], $44::bigint[], $45::bigint[], $46::bigint[], $47::bigint[],
    $48::bigint[], $49::bigint[], $50::bigint[], $51::date[], $52::timestamptz[], $53::timestamptz[], $54::timestamptz[],
    $55::boolean[], $56::text[], $57::text[]
) AS n (` + reservationColumns + `
)`
)
