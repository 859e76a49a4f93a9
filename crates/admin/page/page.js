
// The page: what it shows, and how it follows the server.

const page = {
  samples: [], end: 0, pointed: null, incarnation: null, now: null, heard: 0, restarted: 0,
  source: null, timer: null, isLost: false, isRefused: false, failures: 0,
};
const by = (id) => document.getElementById(id);

const of = (name) => (sample) => sample[name];
const part = (some, all) => (sample) => (sample[all] > 0 ? sample[some] / sample[all] : null);
const gets = (sample) => sample.hits + sample.misses;
const hitRatio = (sample) => (gets(sample) > 0 ? sample.hits / gets(sample) : null);
const cores = (sample) => sample.user_cores + sample.system_cores;
// What is spent and none of the others: free parts of segments, and the reserve.
const otherBytes = (sample) => Math.max(0,
  sample.spent_bytes - sample.item_bytes - sample.index_bytes - sample.waiting_bytes);

const charts = [
  new Chart('Load', [['gets', gets], ['sets', of('sets')], ['deletes', of('deletes')]],
    { format: FORMAT.rate }),
  new Chart('Hit ratio', [['of gets', hitRatio]], { format: FORMAT.part, max: 1 }),
  new Chart('Latency inside the server',
    [['half', of('tick_p50_us')], ['99 %', of('tick_p99_us')], ['99 % of waits', of('wait_p99_us')]],
    { format: FORMAT.micros, note: 'A tick: receive, execute and answer all requests that have come.' }),
  new Chart('Processor time of a request', [['a request', of('request_us')]],
    { format: FORMAT.micros, note: 'User and kernel time of the process, divided by its requests.' }),
  new Chart('Processors in use', [['kernel', of('system_cores'), 1], ['user', of('user_cores'), 0]],
    { format: FORMAT.part, stacked: true, note: '100 % is one core.' }),
  new Chart('Memory by purpose',
    [['free parts', otherBytes, 4], ['requests', of('waiting_bytes'), 2], ['index', of('index_bytes'), 1],
      ['items', of('item_bytes'), 0]],
    { format: FORMAT.bytes, stacked: true, limit: of('limit_bytes'), base: 1024,
      note: 'The dashed line is the limit (-m).' }),
  new Chart('Expiry and eviction', [['expired', of('expired')], ['evicted', of('evictions')]],
    { format: FORMAT.rate, note: 'Items that left memory because of their TTL, or to make room.' }),
  new Chart('Age at eviction', [['since the last use', of('evicted_age_s')]],
    { format: FORMAT.seconds, note: 'Seconds mean that memory is too small for the load.' }),
  new Chart('Connections', [['open', of('connections')]], { format: FORMAT.count }),
  new Chart('New connections', [['opened', of('opened')], ['refused (-c)', of('rejected')],
    ['closed as slow', of('slow_closes')]], { format: FORMAT.rate }),
  new Chart('Network', [['sent', of('sent_bytes')], ['received', of('received_bytes')]],
    { format: FORMAT.byteRate, base: 1024 }),
  new Chart('Replies in memory', [['not read yet', of('unread_bytes')], ['being sent', of('pinned_bytes')]],
    { format: FORMAT.bytes, base: 1024, note: 'They grow while clients read slowly.' }),
  new Chart('The pipe', [['answered', of('pipe_answered')], ['passed on', of('pipe_passed')]],
    { format: FORMAT.rate, note: 'GETs over UDP that the network driver has answered. Off without --pipe.' }),
];
const curve = new Curve();
const sizes = new Bars('Value sizes', 'Of stores since the start, a sample.', FORMAT.bytes);
const ttls = new Bars('TTLs', 'Of stores since the start, a sample, without those that never expire.', FORMAT.seconds);
const shards = panel('Shards', '');
const shardNote = make('p', { class: 'quiet' });
const shardList = make('div', { class: 'cores' });
// The hottest keys: a table for each list.
const hot = panel('Hot keys', '');
const hotNote = make('p', { class: 'quiet' });
const hotLists = make('div', { class: 'lists' });
const HOT = [
  ['hot_reads', 'Most read', 'requests', FORMAT.rate],
  ['hot_writes', 'Most written', 'requests', FORMAT.rate],
  ['hot_read_bytes', 'Most bytes read', 'bytes', FORMAT.byteRate],
].map(([list, title, name, format]) => {
  const rows = make('tbody');
  const heads = ['Key', 'A second', 'Share'].map((text) => make('th', { scope: 'col' }, text));
  const table = make('table', {}, make('caption', {}, title), make('thead', {}, make('tr', {}, ...heads)), rows);
  hotLists.append(make('div', { class: 'scroll' }, table));
  return { list, name, format, rows };
});
// The prefixes with the most bytes: a bar and a row each.
const prefixes = panel('What fills the cache', '');
const prefixNote = make('p', { class: 'quiet' });
const prefixBars = make('div', { class: 'shares' });
const prefixTable = new Table('Prefixes', ['Prefix', 'Bytes', 'Share', 'Items', 'Gets', 'Hit ratio', 'Stored', 'Evicted']);
const totals = panel('Counts since the start', 'The names are those of stats; stats reset does not change these.');
const totalList = make('ul', { class: 'totals' });

const figures = [
  ['requests', (s) => FORMAT.rate(s.requests)],
  ['of gets hit', (s) => FORMAT.part(hitRatio(s))],
  ['99 % of ticks', (s) => FORMAT.micros(s.tick_p99_us)],
  ['of a core', (s) => FORMAT.part(cores(s))],
  ['of memory used', (s) => FORMAT.part(part('spent_bytes', 'limit_bytes')(s))],
  ['items', (s) => FORMAT.count(s.items)],
  ['connections', (s) => FORMAT.count(s.connections)],
].map(([name, show]) => {
  const value = make('b', {}, '\u2013');
  by('figures').append(make('div', { class: 'figure' }, value, make('span', {}, name)));
  return { value, show };
});

const layOut = () => {
  shards.classList.add('wide');
  shards.append(shardNote, shardList);
  hot.classList.add('wide');
  hot.append(hotNote, hotLists);
  prefixes.classList.add('wide');
  prefixTable.element.classList.add('numbers');
  prefixes.append(prefixNote, prefixBars, prefixTable.element);
  totals.classList.add('wide');
  totals.append(totalList);
  const boxes = charts.map((chart) => chart.box);
  boxes.splice(8, 0, sizes.box, ttls.box);
  boxes.push(curve.box);
  by('panels').append(...boxes, prefixes, hot, shards, totals);
};

const showFindings = (findings) => {
  const text = JSON.stringify(findings);
  if (page.shown === text) return;
  page.shown = text;
  by('verdict').replaceChildren(...findings.map(({ severity, what, advice }) => {
    const box = make('div', { class: `finding ${severity}` }, make('p', { class: 'what' }, what));
    if (advice) box.append(make('p', { class: 'advice' }, advice));
    return box;
  }));
};

const showShards = (all, sample) => {
  while (shardList.children.length > all.length) shardList.lastChild.remove();
  all.forEach(({ requests, busy, connections, stopped }, place) => {
    let row = shardList.children[place];
    if (!row) {
      row = make('div', { class: 'core' }, make('span'), make('div', { class: 'track' }, make('div', { class: 'fill' })));
      shardList.append(row);
    }
    const clients = `${connections} ${connections === 1 ? 'client' : 'clients'}`;
    setText(row.firstChild, stopped ? `shard ${place} does not answer`
      : `${place}: ${FORMAT.part(busy)} busy, ${FORMAT.rate(requests)}, ${clients}`);
    row.classList.toggle('stopped', stopped);
    row.lastChild.firstChild.style.width = `${(busy * 100).toFixed(1)}%`;
  });
  if (sample) setText(shardNote, `${sample.awake_cores} of ${all.length} serve clients; the others sleep until the load rises.`);
};

// How to read hashes, if there are any.
const noteOfHashes = (rows, what, example) => (rows.some((row) => row.is_hash)
  ? ` Without --dumps a ${what} is shown by its hash: send "observe hash ${example}" to find yours.` : '');

const showHotKeys = (now) => {
  const isOn = Boolean(now.hot_reads);
  hotLists.hidden = !isOn;
  const all = HOT.flatMap(({ list }) => now[list] ?? []);
  setText(hotNote, isOn ? `Of about the last minute, of a sample.${noteOfHashes(all, 'key', 'KEY')}`
    : 'Off. Start the server with --observe=hotkeys, or send "observe hotkeys on" to it.');
  for (const { list, name, format, rows } of HOT) {
    const text = JSON.stringify(now[list] ?? []);
    if (rows.shown === text) continue;
    rows.shown = text;
    rows.replaceChildren(...(now[list] ?? []).map((key) => make('tr', {}, make('td', { class: 'key' }, key.key),
      make('td', {}, format(key[name])), make('td', {}, FORMAT.part(key[`${name}_share`])))));
  }
};

const showPrefixes = (told) => {
  const age = told?.walk_age_s ?? null;
  setText(prefixNote, !told ? 'Off. Start the server with --observe=prefixes, or send "observe prefixes on" to it.'
    : `${age === null ? 'The server counts its items for the first time.' : `Items and bytes were counted ${FORMAT.seconds(age)} ago.`} `
      + `Gets, hits, stores and evictions are estimated from 1 of 256.${noteOfHashes(told.listed, 'prefix', 'user:')}`);
  prefixBars.hidden = !told;
  const text = JSON.stringify(told ? [told.listed, told.others, told.none] : null);
  if (prefixBars.shown === text) return;
  prefixBars.shown = text;
  const rows = told ? [...told.listed, { name: 'other prefixes', ...told.others }, { name: 'no prefix', ...told.none }] : [];
  const all = rows.reduce((sum, { bytes }) => sum + bytes, 0);
  const share = ({ bytes }) => (all > 0 ? bytes / all : 0);
  const hits = ({ gets, hits: found }) => FORMAT.part(gets > 0 ? found / gets : null);
  prefixBars.replaceChildren(...rows.filter(({ items, gets }) => items + gets > 0).map((row) => {
    const bar = make('div', { class: 'fill' });
    bar.style.width = `${(share(row) * 100).toFixed(1)}%`;
    const words = `${FORMAT.part(share(row))} of the bytes: ${FORMAT.bytes(row.bytes)}, ${FORMAT.count(row.items)} items, hit ratio ${hits(row)}`;
    return make('div', { class: 'core' }, make('span', {}, make('b', {}, row.name), ` ${words}`), make('div', { class: 'track' }, bar));
  }));
  const count = (value, error) => (value > 0 && error > 0 ? `${FORMAT.count(value)} \u00b1 ${FORMAT.count(error)}` : FORMAT.count(value));
  prefixTable.show(() => rows.map((row) => [row.name, FORMAT.bytes(row.bytes) + (row.bytes_error > 0 ? ' or more' : ''),
    FORMAT.part(share(row)), FORMAT.count(row.items) + (row.bytes_error > 0 ? ' or more' : ''), count(row.gets, row.gets_error),
    hits(row), count(row.sets, row.sets_error), count(row.evictions, row.evictions_error)]));
};

const showTotals = (counts) => {
  const names = Object.keys(counts);
  if (totalList.children.length !== names.length) {
    totalList.replaceChildren(...names.map((name) =>
      make('li', {}, make('span', { class: 'quiet' }, name), make('b', { id: `total-${name}` }))));
  }
  names.forEach((name) => setText(by(`total-${name}`), String(counts[name])));
};

// The sample at the time that is pointed at, or the newest one.
const sampleAt = () => {
  const newest = page.samples.at(-1) ?? null;
  if (page.pointed === null) return newest;
  return page.samples.reduce((best, sample) =>
    (Math.abs(sample.time - page.pointed) < Math.abs(best.time - page.pointed) ? sample : best), newest);
};

let isAsked = false;
const renderSoon = () => {
  if (isAsked) return;
  isAsked = true;
  requestAnimationFrame(() => {
    isAsked = false;
    render();
  });
};

const render = () => {
  const at = page.samples.length ? sampleAt() : null;
  for (const chart of charts) chart.render(page.samples, page.end, at, page.pointed !== null);
  const { now } = page;
  if (!now) return;
  const newest = page.samples.at(-1);
  if (newest) figures.forEach(({ value, show }) => setText(value, show(newest)));
  sizes.render(now.sizes ?? []);
  ttls.render(now.ttls ?? []);
  curve.render(now.curve);
  showShards(now.cores, newest);
  showPrefixes(now.prefixes);
  showHotKeys(now);
  if (now.totals) showTotals(now.totals);
  const started = now.totals ? `, started ${FORMAT.seconds(now.totals.uptime)} ago` : '';
  setText(by('about'), `${now.version} on ${location.host}${started}`);
};

const pointAt = (time) => {
  const bound = (value) => Math.min(Math.max(value, page.end - span()), page.end);
  page.pointed = time === null ? null : bound(time);
  renderSoon();
};

// Adds samples that are newer than all that are there, and forgets those of before ten minutes.
const add = (samples) => {
  // The clock of the server was set back: what is later than now is dropped.
  const last = samples.at(-1)?.time ?? 0;
  if (samples.length === 1) page.samples = page.samples.filter((sample) => sample.time <= last + 5);
  const newest = page.samples.at(-1)?.time ?? 0;
  page.samples.push(...samples.filter((sample) => sample.time > newest));
  page.end = page.samples.at(-1)?.time ?? 0;
  page.samples = page.samples.filter((sample) => sample.time > page.end - WINDOW_S);
};

// A server whose process stands still accepts a request, and never answers it.
const ask = (path) => fetch(path, { signal: AbortSignal.timeout(4000) });

const loadHistory = async () => {
  const answer = await ask('/api/history');
  if (!answer.ok) return;
  const { incarnation, names, samples } = await answer.json();
  if (incarnation !== page.incarnation) return;
  const read = samples.map((row) => Object.fromEntries(names.map((name, place) => [name, row[place]])));
  // What has come meanwhile is newer than the history, or is in it.
  const last = page.samples.at(-1)?.time ?? 0;
  const first = read[0]?.time ?? Infinity;
  const between = page.samples.filter((sample) => sample.time >= first);
  page.samples = page.samples.filter((sample) => sample.time < first);
  add(read.at(-1)?.time >= last ? read : [...read, ...between.filter((s) => s.time > (read.at(-1)?.time ?? 0))]);
  renderSoon();
};

const showState = (state, text) => {
  by('dot').className = `dot ${state}`;
  setText(by('state'), text);
  for (const id of ['figures', 'panels']) by(id).classList.toggle('stale', state === 'lost');
};

const lose = (what, advice) => {
  page.isLost = true;
  showState('lost', `last figures of ${page.heard ? clock(page.heard / 1000) : 'never'}`);
  showFindings([{ severity: 'problem', what, advice }]);
};

const take = (update) => {
  const isNew = update.incarnation !== page.incarnation;
  if (isNew && page.incarnation !== null) {
    page.restarted = Date.now();
    // The clock of the machine may have been set back meanwhile.
    if (update.sample && update.sample.time <= page.end) page.samples = [];
  }
  const isBack = isNew || page.isLost;
  Object.assign(page, { incarnation: update.incarnation, now: update, heard: Date.now(), isLost: false });
  if (update.sample) add([update.sample]);
  const findings = [...update.findings];
  const ago = Date.now() - page.restarted;
  if (ago < 60000) {
    findings.push({ severity: 'note', what: `The server was restarted ${Math.round(ago / 1000)} s ago.`,
      advice: 'Unless it saved its items (-e), it has lost them and fills again.' });
  }
  page.failures = 0;
  showState('live', 'live');
  showFindings(findings);
  if (isBack) loadHistory().catch(() => {});
  renderSoon();
};

const connect = () => {
  clearTimeout(page.timer);
  page.source?.close();
  page.source = new EventSource('/live');
  page.source.onmessage = (event) => {
    watch();
    take(JSON.parse(event.data));
  };
  page.source.onerror = () => again();
  page.source.addEventListener('token', logIn);
  watch();
};

// The token was replaced: each further request would count as a wrong one, and delay those of others.
const logIn = () => {
  page.source?.close();
  clearTimeout(page.timer);
  page.isRefused = true;
  location.replace('/login?replaced');
};

// Connects again when nothing has come for a while, as after the machine has slept.
const watch = () => {
  clearTimeout(page.timer);
  page.timer = setTimeout(again, 5000);
};

const again = async () => {
  page.source?.close();
  clearTimeout(page.timer);
  const answer = await ask('/api/now').catch(() => null);
  page.failures += 1;
  const since = page.heard ? ` since ${clock(page.heard / 1000)}` : '';
  if (!answer) {
    lose(`The server has not answered${since}.`, 'It was stopped or is restarting, or this machine cannot reach it. This page tries again every second.');
  } else if (answer.status === 401) {
    return logIn();
  } else if (answer.status === 403 || answer.status === 429) {
    page.isRefused = true;
    lose('The server refuses this page.', 'Load it again to log in.');
  } else if (page.failures > 2) {
    lose('This page gets no updates.', 'At most 20 pages get them at once. Close one of the others; this page tries again every second.');
  }
  // A server that has come back is asked once more before the updates: its token may be another one.
  if (!page.isRefused) page.timer = setTimeout(answer?.ok ? connect : again, 1000);
};

layOut();
new ResizeObserver(renderSoon).observe(by('panels'));
document.addEventListener('visibilitychange', () => {
  if (!document.hidden && !page.isRefused && Date.now() - page.heard > 3000) again();
  renderSoon();
});
connect();
