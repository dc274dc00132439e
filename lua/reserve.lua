-- reserve.lua
-- Purpose: judge one request against every budget and rate above it; hold its amounts on all of them, or on none.
-- KEYS: 1 the app's mark, 2 the shared mark, 3 the reservation, 4 the app's deadlines, then the counters, then the
--       keys of the rates (a bucket has one, a log two: entries and sum).
-- ARGV: 1 reservation id, 2 generation, 3 time to live of the reservation (ms), 4 time to live of its record (ms),
--       5-7 need in requests, tokens, nano-dollars, 8-10 how many counters, budgets and rates follow;
--       a counter:  window start (ms), window end (ms), both 0 for a window without end, then the TTL in ms that a counter
--                   without end gets;
--       a budget:   counter (1-based), unit (1 requests, 2 tokens, 3 nano-dollars), limit;
--       a rate:     kind (1 bucket, 2 log), first key (1-based among the rates' keys), unit (1, 2), shared (0, 1), then
--                   bucket: ticks a unit, ticks a microsecond, capacity (units); log: limit (units), window (us), 0.
-- Reply: status, now (us), then for each budget: fits (0, 1), used, held (decimal strings, before this request);
--        for each rate: fits, used (units), wait until it would fit (us), time until idle again (us). A wait is exact for
--        buckets and for logs of requests; of a log of tokens it is the whole window when 1000 entries are not enough, and
--        it means nothing where the need alone is more than the limit.
--        status 1 allowed, 0 refused, 2 the mark is missing or of another generation, 3 a window is over or not yet begun,
--        4 the reservation has ended, 5 it is already held. For 2 to 5 no figures follow.
-- Cost: allowed 6 + 2 calls a counter + 2 (bucket) or 5 (log) a rate; refused about half of it and no write.
-- Idempotency: by reservation id, for as long as its record or its tombstone lives.
-- Clock: the Redis server's TIME, read once.

local mark_app, mark_shared, reservation, deadlines = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local id, generation, ttl, record_ttl = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local need = {ARGV[5], ARGV[6], ARGV[7]}
local n_counters, n_budgets, n_rates = tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10])
local first_counter, first_rate = 4, 4 + n_counters

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local now_ms = math.floor(now / 1000)

-- A decimal string as two numbers that a double holds exactly: billions and the rest.
local function split(text)
  local sign = 1
  if string.sub(text, 1, 1) == '-' then
    sign, text = -1, string.sub(text, 2)
  end
  if #text <= 9 then
    return 0, sign * tonumber(text)
  end
  return sign * tonumber(string.sub(text, 1, -10)), sign * tonumber(string.sub(text, -9))
end

-- used + held + need <= limit, exact for any int64: doubles only while each is below 10^15.
local function fits(used, held, needed, limit)
  if #used <= 15 and #held <= 15 and #needed <= 15 and #limit <= 15 then
    return tonumber(used) + tonumber(held) + tonumber(needed) <= tonumber(limit)
  end
  local hi, lo = split(limit)
  for _, text in ipairs({used, held, needed}) do
    local h, l = split(text)
    hi, lo = hi - h, lo - l
  end
  return hi + math.floor(lo / 1000000000) >= 0
end

-- 1. Idempotency, then whether these counters can be believed at all.
local known = redis.call('MGET', reservation, mark_app, mark_shared)
if known[1] then
  if known[1] == 'ended' then
    return {4, now}
  end
  return {5, now}
end
local function lost_at(mark)
  if not mark then
    return nil
  end
  local marked, lost = string.match(mark, '^(%S+) (%d+)$')
  if marked ~= generation then
    return nil
  end
  return tonumber(lost)
end
local lost = {[0] = lost_at(known[2]), [1] = lost_at(known[3])}
if not lost[0] or not lost[1] then
  return {2, now}
end

-- 2. Read and judge. Nothing is written before every limit has been read, so an error leaves no trace.
local reply = {1, now}
local at = 10
local windows, counters = {}, {}
for i = 1, n_counters do
  local starts, ends = tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
  if ends > 0 and (now_ms >= ends or now_ms < starts) then
    return {3, now}
  end
  windows[i] = {ends = ends, ttl = ARGV[at + 3]}
  at = at + 3
  local c = redis.call('HMGET', KEYS[first_counter + i], 'used_requests', 'used_tokens', 'used_nanousd',
    'held_requests', 'held_tokens', 'held_nanousd')
  windows[i].new = not c[4]
  for f = 1, 6 do
    c[f] = c[f] or '0'
  end
  counters[i] = c
end
for _ = 1, n_budgets do
  local c, unit, limit = counters[tonumber(ARGV[at + 1])], tonumber(ARGV[at + 2]), ARGV[at + 3]
  at = at + 3
  local ok = fits(c[unit], c[unit + 3], need[unit], limit)
  if not ok then
    reply[1] = 0
  end
  reply[#reply + 1] = ok and 1 or 0
  reply[#reply + 1] = c[unit]
  reply[#reply + 1] = c[unit + 3]
end

-- The longest time that is told (us, 285 years): more would not fit the caller's clock.
local longest = 9000000000000000

local function judge_bucket(rate)
  local per_unit, drain, capacity = rate.a, rate.b, rate.c * rate.a
  local debt, ts = 0, 0
  local state = redis.call('GET', KEYS[rate.key])
  if state then
    local d, t, p = string.match(state, '^(%d+) (%d+) (%d+)')
    debt, ts = tonumber(d), tonumber(t)
    if tonumber(p) ~= per_unit then
      debt = math.ceil(debt / tonumber(p) * per_unit)
    end
  end
  if ts < rate.lost then
    -- What the bucket gave before the loss is unknown, and a state older than the loss may lack its last requests, so it
    -- starts as if just used up.
    debt, ts = math.max(capacity, debt - (rate.lost - ts) * drain), rate.lost
  end
  debt = math.max(0, debt - math.max(0, now - ts) * drain)
  local after = debt + rate.need * per_unit
  rate.debt, rate.ts = after, math.max(now, ts)
  local wait = math.max(0, math.ceil((after - capacity) / drain))
  return after <= capacity, math.ceil(debt / per_unit), math.min(wait, longest), math.min(math.ceil(debt / drain), longest)
end

-- How long until enough of the oldest entries have left the window for need to fit.
local function wait_log(rate, cutoff, excess)
  if rate.need > rate.a then
    return rate.b
  end
  if rate.unit == 1 then
    local e = redis.call('ZRANGEBYSCORE', KEYS[rate.key], '(' .. cutoff, '+inf', 'WITHSCORES', 'LIMIT', excess - 1, 1)
    return e[2] and tonumber(e[2]) + rate.b - now or rate.b
  end
  -- One request's worth is often the first entry or two, so the first look is short.
  local offset, batch = 0, 4
  while offset < 1000 do
    local e = redis.call('ZRANGEBYSCORE', KEYS[rate.key], '(' .. cutoff, '+inf', 'WITHSCORES', 'LIMIT', offset, batch)
    for i = 1, #e, 2 do
      excess = excess - tonumber(string.match(e[i], ':(%d+)$'))
      if excess <= 0 then
        return tonumber(e[i + 1]) + rate.b - now
      end
    end
    if #e < 2 * batch then
      break
    end
    offset, batch = offset + batch, math.min(4 * batch, 256)
  end
  return rate.b
end

local function judge_log(rate)
  local limit, window = rate.a, rate.b
  if rate.lost > 0 and now < rate.lost + window then
    local wait = rate.lost + window - now
    return false, limit, wait, wait
  end
  local cutoff = string.format('%.0f', now - window)
  local used
  if rate.unit == 1 then
    used = redis.call('ZCOUNT', KEYS[rate.key], '(' .. cutoff, '+inf')
    rate.trim = true
  else
    local sum = redis.call('GET', KEYS[rate.key + 1])
    used = tonumber(sum or '0')
    local left = redis.call('ZRANGEBYSCORE', KEYS[rate.key], '-inf', cutoff)
    -- The sum expires first, and only when every entry has left the window.
    for i = 1, sum and #left or 0 do
      used = used - tonumber(string.match(left[i], ':(%d+)$'))
    end
    rate.trim = #left > 0
  end
  rate.cutoff, rate.sum = cutoff, used + rate.need
  local excess = used + rate.need - limit
  if excess <= 0 then
    return true, used, 0, used > 0 and window or 0
  end
  return false, used, math.max(1, wait_log(rate, cutoff, excess)), window
end

local rates = {}
for i = 1, n_rates do
  local rate = {kind = tonumber(ARGV[at + 1]), key = first_rate + tonumber(ARGV[at + 2]), unit = tonumber(ARGV[at + 3]),
    lost = lost[tonumber(ARGV[at + 4])], a = tonumber(ARGV[at + 5]), b = tonumber(ARGV[at + 6]), c = tonumber(ARGV[at + 7])}
  rate.need = tonumber(need[rate.unit])
  rates[i] = rate
  at = at + 7
  local judge = rate.kind == 1 and judge_bucket or judge_log
  local ok, used, wait, reset = judge(rate)
  if not ok then
    reply[1] = 0
  end
  reply[#reply + 1] = ok and 1 or 0
  reply[#reply + 1] = used
  reply[#reply + 1] = wait
  reply[#reply + 1] = reset
end
if reply[1] == 0 then
  return reply
end

-- Sums of more than 15 digits are left to Redis's own 64-bit addition; where that would overflow, it is said before the
-- first write.
local wide_need = #need[1] > 15 or #need[2] > 15 or #need[3] > 15
for i = 1, n_counters do
  local c = counters[i]
  windows[i].wide = wide_need or #c[4] > 15 or #c[5] > 15 or #c[6] > 15
  for f = 1, windows[i].wide and 3 or 0 do
    if not fits('0', c[f + 3], need[f], '9223372036854775807') then
      return redis.error_reply('ERR held amounts of ' .. KEYS[first_counter + i] .. ' would overflow')
    end
  end
end

-- 3. Commit: the record first, so that nothing is ever held without one.
local deadline = now_ms + ttl
redis.call('ZADD', deadlines, deadline, id)
local record = {string.format('%s %s %s %.0f', need[1], need[2], need[3], deadline)}
for i = 1, n_counters do
  record[i + 1] = KEYS[first_counter + i]
end
if not redis.call('SET', reservation, table.concat(record, '\n'), 'NX', 'PX', record_ttl) then
  -- MGET shows a key of another type as missing.
  redis.call('ZREM', deadlines, id)
  return redis.error_reply('WRONGTYPE ' .. reservation .. ' is no string')
end
redis.call('PEXPIRE', deadlines, record_ttl)

local held_fields = {'held_requests', 'held_tokens', 'held_nanousd'}
for i = 1, n_counters do
  local key, c, window = KEYS[first_counter + i], counters[i], windows[i]
  if not window.wide then
    -- A number handed to Redis is written with 17 digits, so below 10^16 it is exact.
    redis.call('HSET', key, held_fields[1], c[4] + need[1], held_fields[2], c[5] + need[2], held_fields[3], c[6] + need[3])
  else
    for f = 1, 3 do
      redis.call('HINCRBY', key, held_fields[f], need[f])
    end
  end
  if window.ends == 0 then
    redis.call('PEXPIRE', key, window.ttl)
  elseif window.new then
    redis.call('PEXPIRE', key, string.format('%.0f', window.ends - now_ms + tonumber(window.ttl)))
  end
end
for _, rate in ipairs(rates) do
  if rate.kind == 1 then
    -- The state stays until the reservation's deadline, even when the bucket is idle sooner: the settlement may find that
    -- more was spent than held.
    redis.call('SET', KEYS[rate.key], string.format('%.0f %.0f %.0f %.0f', rate.debt, rate.ts, rate.a, rate.b),
      'PX', string.format('%.0f', math.ceil(rate.debt / rate.b / 1000) + 1000 + ttl))
  else
    local log, ttl_ms = KEYS[rate.key], math.ceil(rate.b / 1000) + 1000
    if rate.trim then
      redis.call('ZREMRANGEBYSCORE', log, '-inf', rate.cutoff)
    end
    redis.call('ZADD', log, string.format('%.0f', now), id .. ':' .. string.format('%.0f', rate.need))
    -- The sum expires before the entries: a sum that outlived them would count what has left the window.
    redis.call('PEXPIRE', log, string.format('%.0f', ttl_ms + 1000))
    if rate.unit == 2 then
      redis.call('SET', KEYS[rate.key + 1], string.format('%.0f', rate.sum), 'PX', string.format('%.0f', ttl_ms))
    end
  end
end
return reply
