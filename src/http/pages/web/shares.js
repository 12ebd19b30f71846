// Who is due what of each server, and who has had what.

import { html, useEffect, useRef } from './vendor/preact-htm.js';
import { colorOf, span } from './api.js';
import { Problem, useData } from './shell.js';
import { Tenant } from './trunk.js';

const WINDOWS = [['used_1m', '1 min', 60], ['used_5m', '5 min', 300], ['used_1h', '60 min', 3600]];

export function Shares({ live }) {
  const { data, error } = useData('/admin/v1/shares', 3000);
  if (!data) return html`<${Problem} error=${error} />`;
  const servers = new Map();
  for (const share of data.shares) {
    servers.set(share.server, [...(servers.get(share.server) ?? []), share]);
  }
  if (servers.size === 0) return html`<p class="empty">No call has held a slot in the last hour.</p>`;
  return html`<div>${[...servers].map(([id, shares]) => html`<${One} key=${id} id=${id} shares=${shares} live=${live} />`)}
    <p class="key">A share is the part of the time that a tenant's calls held slots, looked at once a second.
      Due is the part that its weight gives it among those that used the server in the same time. Owed: it waits now, and has had less than is due.</p></div>`;
}

function One({ id, shares, live }) {
  const waits = new Set((live.server(id)?.line ?? []).map((waiter) => waiter[0]));
  const part = (share, field) => {
    const active = shares.filter((it) => it[field] > 0 || it === share);
    const used = active.reduce((sum, it) => sum + it[field], 0);
    const weights = active.reduce((sum, it) => sum + (it.weight ?? 0), 0);
    return { used: used ? share[field] / used : 0, due: weights ? (share.weight ?? 0) / weights : 0 };
  };
  const sorted = [...shares].sort((a, b) => b.used_1h - a.used_1h);
  return html`<section class="card" aria-label=${id}><h2>${id}</h2>
    <table><thead><tr><th>tenant</th><th class="n">weight</th>${WINDOWS.map(([field, name]) => html`<th key=${field}>${name}</th>`)}<th>now</th></tr></thead>
    <tbody>${sorted.slice(0, 100).map((share) => {
      const minute = part(share, 'used_1m');
      const owed = waits.has(share.tenant) && minute.used < minute.due;
      return html`<tr key=${share.tenant}><td><${Tenant} name=${share.tenant} /></td><td class="n">${share.weight ?? 'gone'}</td>
        ${WINDOWS.map(([field]) => html`<td key=${field}><${Part} ...${part(share, field)} seconds=${share[field]} tenant=${share.tenant} /></td>`)}
        <td>${owed ? html`<b class="warn-text">owed</b>` : waits.has(share.tenant) ? 'waits' : ''}</td></tr>`;
    })}</tbody></table></section>`;
}

function Part({ used, due, seconds, tenant }) {
  const bar = useRef(null);
  const mark = useRef(null);
  useEffect(() => {
    bar.current.style.width = `${used * 100}%`;
    bar.current.style.background = colorOf(tenant);
    mark.current.style.left = `${due * 100}%`;
  });
  const text = `${Math.round(used * 100)} %, due ${Math.round(due * 100)} %`;
  return html`<span class="share" title=${`${span(seconds * 1000)} of slots`}><i ref=${bar}></i><b ref=${mark}></b></span><small>${text}</small>`;
}
