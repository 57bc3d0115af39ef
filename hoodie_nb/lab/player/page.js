'use strict';
(() => {
  const get = (id) => document.getElementById(id);
  const run = JSON.parse(get('run').textContent);
  const STEPS = run.steps.map(([at, events, notes, said, changes]) => ({at, events, notes, said, changes}));
  const TONES = ['routine', 'plain', 'good', 'bad'];
  const LANES = ['completed', 'prepared', 'inflight', 'requested'];
  const STATES = {
    requested: ['ring', 'plain'], inflight: ['triangle', 'held'], prepared: ['square', 'file'],
    completed: ['disc', 'good'], 'rolled back': ['cross', 'bad'], abandoned: ['dash', 'plain'],
    running: ['ring', 'plain'], done: ['disc', 'good'], sealed: ['square', 'plain'],
    skipped: ['dash', 'plain'], empty: ['dash', 'plain'], 'timed out': ['cross', 'bad'],
  };
  const count = (number) => Math.round(number).toLocaleString('en-US');
  const seconds = (ms) => (ms / 1000).toFixed(1);
  const size = (bytes) => {
    const [unit, name] = [[1e9, 'GB'], [1e6, 'MB'], [1e3, 'KB']].find(([n]) => bytes >= n) ?? [1, 'B'];
    return `${unit === 1 ? Math.round(bytes) : (bytes / unit).toFixed(1)} ${name}`;
  };
  const many = (number, word) => `${count(number)} ${word}${number === 1 ? '' : 's'}`;

  // --- elements: text is always set as text, since names come from users
  const make = (name, attributes = {}, ...children) => {
    const made = document.createElementNS('http://www.w3.org/2000/svg', name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  };
  const write = (x, y, content, attributes = {}) => make('text', {x, y, ...attributes}, content);
  const line = (x1, y1, x2, y2, name = 'axis') => make('line', {x1, y1, x2, y2, class: name});
  const box = (x, y, width, height, name) =>
    make('rect', {x, y, width: Math.max(0, width), height: Math.max(0, height), class: name});
  const mark = (shape, tone, x, y, s = 6) => {
    const name = `mark ${shape} ${tone}`;
    if (shape === 'ring' || shape === 'disc') return make('circle', {cx: x, cy: y, r: s - 1, class: name});
    if (shape === 'square') return box(x - s + 1, y - s + 1, 2 * s - 2, 2 * s - 2, name);
    if (shape === 'box' || shape === 'frame') return box(x - s, y - s + 1, 2 * s, 2 * s - 2, name);
    if (shape === 'dash') return box(x - s, y - 2, 2 * s, 4, name);
    const ends = shape === 'triangle'
      ? [[0, -s], [s, s * 0.8], [-s, s * 0.8]]
      : [[-1, -0.6], [-0.6, -1], [0, -0.4], [0.6, -1], [1, -0.6], [0.4, 0], [1, 0.6], [0.6, 1], [0, 0.4],
        [-0.6, 1], [-1, 0.6], [-0.4, 0]].map(([u, v]) => [s * u, s * v]);
    return make('polygon', {points: ends.map(([u, v]) => `${x + u},${y + v}`).join(' '), class: name});
  };
  const cut = (content, chars) => content.length > chars ? `${content.slice(0, chars - 1)}…` : content;
  const show = (id, heading, spoken, parts) => {
    get(`${id}-title`).textContent = heading;
    get(id).setAttribute('aria-label', spoken);
    get(id).replaceChildren(...parts);
  };
  const width = (id) => Math.max(240, get(id).clientWidth);

  // --- the values after a step: those before it, with its changes
  const apply = (shown, changes) => {
    for (const [name, value] of Object.entries(changes)) {
      if (value === null || typeof value !== 'object' || Array.isArray(value)) {
        shown[name] = value;
        continue;
      }
      const entries = shown[name] ??= {};
      for (const [key, entry] of Object.entries(value)) if (entry === null) delete entries[key]; else entries[key] = entry;
    }
  };
  const flushes = (shown) => Object.values(shown.buckets).reduce((sum, [, n = 0]) => sum + n, 0);
  let shown = {};
  let taken = 0;
  let now = 0;
  const go = (to) => {
    if (to < taken) { shown = {}; taken = 0; }
    while (taken < to) apply(shown, STEPS[taken++].changes);
  };

  // --- the whole run: levels of the buffers, times of commits, flushes and troubles, all notes
  const levels = [[0, 0]];
  const commits = [];
  const flushed = [];
  const troubles = [];
  const NOTES = [];
  STEPS.forEach((step, place) => {
    const before = {commits: shown.commits ?? 0, flushes: shown.buckets ? flushes(shown) : 0};
    go(place + 1);
    levels.push([step.at, levels.at(-1)[1]], [step.at, shown.level]);
    if (shown.commits > before.commits) commits.push(step.at);
    if (flushes(shown) > before.flushes) flushed.push(step.at);
    for (const [tone, text] of step.notes) NOTES.push({at: step.at, tone: TONES[tone], text, place});
    if (step.notes.some(([tone]) => TONES[tone] === 'bad')) troubles.push(step.at);
  });
  const whole = Math.max(1, run.duration_ms);
  const {begin_ms: begin, step_ms: each, values: rates} = run.rates;
  const most = {rate: Math.max(...rates, 1), level: levels.reduce((top, [, n]) => Math.max(top, n), 1)};

  const sentence = ({notes, said}) => {
    if (notes.length) return notes.reduce((best, note) => note[0] >= best[0] ? note : best)[1];
    const values = said.slice(1).map((value) => typeof value === 'number' ? value.toLocaleString('en-US') : value);
    return run.sentences[said[0]].replace(/\{\w*\}/g, () => values.shift());
  };

  // --- the pictures
  const LEFT = 74;
  const scale = () => (width('flow') - LEFT - 12) / whole;
  const drawFlow = () => {
    const wide = width('flow');
    const x = (ms) => LEFT + ms * scale();
    const y = (share, base) => base - 66 * share;
    const curve = (points, base) => points.map(([ms, share]) => `${x(Math.min(Math.max(ms, 0), whole)).toFixed(1)},${y(share, base).toFixed(1)}`).join(' ');
    const rate = rates.flatMap((value, n) => [n, n + 1].map((k) => [begin + k * each, value / most.rate]));
    rate.push([begin + rates.length * each, 0]);
    const level = [...levels, [whole, levels.at(-1)[1]]].map(([ms, value]) => [ms, value / most.level]);
    const areas = (extra) => [[rate, 82, 'rows'], [level, 172, 'held']].map(([points, base, name]) =>
      make('polygon', {points: `${x(0)},${base} ${curve(points, base)} ${x(whole)},${base}`, class: `${name} ${extra}`}));
    const step = [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400]
      .find((n) => n * 1000 * scale() >= 60) ?? whole / 8000;
    const parts = [make('clipPath', {id: 'past'}, make('rect', {id: 'past-box', x: 0, y: 0, width: 0, height: 214}))];
    parts.push(...areas('pale'), make('g', {'clip-path': 'url(#past)'}, ...areas('')));
    for (const [base, top, name] of [[82, count(most.rate), 'rows/s'], [172, size(most.level), 'buffered']]) {
      parts.push(line(LEFT, base, wide - 12, base), write(LEFT - 6, base + 4, '0', {'text-anchor': 'end'}));
      parts.push(write(LEFT - 6, base - 60, top, {'text-anchor': 'end'}));
      parts.push(write(LEFT - 6, base - 28, name, {'text-anchor': 'end', class: 'faint'}));
    }
    for (let tick = 0; tick * 1000 <= whole; tick += step) {
      const middle = tick ? 'middle' : 'start';
      parts.push(line(x(tick * 1000), 172, x(tick * 1000), 186));
      parts.push(write(x(tick * 1000), 198, String(Math.round(tick * 10) / 10), {'text-anchor': middle, class: 'faint'}));
    }
    parts.push(write(wide - 12, 212, 'seconds since the first event', {'text-anchor': 'end', class: 'faint'}));
    parts.push(...commits.map((ms) => mark('disc', 'good', x(ms), 82, 5)));
    parts.push(...flushed.map((ms) => mark('triangle', 'held', x(ms), 178, 4)));
    parts.push(...troubles.map((ms) => mark('cross', 'bad', x(ms), 96, 6)));
    parts.push(make('line', {id: 'cursor', y1: 2, y2: 186, class: 'cursor'}));
    get('flow').replaceChildren(...parts);
  };
  const drawCursor = () => {
    const x = LEFT + now * scale();
    const rate = rates[Math.min(rates.length - 1, Math.floor((now - begin) / each))] ?? 0;
    get('past-box').setAttribute('width', x);
    get('cursor').setAttribute('x1', x);
    get('cursor').setAttribute('x2', x);
    get('flow-title').textContent = `The writers get ${count(rate)} rows a second, at most ${count(most.rate)}`;
    get('flow').setAttribute('aria-label', `After ${seconds(now)} s: ${count(rate)} rows a second reach the writers; ` +
      `${size(shown.level)} are buffered, at most ${size(most.level)}; ` +
      `${many(commits.filter((ms) => ms <= now).length, 'commit')}, ${many(troubles.filter((ms) => ms <= now).length, 'fault or failure')} so far`);
    return rate;
  };

  const drawBuckets = () => {
    const all = Object.entries(shown.buckets).map(([place, [bytes = 0, times = 0, written = 0, log = 0, merged = 0, logs = 0]]) =>
      ({name: run.names[place], bytes, times, written, log, merged, logs}));
    all.sort((a, b) => (a.name[0] < b.name[0] ? -1 : a.name[0] > b.name[0] ? 1 : a.name[1] < b.name[1] ? -1 : 1));
    const high = Math.max(1, ...all.map((b) => Math.max(b.bytes, b.written)));
    const step = (width('buckets') - LEFT) / Math.max(8, all.length);
    const spoken = [];
    const parts = [line(LEFT - 8, 118, width('buckets') - 4, 118)];
    if (all.length) {
      parts.push(write(LEFT - 12, 122, '0', {'text-anchor': 'end'}), write(LEFT - 12, 34, size(high), {'text-anchor': 'end'}));
      parts.push(write(LEFT - 12, 80, 'bytes', {'text-anchor': 'end', class: 'faint'}));
    }
    all.forEach((bucket, place) => {
      const x = LEFT - 6 + place * step;
      const [full, frame] = [bucket.bytes, bucket.written].map((bytes) => 88 * bytes / high);
      const words = `partition ${bucket.name[0] || '(none)'}, file group ${bucket.name[1]}: ${size(bucket.bytes)} buffered, ` +
        `flushed ${bucket.times} times` + (bucket.written ? `, ${bucket.log ? 'log' : 'file'} of ${size(bucket.written)} written` : '') +
        (bucket.merged ? `, ${many(bucket.merged, 'log')} merged` : '') + (bucket.logs ? `, ${many(bucket.logs, 'log')} since its base file` : '');
      const drawn = make('g', {}, make('title', {}, words));
      if (bucket.written) drawn.append(box(x + 3, 118 - frame, step - 8, frame, `mark frame ${bucket.log ? 'log' : ''}`));
      if (bucket.bytes) drawn.append(box(x + 5, 118 - full, step - 12, full, 'mark held'));
      if (bucket.times) drawn.append(write(x + step / 2, 112 - Math.max(full, frame), String(bucket.times), {'text-anchor': 'middle'}));
      const label = bucket.name[0] || bucket.name[1].slice(0, 8);
      drawn.append(write(0, 0, cut(label, 11), {transform: `translate(${x + step / 2 + 4} 126) rotate(-50)`, 'text-anchor': 'end', class: 'faint'}));
      parts.push(drawn);
      spoken.push(words);
    });
    if (!all.length) parts.push(write(4, 64, 'No bucket has rows yet.', {class: 'faint'}));
    const more = shown.count > all.length ? ` (${all.length} shown)` : '';
    const heading = `${many(shown.count, 'bucket')}${more} hold${shown.count === 1 ? 's' : ''} ${size(shown.level)}` +
      (shown.limit ? ` of at most ${size(shown.limit)}` : '') + `; ${many(flushes(shown), 'flush').replace(/flushs/, 'flushes')} in this checkpoint`;
    show('buckets', heading, [heading, ...spoken].join('; '), parts);
  };

  const drawInstants = () => {
    const left = 92;
    const room = Math.max(4, Math.floor((width('instants') - left) / 22));
    const columns = Object.values(shown.checkpoints).slice(-Math.min(20, room)).map(([number, state, time, ...reached]) =>
      ({number, time, state: run.states[state], reached: reached.map((place) => run.states[place])}));
    const step = (width('instants') - left - 6) / Math.max(12, columns.length);
    const x = (place) => left + 10 + place * step;
    const y = (name) => 16 + 28 * Math.max(0, LANES.indexOf(name));
    const parts = LANES.flatMap((name) => [line(left, y(name), width('instants') - 4, y(name)), write(left - 8, y(name) + 4, name, {'text-anchor': 'end'})]);
    parts.push(write(left - 8, 140, 'checkpoint', {'text-anchor': 'end'}));
    const instants = new Map();
    columns.forEach(({number, state, time, reached}, place) => {
      if (time) instants.set(time, {reached, places: [...(instants.get(time)?.places ?? []), place]});
      const drawn = mark(...(STATES[state] ?? ['ring', 'plain']), x(place), 136, 6);
      drawn.append(make('title', {}, `checkpoint ${number}: ${state}`));
      parts.push(drawn, write(x(place), 158, String(number), {'text-anchor': 'middle', class: 'faint'}));
    });
    for (const [time, {reached: [state, ...reached], places}] of instants) {
      const middle = (x(places[0]) + x(places.at(-1))) / 2;
      const marks = [...new Set([...reached.filter((name) => LANES.includes(name)), state])];
      const drawn = make('g', {}, make('title', {}, `instant ${time}: ${state}`));
      drawn.append(line(middle, Math.min(...marks.map(y)), middle, 122));
      if (places.length > 1) drawn.append(line(x(places[0]) - 7, 122, x(places.at(-1)) + 7, 122, 'cursor'));
      drawn.append(...marks.map((name) => mark(...(STATES[name] ?? ['ring', 'plain']), middle, y(name), name === state ? 7 : 4)));
      parts.push(drawn);
    }
    const tally = {};
    for (const {reached: [state]} of instants.values()) tally[state] = (tally[state] ?? 0) + 1;
    const states = Object.entries(tally).map(([state, n]) => `${n} ${state}`).join(', ') || 'none yet';
    const heading = `Instants of the newest ${many(columns.length, 'checkpoint')}: ${states}`;
    const spoken = columns.map(({number, state, time, reached}) =>
      `checkpoint ${number} is ${state}` + (time ? `, its instant ${time} ${reached[0]}` : ''));
    show('instants', heading, [heading, ...spoken].join('; '), parts);
  };

  const drawNotes = () => {
    const past = NOTES.filter(({place}) => place < taken);
    let lines = past.slice(-8);
    let heading = 'Nothing has gone wrong so far: the newest events of the job';
    if (shown.story) {
      const [fault, after = NOTES.length] = shown.story;
      lines = [past[fault], ...past.slice(after).filter(({tone}) => tone !== 'routine')].slice(0, 8);
      heading = 'The last fault, and how the job recovers';
    } else if (past.some(({tone}) => tone === 'bad')) heading = 'The newest events of the job';
    get('notes-title').textContent = heading;
    get('notes').replaceChildren(...lines.map(({at, tone, text}) => {
      const item = document.createElement('li');
      const time = document.createElement('time');
      const words = document.createElement('span');
      time.textContent = `${seconds(at)} s`;
      words.textContent = text;
      const [shape, name] = tone === 'bad' ? ['cross', 'bad'] : tone === 'good' ? ['disc', 'good'] : ['ring', 'plain'];
      item.append(time, make('svg', {viewBox: '0 0 16 16', 'aria-hidden': 'true'}, mark(shape, name, 8, 9)), words);
      return item;
    }));
  };

  const drawFacts = (rate) => {
    const facts = {Status: shown.status, 'Rows committed': count(shown.rows), Commits: count(shown.commits),
      'Rows a second': count(rate), Buffered: size(shown.level)};
    get('facts').replaceChildren(...Object.entries(facts).map(([name, value]) => {
      const pair = document.createElement('div');
      const [term, fact] = ['dt', 'dd'].map((tag) => document.createElement(tag));
      term.textContent = name;
      fact.textContent = value;
      pair.append(term, fact);
      return pair;
    }));
    get('trouble').hidden = !shown.trouble;
    get('trouble').textContent = shown.trouble ? shown.trouble.filter(Boolean).join('. ') : '';
  };

  // --- where the player is
  let drawn = -1;
  const seek = (ms) => {
    now = Math.min(Math.max(0, ms), run.duration_ms);
    let [low, high] = [0, STEPS.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (STEPS[middle].at <= now) low = middle + 1; else high = middle;
    }
    go(low);
    const step = STEPS[taken - 1];
    const text = sentence(step) + (step.events > 1 ? ` (and ${many(step.events - 1, 'more event')})` : '');
    if (drawn !== taken) {
      drawn = taken;
      get('now').textContent = text;
      [drawBuckets, drawInstants, drawNotes].forEach((draw) => draw());
    }
    drawFacts(drawCursor());
    get('time').value = Math.round(now);
    get('time').setAttribute('aria-valuetext', `${seconds(now)} of ${seconds(run.duration_ms)} seconds, step ${taken} of ${STEPS.length}: ${text}`);
    get('clock').textContent = `${seconds(now)} of ${seconds(run.duration_ms)} s`;
  };
  const step = (by) => {
    const to = taken - 1 + by;
    seek(to < 0 ? 0 : to >= STEPS.length ? run.duration_ms : STEPS[to].at);
  };

  // --- play
  let playing = false;
  let last = 0;
  const tick = (time) => {
    if (!playing) return;
    seek(now + (time - last) * Number(get('speed').value));
    last = time;
    if (now >= run.duration_ms) play(false); else requestAnimationFrame(tick);
  };
  const play = (on) => {
    playing = on;
    get('play').textContent = on ? 'Pause' : 'Play';
    get('now').setAttribute('aria-live', on ? 'off' : 'polite');
    if (!on) return;
    if (now >= run.duration_ms) seek(0);
    last = performance.now();
    requestAnimationFrame(tick);
  };
  const moves = {
    begin: () => seek(0), back: () => step(-1), next: () => step(1), end: () => seek(run.duration_ms),
  };
  for (const [id, move] of Object.entries(moves)) get(id).onclick = () => { play(false); move(); };
  get('play').onclick = () => play(!playing);
  get('time').oninput = () => { play(false); seek(Number(get('time').value)); };
  const KEYS = {Home: 'begin', End: 'end', ArrowLeft: 'back', ArrowRight: 'next'};
  document.addEventListener('keydown', (event) => {
    const on = event.target.tagName;
    if (event.ctrlKey || event.altKey || event.metaKey || on === 'SELECT') return;
    const key = on === 'INPUT' ? {ArrowUp: 'next', ArrowDown: 'back', ...KEYS}[event.key] : KEYS[event.key];
    if (key) get(key).onclick();
    else if (event.key === ' ' && on !== 'BUTTON') play(!playing);
    else return;
    event.preventDefault();
  });

  // --- colours, sizes, the start
  const dark = matchMedia('(prefers-color-scheme: dark)');
  const isDark = () => (document.documentElement.dataset.theme ?? (dark.matches ? 'dark' : 'light')) === 'dark';
  const name = () => { get('theme').textContent = isDark() ? 'Light colours' : 'Dark colours'; };
  get('theme').onclick = () => { document.documentElement.dataset.theme = isDark() ? 'light' : 'dark'; name(); };
  dark.addEventListener('change', name);
  name();
  for (const key of document.querySelectorAll('[data-mark]')) {
    const [shape, tone] = key.dataset.mark.split(' ');
    key.setAttribute('viewBox', '0 0 16 16');
    key.setAttribute('aria-hidden', 'true');
    key.append(mark(shape, tone, 8, 8));
  }
  get('time').max = run.duration_ms;
  const fits = [...get('speed').options].find((option) => run.duration_ms / option.value <= 120_000 && option.value >= 1);
  get('speed').value = (fits ?? get('speed').options[5]).value;
  const redraw = () => { drawFlow(); drawn = -1; seek(now); };
  now = run.duration_ms;
  redraw();
  addEventListener('resize', redraw);
})();
