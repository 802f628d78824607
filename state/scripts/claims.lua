-- Say which sessions the connections of one process claim, for as long as the process keeps saying so.
-- KEYS 1 claims of the process  2 all processes     ARGV 1 process  2 now, ms  3 ttl, ms
--      4 whole 0|1: replace everything that was said before; then field and value of each claim
local hash, all = KEYS[1], KEYS[2]
local ttl = tonumber(ARGV[3])
if ARGV[4] == '1' then redis.call('DEL', hash) end
local i = 5
while i <= #ARGV do
  -- In parts, since the arguments of one command are bounded by Lua's stack.
  redis.call('HSET', hash, unpack(ARGV, i, math.min(i + 999, #ARGV)))
  i = i + 1000
end
if redis.call('PEXPIRE', hash, ttl) == 1 then redis.call('ZADD', all, ARGV[2], ARGV[1]) end
redis.call('ZREMRANGEBYSCORE', all, '-inf', string.format('%.0f', tonumber(ARGV[2]) - 20 * ttl))
redis.call('PEXPIRE', all, 40 * ttl)
return 1
