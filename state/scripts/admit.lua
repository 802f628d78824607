-- Admit an event that others posted: keep it once, by its own position, and pass it on as received.
-- KEYS 1 events  2 ids  3 low  4 sources  5 foreign index  6 feed  7 feed number
-- ARGV 1 member (position and digest before the body)  2 id digest  3 now  4 buffer  5 keep, ms
--      6 feed length  7 session name  8 source  9 body  10 most sources
-- Returns 1 when it was kept, 0 when it had been admitted before.
local now, keep, buffer = tonumber(ARGV[3]), tonumber(ARGV[5]), tonumber(ARGV[4])
local known = redis.call('ZSCORE', KEYS[2], ARGV[2])
redis.call('ZCARD', KEYS[1])
redis.call('STRLEN', KEYS[3])
redis.call('ZCARD', KEYS[4])
redis.call('ZCARD', KEYS[5])
redis.call('XLEN', KEYS[6])
redis.call('STRLEN', KEYS[7])

local kept = 0
if not known then
  kept = redis.call('ZADD', KEYS[1], 0, ARGV[1])
  local over = redis.call('ZCARD', KEYS[1]) - buffer
  if over > 0 then
    local gone = redis.call('ZPOPMIN', KEYS[1], over)
    local highest = string.sub(gone[#gone - 1], 1, 33)
    local before = redis.call('GET', KEYS[3]) or ''
    if highest > before then redis.call('SET', KEYS[3], highest) end
  end
  redis.call('ZADD', KEYS[2], now, ARGV[2])
  redis.call('ZREMRANGEBYRANK', KEYS[2], 0, -4 * buffer - 1)
  redis.call('PEXPIRE', KEYS[1], keep)
  redis.call('PEXPIRE', KEYS[2], keep)
  redis.call('PEXPIRE', KEYS[3], keep * 2)
  redis.call('ZADD', KEYS[4], now, ARGV[8])
  redis.call('ZREMRANGEBYRANK', KEYS[4], 0, -tonumber(ARGV[10]) - 1)
  redis.call('PEXPIRE', KEYS[4], keep * 2)
  redis.call('ZADD', KEYS[5], now, ARGV[7])
  redis.call('ZREMRANGEBYSCORE', KEYS[5], '-inf', string.format('%.0f', now - keep * 2))
  redis.call('PEXPIRE', KEYS[5], keep * 2)
end
local number = redis.call('INCR', KEYS[7])
redis.call('XADD', KEYS[6], 'MAXLEN', '=', ARGV[6], '*',
  'n', string.format('%.0f', number), 'm', ARGV[7], 'f', ARGV[9])
redis.call('PEXPIRE', KEYS[6], keep)
redis.call('PEXPIRE', KEYS[7], keep * 2)
return kept
