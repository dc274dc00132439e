-- rate_sets.lua
-- Purpose: the kinds of rate that are kept in sorted sets: logs, and requests in flight. It stands behind rates.lua, in front of
--          reserve.lua and settle.lua.
-- KEYS: as rates.lua.
-- ARGV: as rates.lua.
-- Reply: none.
-- Cost: judge 1 call, refused by a log up to 7; commit 3, of a weighted_log 4; correct of a weighted_log 3.
-- Idempotency: left to the script that follows.
-- Clock: that of rates.lua.

-- log: a set of entries "id:units" by the microsecond they came at. A weighted_log also has their sum, as a string.

local function lost_log(rate)
  local wait = rate.lost + rate.b - now
  return wait > 0 and wait or nil
end

function judge.log(rate)
  local limit, length, wait = rate.a, rate.b, lost_log(rate)
  if wait then
    return false, limit, wait, wait
  end
  rate.cutoff = format('%d', now - length)
  local used = call('ZCOUNT', rate.set, '(' .. rate.cutoff, '+inf')
  local excess = used + 1 - limit
  if excess <= 0 then
    return true, used, 0, used > 0 and length or 0
  end
  local e = limit > 0 and call('ZRANGEBYSCORE', rate.set, '(' .. rate.cutoff, '+inf', 'WITHSCORES', 'LIMIT', excess - 1, 1) or {}
  return false, used, e[2] and max(1, e[2] + length - now) or length, length
end

local function add_entry(rate, id)
  -- The sum expires before the entries: a sum that outlived them would count what has left the window.
  local life = ceil(rate.b / 1000) + 1000
  call('ZADD', rate.set, now_text, id .. ':' .. format('%d', rate.need))
  call('PEXPIRE', rate.set, format('%d', life + 1000))
  return format('%d', life)
end

function commit.log(rate, id)
  call('ZREMRANGEBYSCORE', rate.set, '-inf', rate.cutoff)
  add_entry(rate, id)
end

-- How long until enough of the oldest entries have left the window for need to fit.
local function wait_weighted(rate, excess)
  if rate.need > rate.a then
    return rate.b
  end
  -- One request's worth is often the first entry or two, so the first look is short.
  local offset, batch = 0, 4
  while offset < 1000 do
    local e = call('ZRANGEBYSCORE', rate.set, '(' .. rate.cutoff, '+inf', 'WITHSCORES', 'LIMIT', offset, batch)
    for i = 1, #e, 2 do
      excess = excess - match(e[i], ':(%d+)$')
      if excess <= 0 then
        return max(1, e[i + 1] + rate.b - now)
      end
    end
    if #e < 2 * batch then
      break
    end
    offset, batch = offset + batch, min(4 * batch, 256)
  end
  return rate.b
end

function read.weighted_log(rate)
  if not match(rate.text, '^%d+$') then
    unreadable(rate)
  end
  return rate.text + 0
end

function judge.weighted_log(rate)
  local limit, length, wait = rate.a, rate.b, lost_log(rate)
  if wait then
    return false, limit, wait, wait
  end
  rate.cutoff = format('%d', now - length)
  local left = call('ZRANGEBYSCORE', rate.set, '-inf', rate.cutoff)
  local used = rate.text and read.weighted_log(rate) or 0
  -- The sum expires first, and only when every entry has left the window.
  for i = 1, rate.text and #left or 0 do
    used = used - match(left[i], ':(%d+)$')
  end
  rate.trim, rate.after = #left > 0, used + rate.need
  local excess = rate.after - limit
  if excess <= 0 then
    return true, used, 0, used > 0 and length or 0
  end
  return false, used, wait_weighted(rate, excess), length
end

function commit.weighted_log(rate, id)
  if rate.trim then
    call('ZREMRANGEBYSCORE', rate.set, '-inf', rate.cutoff)
  end
  call('SET', rate.key, format('%d', rate.after), 'PX', add_entry(rate, id))
end

function correct.weighted_log(rate, record, held, spent)
  local member = record.id .. ':' .. held
  local score = call('ZSCORE', rate.set, member)
  if not score then
    return nil
  end
  -- In this order: a log that became empty in between would lose its time to live.
  call('ZADD', rate.set, score, record.id .. ':' .. spent)
  call('ZREM', rate.set, member)
  return format('%.0f', max(0, rate.text + spent - held))
end

-- inflight: a set of reservation ids by the millisecond their lease lapses at. Within one life of a lease after a loss, every
-- gateway has renewed its leases and so added them again.

function judge.inflight(rate)
  local limit, lost_until = rate.a, rate.lost + rate.b * 1000
  if now < lost_until then
    return false, limit, lost_until - now, 0
  end
  local used = call('ZCOUNT', rate.set, '(' .. now_ms_text, '+inf')
  local fits = used + 1 <= limit
  return fits, used, fits and 0 or 1000000, 0
end

function commit.inflight(rate, id)
  call('ZREMRANGEBYSCORE', rate.set, '-inf', now_ms_text)
  call('ZADD', rate.set, format('%d', now_ms + rate.b), id)
  call('PEXPIRE', rate.set, rate.b + 1000)
end

