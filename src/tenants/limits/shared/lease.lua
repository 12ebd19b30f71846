-- Says how many places of a limit somebody holds, and asks for those that it needs besides.
--
-- KEYS: the limit. ARGV: who speaks; the number of what it says; how many places it holds, how many it needs and how many
-- it would like; how many there are; how many must stay free if it is to have more than it needs; after how many
-- seconds of silence somebody is gone; where those hear of it who have more than they need. Answers how many places it
-- has now, and 1 if it may have more than it needs, else 0.
--
-- What somebody holds is a fact: it may be in use, and is counted even if that makes too many. The key has for each who
-- holds places: the number of its last word; when that was, in seconds of this server's clock; how many places; and
-- whether it may have more than it needs.

local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local me, number = ARGV[1], tonumber(ARGV[2])
local held, needed, wish = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local limit, spare, gone = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])

local others, roomy = 0, {}
local known = redis.call('HGETALL', KEYS[1])
for i = 1, #known, 2 do
  local word, at, places, room = string.match(known[i + 1], '^(%d+) ([%d.]+) (%d+) (%d)$')
  if known[i] == me then
    -- Over another connection a later word may have come first: the last one counts.
    if word and tonumber(word) >= number then return { tonumber(places), 0 } end
  elseif not word or math.abs(now - at) > gone then
    redis.call('HDEL', KEYS[1], known[i])
  else
    others = others + places
    if room == '1' then roomy[#roomy + 1] = known[i] end
  end
end

local granted, room = math.max(held, math.min(needed, limit - others)), 0
if granted >= needed and limit - others - math.max(granted, wish) >= spare then
  granted, room = math.max(granted, wish), 1
end

if granted > 0 then
  local value = string.format('%.0f %.3f %.0f %d', number, now, granted, room)
  redis.call('HSET', KEYS[1], me, value)
  redis.call('EXPIRE', KEYS[1], 2 * gone)
else
  redis.call('HDEL', KEYS[1], me)
end

-- Who may not publish does without: those who have too much notice it themselves, only later.
if granted < needed and #roomy > 0 then
  redis.pcall('PUBLISH', ARGV[9], table.concat(roomy, ' '))
end

return { granted, room }
