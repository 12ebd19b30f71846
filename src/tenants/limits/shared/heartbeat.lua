-- Writes a replica's heartbeat. Returns the number of live replicas.
--
-- KEYS: the set of replicas, each with the time of its last heartbeat in seconds of this server's
-- clock. ARGV: the replica; after how many seconds without a heartbeat a replica is gone.

local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local stamp = string.format('%.3f', now)
redis.call('ZADD', KEYS[1], stamp, ARGV[1])
-- The clock was set back: a replica that is gone must not last for the length of the step.
local ahead = string.format('(%.3f', now + ARGV[2])
for _, replica in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], ahead, '+inf')) do
  redis.call('ZADD', KEYS[1], stamp, replica)
end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('(%.3f', now - ARGV[2]))
-- Nothing is left when the last replica is gone.
redis.call('EXPIRE', KEYS[1], 60)
return redis.call('ZCARD', KEYS[1])
