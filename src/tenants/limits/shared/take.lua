-- Takes one call from each of several rates, or from none of them.
--
-- KEYS: one for each rate. ARGV: four for each rate, all times in nanoseconds: in which time one call is earned; how many
-- may come at once; what is owed for calls that nobody has told of before; how much of that is earned back already. Answers
-- 1 if the call may begin, else 0, and then for each rate what is owed: the time until all calls are earned back.
--
-- A key holds what was owed, and when, in microseconds of this server's clock. Time and debt are apart because numbers
-- here are exact up to 2^53 only: enough for microseconds since 1970, not for nanoseconds.

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local fits, told, owed = 1, {}, {}
for i, stored in ipairs(redis.call('MGET', unpack(KEYS))) do
  local interval, burst = tonumber(ARGV[4 * i - 3]), tonumber(ARGV[4 * i - 2])
  local untold, earned = tonumber(ARGV[4 * i - 1]), tonumber(ARGV[4 * i])
  local at, debt = string.match(stored or '', '^(%d+) (%d+)$')
  -- Where something is known, all that was earned since then is known too.
  if at then earned = math.max(0, now - at) * 1000 end
  owed[i] = math.max(0, (debt or 0) + untold - earned)
  if untold > 0 then owed[i] = math.min(owed[i], interval * burst) end
  if owed[i] + interval > interval * burst then fits = 0 end
  told[i] = untold > 0 and owed[i] > 0
end

for i, key in ipairs(KEYS) do
  if fits == 1 then owed[i] = owed[i] + ARGV[4 * i - 3] end
  if fits == 1 or told[i] then
    local value = string.format('%.0f %.0f', now, owed[i])
    -- What is full again needs no key.
    redis.call('SET', key, value, 'PX', string.format('%.0f', math.ceil(owed[i] / 1000000)))
  end
end

return { fits, unpack(owed) }
