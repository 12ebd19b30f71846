-- Takes one call from each of several rates, or from none.
--
-- KEYS: one for each rate. ARGV: four for each rate, all times in nanoseconds:
--   the interval in which one call is earned
--   the burst
--   unreported: the debt of calls that were admitted without this server
--   earned: how much of that is earned back already
-- Returns 1 if the call may begin, else 0; then for each rate its debt: the time until all calls
-- are earned back.
--
-- A key holds the debt, and its time in microseconds of this server's clock. They are separate
-- because numbers here are exact up to 2^53 only: enough for microseconds since 1970, not for
-- nanoseconds.

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local fits, changed, owed = 1, {}, {}
for i, stored in ipairs(redis.call('MGET', unpack(KEYS))) do
  local interval, burst = tonumber(ARGV[4 * i - 3]), tonumber(ARGV[4 * i - 2])
  local unreported, earned = tonumber(ARGV[4 * i - 1]), tonumber(ARGV[4 * i])
  local at, debt = string.match(stored or '', '^(%d+) (%d+)$')
  -- A stored debt has a time of its own, from which `earned` follows.
  if at then earned = math.max(0, now - at) * 1000 end
  owed[i] = math.max(0, (debt or 0) + unreported - earned)
  if unreported > 0 then owed[i] = math.min(owed[i], interval * burst) end
  if owed[i] + interval > interval * burst then fits = 0 end
  changed[i] = unreported > 0 and owed[i] > 0
end

for i, key in ipairs(KEYS) do
  if fits == 1 then owed[i] = owed[i] + ARGV[4 * i - 3] end
  if fits == 1 or changed[i] then
    local value = string.format('%.0f %.0f', now, owed[i])
    -- A rate without debt needs no key.
    redis.call('SET', key, value, 'PX', string.format('%.0f', math.ceil(owed[i] / 1000000)))
  end
end

return { fits, unpack(owed) }
