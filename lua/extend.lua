-- extend.lua
-- Purpose: hold more for a reservation whose answer outgrows what is held for it: judged against the budgets on its counters,
--          on all of them or on none.
-- KEYS: 1 the app's mark, 2 the shared mark, 3 the reservation, then its counters.
-- ARGV: 1 generation, 2 and 3 how many tokens and nano-dollars are to be held in all, below 10^15; then for each counter: the
--       budgets on it, one letter each: t tokens, n nano-dollars, upper case where the budget is soft; then their limits.
-- Reply: status, then for each budget: used, held (before this); then the places of the budgets that have no room, 1-based.
--        status 1 held, 0 refused, 2 a mark is missing or of another generation, 4 the reservation has ended, 5 so much is held
--        already, 6 the reservation or one of its counters is not known. For 2 to 6 no figures follow.
-- Cost: held 2 + 2 or 3 calls a counter; refused 1 + 1 a counter and no write.
-- Idempotency: by what is to be held in all; a call that asks for less than is held changes nothing.
-- Clock: none.

local mark_app, mark_shared, reservation = KEYS[1], KEYS[2], KEYS[3]
local generation, tokens, nanousd = ARGV[1], ARGV[2], ARGV[3]
local call, format, match = redis.call, string.format, string.match

local texts = call('MGET', mark_app, mark_shared, reservation)
local record = texts[3]
if record == 'ended' then
  return {4}
end
for i = 1, 2 do
  if match(texts[i] or '', '^(%S+) ') ~= generation then
    return {2}
  end
end
if not record then
  return {6}
end
local requests, held_tokens, held_nanousd, rest = match(record, '^(%d+) (%d+) (%d+) (%d.*)$')
if not requests or #held_tokens > 15 or #held_nanousd > 15 then
  return redis.error_reply('ERR ' .. reservation .. ' is no reservation that can be extended')
end
local more_tokens, more_nanousd = math.max(0, tokens - held_tokens), math.max(0, nanousd - held_nanousd)
if more_tokens == 0 and more_nanousd == 0 then
  return {5}
end
local more = {t = format('%d', more_tokens), n = format('%d', more_nanousd)}

local reply, full, refused, place, at = {1}, {}, false, 0, 3
for i = 4, #KEYS do
  local c = call('HMGET', KEYS[i], 'held_tokens', 'held_nanousd', 'used_tokens', 'used_nanousd')
  if not c[1] or not c[2] then
    return {6}
  end
  local held, used = {t = c[1], n = c[2]}, {t = c[3] or '0', n = c[4] or '0'}
  -- Where Redis's own addition would overflow, it is said before the first write.
  if not fits_wide('0', held.t, more.t, '9223372036854775807') or not fits_wide('0', held.n, more.n, '9223372036854775807') then
    return redis.error_reply('ERR held amounts of ' .. KEYS[i] .. ' would overflow')
  end
  local letters = ARGV[at + 1]
  at = at + 1
  for j = 1, #letters do
    local letter = sub(letters, j, j)
    local unit = string.lower(letter)
    at, place = at + 1, place + 1
    if not fits_wide(used[unit], held[unit], more[unit], ARGV[at]) then
      full[#full + 1] = place
      refused = refused or letter == unit
    end
    reply[#reply + 1] = used[unit]
    reply[#reply + 1] = held[unit]
  end
end
for i = 1, #full do
  reply[#reply + 1] = full[i]
end
if refused then
  reply[1] = 0
  return reply
end

call('SET', reservation, format('%s %d %d %s', requests, held_tokens + more_tokens, held_nanousd + more_nanousd, rest), 'KEEPTTL')
for i = 4, #KEYS do
  if more_tokens > 0 then
    call('HINCRBY', KEYS[i], 'held_tokens', more.t)
  end
  if more_nanousd > 0 then
    call('HINCRBY', KEYS[i], 'held_nanousd', more.n)
  end
end
return reply
