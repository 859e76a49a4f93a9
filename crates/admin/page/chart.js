
'use strict';
// Charts and formats. Everything is drawn with elements and text nodes, never with markup, so that
// no text of a client can become markup.

const WINDOW_S = 600;
// While there is less history, a chart shows the shortest of these that has it all.
const SPANS_S = [60, 120, 300, WINDOW_S];
const CHART_HEIGHT = 150;
const LEFT = 62;
const BOTTOM = 18;
// Samples that are farther apart than this are not joined: the server was away.
const GAP_S = 5;

const fill = (element, attributes, children) => {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
};
const make = (name, attributes = {}, ...children) =>
  fill(document.createElement(name), attributes, children);
const draw = (name, attributes = {}, ...children) =>
  fill(document.createElementNS('http://www.w3.org/2000/svg', name), attributes, children);
// Changes a text only if it differs, so that screen readers and the selection are left alone.
const setText = (element, text) => {
  if (element.textContent !== text) element.textContent = text;
};

const known = (value) => typeof value === 'number' && Number.isFinite(value);
const digits = (value) => {
  if (value === 0) return '0';
  if (value >= 99.5) return value.toFixed(0);
  return value.toFixed(value >= 9.95 ? 1 : 2);
};
const scaled = (value, base, units) => {
  let place = 0;
  while (value >= base * 0.9995 && place < units.length - 1) {
    value /= base;
    place += 1;
  }
  return (place === 0 && Number.isInteger(value) ? String(value) : digits(value)) + units[place];
};
const or = (format) => (value) => (known(value) ? format(value) : '\u2013');
const FORMAT = {
  count: or((value) => scaled(value, 1000, ['', ' k', ' M', ' G'])),
  rate: or((value) => scaled(value, 1000, ['/s', ' k/s', ' M/s', ' G/s'])),
  bytes: or((value) => scaled(value, 1024, [' B', ' KiB', ' MiB', ' GiB', ' TiB'])),
  byteRate: or((value) => scaled(value, 1024, [' B/s', ' KiB/s', ' MiB/s', ' GiB/s'])),
  micros: or((value) => scaled(value, 1000, [' \u00b5s', ' ms', ' s'])),
  part: or((value) => `${value > 0.9995 && value < 1 ? '99.9' : digits(value * 100)} %`),
  seconds: or((value) => {
    const whole = (number) => (number >= 10 ? number.toFixed(0) : String(Number(number.toFixed(1))));
    for (const [unit, seconds] of [['d', 86400], ['h', 3600], ['min', 60]]) {
      if (value >= 2 * seconds) return `${whole(value / seconds)} ${unit}`;
    }
    return `${whole(value)} s`;
  }),
};
const clock = (time) => new Date(time * 1000).toTimeString().slice(0, 8);

// The least round number that is not below `value`.
const roundUp = (value, base) => {
  if (!(value > 0)) return 1;
  if (base === 1024) return 2 ** Math.ceil(Math.log2(value * 0.9999));
  const power = 10 ** Math.floor(Math.log10(value * 0.9999));
  return power * [1, 2, 4, 5, 10].find((step) => step * power >= value * 0.9999);
};

const panel = (title, note) => {
  const box = make('section', { class: 'panel' }, make('h2', {}, title));
  if (note) box.append(make('p', { class: 'quiet' }, note));
  return box;
};

// A table that is filled only while it is open.
class Table {
  constructor(title, heads) {
    this.rows = make('tbody');
    const head = make('tr', {}, ...heads.map((text) => make('th', { scope: 'col' }, text)));
    const table = make('table', { 'aria-label': title }, make('thead', {}, head), this.rows);
    const scroll = make('div', { class: 'scroll', tabindex: '0' }, table);
    this.element = make('details', {}, make('summary', {}, 'Table'), scroll);
    this.element.addEventListener('toggle', () => this.show(this.last));
  }

  // Shows rows, which `rows` makes, if anybody looks.
  show(rows) {
    this.last = rows;
    if (!this.element.open || !rows) return;
    this.rows.replaceChildren(...rows().map((cells) =>
      make('tr', {}, ...cells.map((text) => make('td', {}, text)))));
  }
}

const CLASSES = ['one', 'two', 'three', 'four', 'fifth'];

// Three horizontal lines with their values.
const gridLines = (width, top, y, format) => [0, 0.5, 1].flatMap((part) => {
  const at = y(top * part);
  const label = draw('text', { x: LEFT - 6, y: Math.max(at + 4, 11), 'text-anchor': 'end' });
  label.textContent = format(top * part).replace(/\.0+(?= |$|\/)/, '');
  return [draw('line', { class: 'grid', x1: LEFT, x2: width, y1: at, y2: at }), label];
});

// Lines, or areas on top of each other, over the last ten minutes.
// `series`: [name, (sample) => number or null], with the place of the color if it is not its own.
class Chart {
  constructor(title, series, { format, note, stacked = false, max = null, limit = null, base = 1000 }) {
    Object.assign(this, { title, series, format, stacked, max, limit, base });
    this.box = panel(title, note);
    this.values = series.map(() => make('b'));
    const color = (place) => CLASSES[series[place][2] ?? place];
    const names = series.map(([name], place) => make('li', { class: color(place) }, make('i'),
      make('span', { class: 'name' }, name), this.values[place]));
    this.legend = make('ul', { class: 'legend' }, ...names);
    this.grid = draw('g');
    this.areas = series.map((_, place) =>
      draw('path', { class: `${stacked ? 'stack' : 'area'} ${color(place)}` }));
    this.lines = series.map((_, place) => draw('path', { class: `line ${color(place)}` }));
    this.cursor = draw('line', { class: 'cursor', y1: 0, y2: CHART_HEIGHT - BOTTOM });
    this.svg = draw('svg', { class: 'chart', role: 'img', tabindex: '0' },
      this.grid, ...this.areas, ...this.lines, this.cursor);
    this.table = new Table(title, ['Time', ...series.map(([name]) => name)]);
    this.box.append(this.legend, this.svg, this.table.element);
    this.listen();
  }

  listen() {
    this.svg.addEventListener('pointermove', (event) => {
      const { left, width } = this.svg.getBoundingClientRect();
      const part = (event.clientX - left - LEFT) / Math.max(width - LEFT, 1);
      pointAt(page.end - span() * (1 - part));
    });
    this.svg.addEventListener('pointerleave', () => pointAt(null));
    this.svg.addEventListener('blur', () => pointAt(null));
    this.svg.addEventListener('keydown', (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -30, PageDown: 30 }[event.key];
      if (event.key === 'Escape') pointAt(null);
      if (!step) return;
      event.preventDefault();
      pointAt((page.pointed ?? page.end) + step);
    });
  }

  // Draws the samples of the ten minutes before `end`. `at` is the sample whose figures are shown.
  render(samples, end, at, isPointed) {
    const width = this.svg.clientWidth || 350;
    const height = CHART_HEIGHT - BOTTOM;
    const columns = this.series.map(([, of]) => samples.map(of));
    if (this.stacked) {
      for (let place = columns.length - 2; place >= 0; place -= 1) {
        columns[place] = columns[place].map((value, row) => value + columns[place + 1][row]);
      }
    }
    const limit = this.limit && at ? this.limit(at) : 0;
    const most = columns.flat().reduce((top, value) => (known(value) && value > top ? value : top), limit);
    const top = this.max ?? roundUp(most, this.base);
    const x = (time) => LEFT + ((time - end) / span() + 1) * (width - LEFT);
    const y = (value) => 4 + (1 - value / top) * (height - 4);
    this.svg.setAttribute('viewBox', `0 0 ${width} ${CHART_HEIGHT}`);
    this.drawGrid(width, top, y, end, limit);
    columns.forEach((column, place) => {
      const line = path(samples, column, x, y);
      this.lines[place].setAttribute('d', this.stacked ? '' : line.line);
      this.areas[place].setAttribute('d', this.stacked || this.series.length === 1 ? line.area : '');
    });
    const mark = at && isPointed ? x(at.time) : -10;
    this.cursor.setAttribute('x1', mark);
    this.cursor.setAttribute('x2', mark);
    this.series.forEach(([, of], place) => setText(this.values[place], at ? this.format(of(at)) : '\u2013'));
    const said = this.series.map(([name, of]) => `${name} ${at ? this.format(of(at)) : 'unknown'}`);
    this.svg.setAttribute('aria-label', `${this.title}${at ? `, ${clock(at.time)}` : ''}: ${said.join(', ')}`);
    this.table.show(() => samples.filter((_, row) => (samples.length - 1 - row) % 10 === 0).reverse()
      .map((sample) => [clock(sample.time), ...this.series.map(([, of]) => this.format(of(sample)))]));
  }

  drawGrid(width, top, y, end, limit) {
    const marks = gridLines(width, top, y, this.format);
    if (limit) marks.push(draw('line', { class: 'limit', x1: LEFT, x2: width, y1: y(limit), y2: y(limit) }));
    for (const [part, anchor] of [[0, 'start'], [0.5, 'middle'], [1, 'end']]) {
      const label = draw('text', { x: LEFT + part * (width - LEFT), y: CHART_HEIGHT - 4, 'text-anchor': anchor });
      label.textContent = end ? clock(end - span() * (1 - part)) : '';
      marks.push(label);
    }
    this.grid.replaceChildren(...marks);
  }
}

// The seconds that the charts show.
const span = () => {
  const has = page.end - (page.samples[0]?.time ?? page.end);
  return SPANS_S.find((seconds) => seconds >= has) ?? WINDOW_S;
};

// The paths of a line and of the area below it, with gaps where nothing is known.
const path = (samples, column, x, y) => {
  let [line, area, begun, before] = ['', '', null, null];
  const floor = y(0).toFixed(1);
  const close = () => {
    if (begun !== null) area += `L${x(before).toFixed(1)} ${floor}L${begun} ${floor}Z`;
    begun = null;
  };
  samples.forEach(({ time }, row) => {
    if (begun !== null && (time - before > GAP_S || !known(column[row]))) close();
    if (!known(column[row])) return;
    const point = `${x(time).toFixed(1)} ${y(column[row]).toFixed(1)}`;
    line += (begun === null ? 'M' : 'L') + point;
    // A point alone is a short line.
    if (begun === null) line += 'h.5';
    area += (begun === null ? 'M' : 'L') + point;
    begun ??= x(time).toFixed(1);
    before = time;
  });
  close();
  return { line, area };
};

// How many values there are of each power of two.
class Bars {
  constructor(title, note, format) {
    Object.assign(this, { title, format });
    this.box = panel(title, note);
    this.bars = draw('g', { class: 'one' });
    this.svg = draw('svg', { class: 'chart', role: 'img', tabindex: '0' }, this.bars);
    this.table = new Table(title, ['From', 'To', 'Count', 'Part']);
    this.box.append(this.svg, this.table.element);
  }

  render(counts) {
    const width = this.svg.clientWidth || 350;
    const height = CHART_HEIGHT - BOTTOM;
    const sum = counts.reduce((all, count) => all + count, 0);
    const most = Math.max(...counts, 1);
    const bounds = (place) => [place === 0 ? 0 : 2 ** (place - 1), 2 ** place - 1];
    const [begin, end] = [counts.findIndex((count) => count > 0), counts.findLastIndex((count) => count > 0)];
    const [first, last] = sum ? [Math.max(begin - 1, 0), Math.min(end + 1, counts.length - 1)] : [0, 12];
    const step = width / (last - first + 1);
    const every = Math.ceil(58 / step);
    const marks = [draw('line', { class: 'grid', x1: 0, x2: width, y1: height, y2: height })];
    for (let place = first; place <= last; place += 1) {
      const [x, tall] = [(place - first) * step, ((counts[place] || 0) / most) * (height - 6)];
      const bar = draw('rect', { class: 'bar', x: x + 1, y: height - tall, width: Math.max(step - 2, 1), height: tall, rx: 2 });
      const [from, to] = bounds(place);
      bar.append(draw('title', {}, `${this.format(from)} to ${this.format(to)}: ${counts[place] || 0}`));
      marks.push(bar);
      if ((place - first) % every || x + 50 > width) continue;
      const label = draw('text', { x: x + 1, y: CHART_HEIGHT - 4 });
      label.textContent = this.format(from).replace(/\.0+(?= |$)/, '');
      marks.push(label);
    }
    this.svg.setAttribute('viewBox', `0 0 ${width} ${CHART_HEIGHT}`);
    this.bars.replaceChildren(...marks);
    const range = sum ? `${this.format(bounds(begin)[0])} to ${this.format(bounds(end)[1])}` : 'none yet';
    this.svg.setAttribute('aria-label', `${this.title}: ${range}`);
    this.table.show(() => counts.flatMap((count, place) => (count ? [[
      ...bounds(place).map(this.format), String(count), FORMAT.part(count / sum)]] : [])));
  }
}

// The misses that other sizes of memory would have.
class Curve {
  constructor() {
    this.box = panel('What more memory is worth', '');
    this.note = make('p', { class: 'quiet' });
    this.drawn = draw('g', { class: 'one' });
    this.svg = draw('svg', { class: 'chart', role: 'img', tabindex: '0' }, this.drawn);
    this.table = new Table('Misses by memory', ['Memory', 'Gets that miss']);
    this.box.append(this.note, this.svg, this.table.element);
  }

  render(curve) {
    setText(this.note, curve ? curve.advice
      : 'Off. Start the server with --observe=curve, or send "observe curve on" to it.');
    const points = curve?.points ?? [];
    const width = this.svg.clientWidth || 350;
    const height = CHART_HEIGHT - BOTTOM;
    const top = roundUp(Math.max(...points.map(({ misses }) => misses), 0.001), 1000);
    const x = (place) => LEFT + 24 + (place * (width - LEFT - 48)) / Math.max(points.length - 1, 1);
    const y = (misses) => 4 + (1 - misses / top) * (height - 4);
    const marks = points.length ? gridLines(width, top, y, FORMAT.part) : [];
    points.forEach(({ memory_bytes: bytes, misses, is_now: isNow }, place) => {
      if (isNow) marks.push(draw('line', { class: 'limit', x1: x(place), x2: x(place), y1: 0, y2: height }));
      const label = draw('text', { x: x(place), y: CHART_HEIGHT - 4, 'text-anchor': 'middle' });
      label.textContent = FORMAT.bytes(bytes).replace(/\.0+(?= )/, '');
      marks.push(label, draw('circle', { class: 'bar', cx: x(place), cy: y(misses), r: isNow ? 5 : 3.5 }));
    });
    const line = points.map(({ misses }, place) => `${x(place).toFixed(1)} ${y(misses).toFixed(1)}`).join('L');
    marks.push(draw('path', { class: 'line', d: line ? `M${line}` : '' }));
    this.svg.setAttribute('viewBox', `0 0 ${width} ${CHART_HEIGHT}`);
    this.drawn.replaceChildren(...marks);
    this.svg.setAttribute('aria-label', this.note.textContent);
    this.table.show(() => points.map(({ memory_bytes: bytes, misses }) => [FORMAT.bytes(bytes), FORMAT.part(misses)]));
  }
}
