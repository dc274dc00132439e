-- replay_rate.lua
-- Purpose: charge one rate anew with what the ledger says it was charged before its state was lost. rates.lua stands in front of
--          it. The slot has no mark meanwhile, so nobody judges by what is half done.
-- KEYS: the rate's string, its sorted set, or both in this order, as in reserve.lua.
-- ARGV: 1 kind, 2 the instant before which nothing is known (us), 3 whether what is there goes first (1, 0), 4-6 the figures of
--       reserve.lua's header; then for each charge, oldest first: reservation id, units, instant (us).
-- Reply: 1 alone.
-- Cost: 3 to 8 calls a charge. The caller bounds the charges.
-- Idempotency: absolute, from the first chunk, which takes away what is there.
-- Clock: that of the charges; lives of keys are counted from now and so a little long.

local kind, unknown = ARGV[1], ARGV[2] + 0
if ARGV[3] == '1' then
  call('DEL', unpack(KEYS))
end
local rate = {a = ARGV[4] + 0, b = ARGV[5] + 0, c = ARGV[6] + 0, key = KEYS[1], set = KEYS[#KEYS]}
-- A bucket begins as if used up at that instant. The others keep what they are told, and are not believed until their window
-- has left it behind.
rate.lost = kind == 'bucket' and unknown or 0
for at = 7, #ARGV, 3 do
  rate.need, now = ARGV[at + 1] + 0, ARGV[at + 2] + 0
  now_ms, now_text = floor(now / 1000), ARGV[at + 2]
  rate.text = kind ~= 'log' and call('GET', rate.key) or nil
  judge[kind](rate)
  commit[kind](rate, ARGV[at], 0)
end
return {1}
