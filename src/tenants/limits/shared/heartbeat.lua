-- Says that a replica lives, and answers how many do.
--
-- KEYS: the set of replicas by when they were last heard of, in seconds of this server's clock. ARGV: the replica, and
-- after how many seconds of silence a replica is gone.

local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
redis.call('ZADD', KEYS[1], string.format('%.3f', now), ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('(%.3f', now - ARGV[2]))
-- Nothing stays behind when the last replica is gone.
redis.call('EXPIRE', KEYS[1], 60)
return redis.call('ZCARD', KEYS[1])
