-- decimal.lua
-- Purpose: exact comparison of amounts that a double does not hold. It stands in front of reserve.lua and extend.lua and does
--          nothing by itself.
-- KEYS: none.
-- ARGV: none.
-- Reply: none.
-- Cost: no calls.
-- Idempotency: it has no effect.
-- Clock: none.

local floor, sub = math.floor, string.sub

-- A decimal string as two numbers that a double holds exactly: billions and the rest.
local function split(text)
  local sign = 1
  if sub(text, 1, 1) == '-' then
    sign, text = -1, sub(text, 2)
  end
  if #text <= 9 then
    return 0, sign * text
  end
  return sign * sub(text, 1, -10), sign * sub(text, -9)
end

-- used + held + need <= limit, exact for any int64.
local function fits_wide(used, held, needed, limit)
  local hi, lo = split(limit)
  for _, text in ipairs({used, held, needed}) do
    local h, l = split(text)
    hi, lo = hi - h, lo - l
  end
  return hi + floor(lo / 1000000000) >= 0
end
