-- reserve.lua
-- Purpose: judge one request against every budget and rate above it; hold its amounts on all of them, or on none. rates.lua
--          stands in front of it.
-- KEYS: 1 the app's mark, 2 the shared mark, 3 the reservation, then the strings of the rates, the app's deadlines, the
--       sorted sets of the rates, the counters. Which rate has which: bucket, window, sliding one string, log and inflight
--       one set, weighted_log its sum and its set.
-- ARGV: 1 reservation id, 2 generation, 3 time to live of the reservation (ms), 4 time to live of its record (ms),
--       5-7 need in requests, tokens, nano-dollars, 8-11 how many strings, sets, windows and rates follow;
--       a window:   start (ms), end (ms), the instant its counters expire at (ms), how many counters it has. A window without
--                   end: 0, 0, how long its counters live (ms);
--       a counter:  the budgets on it, one letter each: r requests, t tokens, n nano-dollars, upper case where the budget is
--                   soft; then their limits;
--       a rate:     kind, unit (r, t), slot (app, shared), soft (0, 1), three figures by kind: bucket: ticks a unit, ticks a
--                   microsecond, capacity (units); log, weighted_log: limit (units), window (us), 0; window: limit, window
--                   (us), offset (us); sliding: limit, window (us), sub-window (us); inflight: limit, life of a lease (ms), 0.
-- Reply: status, now (us), then for each budget: used, held (before this request); for each rate: used (units), wait until it
--        would fit (us, 0 if it does), time until idle again (us); then the places of the limits that have no room, 1-based
--        among budgets and rates. A wait is exact, except for a weighted_log where 1000 entries are not enough (the whole
--        window), for inflight (1 s, a guess), and where the need alone is more than the limit (no meaning). Inflight has no
--        time until idle (0).
--        status 1 allowed, 0 refused, 2 the mark is missing or of another generation, 3 a window is over or not yet begun,
--        4 the reservation has ended, 5 it is already held, 7 it is held and was not judged here. For 2 to 7 no figures follow.
-- Cost: allowed 5 + 2 calls a counter + 1 (bucket, window, sliding), 4 (log, inflight) or 5 (weighted_log) a rate; one more
--       where the string of a rate is missing, and one for a counter that is new or of a window without end. Refused about
--       half of it and no write.
-- Idempotency: by reservation id, for as long as its record or its tombstone lives.
-- Clock: the Redis server's TIME, read once.

local reservation, id, generation, ttl, record_ttl = KEYS[3], ARGV[1], ARGV[2], ARGV[3] + 0, ARGV[4]
local need_texts = {r = ARGV[5], t = ARGV[6], n = ARGV[7]}
local n_texts, n_sets, n_windows, n_rates = 3 + ARGV[8], ARGV[9] + 0, ARGV[10] + 0, ARGV[11] + 0
local deadlines, first_counter = KEYS[n_texts + 1], n_texts + 1 + n_sets
local at = 11

-- 1. Idempotency, then whether the state of these slots can be believed at all.
local texts = call('MGET', unpack(KEYS, 1, n_texts))
if texts[3] then
  return {texts[3] == 'ended' and 4 or match(texts[3], '^%d+ %d+ %d+ %d+ forced') and 7 or 5, now}
end
local lost, leases_lost = {}, {}
for slot, mark in pairs({app = texts[1] or '', shared = texts[2] or ''}) do
  local marked, rates, leases = match(mark, '^(%S+) (%d+) (%d+)$')
  if marked ~= generation then
    return {2, now}
  end
  lost[slot], leases_lost[slot] = rates + 0, leases + 0
end

-- MGET shows a key of another type as missing, GET says what is wrong with it.
local missing = {}
for i = 4, n_texts do
  if not texts[i] then
    missing[#missing + 1] = KEYS[i]
  end
end
if #missing > 0 and call('EXISTS', unpack(missing)) > 0 then
  for _, key in ipairs(missing) do
    call('GET', key)
  end
end

-- 2. Read and judge. Nothing is written before every limit has been read, so an error leaves no trace.
local reply, full, refused, place = {1, now}, {}, false, 0
local function tell(fits, soft)
  place = place + 1
  if not fits then
    full[#full + 1] = place
    refused = refused or not soft
  end
end

-- Below this, sums of three are exact in doubles; above, decimal strings are compared and Redis's own 64-bit addition adds.
local narrow = 1000000000000000
local need = {r = need_texts.r + 0, t = need_texts.t + 0, n = need_texts.n + 0}
local wide_need = need.r >= narrow or need.t >= narrow or need.n >= narrow
local used_field = {r = 'used_requests', t = 'used_tokens', n = 'used_nanousd'}
used_field.R, used_field.T, used_field.N = used_field.r, used_field.t, used_field.n
local held_place = {r = 1, t = 2, n = 3, R = 1, T = 2, N = 3}
local unit_of = {r = 'r', t = 't', n = 'n', R = 'r', T = 't', N = 'n'}

local function read_counter(key, letters)
  if #letters == 1 then
    return call('HMGET', key, 'held_requests', 'held_tokens', 'held_nanousd', used_field[letters])
  end
  local fields = {}
  for i = 1, #letters do
    fields[i] = used_field[sub(letters, i, i)]
  end
  return call('HMGET', key, 'held_requests', 'held_tokens', 'held_nanousd', unpack(fields))
end

local function judge_budget(counter, i, letter, limit)
  local unit, used, held = unit_of[letter], counter[3 + i] or '0', counter[held_place[letter]]
  local amount, fits = used + 0
  if counter.wide or amount >= narrow or amount <= -narrow then
    fits = fits_wide(used, held, need_texts[unit], limit)
  else
    used, held = amount, held + 0
    fits = used + held + need[unit] <= limit + 0
  end
  tell(fits, letter ~= unit)
  reply[#reply + 1] = used
  reply[#reply + 1] = held
end

local counters = {}
for _ = 1, n_windows do
  local starts, ends, expires, n = ARGV[at + 1] + 0, ARGV[at + 2] + 0, ARGV[at + 3], ARGV[at + 4] + 0
  at = at + 4
  if ends > 0 and (now_ms >= ends or now_ms < starts) then
    return {3, now}
  end
  for _ = 1, n do
    local letters = ARGV[at + 1]
    local counter = read_counter(KEYS[first_counter + #counters + 1], letters)
    if not counter[1] or ends == 0 then
      counter.expire, counter.at = ends == 0 and 'PEXPIRE' or 'PEXPIREAT', expires
    end
    for i = 1, 3 do
      counter[i] = counter[i] or '0'
    end
    counter.wide = wide_need or counter[1] + 0 >= narrow or counter[2] + 0 >= narrow or counter[3] + 0 >= narrow
    counters[#counters + 1] = counter
    for i = 1, #letters do
      judge_budget(counter, i, sub(letters, i, i), ARGV[at + 1 + i])
    end
    at = at + 1 + #letters
  end
end

local has_text = {bucket = true, window = true, sliding = true, weighted_log = true}
local has_set = {log = true, weighted_log = true, inflight = true}
local charged, next_text, next_set = {}, 3, n_texts + 1
for _ = 1, n_rates do
  local kind, unit = ARGV[at + 1], ARGV[at + 2]
  local rate = {kind = kind, need = need[unit], lost = (kind == 'inflight' and leases_lost or lost)[ARGV[at + 3]],
    a = ARGV[at + 5] + 0, b = ARGV[at + 6] + 0, c = ARGV[at + 7] + 0}
  if has_text[kind] then
    next_text = next_text + 1
    rate.key, rate.text = KEYS[next_text], texts[next_text]
  end
  if has_set[kind] then
    next_set = next_set + 1
    rate.set = KEYS[next_set]
  end
  local fits, used, wait, reset = judge[kind](rate)
  tell(fits, ARGV[at + 4] == '1')
  -- A soft rate without room is not charged: its state stays within the limit.
  charged[#charged + 1] = fits and rate or nil
  reply[#reply + 1] = used
  reply[#reply + 1] = wait
  reply[#reply + 1] = reset
  at = at + 7
end
for i = 1, #full do
  reply[#reply + 1] = full[i]
end
if refused then
  reply[1] = 0
  return reply
end

local held_fields = {'held_requests', 'held_tokens', 'held_nanousd'}
local needs = {need_texts.r, need_texts.t, need_texts.n}
-- Where Redis's own addition would overflow, it is said before the first write.
for i, counter in ipairs(counters) do
  for f = 1, counter.wide and 3 or 0 do
    if not fits_wide('0', counter[f], needs[f], '9223372036854775807') then
      return redis.error_reply('ERR held amounts of ' .. KEYS[first_counter + i] .. ' would overflow')
    end
  end
end

-- 3. Commit: the record first, so that nothing is ever held without one.
local deadline = format('%d', now_ms + ttl)
call('ZADD', deadlines, deadline, id)
local record = table.concat(needs, ' ') .. ' ' .. deadline .. ' ' .. now_text
if #counters > 0 then
  record = record .. '\n' .. table.concat(KEYS, '\n', first_counter + 1, first_counter + #counters)
end
if not call('SET', reservation, record, 'NX', 'PX', record_ttl) then
  -- MGET shows a key of another type as missing.
  call('ZREM', deadlines, id)
  return redis.error_reply('WRONGTYPE ' .. reservation .. ' is no string')
end
call('PEXPIRE', deadlines, record_ttl)

for i, counter in ipairs(counters) do
  local key = KEYS[first_counter + i]
  if not counter.wide then
    call('HSET', key, 'held_requests', format('%d', counter[1] + need.r), 'held_tokens', format('%d', counter[2] + need.t),
      'held_nanousd', format('%d', counter[3] + need.n))
  else
    for f = 1, 3 do
      call('HINCRBY', key, held_fields[f], needs[f])
    end
  end
  if counter.expire then
    call(counter.expire, key, counter.at)
  end
end
for _, rate in ipairs(charged) do
  commit[rate.kind](rate, id, ttl)
end
return reply
