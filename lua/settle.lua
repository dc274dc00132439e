-- settle.lua
-- Purpose: bring one app's slot up to what Postgres has committed: end reservations, register open ones that Redis does not
--          know, and write back the used amounts of counters where Postgres has a newer version.
-- KEYS: 1 the app's mark, 2 the shared mark, 3 the app's deadlines, then the counters, then the keys of the rates (a bucket
--       has one, a log two), then the reservations: those to register, then those to end.
-- ARGV: 1-5 how many counters, rate keys, reservations to register, reservations to end, and rate corrections follow,
--       6 TTL of a tombstone (ms), 7 TTL of a record (ms);
--       a counter:      version (0: used is not written), used requests, tokens, nano-dollars, TTL (ms);
--       to register:    id, deadline (ms), held requests, tokens, nano-dollars, how many counters, their indexes (1-based);
--       to end:         id, how many counters, their indexes;
--       a correction:   ending (1-based), kind (1 bucket, 2 log), first rate key, shared (0, 1), held units, spent units.
-- Reply: 1, then how many reservations were ended, registered, and how many held figures would have become negative;
--        0 alone when a mark is missing: nothing is written, a rebuild will do it all.
-- Cost: 4 + 3 calls a counter + 3 a registration + 1 an ending + 3 to 5 a correction. The caller bounds the batch.
-- Idempotency: by version and by reservation id, in any order and any number of times.
-- Clock: the Redis server's TIME, for the drain of buckets only.

local mark_app, mark_shared, deadlines = KEYS[1], KEYS[2], KEYS[3]
local n_counters, n_rate_keys, n_opens = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local n_endings, n_corrections = tonumber(ARGV[4]), tonumber(ARGV[5])
local tombstone_ttl, record_ttl = ARGV[6], ARGV[7]
local first_counter, first_rate = 3, 3 + n_counters
local first_open = first_rate + n_rate_keys
local first_ending = first_open + n_opens

local marks = redis.call('MGET', mark_app, mark_shared)
if not marks[1] or not marks[2] then
  return {0}
end
local lost_at = {tonumber(string.match(marks[1], '%d+$') or 0), tonumber(string.match(marks[2], '%d+$') or 0)}

local held_fields = {'held_requests', 'held_tokens', 'held_nanousd'}
local used_fields = {'used_requests', 'used_tokens', 'used_nanousd'}
local at = 7
local counters = {}
for i = 1, n_counters do
  local c = redis.call('HMGET', KEYS[first_counter + i], 'version', held_fields[1], held_fields[2], held_fields[3])
  counters[i] = {key = KEYS[first_counter + i], version = ARGV[at + 1], used = {ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]},
    ttl = ARGV[at + 5], known = tonumber(c[1] or '0'), held = {c[2] or '0', c[3] or '0', c[4] or '0'}, change = {0, 0, 0}}
  at = at + 5
end

-- Changes of held are summed here and written once a counter. Amounts that a sum of doubles could blur go straight to
-- Redis's own 64-bit addition.
local function change_held(counter, sign, amounts)
  for f = 1, 3 do
    if #amounts[f] <= 13 and #counter.held[f] <= 15 then
      counter.change[f] = counter.change[f] + sign * tonumber(amounts[f])
    else
      if amounts[f] ~= '0' then
        redis.call('HINCRBY', counter.key, held_fields[f], (sign < 0 and '-' or '') .. amounts[f])
      end
      counter.direct = true
    end
    counter.touched = true
  end
end

-- Every record is read and understood before the first write, so that an error leaves no trace.
local records = {}
if n_opens + n_endings > 0 then
  local keys = {unpack(KEYS, first_open + 1, first_open + n_opens + n_endings)}
  local texts = redis.call('MGET', unpack(keys))
  for i, key in ipairs(keys) do
    local text = texts[i]
    if text == 'ended' then
      records[key] = text
    elseif text then
      local r, t, d, forced = string.match(text, '^(%d+) (%d+) (%d+) %d+( ?%l*)')
      if not r then
        return redis.error_reply('ERR ' .. key .. ' is no reservation')
      end
      records[key] = {r, t, d, forced = forced ~= ''}
    end
  end
end

local registered, ended, negative = 0, 0, 0
for i = 1, n_opens do
  local id, deadline = ARGV[at + 1], ARGV[at + 2]
  local amounts = {ARGV[at + 3], ARGV[at + 4], ARGV[at + 5]}
  local n = tonumber(ARGV[at + 6])
  at = at + 6
  if not records[KEYS[first_open + i]] then
    local record = {table.concat(amounts, ' ') .. ' ' .. deadline .. ' forced'}
    for j = 1, n do
      local counter = counters[tonumber(ARGV[at + j])]
      change_held(counter, 1, amounts)
      record[j + 1] = counter.key
    end
    redis.call('SET', KEYS[first_open + i], table.concat(record, '\n'), 'PX', record_ttl)
    redis.call('ZADD', deadlines, deadline, id)
    redis.call('PEXPIRE', deadlines, record_ttl)
    amounts.forced = true
    records[KEYS[first_open + i]] = amounts
    registered = registered + 1
  end
  at = at + n
end

local gone, live = {}, {}
for i = 1, n_endings do
  local id, n = ARGV[at + 1], tonumber(ARGV[at + 2])
  at = at + 2
  local key = KEYS[first_ending + i]
  local record = records[key]
  if record ~= 'ended' then
    if record then
      for j = 1, n do
        change_held(counters[tonumber(ARGV[at + j])], -1, record)
      end
      -- What was registered here was never charged to a rate, so there is nothing to correct.
      live[i] = not record.forced and id or nil
      ended = ended + 1
    end
    -- The tombstone keeps a late reserve, or a late registration, from holding what has ended.
    redis.call('SET', key, 'ended', 'PX', tombstone_ttl)
    records[key] = 'ended'
    gone[#gone + 1] = id
  end
  at = at + n
end
if #gone > 0 then
  redis.call('ZREM', deadlines, unpack(gone))
end

for _, c in ipairs(counters) do
  local newer = tonumber(c.version) > c.known
  if newer then
    redis.call('HSET', c.key, 'version', c.version, used_fields[1], c.used[1], used_fields[2], c.used[2], used_fields[3], c.used[3])
  end
  if c.touched then
    local held = {}
    for f = 1, 3 do
      if c.direct then
        held[f] = redis.call('HINCRBY', c.key, held_fields[f], string.format('%.0f', c.change[f]))
      else
        held[f] = tonumber(c.held[f]) + c.change[f]
      end
      if held[f] < 0 then
        negative = negative + 1
        held[f] = 0
        if c.direct then
          redis.call('HSET', c.key, held_fields[f], '0')
        end
      end
    end
    if not c.direct then
      redis.call('HSET', c.key, held_fields[1], string.format('%.0f', held[1]), held_fields[2],
        string.format('%.0f', held[2]), held_fields[3], string.format('%.0f', held[3]))
    end
  end
  -- Also where nothing changed: to write a counter again is how its life is lengthened beside its mark's.
  if c.known > 0 or newer or c.touched then
    redis.call('PEXPIRE', c.key, c.ttl)
  end
end

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])

local function correct_bucket(key, lost, difference)
  local state = redis.call('GET', key)
  if not state then
    return
  end
  local d, t, p, r = string.match(state, '^(%d+) (%d+) (%d+) (%d+)$')
  local debt, ts, per_unit, drain = tonumber(d), tonumber(t), tonumber(p), tonumber(r)
  if ts < lost then
    -- The next reserve starts it as if just used up at the loss; a newer state would hide that.
    return
  end
  debt = math.max(0, debt - math.max(0, now - ts) * drain)
  debt = math.max(0, debt + difference * per_unit)
  -- Other reservations may still correct this bucket: its life is never shortened.
  local life = math.max(redis.call('PTTL', key), math.ceil(debt / drain / 1000) + 1000)
  redis.call('SET', key, string.format('%.0f %.0f %.0f %.0f', debt, math.max(now, ts), per_unit, drain),
    'PX', string.format('%.0f', life))
end

local function correct_log(log, sum, id, held, spent)
  local member = id .. ':' .. held
  local score = redis.call('ZSCORE', log, member)
  if not score or redis.call('EXISTS', sum) == 0 then
    return
  end
  -- In this order: a log that became empty in between would lose its time to live.
  redis.call('ZADD', log, score, id .. ':' .. spent)
  redis.call('ZREM', log, member)
  redis.call('INCRBY', sum, string.format('%.0f', tonumber(spent) - tonumber(held)))
end

for _ = 1, n_corrections do
  local id, kind, key = live[tonumber(ARGV[at + 1])], tonumber(ARGV[at + 2]), first_rate + tonumber(ARGV[at + 3])
  local lost, held, spent = lost_at[tonumber(ARGV[at + 4]) + 1], ARGV[at + 5], ARGV[at + 6]
  at = at + 6
  if id then
    if kind == 1 then
      correct_bucket(KEYS[key], lost, tonumber(spent) - tonumber(held))
    else
      correct_log(KEYS[key], KEYS[key + 1], id, held, spent)
    end
  end
end
return {1, ended, registered, negative}
