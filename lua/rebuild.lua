-- rebuild.lua
-- Purpose: replace counters and open reservations of one slot by what Postgres says. The caller removes the slot's mark and
--          its known reservations first, calls this in chunks and sets the mark last, so no request is judged in between.
-- KEYS: 1 the slot's deadlines, then the counters, then the reservations.
-- ARGV: 1 how many counters, 2 how many reservations follow, 3 TTL of a record (ms);
--       a counter:     version, used requests, tokens, nano-dollars, held requests, tokens, nano-dollars, TTL (ms);
--       a reservation: id, deadline (ms), record (the text that reserve.lua would have written).
-- Reply: 1 alone.
-- Cost: 2 calls a counter, 2 a reservation. The caller bounds the chunk.
-- Idempotency: absolute; running it again changes nothing.
-- Clock: none.

local deadlines = KEYS[1]
local n_counters, n_reservations, record_ttl = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
local at = 3
for i = 1, n_counters do
  local key = KEYS[1 + i]
  redis.call('HSET', key, 'version', ARGV[at + 1], 'used_requests', ARGV[at + 2], 'used_tokens', ARGV[at + 3],
    'used_nanousd', ARGV[at + 4], 'held_requests', ARGV[at + 5], 'held_tokens', ARGV[at + 6], 'held_nanousd', ARGV[at + 7])
  redis.call('PEXPIRE', key, ARGV[at + 8])
  at = at + 8
end
for i = 1, n_reservations do
  redis.call('SET', KEYS[1 + n_counters + i], ARGV[at + 3], 'PX', record_ttl)
  redis.call('ZADD', deadlines, ARGV[at + 2], ARGV[at + 1])
  at = at + 3
end
if n_reservations > 0 then
  redis.call('PEXPIRE', deadlines, record_ttl)
end
return {1}
