-- settle.lua
-- Purpose: bring one app's slot up to what Postgres has committed: end reservations, register open ones that Redis does not
--          know, and write back the used amounts of counters where Postgres has a newer version. rates.lua stands in front of
--          it.
-- KEYS: 1 the app's mark, 2 the shared mark, 3 the app's deadlines, then the counters, the strings of the rates, their sorted
--       sets, the lease sets, and the reservations: those to register, then those to end.
-- ARGV: 1-8 how many counters, strings, sets, lease sets, reservations to register, reservations to end, rate corrections, and
--       groups follow, 9 TTL of a tombstone (ms), 10 TTL of a record (ms);
--       a counter:      version (0: used is not written), used requests, tokens, nano-dollars, TTL (ms), whether that begins
--                       anew with this call (1) or only with the counter (0);
--       a group:        how many counters, their indexes (1-based): those that a reservation is held on;
--       a string:       kind of its rate, set (1-based, 0 none), slot (app, shared);
--       a lease set:    how many leases of it end, their reservation ids;
--       to register:    id, deadline (ms), held requests, tokens, nano-dollars, group (1-based);
--       to end:         id, group;
--       a correction:   ending (1-based), string, held units, spent units.
-- Reply: 1, then how many reservations were ended, registered, and how many held figures would have become negative;
--        0 alone when a mark is missing: nothing is written, a rebuild will do it all.
-- Cost: 8 + 2 calls a counter, 3 where its life begins + 1 a set + 2 a lease set + 1 a registration + 1 an ending + 3 a
--       correction of a weighted_log, and 1 or 2 for each string that changes; one more where a string is missing, and one
--       where a reservation is. On how many counters a reservation is held costs once a group, not once a reservation; but
--       3 more calls a counter, and 1 for each large amount on it, where amounts have 14 digits or more. The caller bounds
--       the batch.
-- Idempotency: by version and by reservation id, in any order and any number of times.
-- Clock: the Redis server's TIME, for the drain of buckets only.

local mark_app, mark_shared, deadlines = KEYS[1], KEYS[2], KEYS[3]
local n_counters, n_strings, n_sets, n_lease_sets = ARGV[1] + 0, ARGV[2] + 0, ARGV[3] + 0, ARGV[4] + 0
local n_opens, n_endings, n_corrections = ARGV[5] + 0, ARGV[6] + 0, ARGV[7] + 0
local n_groups, tombstone_ttl, record_ttl = ARGV[8] + 0, ARGV[9], ARGV[10]
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
local at = 10
local counters = {}
for i = 1, n_counters do
  local c = call('HMGET', KEYS[first_counter + i], 'version', held_fields[1], held_fields[2], held_fields[3])
  local new = not c[1] and not c[2]
  for f = 2, 4 do
    c[f] = c[f] or '0'
  end
  counters[i] = {key = KEYS[first_counter + i], version = ARGV[at + 1], used = {ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]},
    ttl = ARGV[at + 5], renewed = ARGV[at + 6] == '1', new = new, known = (c[1] or 0) + 0, held = {c[2], c[3], c[4]},
    change = {0, 0, 0}, direct = #c[2] > 15 or #c[3] > 15 or #c[4] > 15}
  at = at + 6
end
local groups = {}
for i = 1, n_groups do
  local group, n = {change = {0, 0, 0}, large = {}}, ARGV[at + 1] + 0
  for j = 1, n do
    group[j] = counters[ARGV[at + 1 + j] + 0]
  end
  groups[i] = group
  at = at + 1 + n
end
call('ZCARD', deadlines)
for i = first_set + 1, first_open do
  call('ZCARD', KEYS[i])
end

local rates = {}
for i, text in ipairs(read_strings(first_string, n_strings)) do
  local rate = {kind = ARGV[at + 1], key = KEYS[first_string + i], text = text, set = KEYS[first_set + ARGV[at + 2]],
    lost = lost[ARGV[at + 3]]}
  if text then
    read[rate.kind](rate)
  end
  rates[i] = rate
  at = at + 3
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

-- Changes of held are summed by group, then by counter, and written once a counter. Amounts that a sum of doubles could blur
-- are left to Redis's own 64-bit addition.
local function change_held(group, sign, amounts)
  group.touched = true
  for f = 1, 3 do
    if #amounts[f] <= 13 then
      group.change[f] = group.change[f] + sign * amounts[f]
    else
      group.large[#group.large + 1] = {held_fields[f], (sign < 0 and '-' or '') .. amounts[f]}
    end
  end
end

local registered, ended, negative = 0, 0, 0
local due = {}
for i = 1, n_opens do
  local key = KEYS[first_open + i]
  if not records[key] then
    local id, deadline, group = ARGV[at + 1], ARGV[at + 2], groups[ARGV[at + 6] + 0]
    local amounts = {ARGV[at + 3], ARGV[at + 4], ARGV[at + 5], forced = true}
    change_held(group, 1, amounts)
    local record = {table.concat(amounts, ' ') .. ' ' .. deadline .. ' forced'}
    for j, counter in ipairs(group) do
      record[j + 1] = counter.key
    end
    call('SET', key, table.concat(record, '\n'), 'PX', record_ttl)
    due[#due + 1] = deadline
    due[#due + 1] = id
    records[key] = amounts
    registered = registered + 1
  end
  at = at + 6
end
if #due > 0 then
  call('ZADD', deadlines, unpack(due))
  call('PEXPIRE', deadlines, record_ttl)
end

local gone, live = {}, {}
for i = 1, n_endings do
  local id, key = ARGV[at + 1], KEYS[first_ending + i]
  local record = records[key]
  if record ~= 'ended' then
    if record then
      change_held(groups[ARGV[at + 2] + 0], -1, record)
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
  at = at + 2
end
if #gone > 0 then
  call('ZREM', deadlines, unpack(gone))
end

for _, group in ipairs(groups) do
  for _, c in ipairs(group.touched and group or {}) do
    c.touched = true
    for f = 1, 3 do
      c.change[f] = c.change[f] + group.change[f]
    end
    for _, large in ipairs(group.large) do
      call('HINCRBY', c.key, large[1], large[2])
      c.direct = true
    end
  end
end

for _, c in ipairs(counters) do
  local fields = {}
  if c.version + 0 > c.known then
    fields = {'version', c.version, used_fields[1], c.used[1], used_fields[2], c.used[2], used_fields[3], c.used[3]}
  end
  for f = 1, c.touched and 3 or 0 do
    local held
    if c.direct then
      held = call('HINCRBY', c.key, held_fields[f], format('%d', c.change[f]))
    else
      held = c.held[f] + c.change[f]
    end
    if held < 0 then
      negative = negative + 1
    end
    if held < 0 or not c.direct then
      fields[#fields + 1] = held_fields[f]
      fields[#fields + 1] = format('%d', max(held, 0))
    end
  end
  if #fields > 0 then
    call('HSET', c.key, unpack(fields))
  end
  -- A window's counter lives until some time after it. What has no end begins anew also where nothing changed: to write a
  -- counter again is how its life is lengthened beside its mark's.
  if c.new or c.renewed then
    call('PEXPIRE', c.key, c.ttl)
  end
end

for _ = 1, n_corrections do
  local record, rate = live[ARGV[at + 1] + 0], rates[ARGV[at + 2] + 0]
  local text = record and rate.text and correct[rate.kind](rate, record, ARGV[at + 3], ARGV[at + 4])
  if text then
    rate.text, rate.changed = text, true
  end
  at = at + 4
end
for _, rate in ipairs(rates) do
  if rate.changed then
    if rate.life then
      -- Other reservations may still correct this bucket: its life is never shortened.
      call('SET', rate.key, rate.text, 'PX', format('%.0f', max(call('PTTL', rate.key), rate.life)))
    else
      call('SET', rate.key, rate.text, 'KEEPTTL')
    end
  end
end
return {1, ended, registered, negative}
