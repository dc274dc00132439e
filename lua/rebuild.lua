-- rebuild.lua
-- Purpose: replace counters and open reservations of one slot by what Postgres says. The caller removes the slot's mark and
--          puts its token in one step, calls this in chunks and gives the mark last, so no request is judged in between. Without
--          the token nothing is done: Redis was emptied since, or another caller has begun.
-- KEYS: 1 the slot's deadlines, 2 the token's, 3 the mark's, then the counters, then the reservations, then keys that go.
-- ARGV: 1 the token, 2 the mark or "" for not yet, 3 TTL of the mark (ms), 4 how many counters, 5 how many reservations follow,
--       6 TTL of a record (ms);
--       a counter:     version, used requests, tokens, nano-dollars, held requests, tokens, nano-dollars, TTL (ms);
--       a reservation: id, deadline (ms), record (the text that reserve.lua would have written).
-- Reply: 1 alone, 0 without the token.
-- Cost: 2 calls a counter, 2 a reservation, 1 a key that goes, 1 to 3 more. The caller bounds the chunk.
-- Idempotency: absolute; running it again changes nothing.
-- Clock: none.

local deadlines = KEYS[1]
local n_counters, n_reservations, record_ttl = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6]
if redis.call('GET', KEYS[2]) ~= ARGV[1] then
  return {0}
end
for i = 4 + n_counters + n_reservations, #KEYS do
  redis.call('DEL', KEYS[i])
end
local at = 6
for i = 1, n_counters do
  local key = KEYS[3 + i]
  redis.call('HSET', key, 'version', ARGV[at + 1], 'used_requests', ARGV[at + 2], 'used_tokens', ARGV[at + 3],
    'used_nanousd', ARGV[at + 4], 'held_requests', ARGV[at + 5], 'held_tokens', ARGV[at + 6], 'held_nanousd', ARGV[at + 7])
  redis.call('PEXPIRE', key, ARGV[at + 8])
  at = at + 8
end
for i = 1, n_reservations do
  redis.call('SET', KEYS[3 + n_counters + i], ARGV[at + 3], 'PX', record_ttl)
  redis.call('ZADD', deadlines, ARGV[at + 2], ARGV[at + 1])
  at = at + 3
end
if n_reservations > 0 then
  redis.call('PEXPIRE', deadlines, record_ttl)
end
if ARGV[2] ~= '' then
  redis.call('SET', KEYS[3], ARGV[2], 'PX', ARGV[3])
  redis.call('DEL', KEYS[2])
end
return {1}
