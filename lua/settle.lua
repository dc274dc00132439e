-- settle.lua
-- Purpose: bring one app's slot up to what Postgres has committed: end reservations, register open ones that Redis does not
--          know, and write back the used amounts of counters where Postgres has a newer version. rates.lua stands in front of
--          it.
-- KEYS: 1 the app's mark, 2 the shared mark, 3 the app's deadlines, then the counters, the strings of the rates, their sorted
--       sets, the lease sets, and the reservations: those to register, then those to end.
-- ARGV: 1-7 how many counters, strings, sets, lease sets, reservations to register, reservations to end, and rate corrections
--       follow, 8 TTL of a tombstone (ms), 9 TTL of a record (ms);
--       a counter:      version (0: used is not written), used requests, tokens, nano-dollars, TTL (ms);
--       a correction:   ending, kind, string, set (1-based, 0 none), slot (app, shared), held units, spent units;
--       a lease set:    how many leases of it end, their reservation ids;
--       to register:    id, deadline (ms), held requests, tokens, nano-dollars, how many counters, their indexes (1-based);
--       to end:         id, how many counters, their indexes.
-- Reply: 1, then how many reservations were ended, registered, and how many held figures would have become negative;
--        0 alone when a mark is missing: nothing is written, a rebuild will do it all.
-- Cost: 5 + 3 calls a counter + 1 a set + 1 a lease set + 3 a registration + 1 an ending + 3 a correction of a weighted_log,
--       and 1 or 2 for each string that changes. The caller bounds the batch.
-- Idempotency: by version and by reservation id, in any order and any number of times.
-- Clock: the Redis server's TIME, for the drain of buckets only.

local mark_app, mark_shared, deadlines = KEYS[1], KEYS[2], KEYS[3]
local n_counters, n_strings, n_sets, n_lease_sets = ARGV[1] + 0, ARGV[2] + 0, ARGV[3] + 0, ARGV[4] + 0
local n_opens, n_endings, n_corrections = ARGV[5] + 0, ARGV[6] + 0, ARGV[7] + 0
local tombstone_ttl, record_ttl = ARGV[8], ARGV[9]
local first_counter, first_string = 3, 3 + n_counters
local first_set = first_string + n_strings
local first_lease_set = first_set + n_sets
local first_open = first_lease_set + n_lease_sets
local first_ending = first_open + n_opens

local marks = call('MGET', mark_app, mark_shared)
if not marks[1] or not marks[2] then
  return {0}
end
local lost = {app = tonumber(match(marks[1], ' (%d+) ') or 0), shared = tonumber(match(marks[2], ' (%d+) ') or 0)}

-- 1. Everything is read and understood before the first write, so that an error leaves no trace. Of a key that MGET shows as
-- missing GET says when it is of another type, of a set ZCARD does.
local function read_strings(first, n)
  if n == 0 then
    return {}
  end
  local texts, missing = call('MGET', unpack(KEYS, first + 1, first + n)), {}
  for i = 1, n do
    if not texts[i] then
      missing[#missing + 1] = KEYS[first + i]
    end
  end
  if #missing > 0 and call('EXISTS', unpack(missing)) > 0 then
    for _, key in ipairs(missing) do
      call('GET', key)
    end
  end
  return texts
end

local held_fields = {'held_requests', 'held_tokens', 'held_nanousd'}
local used_fields = {'used_requests', 'used_tokens', 'used_nanousd'}
local at = 9
local counters = {}
for i = 1, n_counters do
  local c = call('HMGET', KEYS[first_counter + i], 'version', held_fields[1], held_fields[2], held_fields[3])
  for f = 2, 4 do
    c[f] = c[f] or '0'
  end
  counters[i] = {key = KEYS[first_counter + i], version = ARGV[at + 1], used = {ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]},
    ttl = ARGV[at + 5], known = (c[1] or 0) + 0, held = {c[2], c[3], c[4]}, before = {c[2] + 0, c[3] + 0, c[4] + 0},
    change = {0, 0, 0}}
  at = at + 5
end
call('ZCARD', deadlines)
for i = first_set + 1, first_open do
  call('ZCARD', KEYS[i])
end

local corrections, rates, strings = {}, {}, read_strings(first_string, n_strings)
for i = 1, n_corrections do
  local kind, place, set = ARGV[at + 2], ARGV[at + 3] + 0, ARGV[at + 4] + 0
  local rate = rates[place]
  if not rate then
    rate = {kind = kind, key = KEYS[first_string + place], text = strings[place], set = KEYS[first_set + set],
      lost = lost[ARGV[at + 5]]}
    rates[place] = rate
    if rate.text then
      read[kind](rate)
    end
  end
  corrections[i] = {ending = ARGV[at + 1] + 0, rate = rate, held = ARGV[at + 6], spent = ARGV[at + 7]}
  at = at + 7
end

-- A record: held requests, tokens, nano-dollars, deadline (ms), when it was reserved (us; not in old records), whether it was
-- registered without being judged; then its counters.
local records = {}
for i, text in ipairs(read_strings(first_open, n_opens + n_endings)) do
  local key = KEYS[first_open + i]
  if text == 'ended' then
    records[key] = text
  elseif text then
    local r, t, n, reserved, forced = match(text, '^(%d+) (%d+) (%d+) %d+ ?(%d*) ?(%l*)')
    if not r then
      return redis.error_reply('ERR ' .. key .. ' is no reservation')
    end
    records[key] = {r, t, n, reserved = tonumber(reserved), forced = forced ~= ''}
  end
end

-- 2. Leases end also where nothing else is known of the reservation.
for i = first_lease_set + 1, first_open do
  local n = ARGV[at + 1] + 0
  call('ZREM', KEYS[i], unpack(ARGV, at + 2, at + 1 + n))
  at = at + 1 + n
end

-- Changes of held are summed here and written once a counter. Amounts that a sum of doubles could blur go straight to
-- Redis's own 64-bit addition.
local function change_held(counter, sign, amounts)
  for f = 1, 3 do
    if #amounts[f] <= 13 and #counter.held[f] <= 15 then
      counter.change[f] = counter.change[f] + sign * amounts[f]
    else
      if amounts[f] ~= '0' then
        call('HINCRBY', counter.key, held_fields[f], (sign < 0 and '-' or '') .. amounts[f])
      end
      counter.direct = true
    end
    counter.touched = true
  end
end

local registered, ended, negative = 0, 0, 0
for i = 1, n_opens do
  local id, deadline = ARGV[at + 1], ARGV[at + 2]
  local amounts = {ARGV[at + 3], ARGV[at + 4], ARGV[at + 5]}
  local n = ARGV[at + 6] + 0
  at = at + 6
  if not records[KEYS[first_open + i]] then
    local record = {table.concat(amounts, ' ') .. ' ' .. deadline .. ' forced'}
    for j = 1, n do
      local counter = counters[ARGV[at + j] + 0]
      change_held(counter, 1, amounts)
      record[j + 1] = counter.key
    end
    call('SET', KEYS[first_open + i], table.concat(record, '\n'), 'PX', record_ttl)
    call('ZADD', deadlines, deadline, id)
    call('PEXPIRE', deadlines, record_ttl)
    amounts.forced = true
    records[KEYS[first_open + i]] = amounts
    registered = registered + 1
  end
  at = at + n
end

local gone, live = {}, {}
for i = 1, n_endings do
  local id, n = ARGV[at + 1], ARGV[at + 2] + 0
  at = at + 2
  local key = KEYS[first_ending + i]
  local record = records[key]
  if record ~= 'ended' then
    if record then
      for j = 1, n do
        change_held(counters[ARGV[at + j] + 0], -1, record)
      end
      record.id = id
      -- What was registered here was never charged to a rate, so there is nothing to correct.
      live[i] = not record.forced and record or nil
      ended = ended + 1
    end
    -- The tombstone keeps a late reserve, or a late registration, from holding what has ended.
    call('SET', key, 'ended', 'PX', tombstone_ttl)
    records[key] = 'ended'
    gone[#gone + 1] = id
  end
  at = at + n
end
if #gone > 0 then
  call('ZREM', deadlines, unpack(gone))
end

for _, c in ipairs(counters) do
  local newer = c.version + 0 > c.known
  if newer then
    call('HSET', c.key, 'version', c.version, used_fields[1], c.used[1], used_fields[2], c.used[2], used_fields[3], c.used[3])
  end
  if c.touched then
    local held = {}
    for f = 1, 3 do
      if c.direct then
        held[f] = call('HINCRBY', c.key, held_fields[f], format('%.0f', c.change[f]))
      else
        held[f] = c.before[f] + c.change[f]
      end
      if held[f] < 0 then
        negative = negative + 1
        held[f] = 0
        if c.direct then
          call('HSET', c.key, held_fields[f], '0')
        end
      end
    end
    if not c.direct then
      call('HSET', c.key, held_fields[1], format('%.0f', held[1]), held_fields[2], format('%.0f', held[2]),
        held_fields[3], format('%.0f', held[3]))
    end
  end
  -- Also where nothing changed: to write a counter again is how its life is lengthened beside its mark's.
  if c.known > 0 or newer or c.touched then
    call('PEXPIRE', c.key, c.ttl)
  end
end

for _, c in ipairs(corrections) do
  local record, rate = live[c.ending], c.rate
  local text = record and rate.text and correct[rate.kind](rate, record, c.held, c.spent)
  if text then
    rate.text, rate.changed = text, true
  end
end
for i = 1, n_strings do
  local rate = rates[i]
  if rate and rate.changed then
    if rate.life then
      -- Other reservations may still correct this bucket: its life is never shortened.
      call('SET', rate.key, rate.text, 'PX', format('%.0f', max(call('PTTL', rate.key), rate.life)))
    else
      call('SET', rate.key, rate.text, 'KEEPTTL')
    end
  end
end
return {1, ended, registered, negative}
