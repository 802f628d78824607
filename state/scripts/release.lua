-- Give a lease back.    KEYS 1 lease    ARGV 1 fence/holder
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
