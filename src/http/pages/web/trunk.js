// The trunk: a row for each server, a cell for each slot, and the line of those who wait.

import { html, useEffect, useRef, useState } from './vendor/preact-htm.js';
import { cellOf, colorOf, count, isDark, span, waiterOf } from './api.js';

const GAP = 3;
const REDRAW_MS = 200;

// Draws one server on a canvas, and knows what is where.
class Drawing {
  constructor(canvas) {
    this.canvas = canvas;
    this.spots = [];
    this.width = 0;
  }

  draw(server, live, focus) {
    const width = this.canvas.parentElement.clientWidth;
    if (!width || !server.head) return;
    const spots = layOut(server, width);
    const height = spots.height;
    const scale = devicePixelRatio || 1;
    if (this.canvas.width !== Math.round(width * scale) || this.canvas.height !== Math.round(height * scale)) {
      this.canvas.width = Math.round(width * scale);
      this.canvas.height = Math.round(height * scale);
      this.canvas.style.width = `${width}px`;
      this.canvas.style.height = `${height}px`;
    }
    const context = this.canvas.getContext('2d');
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width, height);
    const paint = new Paint(context, live.now(), focus);
    for (const text of spots.texts) paint.text(text);
    for (const spot of spots.list) paint.spot(spot);
    this.spots = spots.list;
  }

  at(x, y) {
    return this.spots.find((spot) => spot.call
      && x >= spot.x - 1 && x <= spot.x + spot.size + 1 && y >= spot.y - 1 && y <= spot.y + spot.size + 1);
  }
}

class Paint {
  constructor(context, now, focus) {
    this.context = context;
    this.now = now;
    this.focus = focus;
    const dark = isDark();
    this.dark = dark;
    this.free = dark ? '#2c3947' : '#d5dce4';
    this.kept = dark ? '#6d7f92' : '#93a1b1';
    this.ink = dark ? '#93a4b5' : '#5a6b7c';
    this.late = dark ? '#ff9d7a' : '#c2410c';
  }

  text({ text, x, y }) {
    this.context.fillStyle = this.ink;
    this.context.font = '11px system-ui, sans-serif';
    this.context.textBaseline = 'middle';
    this.context.fillText(text, x, y);
  }

  spot({ kind, x, y, size, call }) {
    const { context } = this;
    const shape = (inset) => {
      context.beginPath();
      const radius = kind === 'waiter' ? size / 2 - inset : 2.5;
      context.roundRect(x + inset, y + inset, size - 2 * inset, size - 2 * inset, radius);
    };
    if (!call) {
      if (kind === 'beyond') {
        context.fillStyle = this.free;
        context.fillRect(x + size / 2 - 1, y + size / 2 - 1, 2, 2);
        return;
      }
      if (kind === 'edge') {
        context.fillStyle = this.late;
        context.fillRect(x - 2.5, y - 1, 2, size + 2);
        return;
      }
      shape(0.75);
      context.lineWidth = 1.2;
      context.setLineDash(kind === 'kept' ? [2, 2] : []);
      context.strokeStyle = kind === 'kept' ? this.kept : this.free;
      context.stroke();
      context.setLineDash([]);
      return;
    }
    const part = share(call, this.now);
    const color = colorOf(call.tenant, this.dark);
    context.globalAlpha = this.focus && this.focus !== call.tenant ? 0.18 : 1;
    const full = context.globalAlpha;
    shape(0);
    context.save();
    context.clip();
    context.globalAlpha = full * 0.32;
    context.fillStyle = color;
    context.fillRect(x, y, size, size);
    context.globalAlpha = full;
    const filled = Math.max(1.5, size * part);
    context.fillRect(x, y + size - filled, size, filled);
    if (call.state === 'a') {
      context.strokeStyle = this.dark ? '#0f161d' : '#ffffff';
      context.lineWidth = 1.6;
      context.beginPath();
      context.moveTo(x, y + size);
      context.lineTo(x + size, y);
      context.stroke();
    }
    context.restore();
    if (part > 0.8) {
      shape(0.75);
      context.lineWidth = 1.5;
      context.strokeStyle = this.late;
      context.stroke();
    }
    context.globalAlpha = 1;
  }
}

// How much of its time a call has used.
function share(call, now) {
  const whole = call.deadline - call.begun;
  return whole > 0 ? Math.min(1, Math.max(0, (now - call.begun) / whole)) : 1;
}

// Places the slots of all instances, and then the line, from left to right.
function layOut(server, width) {
  const { head, instances, cells, line } = server;
  const byInstance = new Map(instances.map((instance) => [instance.key, []]));
  for (const [key, cell] of cells) {
    const call = cellOf(key, cell);
    byInstance.get(call.instance)?.push(call);
  }
  const total = instances.reduce((sum, it) => sum + Math.max(it.limit, 0), 0) + line.length;
  const size = total > 1200 ? 7 : total > 400 ? 10 : 14;
  const step = size + (size > 8 ? GAP : 2);
  const list = [];
  const texts = [];
  let x = 0;
  let y = 1;
  const newLine = () => { x = 0; y += step; };
  const put = (spot) => {
    if (x + size > width) newLine();
    list.push({ ...spot, x, y, size });
    x += step;
  };
  const free = [];
  const many = instances.length > 1;
  for (const instance of instances) {
    const calls = byInstance.get(instance.key) ?? [];
    if (many || instance.owner) {
      const label = instance.owner ? instance.key : String(instance.n);
      const room = label.length * 6.2 + 8;
      if (x > 0 && x + room + 4 * step > width) newLine();
      else if (x > 0) x += 8;
      texts.push({ text: label, x, y: y + size / 2 });
      x += room;
    }
    if (instance.state !== 'ready' && calls.length === 0) {
      texts.push({ text: instance.state, x, y: y + size / 2 });
      x += instance.state.length * 6.2 + 8;
      continue;
    }
    const places = new Map(calls.map((call) => [call.place, call]));
    const last = calls.reduce((most, call) => Math.max(most, call.place + 1), 0);
    const shown = Math.min(Math.max(instance.limit, last), 512);
    for (let place = 0; place < shown; place += 1) {
      const call = places.get(place);
      if (!call) free.push(list.length);
      put({ kind: call ? 'call' : 'free', call });
    }
    // An adaptive limit below what is configured: its edge, and what is beyond.
    if (instance.limit > 0 && instance.limit < instance.max && shown === instance.limit) {
      list.push({ kind: 'edge', x, y, size });
      for (let beyond = instance.limit; beyond < Math.min(instance.max, instance.limit + 24); beyond += 1) {
        put({ kind: 'beyond' });
      }
    }
  }
  for (const at of free.slice(free.length - Math.min(head.kept_free ?? 0, free.length))) list[at].kind = 'kept';
  if (line.length > 0) {
    newLine();
    y += 5;
    texts.push({ text: 'waiting', x: 0, y: y + size / 2 });
    x = 50;
    for (const waiter of line) put({ kind: 'waiter', call: waiterOf(waiter) });
    const rest = head.waiting - line.length;
    if (rest > 0) {
      const text = `and ${rest} more`;
      if (x + text.length * 6 > width) newLine();
      texts.push({ text, x: x + 2, y: y + size / 2 });
    }
  }
  return { list, texts, height: y + size + 2 };
}

// One task redraws what is on the screen, since ages grow without news.
const visible = new Set();
let timer = 0;

function tick() {
  if (!document.hidden) for (const row of visible) row.redraw();
}

function show(row) {
  visible.add(row);
  if (!timer) timer = setInterval(tick, REDRAW_MS);
  return () => {
    visible.delete(row);
    if (visible.size === 0) {
      clearInterval(timer);
      timer = 0;
    }
  };
}

function Slots({ id, server, live, focus, onPick }) {
  const canvas = useRef(null);
  const row = useRef({ redraw() {} });
  const [tip, setTip] = useState(null);
  const drawing = useRef(null);
  row.current.redraw = () => drawing.current?.draw(live.servers.get(id) ?? server, live, focus);

  useEffect(() => {
    drawing.current = new Drawing(canvas.current);
    row.current.redraw();
    const entry = row.current;
    let hide = null;
    const watcher = new IntersectionObserver(([seen]) => {
      hide?.();
      hide = seen.isIntersecting ? show(entry) : null;
      entry.redraw();
    });
    watcher.observe(canvas.current);
    const resized = new ResizeObserver(() => entry.redraw());
    resized.observe(canvas.current.parentElement);
    return () => { watcher.disconnect(); resized.disconnect(); hide?.(); };
  }, []);
  // With a hundred servers most rows are off the screen: they are drawn when they come into view.
  useEffect(() => { if (visible.has(row.current)) row.current.redraw(); });

  const under = (event) => {
    const box = canvas.current.getBoundingClientRect();
    return drawing.current?.at(event.clientX - box.left, event.clientY - box.top)?.call;
  };
  const move = (event) => {
    const call = under(event);
    setTip(call ? { call, x: event.clientX, y: event.clientY } : null);
  };
  return html`<div class="slots" onPointerMove=${move} onPointerLeave=${() => setTip(null)}
      onClick=${(event) => { const call = under(event); if (call) onPick({ server: id, ...call }); }}>
    <canvas ref=${canvas} aria-hidden="true"></canvas>
    ${tip && html`<${Tip} ...${tip} live=${live} />`}
  </div>`;
}

function Tip({ call, x, y, live }) {
  const box = useRef(null);
  useEffect(() => {
    const { width, height } = box.current.getBoundingClientRect();
    box.current.style.left = `${Math.max(4, Math.min(x + 12, innerWidth - width - 8))}px`;
    box.current.style.top = `${y + 16 + height > innerHeight ? y - height - 10 : y + 16}px`;
  });
  return html`<div class="tip" ref=${box} role="tooltip"><${CallFacts} call=${call} live=${live} /></div>`;
}

export function Tenant({ name }) {
  const mark = useRef(null);
  useEffect(() => { mark.current.style.background = colorOf(name); }, [name]);
  return html`<span class="tenant"><i ref=${mark}></i>${name}</span>`;
}

export function CallFacts({ call, live }) {
  const now = live.now();
  const state = call.waits ? (call.early ? 'waits for the server to start' : 'waits for a slot')
    : { q: 'has a slot, not written yet', r: 'running', a: 'its caller has gone; the server still works on it' }[call.state];
  return html`<dl class="facts">
    <dt>tenant</dt><dd><${Tenant} name=${call.tenant} /></dd>
    ${call.tool && html`<dt>tool</dt><dd>${call.tool}</dd>`}
    <dt>state</dt><dd>${state}</dd>
    <dt>${call.waits ? 'waits for' : 'age'}</dt><dd>${span(now - call.begun)}</dd>
    ${call.deadline && html`<dt>deadline</dt><dd>in ${span(call.deadline - now)}</dd>`}
    ${call.attempt > 1 && html`<dt>attempt</dt><dd>${call.attempt}</dd>`}
    ${call.labels?.length > 0 && html`<dt>labels</dt><dd>${call.labels.join(' ')}</dd>`}
    ${call.id && html`<dt>call</dt><dd><code>${call.id}</code></dd>`}
  </dl>`;
}

function stateClass(head) {
  if (head.paused) return 'warn';
  return { ready: 'good', per_tenant: 'good', per_session: 'good', idle: 'idle', starting: 'warn', draining: 'warn' }[head.state] ?? 'bad';
}

function summary(id, server) {
  const { head } = server;
  return `${id}: ${head.paused ? 'paused' : head.state}, ${head.taken} of ${head.slots} slots taken, `
    + `${head.waiting} waiting`;
}

function Row({ id, server, live, focus, onPick }) {
  const [open, setOpen] = useState(false);
  const { head } = server;
  const wait = head.oldest ? span(live.now() - head.oldest) : null;
  const state = head.paused ? 'paused' : head.state.replace('_', ' ');
  return html`<section class="row" aria-label=${summary(id, server)}>
    <div class="who">
      <h3>${id}</h3>
      <p><span class=${`state ${stateClass(head)}`}>${state}</span>
        ${' '}<b>${head.taken}</b>/${head.slots}
        ${head.waiting > 0 && html`<span class="waits"> · <b>${head.waiting}</b> wait${wait && `, ${wait}`}</span>`}</p>
      ${head.state !== 'ready' && head.reason && html`<p class="reason">${head.reason}</p>`}
      <button class="quiet" aria-expanded=${open} onClick=${() => setOpen(!open)}>${open ? 'hide list' : 'list'}</button>
    </div>
    <div class="what">
      <${Slots} id=${id} server=${server} live=${live} focus=${focus} onPick=${onPick} />
      ${open && html`<${CallList} id=${id} server=${server} live=${live} onPick=${onPick} />`}
    </div>
  </section>`;
}

function CallList({ id, server, live, onPick }) {
  const cells = [...server.cells].map(([key, cell]) => cellOf(key, cell)).sort((a, b) => a.begun - b.begun);
  const calls = [...cells, ...server.line.map(waiterOf)].slice(0, 200);
  if (calls.length === 0) return html`<p class="empty">No call is here now.</p>`;
  const now = live.now();
  return html`<table class="list"><thead><tr><th>state</th><th>tenant</th><th>tool</th><th>age</th><th>left</th><th>call</th></tr></thead>
    <tbody>${calls.map((call) => html`<tr key=${call.id ?? call.key}>
      <td>${call.waits ? 'waits' : { q: 'queued', r: 'running', a: 'abandoned' }[call.state]}</td>
      <td><${Tenant} name=${call.tenant} /></td><td>${call.tool ?? '–'}</td>
      <td>${span(now - call.begun)}</td><td>${call.deadline ? span(call.deadline - now) : '–'}</td>
      <td><button class="link" onClick=${() => onPick({ server: id, ...call })}><code>${call.id ?? call.key}</code></button></td>
    </tr>`)}</tbody></table>`;
}

export function Numbers({ numbers }) {
  const n = numbers ?? {};
  return html`<dl class="numbers">
    <div><dt>longest wait</dt><dd>${n.longest_wait_ms ? span(n.longest_wait_ms) : '0'}</dd></div>
    <div><dt>waiting</dt><dd>${count(n.waiting)}</dd></div>
    <div><dt>in flight</dt><dd>${count(n.in_flight)}</dd></div>
    <div><dt>refused in a minute</dt><dd>${count(n.refused_own)}<small> own limit</small> ${count(n.refused_other)}<small> other</small></dd></div>
  </dl>`;
}

// The tenants with most calls, as a legend that also picks one out.
function Legend({ servers, focus, onFocus }) {
  const counts = new Map();
  for (const server of servers.values()) {
    for (const cell of server.cells.values()) counts.set(cell[0], (counts.get(cell[0]) ?? 0) + 1);
    for (const waiter of server.line) counts.set(waiter[0], (counts.get(waiter[0]) ?? 0) + 1);
  }
  const top = [...counts].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1)).slice(0, 24);
  if (top.length === 0) return html`<p class="legend empty">Nobody is on the trunk now.</p>`;
  return html`<div class="legend" role="group" aria-label="tenants on the trunk">${top.map(([name, calls]) => html`
    <button key=${name} class="chip" aria-pressed=${focus === name} onClick=${() => onFocus(focus === name ? null : name)}>
      <${Tenant} name=${name} /> <b>${calls}</b></button>`)}</div>`;
}

export function Trunk({ live, onPick }) {
  const [focus, setFocus] = useState(null);
  const ids = [...live.servers.keys()].sort();
  return html`<div class="trunk">
    <${Legend} servers=${live.servers} focus=${focus} onFocus=${setFocus} />
    ${ids.map((id) => html`<${Row} key=${id} id=${id} server=${live.servers.get(id)} live=${live} focus=${focus} onPick=${onPick} />`)}
    <p class="key">A square is a slot: it fills as its call nears its deadline. Dashed: kept for tenants with few calls.
      Circles wait, first come leftmost as they will be served. Struck through: the caller has gone.</p>
  </div>`;
}
