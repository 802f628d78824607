-- Take a session off the due list when nothing is stored of it.
-- KEYS 1 record  2 due    ARGV 1 session name  2 now
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
local score = redis.call('ZSCORE', KEYS[2], ARGV[1])
if not score or tonumber(score) > tonumber(ARGV[2]) then return 0 end
return redis.call('ZREM', KEYS[2], ARGV[1])
