-- Where a session stands.
-- KEYS 1 record  2 events  3 tombstone    Returns {version, state, top, ended 0|1}.
local held = redis.call('HMGET', KEYS[1], 'v', 's', 't')
local top = tonumber(held[3] or '0')
local last = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)
if last[1] then top = math.max(top, tonumber(string.match(last[1][1], '^%d+'))) end
local stone = redis.call('GET', KEYS[3])
if stone then top = math.max(top, tonumber(stone)) end
return {held[1] or '', held[2] or '', string.format('%.0f', top), stone and 1 or 0}
