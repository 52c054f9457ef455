-- What a server does for the replicated log: one change, whole or not at all. Stays on the server as a cached script; keeps
-- nothing but two keys. KEYS[1] is a hash of what the server knows, KEYS[2] a list of entries; ARGV[1] says what is asked.
--
-- Epochs are 16 bytes, entries are their epoch followed by what they hold. Positions are whole numbers below 2^53.

local known, list, asked = KEYS[1], KEYS[2], ARGV[1]
local NONE = string.rep('\0', 16)

local fields = redis.call('HMGET', known, 'promise', 'beat', 'place', 'admitted', 'base', 'base_epoch', 'last', 'last_epoch')
local promise, beat, place = fields[1] or NONE, fields[2] or '0', fields[3] or ''
local admitted = fields[4] or NONE
local base, base_epoch = tonumber(fields[5] or '1'), fields[6] or NONE
local last, last_epoch = tonumber(fields[7] or '0'), fields[8] or NONE

-- Byte by byte: strings are compared in the order of the server's locale otherwise.
local function less(a, b)
  for at = 1, math.min(#a, #b) do
    local x, y = string.byte(a, at), string.byte(b, at)
    if x ~= y then return x < y end
  end
  return #a < #b
end

local function whole(number) return string.format('%.0f', number) end

local function view(first)
  local config = redis.call('HGET', known, 'config') or ''
  return { first, promise, beat, place, config, admitted, whole(base), base_epoch, whole(last), last_epoch }
end

local function fenced() return { 'fenced', promise, place } end

-- Small writes of a server whose memory is full must not fail, or nobody could take over: a server refuses only the first
-- write of a script.
local function begin() redis.call('HDEL', known, '') end

if asked == 'look' then return view('seen') end

if asked == 'promise' then
  local epoch, is_careful, seen_promise, seen_beat = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
  if less(epoch, promise) then return fenced() end
  if epoch == promise then return view('promised') end
  if is_careful == '1' and (seen_promise ~= promise or seen_beat ~= beat) then return view('lively') end
  begin()
  promise, beat, place = epoch, '0', ARGV[6]
  redis.call('HSET', known, 'promise', promise, 'beat', beat, 'place', place)
  return view('promised')
end

if asked == 'configure' then
  if ARGV[2] ~= promise then return fenced() end
  begin()
  local rank = redis.call('HGET', known, 'rank')
  if not rank or less(rank, ARGV[3]) then redis.call('HSET', known, 'rank', ARGV[3], 'config', ARGV[4]) end
  redis.call('HSET', known, 'admitted', ARGV[5])
  return { 'configured' }
end

if asked == 'read' then
  if ARGV[2] ~= '' and ARGV[2] ~= promise then return fenced() end
  local from, bytes_max = math.max(tonumber(ARGV[3]), base), tonumber(ARGV[4])
  -- The first one shows that both logs are the same up to there, and would be all for ever if it were large.
  local answer, bytes, index = view('entries'), nil, from - base
  table.insert(answer, whole(from))
  while true do
    local part = redis.call('LRANGE', list, index, index + 31)
    for _, entry in ipairs(part) do
      local is_counted, is_first = bytes ~= nil, bytes == 0
      bytes = is_counted and bytes + math.max(#entry - 16, 1) or 0
      if is_counted and not is_first and bytes > bytes_max then return answer end
      table.insert(answer, entry)
    end
    if #part < 32 then return answer end
    index = index + 32
  end
end

if asked == 'give_up' then
  if ARGV[2] ~= promise then return fenced() end
  begin()
  redis.call('HSET', known, 'promise', string.sub(promise, 1, 8) .. string.rep('\255', 8), 'beat', '0')
  return { 'given_up' }
end

if asked ~= 'append' then return redis.error_reply('ERR unknown request to the log') end

-- append: epoch, admitted, after, its epoch, base, whether it begins, beat, entries
if ARGV[2] ~= promise then return fenced() end
if ARGV[3] ~= admitted then return { 'stranger' } end
local after, after_epoch = tonumber(ARGV[4]), ARGV[5]

local function epoch_at(at)
  if at == last then return last_epoch end
  if at == base - 1 then return base_epoch end
  if at < base or at > last then return nil end
  return string.sub(redis.call('LINDEX', list, at - base), 1, 16)
end

-- What is before the base is decided, and equal everywhere.
if after >= base - 1 and epoch_at(after) ~= after_epoch then
  if ARGV[7] ~= '1' then return { 'gap', whole(last) } end
  redis.call('DEL', list)
  base, base_epoch, last, last_epoch = after + 1, after_epoch, after, after_epoch
end

local at, first = after, 9
while first <= #ARGV do
  at = at + 1
  if at >= base and epoch_at(at) ~= string.sub(ARGV[first], 1, 16) then break end
  first = first + 1
end
if first <= #ARGV then
  if at == base then
    if last >= base then redis.call('DEL', list) end
  elseif at <= last then
    redis.call('LTRIM', list, 0, at - base - 1)
  end
  -- So must an owner's first entry, which holds nothing: only behind it do others leave.
  if first == #ARGV and #ARGV[first] == 16 then begin() end
  -- As many at once as the script's stack holds.
  for from = first, #ARGV, 1000 do
    redis.call('RPUSH', list, unpack(ARGV, from, math.min(from + 999, #ARGV)))
  end
  last, last_epoch = after + #ARGV - 8, string.sub(ARGV[#ARGV], 1, 16)
else
  begin()
end

local new_base = math.min(tonumber(ARGV[6]), after + #ARGV - 8 + 1)
if new_base > base then
  base_epoch = epoch_at(new_base - 1)
  if new_base > last then redis.call('DEL', list) else redis.call('LTRIM', list, new_base - base, -1) end
  base = new_base
end
if tonumber(ARGV[8]) > tonumber(beat) then beat = ARGV[8] end
redis.call('HSET', known, 'beat', beat, 'base', whole(base), 'base_epoch', base_epoch, 'last', whole(last), 'last_epoch', last_epoch)
return { 'appended' }
