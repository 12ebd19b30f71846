-- Takes one call from each of several rates, or from none.
--
-- KEYS: one for each rate. ARGV: five for each rate, all times in nanoseconds:
--   the interval in which one call is earned
--   the burst
--   unreported: the debt of calls that were admitted without this server
--   away: the time since the first of them
--   the most that a report may raise the debt to
-- Returns 1 if the call may begin, else 0; then for each rate its debt: the time until all calls
-- are earned back.
--
-- A key holds the time of its debt in microseconds of this server's clock, the debt, and the past:
-- the time that is remembered, and how much of it nobody used. Time and debt are separate because
-- numbers here are exact up to 2^53 only: enough for microseconds since 1970, not for nanoseconds.
--
-- Every call is charged, also one that is reported late, so the debt may exceed the burst. Only
-- time in which nobody used the rate pays for reported calls: the pause that this call ends, or as
-- much of the time away as was unused in the past.

-- The past is about a second, or one longer pause.
local MEMORY = 1000000000
-- A key outlives its debt by so much, until all replicas have reported.
local KEPT = 10 * 1000000000
-- A clock that was set back by less goes on from the latest time seen, so that nothing is earned
-- twice. After a longer step, that would refuse all calls for as long.
local STEP_MAX = 5 * 1000000

local time = redis.call('TIME')
local clock = time[1] * 1000000 + time[2]

local fits, changed, owed, values = 1, {}, {}, {}
for i, stored in ipairs(redis.call('MGET', unpack(KEYS))) do
  local arg = 5 * i - 5
  local interval, burst = tonumber(ARGV[arg + 1]), tonumber(ARGV[arg + 2])
  local unreported, away = tonumber(ARGV[arg + 3]), tonumber(ARGV[arg + 4])
  local at, debt, past, unused = string.match(stored or '', '^(%d+) (%d+) (%d+) (%d+)$')
  at, debt = tonumber(at or clock), tonumber(debt or 0)
  -- Without a key, nobody has used the rate for long.
  past, unused = tonumber(past or away), tonumber(unused or away)

  local now = clock
  if at > clock and at - clock <= STEP_MAX then now = at end
  local elapsed = math.max(0, now - at) * 1000
  local pause = math.max(0, elapsed - debt)
  local weight = MEMORY / (MEMORY + elapsed)
  past, unused = past * weight + elapsed, unused * weight + pause
  owed[i] = math.max(0, debt - elapsed)

  if unreported > 0 then
    local paid = math.min(pause, away)
    if past > 0 then paid = math.max(paid, away * unused / past) end
    paid = math.min(paid, unreported)
    unused = math.max(0, unused - paid)
    owed[i] = math.min(owed[i] + unreported - paid, math.max(owed[i], tonumber(ARGV[arg + 5])))
  end
  if owed[i] + interval > interval * burst then fits = 0 end
  changed[i] = unreported > 0 or at > now
  values[i] = { now, past, unused }
end

for i, key in ipairs(KEYS) do
  if fits == 1 then owed[i] = owed[i] + ARGV[5 * i - 4] end
  if fits == 1 or changed[i] then
    local now, past, unused = unpack(values[i])
    local value = string.format('%.0f %.0f %.0f %.0f', now, owed[i], past, unused)
    local lasts = math.ceil((owed[i] + KEPT) / 1000000)
    redis.call('SET', key, value, 'PX', string.format('%.0f', lasts))
  end
end

return { fits, unpack(owed) }
