// Tenants: their use against their limits, their keys, their usage over time, recent refusals.

import { html, useEffect, useRef, useState } from './vendor/preact-htm.js';
import { api, clockTime, colorOf, count, isDark, span } from './api.js';
import { Problem, Verb, useData } from './shell.js';
import { Tenant } from './trunk.js';

export function Tenants() {
  const { data, error } = useData('/admin/v1/tenants', 10_000);
  const [search, setSearch] = useState('');
  const [open, setOpen] = useState(null);
  if (!data) return html`<${Problem} error=${error} />`;
  const found = data.tenants.filter((tenant) => tenant.id.includes(search.trim())).slice(0, 200);
  return html`<div class="card">
    <div class="bar"><label>tenant <input value=${search} onInput=${(event) => setSearch(event.target.value)} /></label>
      <span class="hint">${data.tenants.length} tenants</span></div>
    <table><thead><tr><th>tenant</th><th>from</th><th>rate</th><th class="n">burst</th><th class="n">in flight at most</th><th class="n">weight</th><th>may use</th></tr></thead>
      <tbody>${found.map((tenant) => html`<tr key=${tenant.id}>
        <td><button class="link" aria-expanded=${open === tenant.id} onClick=${() => setOpen(open === tenant.id ? null : tenant.id)}><${Tenant} name=${tenant.id} /></button></td>
        <td>${tenant.source}</td><td>${tenant.rate ?? 'no limit'}</td><td class="n">${tenant.burst ?? '–'}</td>
        <td class="n">${tenant.max_in_flight ?? 'no limit'}</td><td class="n">${tenant.weight}</td><td>${(tenant.servers ?? []).join(', ') || 'nothing'}</td></tr>
        ${open === tenant.id && html`<tr key=${`${tenant.id}!`}><td colspan="7"><${One} id=${tenant.id} /></td></tr>`}`)}</tbody></table>
  </div>`;
}

function One({ id }) {
  const { data: limits } = useData(`/admin/v1/tenants/${id}/limits`, 2000);
  const { data: keys, again } = useData(`/admin/v1/tenants/${id}/keys`, 10_000);
  const { data: refused } = useData(`/admin/v1/calls/recent?kind=refused&limit=10&tenant=${id}`, 3000);
  return html`<div>
    ${limits && html`<h3>Limits</h3><${Limits} limits=${limits.limits} />`}
    <h3>Usage</h3><${Usage} path=${`/admin/v1/usage?tenant=${id}`} name=${id} />
    ${keys && html`<h3>Keys</h3>${keys.keys.length === 0 ? html`<p class="empty">none</p>` : html`<table class="list"><thead><tr><th>key</th><th>name</th><th>state</th><th>last used</th><th></th></tr></thead>
      <tbody>${keys.keys.map((key) => html`<tr key=${key.id}><td><code>${key.id}</code></td><td>${key.name ?? ''}</td><td>${key.state}</td>
        <td>${key.last_used ? `${span(Date.now() - Date.parse(key.last_used))} ago` : 'never'}</td>
        <td>${key.state === 'active' && html`<${Verb} name="revoke" ask="Callers with this key will be refused within 2 s." act=${async () => {
          await api(`/admin/v1/keys/${key.id}`, { method: 'DELETE' });
          again();
        }} />`}</td></tr>`)}</tbody></table>`}`}
    ${refused?.calls.length > 0 && html`<h3>Last refusals</h3><table class="list"><tbody>${refused.calls.map((call) => html`<tr key=${call.id}>
      <td>${clockTime(call.ended)}</td><td>${call.server}</td><td>${call.tool}</td><td class="bad-text">${call.code}</td><td><code>${call.id}</code></td></tr>`)}</tbody></table>`}
  </div>`;
}

export function Limits({ limits }) {
  return html`<table class="list"><thead><tr><th>limit</th><th>of</th><th>used</th></tr></thead><tbody>${limits.map((limit) => html`
    <tr key=${limit.name + (limit.scope ?? '')}><td>${limit.name}${limit.rate && ` ${limit.rate}`}</td><td>${limit.scope ?? 'everything'}</td>
      <td><${Meter} used=${limit.used} of=${limit.value} /></td></tr>`)}</tbody></table>`;
}

function Meter({ used, of }) {
  const bar = useRef(null);
  const part = of ? Math.min(1, used / of) : 0;
  useEffect(() => { if (bar.current) bar.current.style.width = `${part * 100}%`; });
  if (of == null) return html`${count(used)}, no limit`;
  const tone = part >= 1 ? 'full' : part > 0.7 ? 'high' : '';
  return html`<span class=${`meter ${tone}`} aria-hidden="true"><i ref=${bar}></i></span>${count(used)} of ${count(of)}`;
}

const SPANS = [
  ['hour', 60 * 60, 60],
  ['day', 24 * 60 * 60, 15 * 60],
  ['week', 7 * 24 * 60 * 60, 2 * 60 * 60],
];

// The chart is loaded when the first one is shown.
let charts = null;

function loadCharts() {
  charts ??= new Promise((resolve, reject) => {
    const web = new URL('.', import.meta.url).href;
    const style = document.createElement('link');
    style.rel = 'stylesheet';
    style.href = `${web}vendor/uplot.css`;
    import('./chart.js').then((chart) => { document.head.append(style); resolve(chart); }, reject);
  });
  return charts;
}

export function Usage({ path, name }) {
  const [which, setWhich] = useState('hour');
  const [, length, step] = SPANS.find(([id]) => id === which);
  const [from] = useFrom(length);
  const { data, error } = useData(`${path}${path.includes('?') ? '&' : '?'}by=minute&from=${from}`, 30_000);
  const box = useRef(null);
  useEffect(() => {
    if (!data) return undefined;
    let drop = () => {};
    let gone = false;
    loadCharts().then(({ draw }) => {
      if (!gone) drop = draw(box.current, series(data.usage, length, step), colorOf(name), isDark());
    });
    return () => { gone = true; drop(); };
  }, [data, which]);
  const calls = data?.usage.reduce((sum, it) => sum + it.calls, 0) ?? 0;
  const failed = data?.usage.reduce((sum, it) => sum + it.errors, 0) ?? 0;
  return html`<div class="usage">
    <div class="bar"><div role="group" aria-label="time">${SPANS.map(([id]) => html`
      <button key=${id} class="chip" aria-pressed=${which === id} onClick=${() => setWhich(id)}>${id}</button>${' '}`)}</div>
      <span class="hint">${count(calls)} calls, ${count(failed)} failed</span></div>
    <${Problem} error=${error} />
    <div class="chart" ref=${box} role="img" aria-label=${`${calls} calls in the last ${which}, ${failed} of them failed`}></div>
  </div>`;
}

function useFrom(length) {
  const minute = Math.floor(Date.now() / 60_000) * 60_000;
  return [new Date(minute - length * 1000).toISOString()];
}

// Sums usage into steps, so that a chart has some hundred bars.
function series(usage, length, step) {
  const now = Math.floor(Date.now() / 1000);
  const first = Math.ceil((now - length) / step) * step;
  const times = [];
  for (let at = first; at <= now; at += step) times.push(at);
  const calls = times.map(() => null);
  const failed = times.map(() => null);
  for (const row of usage) {
    const at = Math.floor((Date.parse(row.minute) / 1000 - first) / step);
    if (at < 0 || at >= times.length) continue;
    calls[at] += row.calls;
    if (row.errors) failed[at] += row.errors;
  }
  return [times, calls, failed];
}
