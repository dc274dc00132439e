-- renew_leases.lua
-- Purpose: lengthen the leases of requests in flight, and add again those that were lost with their set.
-- KEYS: the lease sets, each once, then the reservations, one a lease.
-- ARGV: 1 how many lease sets, 2 life of a lease (ms); then for each lease: its set (1-based), reservation id.
-- Reply: 1, how many leases live now. Those of reservations that have ended are left alone. An
--        error when a key is no lease set; the others are renewed all the same.
-- Cost: 2 + 3 calls a set. The caller bounds the number of leases.
-- Idempotency: absolute, and a lease never becomes shorter.
-- Clock: the Redis server's TIME.

local n_sets, life = tonumber(ARGV[1]), tonumber(ARGV[2])
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

-- Every lease by its set, those left out whose reservation has a tombstone: a renewal that was overtaken by the end of its
-- request must not take up room again.
local renewed = {}
for i = 1, n_sets do
  renewed[i] = {}
end
local records = redis.call('MGET', unpack(KEYS, n_sets + 1))
for i = 1, #KEYS - n_sets do
  local set, id = renewed[tonumber(ARGV[2 * i + 1])], ARGV[2 * i + 2]
  if records[i] ~= 'ended' then
    set[#set + 1] = now + life
    set[#set + 1] = id
  end
end
-- A key of a wrong type costs nobody else their lease: it is told after the others are renewed.
local live, failure = 0, nil
for i = 1, n_sets do
  if #renewed[i] > 0 then
    local added = redis.pcall('ZADD', KEYS[i], 'GT', unpack(renewed[i]))
    if type(added) == 'table' and added.err then
      failure = failure or added
    else
      redis.call('ZREMRANGEBYSCORE', KEYS[i], '-inf', now)
      redis.call('PEXPIRE', KEYS[i], life + 1000)
      live = live + #renewed[i] / 2
    end
  end
end
return failure or {1, live}
