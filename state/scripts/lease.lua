-- Take a lease, or renew one's own. The fence rises with every new holder, over a lost or empty server too.
-- KEYS 1 lease  2 fence    ARGV 1 holder  2 ttl, ms  3 fence of one's own, 0 for none  4 keep of the fence
-- Returns the fence, or 0 when somebody else holds it (or one's own was lost).
local held = redis.call('GET', KEYS[1])
local own = ARGV[3] .. '/' .. ARGV[1]
if ARGV[3] ~= '0' then
  if held ~= own then return 0 end
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return tonumber(ARGV[3])
end
if held then return 0 end
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local fence = math.max(tonumber(redis.call('GET', KEYS[2]) or '0') + 1, now)
local text = string.format('%.0f', fence)
redis.call('SET', KEYS[2], text, 'PX', ARGV[4])
redis.call('SET', KEYS[1], text .. '/' .. ARGV[1], 'PX', ARGV[2])
return fence
