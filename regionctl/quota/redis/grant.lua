-- Settles the Asks of one message with their buckets, as quota.Bucket does in memory (quota/bucket.go says why). Durations and
-- instants are in microseconds of this server's clock.
-- KEYS[1]: when the buckets began to fill. KEYS[n+1]: the bucket of Ask n.
-- ARGV[1]: the interval. ARGV[2]: the instant, 0 = now. Then of each Ask rate, burst, strict (1), tries, elapsed, want, back, debt, chance.
-- Answers with tokens, share, calm (1), credit and pause of each, as text.
local interval, now = tonumber(ARGV[1]), tonumber(ARGV[2])
if now == 0 then
  local t = redis.call('TIME')
  now = t[1] * 1000000 + t[2]
end
local born = tonumber(redis.call('GET', KEYS[1]) or now)
if born >= now then
  born = now
  redis.call('SET', KEYS[1], string.format('%.0f', now))
end
local out = {}
for i = 2, #KEYS do
  local a = 3 + (i - 2) * 9
  local rate, burst, strict, tries, elapsed = tonumber(ARGV[a]), tonumber(ARGV[a + 1]), ARGV[a + 2] == '1', tonumber(ARGV[a + 3]), tonumber(ARGV[a + 4])
  local want, back, debt, chance = tonumber(ARGV[a + 5]), tonumber(ARGV[a + 6]), tonumber(ARGV[a + 7]), tonumber(ARGV[a + 8])
  local h = redis.call('HMGET', KEYS[i], 'tokens', 'last', 'smooth', 'sum', 'active', 'asked', 'began')
  local tokens, last = tonumber(h[1] or math.max(1, 0.5 * burst)), tonumber(h[2] or born)
  local smooth, sum, active, asked, began = tonumber(h[3] or 0), tonumber(h[4] or 0), tonumber(h[5] or 0), tonumber(h[6] or 0), tonumber(h[7] or born)
  -- A clock that was set back fills nothing until it has caught up, but is not waited for longer than a second.
  if last > now + 1000000 then last = now end
  if began > now then began = now end

  tokens = math.min(burst, tokens + rate * math.max(now - last, 0) / 1000000)
  last = math.max(now, last)

  local past = now - began
  if past >= interval then
    local old = 2 ^ -math.floor(past / interval)
    smooth = old * smooth + (1 - old) * sum * interval / past
    active = math.max(0.8 * active, asked)
    sum, asked, began = 0, 0, now
  end
  local mine = tries * interval / math.min(math.max(elapsed, interval), 2 * interval)
  sum = sum + mine
  asked = asked + 1
  local all, holders = math.max(smooth, sum), math.max(active, asked, 1)
  local share = math.min(mine / math.max(all, 1e-9), 1)

  local function spend(n) tokens = math.max(math.min(burst, tokens - n), -60 * rate - burst) end
  spend(debt - back)
  local fresh = rate * interval / 1000000
  local calm = tokens > 0 and (tokens >= all or all <= 0.9 * fresh)
  local credit = 0
  if not strict then credit = math.max(1, math.floor(0.2 * rate / holders)) end
  local n = want
  if tokens < math.max(want, all) then
    n = math.min(want, share * math.max(fresh, tokens) + math.max(tokens - fresh, 0))
    local whole = math.floor(n)
    if chance < n - whole then whole = whole + 1 end
    n = whole
  end
  n = math.floor(math.min(math.max(n, 0), math.max(tokens, 0)))
  spend(n)
  local wait = 0
  if tokens < 1 then wait = math.min((1 - tokens) / rate * 1e9, 2 ^ 53) end

  redis.call('HSET', KEYS[i], 'tokens', string.format('%.17g', tokens), 'last', string.format('%.0f', last), 'smooth', string.format('%.17g', smooth),
    'sum', string.format('%.17g', sum), 'active', string.format('%.17g', active), 'asked', asked, 'began', string.format('%.0f', began))
  -- Once it is full and its demand forgotten, a new one is no different.
  redis.call('PEXPIRE', KEYS[i], math.floor(math.min((burst - tokens) / rate * 1000, 86400000 * 366)) + 10000)
  out[i - 1] = string.format('%.0f %.17g %d %.0f %.0f', n, share, calm and 1 or 0, credit, math.floor(wait))
end
return out
