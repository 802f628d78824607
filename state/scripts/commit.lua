-- Commit one step of a session, or say where the session stands. Everything is checked, then written.
-- KEYS  1 record  2 events  3 tombstone  4 feed  5 feed number  6 index  7 due  8… puts
-- ARGV  1 session name  2 buffer  3 feed length  4 keep, ms  5 renew every, ms  6 tombstone keep, ms
--       7 expected version  8 commit id  9 state  10 now  11 due or ''  12 ended 0|1  13 notice
--       14 number of puts, then name, value, keep ms, kind of each; then position, body of each event
--       kind: 0 value, 1 value that must not be there, 2 field of a hash, 3 field that goes
-- Returns {1, again 0|1}, or {0, version, state, top, ended 0|1, name and value of each put that stands}.
local record, events, tombstone = KEYS[1], KEYS[2], KEYS[3]
local expected, commit, now = ARGV[7], ARGV[8], tonumber(ARGV[10])
local ended, keep, notice = ARGV[12] == '1', tonumber(ARGV[4]), ARGV[13]

local held = redis.call('HMGET', record, 'v', 'c', 't', 'x', 'd')
local version, recent, top = held[1] or '', held[2] or '', tonumber(held[3] or '0')
if version == commit or string.find(recent, ',' .. commit .. ',', 1, true) then
  return {1, 1}
end
if version == '' then
  local last = redis.call('XREVRANGE', events, '+', '-', 'COUNT', 1)
  if last[1] then top = tonumber(string.match(last[1][1], '^%d+')) end
  local stone = redis.call('GET', tombstone)
  if stone and tonumber(stone) > top then top = tonumber(stone) end
end

local function conflict(extra)
  local last = redis.call('XREVRANGE', events, '+', '-', 'COUNT', 1)
  local highest = last[1] and tonumber(string.match(last[1][1], '^%d+')) or 0
  if highest < top then highest = top end
  local answer = {0, version, redis.call('HGET', record, 's') or '', string.format('%.0f', highest),
    redis.call('EXISTS', tombstone)}
  for _, item in ipairs(extra) do answer[#answer + 1] = item end
  return answer
end

local puts = tonumber(ARGV[14])
local first = 15 + 4 * puts
local taken = {}
for i = 1, puts do
  local at = 15 + 4 * (i - 1)
  local kind = ARGV[at + 3]
  if kind == '1' then
    local value = redis.call('GET', KEYS[7 + i])
    if value then taken[#taken + 1] = ARGV[at] taken[#taken + 1] = value end
  elseif kind ~= '0' then
    redis.call('HLEN', KEYS[7 + i])
  end
end
if version ~= expected or #taken > 0 then return conflict(taken) end
local last = top
for i = first, #ARGV, 2 do
  local position = tonumber(ARGV[i])
  if position <= last then return conflict({}) end
  last = position
end
local renew = not held[4] or now >= tonumber(held[4]) or now < tonumber(held[4]) - 2 * tonumber(ARGV[5])
if renew then
  -- A key of a foreign type under our name would fail a write below, after others were done.
  redis.call('XLEN', KEYS[4])
  redis.call('ZCARD', KEYS[6])
  redis.call('ZCARD', KEYS[7])
  redis.call('GET', KEYS[5])
end

local previous = string.format('%.0f', top)
for i = first, #ARGV, 2 do
  local position = ARGV[i]
  local id = redis.pcall('XADD', events, 'MAXLEN', '=', ARGV[2], position .. '-0', 'p', previous, 'e', ARGV[i + 1])
  if type(id) == 'table' and id.err then
    -- The stream stands above the record, so nothing was written yet; any other error is one.
    if i == first and string.find(id.err, 'equal or smaller', 1, true) then return conflict({}) end
    return redis.error_reply(id.err)
  end
  previous = position
end

-- One id is kept per writer: a process has one commit of a session in flight, so that suffices.
local writer = string.match(commit, '^(.-)%.') or commit
local kept, count = {commit}, 1
for id in string.gmatch(recent, '[^,]+') do
  if count < 16 and (string.match(id, '^(.-)%.') or id) ~= writer then
    count = count + 1
    kept[count] = id
  end
end
local due = ARGV[11]
local fields = {'v', commit, 's', ARGV[9], 'c', ',' .. table.concat(kept, ',') .. ',',
  't', string.format('%.0f', last), 'd', due}
if renew then
  fields[#fields + 1] = 'x'
  fields[#fields + 1] = string.format('%.0f', now + tonumber(ARGV[5]))
end
redis.call('HSET', record, unpack(fields))
if ended then redis.call('SET', tombstone, string.format('%.0f', last), 'PX', ARGV[6]) end

if first <= #ARGV or notice ~= '' then
  local number = redis.call('INCR', KEYS[5])
  redis.call('XADD', KEYS[4], 'MAXLEN', '=', ARGV[3], '*',
    'n', string.format('%.0f', number), 'm', ARGV[1], 'w', notice, unpack(ARGV, first))
  -- A stream that came into being now has no lifetime yet.
  if number == 1 or top == 0 then renew = true end
end
redis.call('ZADD', KEYS[6], now, ARGV[1])
if due ~= '' then
  redis.call('ZADD', KEYS[7], due, ARGV[1])
  redis.call('PEXPIRE', KEYS[7], keep * 2)
elseif held[5] and held[5] ~= '' then
  redis.call('ZREM', KEYS[7], ARGV[1])
end
for i = 1, puts do
  local at = 15 + 4 * (i - 1)
  local kind = ARGV[at + 3]
  if kind == '2' then
    redis.call('HSET', KEYS[7 + i], ARGV[at], ARGV[at + 1])
    redis.call('PEXPIRE', KEYS[7 + i], ARGV[at + 2])
  elseif kind == '3' then
    redis.call('HDEL', KEYS[7 + i], ARGV[at])
  else
    redis.call('SET', KEYS[7 + i], ARGV[at + 1], 'PX', ARGV[at + 2])
  end
end
if renew then
  -- Sooner than they could run out: the streams first, the state an age later than its stream.
  redis.call('PEXPIRE', events, keep)
  redis.call('PEXPIRE', record, keep * 2)
  redis.call('PEXPIRE', KEYS[4], keep)
  redis.call('PEXPIRE', KEYS[5], keep * 2)
  redis.call('ZREMRANGEBYSCORE', KEYS[6], '-inf', string.format('%.0f', now - keep * 2))
  redis.call('PEXPIRE', KEYS[6], keep * 2)
end
return {1, 0}
