-- +goose Up

-- Who may call. A key's secret is never stored, only its SHA-256.
CREATE TABLE apps (
    app         text        COLLATE "C" CONSTRAINT apps_pkey PRIMARY KEY,
    plan        text        NOT NULL DEFAULT '',
    created_at  timestamptz NOT NULL DEFAULT now(),
    disabled_at timestamptz,
    CONSTRAINT apps_name_fits_a_subject CHECK (app ~ '^[A-Za-z0-9_-]{1,64}$')
);

CREATE TABLE api_keys (
    key_id     text        COLLATE "C" CONSTRAINT api_keys_pkey PRIMARY KEY,
    app        text        COLLATE "C" NOT NULL CONSTRAINT api_keys_app_fkey REFERENCES apps (app),
    hash       bytea       NOT NULL CONSTRAINT api_keys_hash_key UNIQUE,
    plan       text        NOT NULL DEFAULT '',
    end_user   text        NOT NULL DEFAULT '',
    name       text        NOT NULL DEFAULT '',
    created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz,
    revoked_at timestamptz,
    CONSTRAINT api_keys_hash_is_sha256 CHECK (length(hash) = 32)
);
CREATE INDEX api_keys_app ON api_keys (app);

-- +goose Down
DROP TABLE api_keys;
DROP TABLE apps;
