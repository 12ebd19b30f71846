-- Renews a lease: reports how many permits of a limit it holds, and asks for those it needs.
--
-- KEYS: the limit. ARGV:
--   1 the lease's id
--   2 the number of the request
--   3 held: permits that it holds
--   4 needed: permits that its calls need
--   5 wanted: permits that would save further requests
--   6 limit: permits in all
--   7 spare: permits that must stay free for it to get more than it needs
--   8 after how many seconds without a renewal a lease is gone
--   9 the channel on which leases with headroom are recalled
-- Returns how many permits it has now, and 1 if it may hold more than it needs, else 0.
--
-- Held permits are a fact: they may be in use, and count even beyond the limit. The key has, for
-- each lease: the number of its last request, the time of it in seconds of this server's clock, its
-- permits, and whether it may hold more than it needs.

local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local me, number = ARGV[1], tonumber(ARGV[2])
local held, needed, wanted = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local limit, spare, gone = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])

local others, with_headroom = 0, {}
local known = redis.call('HGETALL', KEYS[1])
for i = 1, #known, 2 do
  local last, at, permits, headroom = string.match(known[i + 1], '^(%d+) ([%d.]+) (%d+) (%d)$')
  if known[i] == me then
    -- Over another connection a later request may have come first: the latest counts.
    if last and tonumber(last) >= number then return { tonumber(permits), 0 } end
  elseif not last or now - at > gone then
    redis.call('HDEL', KEYS[1], known[i])
  else
    -- The clock was set back: the lease is not gone, and must not last for the length of the step.
    if at - now > gone then
      local value = string.format('%s %.3f %s %s', last, now, permits, headroom)
      redis.call('HSET', KEYS[1], known[i], value)
    end
    others = others + permits
    if headroom == '1' then with_headroom[#with_headroom + 1] = known[i] end
  end
end

local granted, headroom = math.max(held, math.min(needed, limit - others)), 0
if granted >= needed and limit - others - math.max(granted, wanted) >= spare then
  granted, headroom = math.max(granted, wanted), 1
end

if granted > 0 then
  local value = string.format('%.0f %.3f %.0f %d', number, now, granted, headroom)
  redis.call('HSET', KEYS[1], me, value)
  redis.call('EXPIRE', KEYS[1], 2 * gone)
else
  redis.call('HDEL', KEYS[1], me)
end

-- Without the right to publish there are no recalls: leases then return their headroom later.
if granted < needed and #with_headroom > 0 then
  redis.pcall('PUBLISH', ARGV[9], table.concat(with_headroom, ' '))
end

return { granted, headroom }
