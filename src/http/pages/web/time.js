// The time machine: the last 15 minutes, second by second.

import { html, useEffect, useRef, useState } from './vendor/preact-htm.js';
import { clockTime, count, isDark, span } from './api.js';
import { Problem, useData } from './shell.js';
import { Tenant } from './trunk.js';

const HEIGHT = 90;

export function Time() {
  const { data, error } = useData('/admin/v1/history', 2000);
  const [at, setAt] = useState(null);
  const seconds = data?.seconds ?? [];
  const shown = at ?? seconds.at(-1)?.at ?? null;
  if (!data) return html`<${Problem} error=${error} />`;
  if (seconds.length === 0) return html`<p class="empty">The history begins now.</p>`;
  const first = seconds[0].at;
  const last = seconds.at(-1).at;
  const move = (to) => setAt(Math.min(last, Math.max(first, to)));
  return html`<div class="card">
    <div class="bar"><h2>${clockTime(shown * 1000)}</h2>
      <span class="hint">${at === null ? 'now' : `${span((last - shown) * 1000)} before the last second`}</span>
      ${at !== null && html`<button class="quiet" onClick=${() => setAt(null)}>back to now</button>`}</div>
    <${Graph} seconds=${seconds} at=${shown} onMove=${move} />
    <label class="scrub"><span class="hidden">second</span><input type="range" min=${first} max=${last} step="1" value=${shown}
      aria-valuetext=${clockTime(shown * 1000)} onInput=${(event) => move(Number(event.target.value))} /></label>
    <p class="hint"><span class="swatch running"></span>on slots <span class="swatch waiting"></span>waiting <span class="swatch refused"></span>refused</p>
    <${Second} at=${shown} />
  </div>`;
}

// Draws calls on slots, waiting and refused calls above each other.
function Graph({ seconds, at, onMove }) {
  const canvas = useRef(null);
  const drag = (event) => {
    if (event.type === 'pointermove' && event.buttons === 0) return;
    const box = canvas.current.getBoundingClientRect();
    const part = (event.clientX - box.left) / box.width;
    onMove(Math.round(seconds.at(-1).at - 899 + part * 899));
  };
  useEffect(() => {
    const element = canvas.current;
    const width = element.parentElement.clientWidth;
    const scale = devicePixelRatio || 1;
    element.width = width * scale;
    element.height = HEIGHT * scale;
    element.style.width = `${width}px`;
    element.style.height = `${HEIGHT}px`;
    const context = element.getContext('2d');
    context.scale(scale, scale);
    const dark = isDark();
    const colors = { running: dark ? '#4f9ee8' : '#2f78bf', waiting: dark ? '#f0b45b' : '#d98a1f', refused: dark ? '#ff8a80' : '#c0392b' };
    const all = (it) => it.running + it.waiting + it.refused_own + it.refused_other;
    const most = Math.max(8, ...seconds.map(all));
    const step = width / 900;
    const end = seconds.at(-1).at;
    for (const second of seconds) {
      const x = width - (end - second.at + 1) * step;
      let y = HEIGHT;
      for (const [name, value] of [['running', second.running], ['waiting', second.waiting], ['refused', second.refused_own + second.refused_other]]) {
        const height = value / most * (HEIGHT - 6);
        context.fillStyle = colors[name];
        context.fillRect(x, y - height, Math.max(1, step), height);
        y -= height;
      }
    }
    context.fillStyle = dark ? '#e3eaf1' : '#17212b';
    context.fillRect(width - (end - at + 1) * step, 0, 1.5, HEIGHT);
  });
  return html`<div class="graph"><canvas ref=${canvas} aria-hidden="true" onPointerDown=${drag} onPointerMove=${drag}></canvas></div>`;
}

function Second({ at }) {
  const { data, error } = useData(`/admin/v1/history/${at}`);
  if (!data) return html`<${Problem} error=${error} />`;
  if (data.pairs.length === 0) return html`<p class="empty">Nobody was on the trunk.</p>`;
  return html`<table><thead><tr><th>server</th><th>tenant</th><th class="n">on slots</th><th class="n">waiting</th><th class="n">longest wait</th><th class="n">refused, own limit</th><th class="n">refused, other</th></tr></thead>
    <tbody>${data.pairs.slice(0, 60).map((pair) => html`<tr key=${`${pair.server}/${pair.tenant}`}><td>${pair.server}</td><td><${Tenant} name=${pair.tenant} /></td>
      <td class="n">${count(pair.running)}</td><td class="n">${count(pair.waiting)}</td><td class="n">${pair.longest_wait_ms ? span(pair.longest_wait_ms) : ''}</td>
      <td class="n">${pair.refused_own || ''}</td><td class="n">${pair.refused_other || ''}</td></tr>`)}
      ${data.rest_pairs > 0 && html`<tr><td colspan="2">and ${data.rest_pairs} more pairs</td><td class="n">${count(data.rest.running)}</td><td class="n">${count(data.rest.waiting)}</td><td></td><td class="n">${data.rest.refused_own}</td><td class="n">${data.rest.refused_other}</td></tr>`}
    </tbody></table>`;
}
