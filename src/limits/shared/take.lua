-- Takes one call from each of several rates, or from none of them.
--
-- KEYS: one for each rate. ARGV: two for each rate, in which time one call is earned, in nanoseconds, and how many may
-- come at once. Answers 1 if the call may begin, else 0, and then for each rate what is owed: the nanoseconds until all
-- calls are earned back.
--
-- A key holds what was owed, and when, in microseconds of this server's clock. Time and debt are apart because numbers
-- here are exact up to 2^53 only: enough for microseconds since 1970, not for nanoseconds.

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local fits, owed = 1, {}
for i, stored in ipairs(redis.call('MGET', unpack(KEYS))) do
  local interval, burst = tonumber(ARGV[2 * i - 1]), tonumber(ARGV[2 * i])
  local at, debt = string.match(stored or '', '^(%d+) (%d+)$')
  owed[i] = debt and math.max(0, debt - math.max(0, now - at) * 1000) or 0
  if owed[i] + interval > interval * burst then fits = 0 end
end

if fits == 1 then
  for i, key in ipairs(KEYS) do
    owed[i] = owed[i] + ARGV[2 * i - 1]
    local value = string.format('%.0f %.0f', now, owed[i])
    -- What is full again needs no key.
    redis.call('SET', key, value, 'PX', string.format('%.0f', math.ceil(owed[i] / 1000000)))
  end
end

return { fits, unpack(owed) }
