-- Put a body on the feed as received, kept nowhere else.
-- KEYS 1 feed  2 feed number    ARGV 1 session name  2 kind field  3 body  4 feed length  5 keep, ms
redis.call('XLEN', KEYS[1])
local number = redis.call('INCR', KEYS[2])
redis.call('XADD', KEYS[1], 'MAXLEN', '=', ARGV[4], '*',
  'n', string.format('%.0f', number), 'm', ARGV[1], ARGV[2], ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[5])
redis.call('PEXPIRE', KEYS[2], 2 * tonumber(ARGV[5]))
return number
