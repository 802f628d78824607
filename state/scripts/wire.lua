-- Move the memory of a connection on, if it still stands where it was read.
-- KEYS 1 memory    ARGV 1 number it stood at  2 number of the last line taken  3 value  4 keep, ms
if (redis.call('HGET', KEYS[1], 'n') or '0') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'n', ARGV[2], 'v', ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[4])
return 1
