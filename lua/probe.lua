-- probe.lua
-- Purpose: tell whether Redis runs scripts that write.
-- KEYS: 1 the probe's own key.
-- ARGV: 1 TTL of the key (ms).
-- Reply: 1 alone.
-- Cost: 1 call.
-- Idempotency: the key is written again, nothing else is touched.
-- Clock: none.

local key, ttl = KEYS[1], ARGV[1]
redis.call('SET', key, '1', 'PX', ttl)
return {1}
