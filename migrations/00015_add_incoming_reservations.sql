-- +goose Up

-- How the settler hands reservations over: one array of this type for a whole batch. An array per column would take a scan for each of
-- them, with a store of its own.
--
-- The settler writes the array's bytes, so this type never changes: a column that is added takes another type with all columns, and this
-- one stays for settlers of the version before. All numbers are bigint, so that one too large for its column is an error there.
CREATE TYPE incoming_reservation AS (
    reservation_id            text,
    state                     text,
    app                       text,
    api_key                   text,
    end_user                  text,
    plan                      text,
    provider                  text,
    model_requested           text,
    model_judged              text,
    model                     text,
    model_served              text,
    endpoint                  text,
    producer                  text,
    trace_id                  text,
    policy_revision           text,
    price_row                 text,
    on_expiry                 text,
    usage_state               text,
    service_tier              text,
    finish                    text,
    provider_key              text,
    first_attempt             text,
    attempt                   bigint,
    held_requests             bigint,
    held_tokens               bigint,
    held_nanousd              bigint,
    charged_requests          bigint,
    charged_tokens            bigint,
    charged_nanousd           bigint,
    input_tokens              bigint,
    cached_input_tokens       bigint,
    cache_write_5m_tokens     bigint,
    cache_write_1h_tokens     bigint,
    input_audio_tokens        bigint,
    input_image_tokens        bigint,
    input_video_tokens        bigint,
    cached_input_audio_tokens bigint,
    cached_input_image_tokens bigint,
    output_tokens             bigint,
    reasoning_tokens          bigint,
    output_audio_tokens       bigint,
    output_image_tokens       bigint,
    output_video_tokens       bigint,
    web_search_calls          bigint,
    file_search_calls         bigint,
    code_interpreter_calls    bigint,
    status                    bigint,
    first_byte_ms             bigint,
    duration_ms               bigint,
    adjustments               bigint,
    day                       date,
    reserved_at               timestamptz,
    deadline                  timestamptz,
    ended_at                  timestamptz,
    streamed                  boolean,
    upstream_id               text,
    flags                     text[]
);

-- +goose Down
DROP TYPE incoming_reservation;
