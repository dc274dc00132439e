-- rates.lua
-- Purpose: what is known of the state of rates, by kind: how it is judged, charged and corrected. It stands in front of
--          reserve.lua and settle.lua, followed by rate_sets.lua, and does nothing by itself but read the clock.
-- KEYS: those of the script that follows; it hands each rate over with its own.
-- ARGV: those of the script that follows; figures are numbers here, in units, and in us where not said otherwise.
-- Reply: none.
-- Cost: 1 call; judge and correct of these kinds none, commit 1.
-- Idempotency: left to the script that follows.
-- Clock: the Redis server's TIME, read once. Where it steps back, bucket, window and sliding keep the latest time they know.

local call, format, match = redis.call, string.format, string.match
local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min

local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local now_ms = floor(now / 1000)
-- %d is three times as fast as %.0f, and exact where a C long has 64 bits.
local now_text, now_ms_text = format('%d', now), format('%d', now_ms)
if #now_text ~= 16 then
  return redis.error_reply('ERR this Redis writes integers of 32 bits only')
end

-- A rate has key and text (its string and what it holds), set (its sorted set), lost (until when its slot may have lost state), a, b
-- and c (the figures of reserve.lua's header), and need. read takes its text apart, and errors where it cannot. judge gives
-- whether the need fits, units used, wait, and time until idle, and leaves in the rate what commit writes. correct gives the
-- text after a reservation, known by its record, spent something else than it held; nil where it stays.
local read, judge, commit, correct = {}, {}, {}, {}

local function unreadable(rate)
  error('the state of ' .. rate.key .. ' cannot be read', 0)
end

-- The longest time that is told (285 years): more would not fit the caller's clock.
local longest = 9000000000000000

-- bucket: debt (ticks), as of, ticks a unit, ticks a microsecond.

function read.bucket(rate)
  local debt, ts, per_unit, drain = match(rate.text, '^(%d+) (%d+) (%d+) (%d+)$')
  if not debt then
    unreadable(rate)
  end
  return debt + 0, ts + 0, per_unit + 0, drain + 0
end

function judge.bucket(rate)
  local per_unit, drain, capacity = rate.a, rate.b, rate.c * rate.a
  local debt, ts, known = 0, 0, per_unit
  if rate.text then
    debt, ts, known = read.bucket(rate)
    if known ~= per_unit then
      debt = ceil(debt / known * per_unit)
    end
  end
  if ts < rate.lost then
    -- What the bucket gave before the loss is unknown, and a state older than the loss may lack its last requests, so it
    -- starts as if just used up.
    debt, ts = max(capacity, debt - (rate.lost - ts) * drain), rate.lost
  end
  debt = max(0, debt - max(0, now - ts) * drain)
  local after = debt + rate.need * per_unit
  rate.debt, rate.ts = after, max(now, ts)
  local wait = max(0, ceil((after - capacity) / drain))
  return after <= capacity, ceil(debt / per_unit), min(wait, longest), min(ceil(debt / drain), longest)
end

function commit.bucket(rate, _, ttl)
  -- The state stays until the reservation's deadline, even when the bucket is idle sooner: the settlement may find that
  -- more was spent than held.
  call('SET', rate.key, format('%d %d %d %d', rate.debt, rate.ts, rate.a, rate.b),
    'PX', format('%d', ceil(rate.debt / rate.b / 1000) + 1000 + ttl))
end

function correct.bucket(rate, _, held, spent)
  local debt, ts, per_unit, drain = read.bucket(rate)
  if ts < rate.lost then
    -- The next reserve starts it as if just used up at the loss; a newer state would hide that.
    return nil
  end
  debt = max(0, debt - max(0, now - ts) * drain)
  debt = max(0, debt + (spent - held) * per_unit)
  rate.life = ceil(debt / drain / 1000) + 1000
  return format('%.0f %d %d %d', debt, max(now, ts), per_unit, drain)
end

-- window: start, length, units. The later start stands: where the clock stepped back, the window that had begun goes on, and
-- the one before it is not opened a second time.

function read.window(rate)
  local start, length, units = match(rate.text, '^(%d+) (%d+) (%d+)$')
  if not start then
    unreadable(rate)
  end
  return start + 0, length + 0, units + 0
end

function judge.window(rate)
  local limit, length, offset = rate.a, rate.b, rate.c
  local start, used = floor((now - offset) / length) * length + offset, 0
  if rate.text then
    local known, _, units = read.window(rate)
    if known >= start then
      start, used = known, units
    end
  end
  local left = start + length - now
  rate.start, rate.after = start, used + rate.need
  if start <= rate.lost then
    return false, limit, left, left
  end
  local fits = rate.after <= limit
  return fits, used, fits and 0 or left, used > 0 and left or 0
end

function commit.window(rate)
  call('SET', rate.key, format('%d %d %d', rate.start, rate.b, rate.after),
    'PX', format('%d', ceil((rate.start + rate.b - now) / 1000) + 1000))
end

-- The window that a record was charged to is found by its time. One from before a loss may lack the charge itself.
local function charged_at(rate, record)
  return record.reserved and record.reserved > rate.lost and record.reserved or -1
end

function correct.window(rate, record, held, spent)
  local start, length, units = read.window(rate)
  local reserved = charged_at(rate, record)
  if reserved < start or reserved >= start + length then
    return nil
  end
  return format('%.0f %.0f %.0f', start, length, max(0, units + spent - held))
end

-- sliding: length of a sub-window, index of the newest, its units, and those of the ones before it. A sub-window counts whole
-- until its last microsecond has left the window. As with window, the later index stands.

function read.sliding(rate)
  local step, index, list = match(rate.text, '^(%d+) (%d+) (%d[%d ]*)$')
  if not step then
    unreadable(rate)
  end
  local counts = {}
  for count in string.gmatch(list, '%d+') do
    counts[#counts + 1] = count
  end
  return step + 0, index + 0, counts
end

-- Another length of sub-window, because the limit's window was changed: each count goes to the latest place that it can have
-- come from, so it stays at least as long as it would have.
local function recut(old, index, counts, step)
  local latest, by, last = max(now, index * old), {}, 0
  local newest = floor(min((index + 1) * old - 1, latest) / step)
  for k, count in ipairs(counts) do
    local i = newest - floor(min((index - k + 2) * old - 1, latest) / step) + 1
    if i <= 22 then
      by[i], last = (by[i] or 0) + count, max(last, i)
    end
  end
  for i = 1, last do
    by[i] = format('%d', by[i] or 0)
  end
  return newest, by
end

-- Brings the counts to now and sums them up; without those that have left the window.
local function advance_sliding(rate)
  local length, step = rate.b, rate.c
  local newest, counts, used = floor(now / step), {}, 0
  if rate.text then
    local old, index, known = read.sliding(rate)
    if old ~= step then
      index, known = recut(old, index, known, step)
    end
    newest = max(newest, index)
    local gone = max(now, newest * step) - length
    for k = 1, min(newest - index, 21) do
      counts[k] = '0'
    end
    for k = 1, #known do
      if (index - k + 2) * step - 1 <= gone then
        break
      end
      counts[#counts + 1] = known[k]
      used = used + known[k]
    end
  end
  rate.newest, rate.counts = newest, counts
  return used
end

function judge.sliding(rate)
  local limit, length, step = rate.a, rate.b, rate.c
  local used = advance_sliding(rate)
  if now < rate.lost + length then
    local wait = rate.lost + length - now
    return false, limit, wait, wait
  end
  local counts, reset = rate.counts, 0
  -- When the first of the counts has left, nothing more coming; the k-th leaves k - 1 steps sooner.
  local first = (rate.newest + 1) * step - 1 + length - now
  for k = 1, used > 0 and #counts or 0 do
    if counts[k] ~= '0' then
      reset = first - (k - 1) * step
      break
    end
  end
  local excess = used + rate.need - limit
  if excess <= 0 then
    return true, used, 0, reset
  end
  for k = rate.need <= limit and #counts or 0, 1, -1 do
    excess = excess - counts[k]
    if excess <= 0 then
      return false, used, first - (k - 1) * step, reset
    end
  end
  return false, used, length, reset
end

local function write_sliding(step, newest, counts)
  return format('%.0f %.0f ', step, newest) .. table.concat(counts, ' ')
end

function commit.sliding(rate)
  local counts = rate.counts
  counts[1] = format('%d', (counts[1] or 0) + rate.need)
  call('SET', rate.key, write_sliding(rate.c, rate.newest, counts),
    'PX', format('%d', ceil(((rate.newest + 1) * rate.c + rate.b - now) / 1000) + 1000))
end

function correct.sliding(rate, record, held, spent)
  local step, newest, counts = read.sliding(rate)
  local k = newest - floor(charged_at(rate, record) / step) + 1
  if not counts[k] then
    return nil
  end
  counts[k] = format('%.0f', max(0, counts[k] + spent - held))
  return write_sliding(step, newest, counts)
end

