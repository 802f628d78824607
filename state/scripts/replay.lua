-- One page of a session's replay stream, and how far it was trimmed.
-- KEYS 1 record  2 events  3 tombstone    ARGV 1 after  2 limit
-- Returns {earliest or '', highest position that is gone, position, body, …}.
local first = redis.call('XRANGE', KEYS[2], '-', '+', 'COUNT', 1)[1]
local earliest, gone = '', '0'
if first then
  earliest = string.match(first[1], '^%d+')
  gone = first[2][2]
else
  gone = redis.call('HGET', KEYS[1], 't') or redis.call('GET', KEYS[3]) or '0'
end
local page = {earliest, gone}
local start = string.format('%.0f', tonumber(ARGV[1]) + 1)
for _, entry in ipairs(redis.call('XRANGE', KEYS[2], start, '+', 'COUNT', ARGV[2])) do
  page[#page + 1] = string.match(entry[1], '^%d+')
  page[#page + 1] = entry[2][4]
end
return page
