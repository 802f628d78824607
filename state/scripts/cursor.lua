-- Move cursors, if the lease is still one's own.
-- KEYS 1 lease  2 cursors    ARGV 1 fence/holder  2 keep, ms  3… name, value
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[2], unpack(ARGV, 3))
redis.call('PEXPIRE', KEYS[2], ARGV[2])
return 1
